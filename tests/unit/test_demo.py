"""What the demo says and chooses before it measures."""

from __future__ import annotations

from pathlib import Path

from cotenant.demo import MARGIN, WHY_MARGIN, WINDOW_S, no_answer, section_text
from policies.harness.spec import RunSpec
from policies.section import parse_section


def test_its_margin_is_no_wider_than_its_own_section_so_its_plan_warns_of_nothing_that_nobody_chose() -> None:
    (rule,) = parse_section(section_text(Path("/home/ada/trainer/events.jsonl"))).rules
    assert rule.protect is not None
    assert rule.protect.max_slowdown is not None
    assert rule.protect.max_slowdown >= MARGIN


def test_it_says_in_one_line_why_its_margin_is_what_it_is_and_what_a_run_to_rely_on_has() -> None:
    usual = RunSpec(node="local", rule="trainer")
    assert "\n" not in WHY_MARGIN
    for words in ("demonstration", f"{WINDOW_S:g} s", f"{100 * MARGIN:g} %"):
        assert words in WHY_MARGIN
    assert WHY_MARGIN.endswith(f"windows of {usual.window_s:g} s and a margin of {100 * usual.margin:g} %")


def test_work_that_hardly_ran_is_worth_another_try_when_the_machine_is_less_busy() -> None:
    starved = no_answer({"run": "run-1", "ending": "no_dose", "reason": "3 blocks in a row in which it did not run"})
    assert (starved.code, starved.what) == ("DEMO_NO_ANSWER", "run run-1")
    assert "'no_dose' (3 blocks in a row in which it did not run)" in starved.why
    assert "less busy" in starved.remedy
    with_a_model = no_answer({"run": "run-1", "ending": "no_dose", "reason": None}, "cotenant demo --llm")
    assert with_a_model.remedy == "cotenant demo --llm, when the machine is less busy"
    aborted = no_answer({"run": "run-1", "ending": "aborted", "reason": None})
    assert ("()" in aborted.why, aborted.remedy) == (False, "cotenant demo")
