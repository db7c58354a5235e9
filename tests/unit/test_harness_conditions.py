"""What leaves a block out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.harness.conditions import Conditions, disturbances

CALM = Conditions(frozenset({(100, 5)}), (), 0, 3.0, "mains", False, False, None)


def first(now: Conditions, before: Conditions = CALM) -> str | None:
    found = disturbances(before, now)
    return found[0][0] if found else None


def test_an_undisturbed_block_stays() -> None:
    assert disturbances(CALM, CALM) == ()


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (replace(CALM, program=frozenset()), "program_died"),
        (replace(CALM, program=frozenset({(100, 6)})), "program_died"),  # the same pid, another process
        (replace(CALM, program=CALM.program | {(200, 9)}), "program_restarted"),
        (replace(CALM, memory_hard=True), "memory_guard"),
        (replace(CALM, source_why="gone"), "source_unreadable"),
        (replace(CALM, phases_on=("uploading",)), "phase"),
        (replace(CALM, phases_begun=1), "phase"),
        (replace(CALM, power="battery"), "power_source"),
        (replace(CALM, owner_pause=True), "owner_pause"),
    ],
)
def test_each_disturbance_has_its_reason(now: Conditions, reason: str) -> None:
    assert first(now) == reason


def test_case_118_a_suspend_within_a_window_leaves_the_block_out() -> None:
    assert first(replace(CALM, asleep_s=CALM.asleep_s + 7200)) == "suspend"
    assert first(replace(CALM, asleep_s=CALM.asleep_s + 0.5)) is None


def test_an_unknown_power_source_is_no_change() -> None:
    assert first(replace(CALM, power=None)) is None
    assert first(CALM, before=replace(CALM, power=None)) is None


def test_a_death_beside_a_dead_source_is_told_first_and_both_are_kept() -> None:
    found = disturbances(CALM, replace(CALM, program=frozenset(), source_why="gone"))
    assert [reason for reason, _ in found] == ["program_died", "source_unreadable"]
