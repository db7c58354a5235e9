"""Runs whose flow never came back: after a day they end, and harm that their windows showed is not forgotten."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodes.agent import active_run
from nodes.agent import runs as module
from nodes.agent.runs import ActiveRun, Runs
from nodes.clock import monotonic_s
from nodes.identity import own_id
from nodes.journal import Journal
from policies.harness.rows import BlockRow
from policies.harness.schedule import coin
from policies.harness.spec import RunSpec
from policies.refusal import Refused
from tests.node.agent_rig import disk_full

LONG_AGO = "2026-01-01T00:00:00+00:00"


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    journal = Journal(tmp_path / "journal.sqlite")
    yield Runs(journal)
    journal.close()


def left(runs: Runs, **facts: Any) -> dict[str, Any]:
    """A run that was begun long ago and is open; one block of it is journaled."""
    spec = RunSpec(node="n", rule="trainer", seed=7)
    record = {"run": "r", "spec": spec.model_dump(), "state": "open", "ending": None, "reason": None, "looks": [],
              "started_at": LONG_AGO, "driven_at": LONG_AGO, "ended_at": None}  # fmt: skip
    runs.journal.put_run("r", record | facts)
    return record


def block(runs: Runs, **facts: Any) -> None:
    row = {"run": "r", "number": 1, "order": coin(7, 1), "state": "left_out", **facts}
    runs.journal.put_block("r", 1, row)


def test_a_run_that_showed_nothing_ends_interrupted(runs: Runs) -> None:
    left(runs)
    block(runs, reason="phase")
    assert runs.interrupt_stale() == ["r"]
    assert runs.record("r")["ending"] == "interrupted"
    assert runs.interrupt_stale() == []


@pytest.mark.parametrize(
    ("row", "ending"),
    [
        ({"collapse": "no event for 60 s"}, "slowdown"),
        ({"reason": "program_died", "reason_arm": "on"}, "harm_suspected"),
    ],
    ids=["collapse", "death"],
)
def test_harm_that_its_windows_showed_is_its_ending(runs: Runs, row: dict[str, Any], ending: str) -> None:
    left(runs)
    block(runs, **row)
    runs.interrupt_stale()
    found = runs.record("r")
    assert found["ending"] == ending
    assert "no process has driven it for a day" in found["reason"]


def test_a_look_that_showed_a_slowdown_is_its_ending(runs: Runs) -> None:
    left(runs, looks=[{"n": 8, "verdict": "slowdown"}])
    runs.interrupt_stale()
    assert runs.record("r")["ending"] == "slowdown"


def test_a_record_that_cannot_be_understood_ends_all_the_same(runs: Runs) -> None:
    left(runs, spec={"node": "n", "rule": "trainer", "of": "another version"})
    runs.interrupt_stale()
    assert runs.record("r")["ending"] == "interrupted"


SLOWER = {"n": 8, "verdict": "slowdown"}
COLLAPSED = {"collapse": "no event for 60 s"}


@pytest.mark.parametrize(
    "look",
    [
        {},
        {"n": "twelve", "verdict": "inconclusive"},
        {"n": 12},
        "no look",
        None,
        {"n": 12, "verdict": "no slowdown shown"},
    ],
    ids=["empty", "n is no number", "no verdict", "text", "nothing", "a pass"],
)
@pytest.mark.parametrize("shown", ["by a look", "by a block"])
def test_a_malformed_look_hides_no_harm_that_came_before_it(runs: Runs, look: Any, shown: str) -> None:
    if shown == "by a block":
        block(runs, **COLLAPSED)
    left(runs, looks=[SLOWER, look] if shown == "by a look" else [look])
    assert runs.end("r", "aborted", None, None)["ending"] == "slowdown"


@pytest.mark.parametrize(
    "text",
    ["no JSON", "[]", "{}", '{"run": "r", "number": 2, "order": "sideways", "state": "counted"}'],
    ids=["no JSON", "no object", "empty", "no order"],
)
def test_a_block_that_cannot_be_understood_hides_no_harm_and_keeps_no_run_open(runs: Runs, text: str) -> None:
    left(runs, begun={"number": 3, "order": coin(7, 3)})
    block(runs, **COLLAPSED)
    runs.journal.db.execute("INSERT INTO blocks (run, number, row) VALUES ('r', 2, ?)", (text,))
    assert runs.next_number("r") == 3
    assert runs.interrupt_stale() == ["r"]
    assert runs.record("r")["ending"] == "slowdown"
    assert [row["number"] for row in runs.record("r")["blocks"]][-1] == 3, "what was begun after it was cut"


@pytest.mark.parametrize(
    "facts",
    [
        {"on": "damaged", "collapse": "no event for 60 s", "state": "left_out"},
        {"on": {"rate": "fast"}, "reason": "program_died", "reason_arm": "on", "state": "left_out"},
        {"reason": "phase", "extra": {"also": [{"arm": "on"}, None, {"reason": "program_died", "arm": "on"}]}},
        {"reason": "program_died", "reason_arm": "on", "extra": {"also": "nothing"}},
    ],
    ids=["collapse", "death", "death beside it", "what else came"],
)
def test_a_block_shows_its_harm_though_a_part_of_it_is_malformed(runs: Runs, facts: dict[str, Any]) -> None:
    left(runs)
    block(runs, **facts)
    assert runs.end("r", "aborted", None, None)["ending"] in ("slowdown", "harm_suspected")


@pytest.mark.parametrize("ending", ["aborted", "interrupted", "refused"])
def test_whoever_ends_a_run_that_showed_harm_it_ends_as_that(runs: Runs, ending: str) -> None:
    """A polite end between the journaled look and the flow's own: the owner's cancel, or a step that failed."""
    left(runs, looks=[{"n": 8, "verdict": "slowdown"}])
    record = runs.end("r", ending, "the flow run was cancelled", None)
    assert record["ending"] == "slowdown"
    assert f"it was ended as {ending} (the flow run was cancelled)" in record["reason"]
    assert runs.end("r", "aborted", None, None)["ending"] == "slowdown"


def test_a_run_whose_end_cannot_be_kept_is_not_let_go(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    record = left(runs)
    runs.active = active = ActiveRun("r", RunSpec.model_validate(record["spec"]), own_id())
    with monkeypatch.context() as full:
        full.setattr(runs.journal, "put_run", disk_full)
        with pytest.raises(sqlite3.OperationalError):
            runs.end("r", "slowdown", None, None)
    assert active.ending == "slowdown"
    assert runs.active is active
    assert runs.end("r", "slowdown", None, None)["ending"] == "slowdown"
    assert runs.active is None


def test_no_run_ends_without_a_block_that_could_not_be_kept_yet(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    record = left(runs)
    runs.active = ActiveRun("r", RunSpec.model_validate(record["spec"]), own_id(), measuring=1)
    died = BlockRow(run="r", number=1, order=coin(7, 1), state="left_out", reason="program_died", reason_arm="on")
    with monkeypatch.context() as full:
        full.setattr(runs.journal, "put_block", disk_full)
        with pytest.raises(sqlite3.OperationalError):
            runs.keep_block(died)
        with pytest.raises(sqlite3.OperationalError):
            runs.end("r", "aborted", None, None)
    assert runs.end("r", "aborted", None, None)["ending"] == "harm_suspected"


def test_a_run_whose_block_is_being_measured_says_which(runs: Runs) -> None:
    """Its process asks again where it waited too long for the answer, and then joins that block."""
    record = left(runs)
    spec = RunSpec.model_validate(record["spec"])
    runs.active = ActiveRun("r", spec, own_id(), measuring=4)
    with pytest.raises(Refused) as refused:
        runs.begin("r", spec, own_id(), {})
    assert (refused.value.code, refused.value.data) == ("RUN_LOCKED", {"block": 4})


def test_whoever_goes_on_with_a_run_keeps_the_block_that_could_not_be_kept_yet(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its flow was killed while the disk was full: the harm that it saw is no block that was cut."""
    left(runs, begun={"number": 1, "order": coin(7, 1)})
    died = BlockRow(run="r", number=1, order=coin(7, 1), state="left_out", reason="program_died", reason_arm="on")
    with monkeypatch.context() as full:
        full.setattr(runs.journal, "put_block", disk_full)
        with pytest.raises(sqlite3.OperationalError):
            runs.keep_block(died)
    runs.close_started_blocks("r")
    assert [row.reason for row in runs.blocks("r")] == ["program_died"]
    assert runs.unkept == {}


def test_a_run_whose_process_lives_and_asks_for_nothing_is_let_go_and_begun_again_when_it_asks(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flow that hangs: all device work of the node, and the owner's next section, would wait with it for ever."""
    record = left(runs)
    spec, start_s = RunSpec.model_validate(record["spec"]), monotonic_s()
    runs.active = active = ActiveRun("r", spec, own_id())

    def after(passed_s: float) -> ActiveRun | None:
        monkeypatch.setattr(active_run, "monotonic_s", lambda: start_s + passed_s)
        return runs.release_if_gone()

    assert after(module.IDLE_AT_MOST_S - 10.0) is None
    runs.need_active("r")  # it asked
    active.measuring = 1
    assert after(5 * module.IDLE_AT_MOST_S) is None, "a block may take as long as it takes"
    active.measuring, active.asked_s = None, start_s + 5 * module.IDLE_AT_MOST_S
    active.now.part = "reference"
    assert after(7 * module.IDLE_AT_MOST_S) is None
    active.now.part = "idle"
    assert after(7 * module.IDLE_AT_MOST_S) is active
    assert runs.active is None
    assert [entry["code"] for entry in runs.journal.entries()] == ["RUN_HOLDER_IDLE", "RUN_RELEASED"]
    with pytest.raises(Refused) as refused:
        runs.need_active("r")
    assert refused.value.code == "RUN_NOT_HELD", "which its process begins again after"
    assert runs.record("r")["state"] == "open"


def test_a_sweep_whose_process_lives_and_measures_nothing_keeps_no_node(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_s, record = monotonic_s(), left(runs)
    runs.reserve("s", own_id())

    def after(passed_s: float) -> bool:
        monkeypatch.setattr(active_run, "monotonic_s", lambda: start_s + passed_s)
        runs.release_if_gone()
        return runs.reserved is not None

    assert after(module.IDLE_AT_MOST_S - 10.0)
    runs.active = ActiveRun("r", RunSpec.model_validate(record["spec"]), own_id(), measuring=1)
    assert after(9 * module.IDLE_AT_MOST_S), "a level may take all night"
    runs.active = None
    assert after(10 * module.IDLE_AT_MOST_S - 10.0)
    assert not after(10 * module.IDLE_AT_MOST_S + 1.0)
    runs.reserve("s", own_id())
    assert after(10 * module.IDLE_AT_MOST_S + 2.0), "it is kept again when its next level asks"


def test_a_block_that_a_full_disk_did_not_take_outlives_the_agent(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent is killed before there is room: the next one finds what the block showed in the room that was taken for it."""
    left(runs)
    runs.note_started("r", 1, coin(7, 1))
    died = BlockRow(run="r", number=1, order=coin(7, 1), state="left_out", reason="program_died", reason_arm="on")
    with monkeypatch.context() as full:
        full.setattr(runs.journal, "put_block", disk_full)
        with pytest.raises(sqlite3.OperationalError):
            runs.keep_block(died)
    next_agents = Runs(runs.journal)
    assert next_agents.unkept == {"r": died}
    with monkeypatch.context() as full:
        full.setattr(runs.journal, "put_block", disk_full)
        with pytest.raises(sqlite3.OperationalError):
            next_agents.note_started("other", 1, coin(7, 1))  # no other block takes its room
    assert Runs(runs.journal).unkept == {"r": died}
    assert next_agents.end("r", "aborted", None, None)["ending"] == "harm_suspected"
    assert Runs(runs.journal).unkept == {}


def test_what_a_block_left_in_its_reserve_is_whole_or_nothing(runs: Runs) -> None:
    left(runs)
    cut = BlockRow(run="r", number=1, order=coin(7, 1), state="cut")
    runs.room.take()
    assert runs.room.row() is None
    assert runs.room.put(cut)
    assert runs.room.row() == cut
    size = runs.room.path.stat().st_size
    with runs.room.path.open("r+b") as file:
        file.seek(70)
        file.write(b"torn")
    assert runs.room.row() is None
    assert runs.room.put(cut)
    assert runs.room.path.stat().st_size == size, "written over, and no longer"


@pytest.mark.parametrize(
    "damage",
    [
        '{"spec": null}',
        "{",
        "[1]",
        "{}",
        '{"driven_at": "yesterday"}',
        '{"driven_at": "2026-01-01T00:00:00"}',
        '{"looks": 5, "begun": [1], "left": "x", "blocks": 7}',
        '{"begun": {"number": "x"}, "spec": 7, "left": {"arm": "on"}}',
    ],
)
def test_one_whose_record_is_damaged_ends_too_and_the_others_with_it(runs: Runs, damage: str) -> None:
    left(runs)
    runs.journal.put_run("other", {**left(runs), "run": "other"})
    runs.journal.db.execute("UPDATE runs SET record = ? WHERE run = 'r'", (damage,))
    assert sorted(runs.interrupt_stale()) == ["other", "r"]
    ended = runs.record("r")
    assert (ended["state"], ended["ending"]) == ("ended", "interrupted")
    assert runs.left_open() == []


def test_harm_in_the_windows_of_a_damaged_record_is_its_ending(runs: Runs) -> None:
    left(runs)
    block(runs, collapse="no event for 60 s")
    runs.journal.db.execute("UPDATE runs SET record = '{}'")
    runs.interrupt_stale()
    assert runs.record("r")["ending"] == "slowdown"
