"""Jobs under the agent's hand: holds, releases, limits, timeouts, restarts, what is recorded."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from nodes.jobs import JobManager
from nodes.jobs.jobqueue import Note
from nodes.jobs.registry import Registry
from nodes.meters.cpu import CpuMeter
from policies.refusal import Refused
from tests.node.jobs_rig import Rig, carriers, cpu_ticks, foreign, state_of, wait_for

COOPERATIVE = ["cancellable", "cooperative_pause", "cooperative_throttle", "progress_events"]


def test_freeze_reaches_children_in_their_own_session(tmp_path: Path) -> None:
    rig = Rig.with_foreign(tmp_path, ["freeze_ok"])
    attempt = rig.start({"do": "work", "children": 3, "detached": 3})
    rig.until(lambda: attempt.state == "running" and len(rig.pids(attempt)) == 5)
    pids = rig.pids(attempt)
    rig.jobs.hold(attempt.attempt_id, "phase")
    rig.until(lambda: attempt.hold_confirmed)
    assert {state_of(pid) for pid in pids[1:]} == {"T"}
    before = cpu_ticks(pids[1:])
    rig.jobs.release(attempt.attempt_id)
    wait_for(lambda: cpu_ticks(pids[1:]) > before + 10)
    rig.close()
    assert {state_of(pid) for pid in pids[1:]} == {"gone"}
    wait_for(lambda: state_of(pids[0]) == "gone")  # the launcher ends after it reported


def test_what_can_neither_pause_nor_freeze_is_stopped_and_requeued(tmp_path: Path) -> None:
    rig = Rig.with_foreign(tmp_path, ["cancellable"])
    attempt = rig.start({"do": "work"})
    rig.until(lambda: attempt.state == "running")
    rig.jobs.hold(attempt.attempt_id, "phase")
    assert attempt.state == "stopping"
    rig.until(lambda: not rig.jobs.attempts())
    job = rig.jobs.job(attempt.job_id)
    assert (job.state, job.counted) == ("waiting", 0)
    with pytest.raises(Refused, match="neither pause nor be frozen"):
        rig.jobs.start(job.job, held=True)
    rig.close()


@pytest.mark.parametrize("capability", ["freeze_ok", "cooperative_pause"])
def test_an_attempt_started_held_does_no_work_until_released(tmp_path: Path, capability: str) -> None:
    rig = Rig.with_foreign(tmp_path, ["cancellable", capability])
    attempt = rig.start({"do": "work"}, held=True)
    assert attempt.state == "held"
    rig.until(lambda: attempt.hold_confirmed)
    if capability == "freeze_ok":
        assert rig.seen() == [], "stopped before its first instruction"
        assert state_of(attempt.runner_pid or 0) == "T"
    else:
        assert rig.seen()[0]["pause"] is True
        assert rig.seen()[0]["seq"] == 1
    assert attempt.transitions == []
    rig.jobs.release(attempt.attempt_id)
    rig.until(lambda: attempt.state == "running")
    before = cpu_ticks(rig.pids(attempt)[1:])
    rig.until(lambda: cpu_ticks(rig.pids(attempt)[1:]) > before + 10)
    rig.close()


def test_a_frozen_attempt_is_stopped_in_order(tmp_path: Path) -> None:
    """case 68/69: thaw, TERM, grace, KILL; the handler of a runner that we froze can run."""
    rig = Rig.with_foreign(tmp_path, ["freeze_ok", "cancellable"], stop_grace_s="120")
    attempt = rig.start({"do": "work", "children": 1})
    rig.until(lambda: attempt.state == "running")
    rig.jobs.hold(attempt.attempt_id, "phase")
    rig.until(lambda: attempt.hold_confirmed)
    rig.jobs.cancel(attempt.job_id)
    rig.until(lambda: not rig.jobs.attempts())
    ended = next(data for code, data in rig.journal if code == "JOB_ENDED")
    assert (ended["exit"], ended["signal"]) == (75, None), "it acknowledged the stop"
    assert rig.jobs.job(attempt.job_id).outcome == "cancelled"
    assert carriers(attempt.attempt_id) == []
    rig.close()


def test_timeout_ends_the_attempt_and_costs_it(tmp_path: Path) -> None:
    rig = Rig.with_foreign(tmp_path, COOPERATIVE)
    job = rig.jobs.submit("stranger", "act", {"do": "work"}, timeout_s=0.5)
    rig.jobs.start(job.job)
    rig.until(lambda: not rig.jobs.attempts())
    after = rig.jobs.job(job.job)
    assert (after.state, after.counted) == ("waiting", 1)
    assert "longer than 0.5 s" in (after.reason or "")
    rig.close()


def test_a_result_written_while_no_agent_was_there_is_recorded_by_the_next(tmp_path: Path) -> None:
    rig = Rig.with_foreign(tmp_path, ["freeze_ok", "cooperative_pause"])
    attempt = rig.start({"do": "exit", "code": 0, "result": {"x": 1}})
    exit_file = attempt.folder.root / "exit.json"
    wait_for(exit_file.exists)  # no tick: as if the agent had died right after the start
    rig.db.close()
    second = Rig(rig.home)
    assert second.jobs.adopt() == []
    job = second.jobs.show(attempt.job_id)
    assert (job["outcome"], job["result"]["payload"]) == ("done", {"x": 1})
    second.close()


def test_an_attempt_of_an_earlier_boot_is_requeued_without_fault(tmp_path: Path) -> None:
    rig = Rig.with_foreign(tmp_path, ["freeze_ok"])
    attempt = rig.start({"do": "work"})
    rig.until(lambda: attempt.state == "running")
    pid = attempt.runner_pid
    with rig.db:
        rig.db.execute("UPDATE attempts SET boot_id = 'another boot'")
    second = Rig(rig.home)
    assert second.jobs.adopt() == [], "same pids, another boot: nobody of ours"
    second.until(lambda: not second.jobs.attempts())
    job = second.jobs.job(attempt.job_id)
    assert (job.state, job.counted) == ("waiting", 0), (job.reason, second.journal)
    wait_for(lambda: state_of(pid or 0) == "gone")
    second.close()
    rig.db.close()


def test_feed_results_are_thrown_away(tmp_path: Path) -> None:
    rig = Rig.with_foreign(tmp_path, COOPERATIVE)
    job = rig.jobs.submit("stranger", "act", {"do": "tell"}, feed_of="run-1")
    attempt = rig.jobs.start(job.job)
    assert attempt.feed_of == "run-1"
    rig.until(lambda: not rig.jobs.attempts())
    shown = rig.jobs.show(job.job)
    assert (shown["outcome"], shown["result"]) == ("thrown_away", None)
    rig.close()


def test_a_requeued_resumable_job_gets_its_earlier_events(tmp_path: Path) -> None:
    rig = Rig.with_foreign(tmp_path, [*COOPERATIVE, "resumable"])
    attempt = rig.start({"do": "work", "events": ['{"n": 1}\n', '{"n": 2}\n', '{"n": 3']})
    rig.until(lambda: attempt.state == "running")
    rig.jobs.stop(attempt.attempt_id, "evicted", requeue=True, fault=False)
    rig.until(lambda: not rig.jobs.attempts())
    rig.jobs.start(attempt.job_id)
    rig.until(lambda: not rig.jobs.attempts())
    shown = rig.jobs.show(attempt.job_id)
    assert shown["outcome"] == "done", shown
    assert shown["result"]["payload"]["resume"] == '{"n": 1}\n{"n": 2}\n', "a line cut short is no event"
    assert not list((rig.home / "jobs").iterdir())
    rig.close()


def test_a_job_that_is_cancelled_while_it_waits_leaves_its_events_where_old_ones_are_dropped(tmp_path: Path) -> None:
    rig = Rig.with_foreign(tmp_path, [*COOPERATIVE, "resumable"])
    attempt = rig.start({"do": "work", "events": ['{"n": 1}\n']})
    rig.until(lambda: attempt.state == "running")
    rig.jobs.stop(attempt.attempt_id, "evicted", requeue=True, fault=False)
    rig.until(lambda: not rig.jobs.attempts())
    rig.jobs.cancel(attempt.job_id)
    assert rig.jobs.events(attempt.job_id, 0, 1 << 20)["lines"] == ['{"n": 1}']
    assert not list((rig.home / "jobs").iterdir())
    rig.close()


def test_newest_event_lines_are_kept(tmp_path: Path) -> None:
    rig = Rig.with_foreign(tmp_path, COOPERATIVE)
    lines = [json.dumps({"n": number, "pad": "x" * 900}) + "\n" for number in range(300)]
    attempt = rig.start({"do": "work", "events": lines})
    rig.until(lambda: attempt.state == "running")
    assert json.loads(rig.jobs.show(attempt.job_id)["events"][-1])["n"] == 299
    rig.jobs.cancel(attempt.job_id)
    rig.until(lambda: not rig.jobs.attempts())
    kept = rig.jobs.show(attempt.job_id)["attempts"][-1]["events"]
    assert [json.loads(line)["n"] for line in kept] == list(range(300 - len(kept), 300))
    assert 10 < len(kept) < 100
    rig.close()


def test_an_end_that_cannot_be_recorded_is_not_lost(tmp_path: Path) -> None:
    rig = Rig.with_foreign(tmp_path, COOPERATIVE)
    attempt = rig.start({"do": "tell"})
    wait_for((attempt.folder.root / "exit.json").exists)
    record = rig.jobs.registry.end_attempt

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    rig.jobs.registry.end_attempt = full  # type: ignore[method-assign]
    for _ in range(3):
        rig.jobs.tick(time.monotonic())
    assert rig.codes().count("JOURNAL_LOST") == 1
    assert (attempt.folder.work / "result.json").exists()
    assert [item.attempt_id for item in rig.jobs.attempts()] == [attempt.attempt_id]
    rig.jobs.registry.end_attempt = record  # type: ignore[method-assign]
    rig.until(lambda: not rig.jobs.attempts())
    assert rig.jobs.job(attempt.job_id).outcome == "done"
    rig.close()


def test_no_process_exists_that_is_not_in_the_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the launcher's identity cannot be committed, no runner is started."""
    rig = Rig.with_foreign(tmp_path, COOPERATIVE)
    job = rig.jobs.submit("stranger", "act", {"do": "work"})

    def full(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(rig.jobs.registry, "change_attempt", full)
        with pytest.raises(Refused, match="full"):
            rig.jobs.start(job.job)
    (attempt,) = rig.jobs.attempts()
    rig.until(lambda: not rig.jobs.attempts())
    assert rig.seen() == [], "the runner never ran"
    assert carriers(attempt.attempt_id) == []
    assert rig.jobs.job(job.job).state == "waiting"
    rig.close()


def test_a_job_whose_start_cannot_be_recorded_waits_and_is_tried_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused, as whatever else keeps a job from starting: a full disk must not end the look at the others."""
    rig = Rig.with_foreign(tmp_path, COOPERATIVE)
    job = rig.jobs.submit("stranger", "act", {"do": "work"})

    def full(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(rig.jobs.registry, "add_attempt", full)
        patch.setattr(rig.jobs.registry, "note_waiting", full)
        with pytest.raises(Refused, match="full"):
            rig.jobs.start(job.job)
        assert (rig.jobs.attempts(), rig.jobs.waiting()) == ([], []), "not at every look"
        rig.jobs.note_waiting([Note(job, "JOB_START_FAILED", "the disk is full")])
    assert [kept.job for kept, _ in rig.jobs.backing_off()] == [job.job]
    assert rig.jobs.job(job.job).code == "JOB_QUEUED"
    rig.jobs.note_waiting([Note(job, "JOB_START_FAILED", "the disk is full")])
    assert rig.jobs.job(job.job).code == "JOB_START_FAILED"
    rig.close()


def test_the_meter_sees_what_children_used(tmp_path: Path) -> None:
    rig = Rig.with_foreign(tmp_path, COOPERATIVE)
    attempt = rig.start({"do": "work", "children": 2, "detached": 1})
    rig.until(lambda: attempt.state == "running" and len(rig.pids(attempt)) == 4)
    meter = CpuMeter()
    key = attempt.attempt_id
    meter.read({key: rig.jobs.tree(key)})
    pids = [who.pid for who in rig.jobs.tree(key)]
    before = cpu_ticks(pids)
    rig.until(lambda: cpu_ticks(pids) - before >= 60)
    low = (cpu_ticks(pids) - before) / 100.0
    answer = meter.read({key: rig.jobs.tree(key)})[key]
    high = (cpu_ticks(pids) - before) / 100.0
    assert isinstance(answer, float)
    assert low - 0.05 <= answer <= high + 0.05
    rig.close()


def test_an_agent_that_ends_in_order_leaves_nothing(tmp_path: Path) -> None:
    rig = Rig.with_foreign(tmp_path, COOPERATIVE)
    attempts = [rig.start({"do": "work"}) for _ in range(3)]
    rig.until(lambda: all(item.state == "running" for item in attempts))
    rig.close()
    db = sqlite3.connect(rig.home / "journal.sqlite")
    assert db.execute("SELECT state, counted FROM jobs").fetchall() == [("waiting", 0)] * 3
    assert all(carriers(item.attempt_id) == [] for item in attempts)
    db.close()


def test_a_runner_that_cannot_be_executed_says_why(tmp_path: Path) -> None:
    bundle = foreign(tmp_path, COOPERATIVE, exec='["{bundle}/nothing"]', runtime='{ kind = "native" }')
    rig = Rig(tmp_path / "node")
    state = rig.modules.add(bundle)
    assert state.state == "not_ready"
    assert "cannot be started" in state.why
    job = rig.jobs.submit("stranger", None, {"do": "tell"})
    with pytest.raises(Refused, match="cannot be started"):
        rig.jobs.start(job.job)
    rig.close()


def test_modules_that_are_not_ready_say_why_and_raise_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "node")
    uv = rig.modules.add(foreign(tmp_path / "a", [], runtime='{ kind = "uv", lock = "uv.lock" }'))
    assert (uv.state, "uv" in uv.why) == ("not_ready", True)
    other = rig.modules.add(foreign(tmp_path / "b", [], platforms='["darwin-arm64"]'))
    assert "darwin-arm64" in other.why
    broken = foreign(tmp_path / "c", [])
    (broken / "oarbank-module.toml").write_text("manifest = [")
    assert "no TOML" in rig.modules.add(broken).why
    sick = foreign(tmp_path / "d", [])
    runner = sick / "runner.py"
    runner.write_text(
        runner.read_text().replace(
            '"healthy", "checks": []', '"unhealthy", "checks": [{"name": "licence", "ok": False, "detail": "expired"}]'
        )
    )
    assert "licence: expired" in rig.modules.add(sick).why
    assert rig.modules.ready("stranger")[0] is False
    link = foreign(tmp_path / "e", [])
    os.symlink("/etc/passwd", link / "secrets")
    with pytest.raises(Refused, match="leads out"):
        rig.modules.add(link)
    with pytest.raises(Refused, match="no folder"):
        rig.modules.add(tmp_path / "nothing")
    rig.close()


def test_a_bundle_is_what_its_files_say(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "node")
    bundle = foreign(tmp_path, COOPERATIVE)
    first = rig.modules.add(bundle)
    cache = bundle / "__pycache__"
    cache.mkdir()
    (cache / "runner.cpython-311.pyc").write_bytes(b"x")
    assert rig.modules.add(bundle).digest == first.digest
    (bundle / "runner.py").write_text((bundle / "runner.py").read_text() + "\n# changed\n")
    second = rig.modules.add(bundle)
    assert second.digest != first.digest
    again = Rig(rig.home)
    kept = again.modules.get("stranger")
    assert kept is not None
    assert (kept.digest, kept.state) == (second.digest, "ready"), "a restarted agent needs no doctor"
    shutil.rmtree(bundle)
    assert again.run({"do": "tell"})["outcome"] == "done"
    rig.close()
    again.close()


def test_a_crash_is_told_apart_from_our_own_stop(tmp_path: Path) -> None:
    """A runner killed by somebody else's SIGKILL is a crash, told apart from our own stop."""
    rig = Rig.with_foreign(tmp_path, COOPERATIVE)
    attempt = rig.start({"do": "work"})
    rig.until(lambda: attempt.state == "running")
    os.kill(attempt.runner_pid or 0, signal.SIGKILL)
    rig.until(lambda: not rig.jobs.attempts())
    ended = next(data for code, data in rig.journal if code == "JOB_ENDED")
    assert (ended["signal"], ended["ended_by"], ended["fault"]) == (9, None, "module")
    assert rig.jobs.job(attempt.job_id).counted == 1
    rig.close()


def test_unknown_things_are_refused_by_name(tmp_path: Path) -> None:
    rig = Rig.with_foreign(tmp_path, COOPERATIVE)
    manager: JobManager = rig.jobs
    for ask in (
        lambda: manager.submit("nobody", None, {}),
        lambda: manager.submit("stranger", "dance", {}),
        lambda: manager.submit("stranger", None, {"x": float("nan")}),
        lambda: manager.submit("stranger", None, {}, timeout_s=-1.0),
        lambda: manager.hold("7-7-ffff", "x"),
        lambda: manager.job(99),
    ):
        with pytest.raises(Refused) as caught:
            ask()
        assert caught.value.why
        assert caught.value.remedy
    rig.close()


def test_an_end_is_recorded_whole_or_not_at_all_on_the_agents_own_connection(tmp_path: Path) -> None:
    """The journal's connection commits each statement by itself: attempt and job must still change together."""
    db = sqlite3.connect(tmp_path / "j.sqlite", isolation_level=None)
    registry = Registry(db)
    job = registry.add_job("m", "m", "s", {"model": "x"}, None, 1, None)
    other = registry.add_job("m", "m", "s", {}, None, 1, None)
    assert [(kept.job, kept.model, kept.payload) for kept in registry.waiting()] == [(1, "x", None), (2, None, None)]
    registry.add_attempt({
        "attempt": "1-1-a", "job": job.job, "number": 1, "bundle": "b", "capabilities": "[]", "cores": 1.0, "mem_gb": 0.0,
        "stop_grace_s": 1.0, "boot_id": "x", "started_at": "2026-11-29T00:00:00+00:00",
    })  # fmt: skip
    assert [kept.job for kept in registry.waiting()] == [other.job]
    db.execute("CREATE TRIGGER no BEFORE UPDATE ON jobs BEGIN SELECT RAISE(ABORT, 'disk'); END")
    with pytest.raises(sqlite3.IntegrityError):
        registry.end_attempt("1-1-a", job.job, {"ended_at": "now"}, {"state": "waiting"})
    assert [row.attempt for row in registry.open_attempts()] == ["1-1-a"], "neither changed"
    assert [kept.job for kept in registry.waiting()] == [other.job]
    db.execute("DROP TRIGGER no")
    registry.end_attempt("1-1-a", job.job, {"ended_at": "now"}, {"state": "waiting"})
    assert (registry.open_attempts(), [kept.job for kept in registry.waiting()]) == ([], [job.job, other.job])
    registry.change_job(other.job, state="ended")
    registry.note_waiting([(job.job, "JOB_NO_SLOT", "all taken", None), (other.job, "JOB_NO_SLOT", "all taken", None)])
    kept = registry.waiting()
    again = Registry(db).waiting()
    assert kept == again, "what is kept is what a new agent reads"
    assert [(each.job, each.code, each.reason) for each in kept] == [(job.job, "JOB_NO_SLOT", "all taken")]
    db.close()
