"""The words of plan and verdict, whole sentences as people read them."""

from __future__ import annotations

import math

import pytest
from harness_rows import block, spec

from policies.harness.likely_done import likely_done_words
from policies.harness.plan_text import (
    duration_words,
    left_words,
    longest_hours,
    more_words,
    most_words,
    plan_words,
    planned_blocks,
    planned_hours,
    refusal_words,
)
from policies.harness.schedule import End, NextBlock, longest_s, most_blocks, next_action
from policies.harness.verdict import Decision
from policies.statistics import decide
from tasks.words import progress_words


def decision(**facts) -> Decision:
    base = {
        "verdict": "inconclusive",
        "R": 0.994,
        "lo": 0.986,
        "hi": 1.003,
        "n": 8,
        "more_blocks": None,
        "margin": 0.02,
        "n_max": 40,
        "first_look": 8,
        "p": 0.011,
    }
    return Decision(**{**base, **facts})


def blocks_of(mu: float, s: float, n: int = 8) -> list[tuple[str, float, float]]:
    signs, errors = (1, 1, 1, 1, -1, -1, -1, -1), (1, -1, 1, -1, 1, -1, 1, -1)
    scale = s * math.sqrt(0.75)
    return [
        ("on_first" if signs[i % 8] > 0 else "off_first", math.exp(mu + scale * errors[i % 8]), 1.0) for i in range(n)
    ]


# --- how many more ------------------------------------------------------------------------------------------------


def undecided(**facts) -> str:
    look = decide(blocks_of(math.log(0.99), 0.03)).looks
    return more_words(decision(looks=look, s=0.03, **facts))


@pytest.mark.parametrize(
    ("k50", "k80", "words"),
    [
        (20, 36, "about 12 to 28 more blocks"),
        (20, 20, "about 12 more blocks"),
        (20, 60, "about 12 to 52 more blocks (52 is more than this run may use)"),
        (60, 80, "about 52 to 72 more blocks, more than this run may use"),
    ],
)
def test_about_so_many_to_so_many_more(k50, k80, words) -> None:
    assert undecided(k50=k50, k80=k80) == words


def test_without_a_k80_it_may_not_decide() -> None:
    assert undecided(k50=20, k80=None).startswith("at least 12 more blocks; may not decide")
    assert undecided(k50=60, k80=None).startswith("at least 52 more blocks, more than this run may use; may not decide")
    assert undecided(k50=None, k80=None).startswith("more than 392 more blocks")


def test_nothing_to_decide_and_no_look_yet() -> None:
    assert more_words(decision(verdict="slowdown")) == ""
    assert "first comes at 8" in more_words(decide(blocks_of(0.0, 0.01)[:5]))
    assert "same order" in more_words(decide([("on_first", 1.0 + 0.01 * (i % 3), 1.0) for i in range(8)]))


# --- refusal ------------------------------------------------------------------------------------------------------


def test_a_refusal_says_what_margin_or_hours_it_would_take() -> None:
    got = decide(blocks_of(0.0, 0.09))
    said = refusal_words(got, spec())
    assert got.refusal is not None
    assert got.refusal.n_max_needed is not None
    margin = float(said.split("a margin of ")[1].split(" %")[0]) / 100
    hours = float(said.split("--max-hours ")[1].split(" ")[0])
    # what it names does: at that margin, or with that many hours, the same blocks are not refused
    assert decide(blocks_of(0.0, 0.09), margin=margin).verdict != "refused"
    assert spec(max_hours=hours).n_max >= got.refusal.n_max_needed
    assert decide(blocks_of(0.0, 0.09), n_max=spec(max_hours=hours).n_max).verdict != "refused"


def test_hopeless_noise_is_told_no_hours() -> None:
    assert "--max-hours" not in refusal_words(decide(blocks_of(0.0, 0.4)), spec())
    with pytest.raises(ValueError, match="not refused"):
        refusal_words(decide(blocks_of(0.0, 0.01)), spec())


# --- the plan -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "planned"), [(12, 12), (1, 8), (10, 12), (99, 40)])
def test_planned_blocks_are_a_look(asked: int, planned: int) -> None:
    assert planned_blocks(spec(blocks=asked)) == planned


def test_hours() -> None:
    assert planned_hours(spec()) == pytest.approx(12 * 0.2 + 60 / 3600)
    assert 8.0 <= longest_hours(spec()) <= 8.5


def test_the_plan_in_words() -> None:
    assert plan_words(spec()) == (
        "12 blocks of two 300 s windows and two 60 s washouts, about 2.4 h; judged at 8, 12, 16, … 40 counted blocks, "
        "and done at the first look that decides. While undecided it goes on: at most 40 counted blocks, together 8.0 h of windows "
        "and washouts. What switching takes comes on top, and no block begins that would end after 8.3 h"
    )
    assert "judged once, after 12 blocks" in plan_words(spec(kind="null"))


@pytest.mark.parametrize("max_hours", [1.6, 2.1, 8.0, 39.5, 40.5, 100.0])
def test_the_hours_of_a_plan_are_those_that_were_asked_for_and_its_end_is_the_schedules(max_hours: float) -> None:
    asked = spec(max_hours=max_hours)
    said = most_words(asked)
    measured_h = most_blocks(asked) * asked.block_s / 3600.0
    assert f"{measured_h:.1f} h of windows" in said
    # No more are counted than the last look counts; what else fits, or repeats beyond the hours asked for, is said.
    assert f"at most {asked.looks[-1]} counted blocks" in said
    more = most_blocks(asked) - asked.looks[-1]
    assert (f"and {more} more only in the place of blocks left out" in said) == (more > 0)
    last = most_blocks(asked) - 1
    within = asked.reference_s + last * (asked.block_s + 30.0)
    assert isinstance(next_action(asked, [], {}, elapsed_s=within), NextBlock)
    assert isinstance(next_action(asked, [], {}, elapsed_s=longest_s(asked) - asked.block_s + 1.0), End)
    assert said.endswith(f"after {longest_s(asked) / 3600:.1f} h")


@pytest.mark.parametrize(("seconds", "words"), [(45, "45 s"), (720, "12 min"), (5400, "1.5 h"), (8640, "2.4 h")])
def test_durations(seconds: float, words: str) -> None:
    assert duration_words(seconds) == words


def test_likely_done_comes_after_block_four_and_again_after_the_first_look() -> None:
    quiet, noisy = blocks_of(math.log(0.985), 0.01), blocks_of(0.0, 0.06)
    assert likely_done_words(spec(), quiet[:3]) is None
    assert "likely done by block 8" in (likely_done_words(spec(), blocks_of(0.0, 0.004)[:4]) or "")
    assert "may not be decided within 40 blocks" in (likely_done_words(spec(), noisy[:4]) or "")
    assert "likely done by block 12" in (likely_done_words(spec(), quiet) or "")
    assert likely_done_words(spec(kind="null"), quiet) is None


def test_between_block_four_and_the_look_the_guess_stays() -> None:
    blocks = blocks_of(0.0, 0.02)
    guesses = [likely_done_words(spec(), blocks[:n]) for n in (4, 5, 6, 7)]
    assert len({(guess or "").split(",")[0] for guess in guesses}) == 1


def test_a_run_that_goes_on_says_when_it_is_likely_done_and_one_that_ended_does_not() -> None:
    rows = [block(number, on=10.0 + 0.04 * (-1) ** number) for number in range(1, 5)]
    record = {"spec": spec().model_dump(), "state": "open", "looks": [], "blocks": [row.model_dump() for row in rows]}
    said = progress_words(record)
    assert said.startswith("4 blocks counted of 12 planned, 0 left out; likely done by block 8, in about 48 min")
    assert "R so far" not in said, "nothing is said of R before the first look"
    assert said.endswith("; at most 36 more blocks, about 7.2 h")
    ended = progress_words(record | {"state": "ended"})
    assert "likely" not in ended
    assert "at most" not in ended


def test_what_is_left_at_most_is_the_blocks_to_the_last_look_the_one_under_way_among_them() -> None:
    assert left_words(spec(), 0, 0) == "at most 40 more blocks, about 8.0 h"
    assert left_words(spec(), 39, 0) == "at most 1 more block, about 12 min"
    assert left_words(spec(), 40, 0) == ""
    assert left_words(spec(), 10, 25) == "at most 5 more blocks, about 60 min", "no more than the hours hold"
    assert left_words(spec(kind="null"), 4, 0) == "at most 8 more blocks, about 1.6 h", (
        "judged once, at the planned number"
    )
