"""What becomes of a module whose build or doctor is held, is insisted on, or is ended before it has an answer."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from nodes.agent.core import Agent
from nodes.builds import Builds
from nodes.modules import ModuleState, ModuleStore
from nodes.uv_environment import EnvironmentFailed, uv_environment
from policies.manifest import Runtime
from tests.node.agent_rig import wait_for
from tests.node.jobs_rig import foreign

T = TypeVar("T")

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def product(tmp_path: Path) -> Path:
    """A folder of bundles with one in it."""
    (tmp_path / "product").mkdir()
    return foreign(tmp_path / "product", ["cancellable"]).parent


def ended_while_it_waits(store: ModuleStore, name: str = "stranger") -> ModuleState:
    """Prepare it while something holds builds, and stop the agent."""
    store.builds.hold("the owner paused all fleet work")
    got: list[ModuleState | None] = []
    thread = threading.Thread(target=lambda: got.append(store.prepare(name)))
    thread.start()
    time.sleep(1.0)
    assert not got
    store.builds.end()
    thread.join(120)
    assert got[0] is not None
    return got[0]


def test_one_that_waits_when_the_agent_stops_is_pending_at_the_next_start(product: Path, tmp_path: Path) -> None:
    found = ended_while_it_waits(ModuleStore(tmp_path / "home", product))
    assert (found.state, "ended with the agent" in found.why) == ("not_ready", True)
    after = ModuleStore(tmp_path / "home", product)
    assert after.pending() == ["stranger"]
    assert after.list()[0].why == "its doctor has not run yet"
    prepared = after.prepare("stranger")
    assert prepared is not None
    assert prepared.state == "ready", prepared.why
    assert after.pending() == []


def test_one_of_a_new_product_stays_what_it_was_until_it_was_heard(product: Path, tmp_path: Path) -> None:
    before = ModuleStore(tmp_path / "home", product).prepare("stranger")
    assert before is not None
    assert before.state == "ready"
    (product / "stranger" / "more.txt").write_text("new")
    ended_while_it_waits(ModuleStore(tmp_path / "home", product))
    after = ModuleStore(tmp_path / "home", product)
    kept = after.get("stranger")
    assert kept is not None
    assert (kept.state, kept.digest) == ("ready", before.digest)
    assert after.pending() == ["stranger"]


def test_one_whose_copy_was_changed_is_put_there_anew_and_asked_at_the_next_start(
    product: Path, tmp_path: Path
) -> None:
    store = ModuleStore(tmp_path / "home", product)
    before = store.prepare("stranger")
    assert before is not None
    assert before.bundle is not None
    runner = before.bundle / "runner.py"
    os.chmod(runner, 0o600)
    runner.write_text(runner.read_text() + "\n# faster\n")
    store.check()
    ended_while_it_waits(store)
    assert ModuleStore(tmp_path / "home", product).pending() == ["stranger"]


def test_a_doctor_that_is_ended_says_nothing_of_a_module_that_is_ready(product: Path, tmp_path: Path) -> None:
    store = ModuleStore(tmp_path / "home", product)
    assert store.prepare("stranger") is not None
    store.builds.end()
    assert "ended with the agent" in store.doctor("stranger").why
    for each in (store, ModuleStore(tmp_path / "home", product)):
        assert each.ready("stranger") == (True, "")


def test_one_that_takes_all_memory_itself_is_not_begun_for_ever(
    product: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(tmp_path / "home", "local", product)
    state = agent.modules.list()[0]
    tries = []

    def prepare(name: str) -> ModuleState:
        tries.append(name)
        return replace(state, why="out of memory", unheard=True)

    monkeypatch.setattr(agent.modules, "prepare", prepare)
    agent.prepare_modules()
    assert tries == ["stranger"] * 3
    agent.hub.close()
    agent.journal.close()


# -- insisted on --------------------------------------------------------------------------------------------------------


def within(limit_s: float, ask: Callable[[], T]) -> T:
    got: list[T] = []
    thread = threading.Thread(target=lambda: got.append(ask()), daemon=True)
    thread.start()
    thread.join(limit_s)
    assert got, f"no answer within {limit_s:g} s"
    return got[0]


@pytest.fixture
def held(product: Path, tmp_path: Path) -> Iterator[ModuleStore]:
    """Of a node on which a rule pauses fleet work for as long as its program runs."""
    store = ModuleStore(tmp_path / "home", product)
    store.builds.hold("rule x pauses fleet work of scope all")
    yield store
    store.builds.end()


def test_the_doctor_of_one_that_was_never_added_is_insisted_on_with_its_environment(held: ModuleStore) -> None:
    assert within(120, lambda: held.doctor("stranger", insists=True)).health == "healthy"
    assert held.ready("stranger") == (True, "")


def test_the_adding_of_one_is_insisted_on_with_its_environment(held: ModuleStore, tmp_path: Path) -> None:
    bundle = foreign(tmp_path, ["cancellable"])
    assert within(120, lambda: held.add(bundle, insists=True)).state == "ready"


@pytest.mark.parametrize("use", ["none", "exclusive"])
def test_what_holds_gpu_work_alone_holds_those_that_use_the_gpu(product: Path, tmp_path: Path, use: str) -> None:
    manifest = product / "stranger" / "oarbank-module.toml"
    text = manifest.read_text()
    assert "stop_grace_s = 5" in text
    text = text.replace("stop_grace_s = 5", f'stop_grace_s = 5\ngpu = {{ use = "{use}" }}')
    manifest.write_text(text + ('\n[sandbox.devices]\ngpu = "compute"\n' if use != "none" else ""))
    store = ModuleStore(tmp_path / "home", product)
    store.builds.hold(None, on_gpu="rule x pauses fleet work of scope gpu")
    thread = threading.Thread(target=lambda: store.prepare("stranger"))
    thread.start()
    if use == "none":
        thread.join(120)
        assert store.ready("stranger") == (True, "")
    else:
        thread.join(5.0)
        assert thread.is_alive()
        assert store.list()[0].why == "its doctor waits: rule x pauses fleet work of scope gpu"
        store.builds.end()
        thread.join(120)


def test_a_build_that_waits_goes_on_when_a_person_insists_on_what_it_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv = tmp_path / "uv"
    uv.write_text("#!/bin/sh\necho no solution >&2\nexit 3\n")
    uv.chmod(0o755)
    monkeypatch.setattr("nodes.uv_environment.find_uv", lambda: str(uv))
    for name in ("uv.lock", "pyproject.toml"):
        (tmp_path / name).touch()
    builds = Builds()
    builds.hold("rule x pauses fleet work of scope all")

    def built(*, insists: bool) -> str:
        runtime = Runtime(kind="uv", lock="uv.lock")
        with pytest.raises(EnvironmentFailed) as failed:
            uv_environment(tmp_path, "0", runtime, tmp_path / "home", builds, insists=insists)
        return str(failed.value)

    said: list[str] = []
    waits = threading.Thread(target=lambda: said.append(built(insists=False)))
    waits.start()
    wait_for("it has its lock", lambda: list((tmp_path / "home").glob("*.lock")))
    time.sleep(1.0)
    assert not said
    try:
        assert "gave 3: no solution" in within(120, lambda: built(insists=True))
        waits.join(120)
        assert "gave 3: no solution" in said[0]
    finally:
        builds.end()
