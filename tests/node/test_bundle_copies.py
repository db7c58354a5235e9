"""A node's copy of a bundle is what was measured: its digest is that of the copy, and one that is changed in place is not ready."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nodes.bundles
import nodes.modules
from nodes.bundles import bundle_digest, copy_bundle
from nodes.modules import ModuleState, ModuleStore
from policies.refusal import Refused
from tests.node.jobs_rig import Rig, foreign

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


def test_a_copy_that_is_changed_starts_nothing_and_says_why(rig: Rig) -> None:
    state, runner = copy_of(rig)
    edit(runner)
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
    rig.modules.check()
    assert rig.modules.ready("stranger") == (True, "")
    (runner.parent / "json.py").write_text("")
    rig.modules.check()
    assert "touched last: json.py" in rig.modules.ready("stranger")[1]
    rig.close()


def test_a_restarted_agent_sees_what_was_changed_meanwhile(rig: Rig) -> None:
    _, runner = copy_of(rig)
    rig.close()
    edit(runner)
    assert "was changed" in ModuleStore(rig.home, rig.home / "none").ready("stranger")[1]
    (runner.parent / "oarbank-module.toml").unlink()
    assert "was changed" in ModuleStore(rig.home, rig.home / "none").ready("stranger")[1]


def test_adding_it_again_puts_the_copy_there_anew(rig: Rig, tmp_path: Path) -> None:
    state, runner = copy_of(rig)
    edit(runner)
    rig.modules.check()
    again = rig.modules.add(tmp_path / "stranger")
    assert (again.digest, again.state) == (state.digest, "ready")
    assert "# faster" not in runner.read_text()
    assert rig.run({"do": "tell"})["outcome"] == "done"
    rig.close()


def test_what_was_put_back_is_ready_after_its_doctor(rig: Rig) -> None:
    _, runner = copy_of(rig)
    text = runner.read_text()
    edit(runner)
    rig.modules.check()
    runner.write_text(text)
    rig.modules.check()
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
    store.check()
    assert store.pending() == ["stranger"]
    assert store.doctor("stranger").health == "healthy"
    assert store.ready("stranger") == (True, "")
    assert store.pending() == []


def test_nothing_is_read_again_while_nothing_was_touched(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: Path) -> str:
        raise AssertionError(f"{path} was read")

    monkeypatch.setattr(nodes.modules, "bundle_digest", read)
    rig.modules.check()
    assert ModuleStore(rig.home, rig.home / "none").ready("stranger") == (True, "")
    rig.close()


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
