"""What a rule holds outlives the agent: the timing that a new process goes on from."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.agent.rule_memory import FACT, RuleMemory, rule_digest
from nodes.journal import Journal
from policies.rule_restart import restarted_timing, timing_from, timing_kept
from policies.rules import RuleState, start_rule, step_rule
from policies.section import parse_section
from policies.section.models import Cooldown

COOLDOWN = Cooldown(base_s=120, backoff=2, max_s=960, window_s=3600)
EXIT_S = 60.0
RULE = '[[rule]]\nid = "x"\nmatch = { name = "x" }\npause_fleet = true\n'


def restarted(state: RuleState, now_s: float, *, same_boot: bool = True) -> RuleState:
    return restarted_timing(
        timing_from(json.loads(json.dumps(timing_kept(state)))), now_s, COOLDOWN, same_boot=same_boot
    )


def held_until(state: RuleState, now_s: float) -> float:
    """The first second at which nothing is held any more, the program staying away."""
    for at_s in range(math.ceil(now_s), math.ceil(now_s) + 5000):
        state, _ = step_rule(state, False, float(at_s), 0.0, EXIT_S, COOLDOWN)
        if not state.holds:
            return float(at_s)
    raise AssertionError("held for ever")


def cooling() -> RuleState:
    """Cleared at 1060: work waits until 1180."""
    state, _ = start_rule(True, 0.0)
    state, _ = step_rule(state, False, 1000.0, 0.0, EXIT_S, COOLDOWN)
    state, _ = step_rule(state, False, 1060.0, 0.0, EXIT_S, COOLDOWN)
    assert (state.active, state.resume_at_s) == (False, 1180.0)
    return state


def test_a_cooldown_ends_when_it_would_have_ended() -> None:
    assert held_until(restarted(cooling(), 1070.0), 1070.0) == 1180.0


def test_a_cooldown_that_ended_while_no_agent_ran_is_over_and_said_so() -> None:
    state, events = step_rule(restarted(cooling(), 2000.0), False, 2000.0, 0.0, EXIT_S, COOLDOWN)
    assert not state.holds
    assert [event.code for event in events] == ["PROTECTION_RESUME"]


def test_a_rule_whose_program_went_while_no_agent_ran_is_left_after_its_time_from_the_first_look() -> None:
    state, _ = start_rule(True, 0.0)
    assert held_until(restarted(state, 500.0), 500.0) == 500.0 + EXIT_S + COOLDOWN.base_s


def test_activations_before_the_restart_lengthen_the_wait_after_it() -> None:
    state, _ = step_rule(restarted(cooling(), 1070.0), True, 1070.0, 0.0, EXIT_S, COOLDOWN)
    assert state.active, "a program that runs already is protected at once"
    assert held_until(state, 1100.0) == 1100.0 + EXIT_S + 2 * COOLDOWN.base_s


def test_after_a_reboot_what_was_held_waits_its_whole_time_anew() -> None:
    assert held_until(restarted(cooling(), 5.0, same_boot=False), 5.0) == 5.0 + EXIT_S + COOLDOWN.base_s
    over, _ = step_rule(cooling(), False, 1200.0, 0.0, EXIT_S, COOLDOWN)
    assert not restarted(over, 5.0, same_boot=False).holds


def test_after_a_reboot_activations_of_a_rule_that_held_nothing_lengthen_no_wait() -> None:
    many = replace(cooling(), active=False, resume_at_s=None, activations=(100.0, 400.0, 700.0, 1000.0, 1300.0))
    state, _ = step_rule(restarted(many, 5.0, same_boot=False), True, 60.0, 0.0, EXIT_S, COOLDOWN)
    assert held_until(state, 90.0) == 90.0 + EXIT_S + COOLDOWN.base_s


@given(
    st.booleans(),
    st.lists(st.floats(0, 1e9), max_size=5),
    st.none() | st.floats(0, 1e9),
    st.booleans(),
    st.floats(0, 1e6),
)
def test_what_was_held_is_held_by_the_next_process_and_never_longer_than_a_rule_may(
    active: bool, activations: list[float], resume_at_s: float | None, same_boot: bool, now_s: float
) -> None:
    kept = RuleState(active=active, activations=tuple(activations), resume_at_s=resume_at_s)
    state = restarted(kept, now_s, same_boot=same_boot)
    assert state.holds == kept.holds
    if state.holds:
        assert held_until(state, now_s) <= now_s + EXIT_S + COOLDOWN.max_s + 2


# -- in the journal -----------------------------------------------------------------------------------------------------


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.sqlite")


def test_it_is_of_that_very_rule_and_handed_out_once(journal: Journal) -> None:
    rule = parse_section(RULE).rules[0]
    digest, on_gpu = rule_digest(rule, "cpu"), rule_digest(rule, "gpu")
    RuleMemory(journal).keep([("x", digest, cooling())])
    assert RuleMemory(journal).take("x", on_gpu, 1070.0, COOLDOWN) is None
    assert RuleMemory(journal).take("y", digest, 1070.0, COOLDOWN) is None
    memory = RuleMemory(journal)
    found = memory.take("x", digest, 1070.0, COOLDOWN)
    assert found is not None
    assert found.resume_at_s == 1180.0
    assert memory.take("x", digest, 1070.0, COOLDOWN) is None


def test_it_is_written_when_something_happened_and_not_each_tick(journal: Journal) -> None:
    memory, state = RuleMemory(journal), cooling()
    memory.keep([("x", "d", state)])
    before = journal.db.total_changes
    for now_s in range(1062, 1100, 2):
        state, _ = step_rule(state, False, float(now_s), 0.0, EXIT_S, COOLDOWN)
        memory.keep([("x", "d", state)])
    assert journal.db.total_changes == before
    state, _ = step_rule(state, False, 1180.0, 0.0, EXIT_S, COOLDOWN)
    memory.keep([("x", "d", state)])
    assert journal.db.total_changes == before + 1


@pytest.mark.parametrize(
    "left",
    [
        [],
        {"boot_id": "b"},
        {"boot_id": "b", "timing": 7},
        {"boot_id": "b", "timing": {"x": 7}},
        {"boot_id": "b", "timing": {"x": {"digest": "d", "active": False, "activations": [], "resume_at_s": "soon"}}},
        {"boot_id": "b", "timing": {"x": {"digest": "d", "active": 0, "activations": [], "resume_at_s": None}}},
        {"boot_id": "b", "timing": {"x": {"digest": "d", "active": False, "activations": 7, "resume_at_s": None}}},
    ],
)
def test_what_cannot_be_read_counts_as_held(journal: Journal, left: Any) -> None:
    journal.set_fact(FACT, left)
    found = RuleMemory(journal).take("x", "d", 50.0, COOLDOWN)
    assert found is not None
    assert found.active


def test_what_is_no_time_counts_as_held(journal: Journal) -> None:
    row = {"digest": "d", "active": False, "activations": [], "resume_at_s": math.nan}
    journal.set_fact(FACT, {"boot_id": "b", "timing": {"x": row}})
    found = RuleMemory(journal).take("x", "d", 50.0, COOLDOWN)
    assert found is not None
    assert found.active


def test_a_first_start_has_nothing_to_go_on_from(journal: Journal) -> None:
    assert RuleMemory(journal).take("x", "d", 50.0, COOLDOWN) is None
