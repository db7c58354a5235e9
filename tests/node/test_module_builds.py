"""What becomes of a module whose build or doctor is held, is insisted on, or is ended before it has an answer."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nodes.agent.core import Agent
from nodes.modules import ModuleState, ModuleStore
from tests.node.agent_rig import wait_for
from tests.node.jobs_rig import foreign

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
