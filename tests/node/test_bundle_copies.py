"""A node's copy of a bundle is what was measured: its digest is that of the copy, and one that is changed in place is not ready."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import nodes.bundles
import nodes.copy_reads
import nodes.modules
from nodes.agent.core import Agent
from nodes.agent.subject import Subject
from nodes.bundles import bundle_digest, copy_bundle
from nodes.modules import ModuleState, ModuleStore
from policies.refusal import Refused
from tests.node.jobs_rig import PATIENCE_S, Rig, foreign, wait_for

COOPERATIVE = ["cancellable", "cooperative_pause"]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig.with_foreign(tmp_path, COOPERATIVE)


def copy_of(rig: Rig) -> tuple[ModuleState, Path]:
    state = rig.modules.get("stranger")
    assert state is not None
    assert state.bundle is not None
    return state, state.bundle / "runner.py"


def edit(path: Path) -> None:
    os.chmod(path, 0o600)
    path.write_text(path.read_text() + "\n# faster\n")


def looked(store: ModuleStore) -> ModuleStore:
    """The store when it has looked at its copies and read again what was touched."""
    store.check(within_s=PATIENCE_S)
    return store


class Reads:
    """Counts how often a copy was read, and keeps each reader waiting with what it found until ``go``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.go = threading.Event()
        self.go.set()
        monkeypatch.setattr(nodes.copy_reads, "bundle_digest", self.read)

    def read(self, path: Path) -> str:
        found = bundle_digest(path)
        self.count += 1
        assert self.go.wait(PATIENCE_S)
        return found


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


def test_a_copy_that_is_changed_starts_nothing_and_says_why(rig: Rig) -> None:
    state, runner = copy_of(rig)
    edit(runner)
    looked(rig.modules)
    with pytest.raises(Refused, match="was changed after it was added") as refused:
        rig.start({"do": "tell"})
    assert refused.value.code == "MODULE_NOT_READY"
    for words in (str(state.bundle), state.digest[:12], "touched last: runner.py", "cotenant module add"):
        assert words in refused.value.why
    assert rig.modules.ready("stranger")[0] is False
    assert rig.modules.doctor("stranger").health != "healthy", "its doctor must not talk it ready"
    rig.close()


def test_a_file_that_is_put_beside_the_others_counts_and_compiled_python_does_not(rig: Rig) -> None:
    _, runner = copy_of(rig)
    (runner.parent / "__pycache__").mkdir(exist_ok=True)
    (runner.parent / "__pycache__" / "runner.cpython-311.pyc").write_bytes(b"x")
    looked(rig.modules)
    assert rig.modules.ready("stranger") == (True, "")
    (runner.parent / "json.py").write_text("")
    looked(rig.modules)
    assert "touched last: json.py" in rig.modules.ready("stranger")[1]
    rig.close()


def test_a_restarted_agent_sees_what_was_changed_meanwhile(rig: Rig) -> None:
    _, runner = copy_of(rig)
    rig.close()
    edit(runner)
    assert "was changed" in looked(ModuleStore(rig.home, rig.home / "none")).ready("stranger")[1]
    (runner.parent / "oarbank-module.toml").unlink()
    assert "was changed" in looked(ModuleStore(rig.home, rig.home / "none")).ready("stranger")[1]


def test_adding_it_again_puts_the_copy_there_anew(rig: Rig, tmp_path: Path) -> None:
    state, runner = copy_of(rig)
    edit(runner)
    looked(rig.modules)
    again = rig.modules.add(tmp_path / "stranger")
    assert (again.digest, again.state) == (state.digest, "ready")
    assert "# faster" not in runner.read_text()
    assert rig.run({"do": "tell"})["outcome"] == "done"
    rig.close()


def test_what_was_put_back_is_ready_after_its_doctor(rig: Rig) -> None:
    _, runner = copy_of(rig)
    text = runner.read_text()
    edit(runner)
    looked(rig.modules)
    runner.write_text(text)
    looked(rig.modules)
    ready, why = rig.modules.ready("stranger")
    assert (ready, "cotenant module doctor stranger" in why) == (False, True)
    assert rig.modules.doctor("stranger").health == "healthy"
    assert rig.modules.ready("stranger") == (True, "")
    rig.close()


def test_a_built_in_one_that_is_changed_is_put_there_anew_by_its_doctor(tmp_path: Path) -> None:
    own = tmp_path / "own"
    foreign(own, COOPERATIVE)
    store = ModuleStore(tmp_path / "node", own)
    state = store.prepare("stranger")
    assert state is not None
    assert state.bundle is not None
    edit(state.bundle / "runner.py")
    looked(store)
    assert store.pending() == ["stranger"]
    assert store.doctor("stranger").health == "healthy"
    assert store.ready("stranger") == (True, "")
    assert store.pending() == []


def test_nothing_is_read_again_while_nothing_was_touched(rig: Rig, reads: Reads) -> None:
    looked(rig.modules)
    assert ModuleStore(rig.home, rig.home / "none").ready("stranger") == (True, "")
    assert reads.count == 0
    rig.close()


def test_a_copy_that_was_touched_is_read_beside_the_caller_and_starts_nothing_before_that_has_ended(
    rig: Rig, reads: Reads
) -> None:
    """What asks is the agent's loop, which has reflexes to keep, and a copy may be gigabytes."""
    state, runner = copy_of(rig)
    reads.go.clear()
    runner.chmod(0o400)
    job = rig.jobs.submit("stranger", None, {"do": "tell"}).job
    for _ in range(2):
        with pytest.raises(Refused, match="is being read") as refused:
            rig.jobs.start(job)
        assert refused.value.code == "MODULE_NOT_READY"
    assert [(each.state, each.being_read) for each in rig.modules.list()] == [("not_ready", True)]
    assert rig.modules.bundles() == {state.module: state.digest}, "what was measured of it stands meanwhile"
    reads.go.set()
    looked(rig.modules)
    rig.jobs.start(job)
    rig.until(lambda: not rig.jobs.attempts())
    assert (rig.jobs.job(job).outcome, reads.count) == ("done", 1)
    rig.close()


def test_the_loop_runs_on_while_a_run_waits_for_a_copy(rig: Rig, reads: Reads) -> None:
    _, runner = copy_of(rig)
    reads.go.clear()
    runner.chmod(0o400)

    async def both() -> bool:
        looking = asyncio.create_task(Subject(cast(Agent, SimpleNamespace(modules=rig.modules))).look_at_copies())
        async with asyncio.timeout(PATIENCE_S):
            while not reads.count:
                await asyncio.sleep(0.01)
            waits = not looking.done()
            reads.go.set()
            await looking
        return waits

    assert asyncio.run(both())
    assert rig.modules.ready("stranger") == (True, "")
    rig.close()


def test_a_copy_that_no_agent_sealed_is_read_once(rig: Rig, reads: Reads) -> None:
    """Its record is of an earlier version. Until it is read nothing is started, and nothing that was measured of it stands."""
    rig.close()
    record = rig.home / "modules" / "stranger" / "module.json"
    kept = json.loads(record.read_text())
    del kept["seal"]
    record.write_text(json.dumps(kept))
    reads.go.clear()
    store = ModuleStore(rig.home, rig.home / "none")
    assert "is being read" in store.ready("stranger")[1]
    assert store.bundles() == {}
    reads.go.set()
    assert looked(store).ready("stranger") == (True, "")
    for _ in range(2):
        assert ModuleStore(rig.home, rig.home / "none").ready("stranger") == (True, "")
    assert reads.count == 1


def test_a_changed_copy_is_read_once(rig: Rig, reads: Reads) -> None:
    _, runner = copy_of(rig)
    edit(runner)
    for _ in range(2):
        assert "was changed" in looked(rig.modules).ready("stranger")[1]
    rig.close()
    assert "was changed" in ModuleStore(rig.home, rig.home / "none").ready("stranger")[1]
    assert reads.count == 1


def test_a_verdict_on_a_copy_that_was_put_there_anew_meanwhile_counts_for_nothing(
    rig: Rig, reads: Reads, tmp_path: Path
) -> None:
    _, runner = copy_of(rig)
    edit(runner)
    reads.go.clear()
    rig.modules.check()
    wait_for(lambda: reads.count)
    assert rig.modules.add(tmp_path / "stranger").state == "ready"
    reads.go.set()
    assert looked(rig.modules).ready("stranger") == (True, "")
    rig.close()


def test_a_large_file_is_read_in_pieces(tmp_path: Path) -> None:
    with open(tmp_path / "weights", "wb") as file:
        file.truncate(64 << 20)
    tracemalloc.start()
    try:
        bundle_digest(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_bundle_that_is_written_to_while_it_is_copied_is_named_by_what_was_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = foreign(tmp_path, COOPERATIVE)
    copy: Callable[..., Any] = shutil.copy2

    def written_to(source: Path, target: Path) -> None:
        if source.name == "runner.py":
            edit(source)
        copy(source, target)

    monkeypatch.setattr(nodes.bundles.shutil, "copy2", written_to)
    store = ModuleStore(tmp_path / "node", tmp_path / "none")
    state = store.add(bundle)
    assert state.bundle is not None
    assert "# faster" in (state.bundle / "runner.py").read_text()
    assert state.digest == bundle_digest(state.bundle) == state.bundle.name


def test_a_copy_has_no_file_that_can_be_written_and_goes_whole(rig: Rig, tmp_path: Path) -> None:
    _, runner = copy_of(rig)
    files = [path for path in runner.parent.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if path.stat().st_mode & 0o222 and "__pycache__" not in path.parts]
    assert not list((tmp_path / "node" / "modules").glob(".adding*"))
    shutil.rmtree(runner.parent)
    rig.close()


def test_a_link_to_a_folder_of_the_bundle_leads_into_the_copy(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "new").mkdir(parents=True)
    (source / "new" / "a.py").write_text("a")
    (source / "now").symlink_to(source / "new")
    assert copy_bundle(source, tmp_path / "copy") == bundle_digest(source)
    assert (tmp_path / "copy" / "now" / "a.py").resolve() == (tmp_path / "copy" / "new" / "a.py").resolve()


def test_a_copy_that_cannot_be_read_for_whatever_reason_is_not_what_was_added(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is no text, or no memory: the reader may not die of it and leave the module ready."""
    state, runner = copy_of(rig)

    def read(path: Path) -> str:
        raise UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed")

    monkeypatch.setattr(nodes.copy_reads, "bundle_digest", read)
    os.utime(runner, ns=(1, 1))
    looked(rig.modules)
    found = rig.modules.get("stranger")
    assert found is not None
    assert (found.state, found.changed) == ("not_ready", True)
    assert state.state == "ready"


def test_a_reader_that_cannot_be_started_leaves_nothing_waiting_and_starts_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, runner = copy_of(rig)
    os.utime(runner, ns=(1, 1))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", lambda thread: (_ for _ in ()).throw(RuntimeError("no thread")))
        with pytest.raises(Refused, match="no thread"):
            rig.modules.check("stranger")
    looked(rig.modules)
    assert rig.modules.ready("stranger")[0]


def test_an_addition_that_takes_longer_replaces_none_that_was_begun_after_it(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, began = threading.Event(), threading.Event()
    doctor = nodes.modules.run_doctor

    def slow(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread().name == "late":
            began.set()
            assert late.wait(PATIENCE_S)
        return doctor(*args, **kwargs)

    monkeypatch.setattr(nodes.modules, "run_doctor", slow)
    first, second = foreign(tmp_path / "1", COOPERATIVE), foreign(tmp_path / "2", COOPERATIVE)
    edit(first / "runner.py")
    refused: list[Refused] = []

    def add() -> None:
        try:
            rig.modules.add(first)
        except Refused as no:
            refused.append(no)

    thread = threading.Thread(target=add, name="late")
    thread.start()
    assert began.wait(PATIENCE_S)
    state = rig.modules.add(second)
    late.set()
    thread.join(PATIENCE_S)
    assert [no.code for no in refused] == ["MODULE_NOT_ADDED"]
    now = rig.modules.get("stranger")
    assert now is not None
    assert now.digest == state.digest
