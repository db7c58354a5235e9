"""What a run keeps of the program between two looks at it: no death in ON or its washout is lost, and none after that is told."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nodes.agent.aftermath import Aftermath
from nodes.agent.left import Left
from nodes.agent.runs import ActiveRun, Runs
from nodes.identity import identify, own_id
from policies.harness.rows import BlockRow
from policies.harness.schedule import coin
from policies.harness.spec import RunSpec
from tests.node.test_runs_left_open import left, runs

__all__ = ["runs"]


def a_program() -> tuple[subprocess.Popen[bytes], tuple[int, int]]:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    who = identify(child.pid)
    assert who is not None
    return child, (who.pid, who.start_ticks)


def ended(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.communicate()


@pytest.mark.parametrize("arm", ["on", "off"])
@pytest.mark.parametrize("next_is", ["a resume", "an end", "a new agent"])
def test_a_program_that_died_with_the_agent_in_a_block_is_no_mere_cut(runs: Runs, arm: Any, next_is: str) -> None:
    left(runs, begun={"number": 1, "order": coin(7, 1)})
    child, root = a_program()
    runs.note_left("r", Left.now(frozenset({root}), arm, 60.0))
    ended(child)
    if next_is == "a resume":
        runs.close_started_blocks("r")
    elif next_is == "an end":
        runs.end("r", "interrupted", None, None)
    else:
        runs.end_with_harm("r")
    (row,) = runs.blocks("r")
    assert (row.state, row.reason, row.reason_arm) == ("left_out", "program_died", arm)
    shown = runs.end("r", "interrupted", None, None)["ending"]
    assert shown == ("harm_suspected" if arm == "on" else "interrupted")
    assert len(runs.blocks("r")) == 1, "it is told once"


def test_a_block_that_was_cut_while_the_program_lives_is_cut(runs: Runs) -> None:
    left(runs, begun={"number": 1, "order": coin(7, 1)})
    child, root = a_program()
    runs.note_left("r", Left.now(frozenset({root}), "on", 60.0))
    assert runs.end("r", "interrupted", None, None)["ending"] == "interrupted"
    assert [row.reason for row in runs.blocks("r")] == ["cut"]
    ended(child)


@pytest.mark.parametrize(("arm", "ending"), [("on", "harm_suspected"), ("off", "no slowdown shown")], ids=["ON", "OFF"])
def test_a_death_after_the_last_window_is_the_runs_ending_where_that_was_on(runs: Runs, arm: Any, ending: str) -> None:
    record = left(runs)
    child, root = a_program()
    runs.active = ActiveRun("r", RunSpec.model_validate(record["spec"]), own_id())
    runs.note_left("r", Left.now(frozenset({root}), arm, 60.0))
    ended(child)
    assert runs.end("r", "no slowdown shown", None, {})["ending"] == ending


def test_whoever_goes_on_with_a_run_knows_the_program_that_its_last_block_left(runs: Runs) -> None:
    record = left(runs, section_digest="d", agent_version="1", work=[])
    child, root = a_program()
    runs.note_left("r", Left.now(frozenset({root}), "on", 60.0))
    facts = {"section_digest": "d", "agent_version": "1", "work": []}
    runs.begin("r", RunSpec.model_validate(record["spec"]), own_id(), facts)
    assert runs.active is not None
    assert runs.active.left == Left.now(frozenset({root}), "on", 60.0)
    ended(child)


def test_a_reboot_is_no_death_of_the_program(runs: Runs) -> None:
    left(runs, begun={"number": 1, "order": coin(7, 1)})
    runs.note_left("r", Left(frozenset({(1, 1)}), "on", "another boot", 60.0))
    assert runs.end("r", "interrupted", None, None)["ending"] == "interrupted"


# -- until when a death speaks ------------------------------------------------------------------------------------------


def aftermath(runs: Runs, *, held: bool = True) -> Any:
    agent = SimpleNamespace(runs=runs, unsettled=set(), under_test=SimpleNamespace(held=lambda run: held))
    return SimpleNamespace(agent=agent, step=Aftermath(cast(Any, agent)).step)


def driven(runs: Runs) -> ActiveRun:
    runs.active = ActiveRun("r", RunSpec.model_validate(left(runs)["spec"]), own_id())
    return runs.active


@pytest.mark.parametrize("ends_first", [False, True])
def test_what_a_program_does_after_the_washout_speaks_against_nobody(runs: Runs, ends_first: bool) -> None:
    active = driven(runs)
    child, root = a_program()
    runs.note_left("r", Left.now(frozenset({root}), "on", 60.0))
    if ends_first:
        runs.end("r", "no slowdown shown", None, {})
    after = aftermath(runs)
    after.step(100.0)
    after.step(159.0)
    assert Left.of(runs.record("r")["left"]) is not None
    assert runs.lefts
    after.step(160.0)
    assert runs.record("r")["left"] is None
    assert not runs.lefts
    assert ends_first or active.left is None
    ended(child)
    after.step(162.0)
    assert runs.end("r", "no slowdown shown", None, {})["ending"] == "no slowdown shown"


@pytest.mark.parametrize("why", ["not held", "in its arms"])
def test_the_washout_runs_only_while_the_work_is_seen_held_between_blocks(runs: Runs, why: str) -> None:
    active = driven(runs)
    child, root = a_program()
    runs.note_left("r", Left.now(frozenset({root}), "on", 60.0))
    active.in_arms = why == "in its arms"
    after = aftermath(runs, held=why != "not held")
    for now_s in (100.0, 200.0, 900.0):
        after.step(now_s)
    assert Left.of(runs.record("r")["left"]) is not None
    ended(child)


def test_a_death_in_the_washout_of_a_run_whose_process_went_away_is_its_ending(runs: Runs) -> None:
    driven(runs)
    child, root = a_program()
    runs.note_left("r", Left.now(frozenset({root}), "on", 60.0))
    runs.active = None
    after = aftermath(runs)
    after.step(100.0)
    assert after.agent.unsettled == set()
    ended(child)
    after.step(102.0)
    assert after.agent.unsettled == {"r"}
    shown = runs.end_with_harm("r")
    assert shown is not None
    assert shown["ending"] == "harm_suspected"
    after.step(200.0)


def test_a_death_that_a_block_saw_is_in_the_record_until_its_row_is(runs: Runs) -> None:
    """An agent that is killed between the two tells it again rather than not at all."""
    driven(runs)
    child, root = a_program()
    runs.note_left("r", Left.now(frozenset({root}), "on", 60.0))
    ended(child)
    runs.note_left("r", Left.now(frozenset(), "on", 60.0), keep=False)
    again = Runs(runs.journal)
    shown = again.end_with_harm("r")
    assert shown is not None
    assert shown["ending"] == "harm_suspected"


def test_a_washout_that_is_over_stays_over_though_the_disk_was_full_or_a_row_not_kept(runs: Runs) -> None:
    active = driven(runs)
    child, root = a_program()
    runs.note_left("r", Left.now(frozenset({root}), "on", 60.0))
    runs.unkept["r"] = BlockRow(run="r", number=1, order="on_first", state="cut", reason="cut")
    after = aftermath(runs)
    after.step(100.0)
    after.step(160.0)
    assert active.left is None, "here it is known"
    assert Left.of(runs.record("r")["left"]) is not None, "behind its row"
    ended(child)
    after.step(162.0)
    assert after.agent.unsettled == set()
    runs.unkept.clear()
    after.step(164.0)
    assert runs.record("r")["left"] is None


def test_a_run_that_nobody_drives_any_more_ends_as_the_death_that_its_record_holds(runs: Runs) -> None:
    left(runs)
    child, root = a_program()
    runs.note_left("r", Left.now(frozenset({root}), "on", 60.0))
    ended(child)
    assert runs.end("r", "interrupted", None, None)["ending"] == "harm_suspected"


def test_a_run_that_was_let_go_in_its_block_is_left_to_the_block(runs: Runs) -> None:
    driven(runs)
    child, root = a_program()
    runs.note_left("r", Left.now(frozenset({root}), "on", 60.0))
    runs.active, runs.cut = None, {"r"}
    ended(child)
    after = aftermath(runs)
    after.step(100.0)
    assert after.agent.unsettled == set()
    runs.cut.clear()
    after.step(102.0)
    assert after.agent.unsettled == {"r"}


def test_a_run_that_has_ended_gets_no_row_of_what_came_after_it(runs: Runs) -> None:
    driven(runs)
    child, root = a_program()
    runs.note_left("r", Left.now(frozenset({root}), "on", 60.0))
    assert runs.end("r", "no slowdown shown", None, {})["ending"] == "no slowdown shown"
    ended(child)
    assert runs.end("r", "no slowdown shown", None, {})["ending"] == "no slowdown shown", "its flow asks once more"
    assert runs.blocks("r") == []
