"""The governor in an agent whose clock the test turns: certificates that end, a restart, a run, the memory guard.

The program is real; its progress is a track of ten steps a second, so that a busy machine harms nobody here. The
governor's windows are a twentieth of their length.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodes.agent.governing import Governing
from nodes.identity import own_id
from nodes.memory import MemoryReading
from nodes.meters.reading import Unreadable
from nodes.sources.views import ProgressView
from policies.harness.spec import RunSpec
from policies.memory_guard import Pool
from policies.sources.progress import ProgressTrack
from tests.node.agent_rig import Rig, wait_for
from tests.node.certificate_rig import Node
from tests.node.governor_rig import PassingCertifier

pytestmark = pytest.mark.timeout(900)
PACE = 20.0
TICK_S = 2.0
CERTIFIED = 'gpu_jobs = "certified"'


class Certified(Node):
    """Two certificates for the same work: 0.1 of run ``low``, 0.3 of run ``high``. ``now_s`` is the governor's clock."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.certifier = PassingCertifier(self.agent, self.subject)
        for name, duty in (("low", 0.1), ("high", 0.3)):
            self.run(name, duty=duty, dose=duty)
            self.offer(name)
        self.now_s = 10_000.0
        self.progresses_at(10.0)
        # On a crowded machine the program may get too little processor time to count as one that uses it.
        self.agent.observer.on_device.uses = lambda rule, now_s: True  # type: ignore[method-assign]
        self.anew()

    def progresses_at(self, per_s: float) -> None:
        """The program's progress, as if it had always been so."""
        track, begun_s = ProgressTrack(), self.agent.now_s() - 60.0
        for step in range(12_000):
            track.add_events(begun_s + step / per_s)
        view = ProgressView(track, True, "", "", "", str(self.rig.events), "jsonl", "events")
        self.agent.hub.progress = lambda rule: view  # type: ignore[method-assign]

    def metered(self) -> dict[str, Any]:
        """A tick at which the meter is read, whatever the time is that has really gone by."""
        self.agent._metered_s -= TICK_S
        return self.tick()

    def anew(self) -> None:
        """What a new agent process would have: a governor that goes on from what was kept."""
        self.agent.governing = Governing(self.agent, PACE, lambda: self.now_s / PACE)

    def tick(self, count: int = 1) -> dict[str, Any]:
        for _ in range(count):
            self.now_s += TICK_S
            self.agent.tick()
        return self.duty()

    def duty(self) -> dict[str, Any]:
        return self.agent.governing.view()

    def until(self, state: str) -> dict[str, Any]:
        return wait_for(state, lambda: (found := self.tick())["state"] == state and found, 120)

    def codes(self, code: str) -> list[dict[str, Any]]:
        return [entry["data"] for entry in self.agent.journal.entries(code=code, limit=5000)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Certified]:
    rig = Rig(tmp_path_factory.mktemp("home"))
    try:
        yield Certified(rig)
    finally:
        rig.stop()


@pytest.fixture
def node(built: Certified) -> Certified:
    """The node with a budget that runs at its ceiling."""
    built.agent.set_section(built.rig.section(CERTIFIED), "test")
    built.agent.journal.set_fact("governing", None)
    built.progresses_at(10.0)
    built.now_s += 1000.0
    built.anew()
    assert built.until("running")["budget"] == 0.3
    return built


def test_the_largest_certificate_of_the_work_is_the_ceiling(node: Certified) -> None:
    view = node.tick()
    assert (view["ceiling"], view["budget"], view["decides"]) == (0.3, 0.3, "governor")
    (rule,) = view["rules"]
    assert rule["baseline_rate"] == pytest.approx(10.0, rel=0.01)
    assert not rule["low"], "the runs of the certificates measured ten steps a second in OFF"
    assert node.codes("GPU_DUTY_START")[-1]["baselines"] == {"stepper": rule["baseline_rate"]}


def test_a_minute_of_harm_at_the_target_halves_it_and_clean_minutes_grow_it_again(
    node: Certified, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodes.agent.governing._target", lambda rule: 0.1)
    node.progresses_at(8.9)  # 1.1 of the target: no cause to take it back
    assert wait_for("a minute is over", lambda: (v := node.tick())["budget"] < 0.3 and v)["budget"] == 0.15
    halved_s, told = node.now_s, node.codes("GPU_DUTY_HALVE")[-1]
    assert (told["before"], told["budget"], told["rule"]) == (0.3, 0.15, "stepper")
    assert told["pressure"] == pytest.approx(1.1, abs=0.1)
    node.progresses_at(10.0)
    assert wait_for("it grows", lambda: (v := node.tick())["budget"] > 0.15 and v)["budget"] == 0.2
    assert node.now_s - halved_s == 60.0
    assert node.codes("GPU_DUTY_GROW")[-1]["budget"] == 0.2


def test_a_unit_whose_share_cannot_be_read_is_held_until_it_reads(
    node: Certified, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = node.agent
    job = agent.jobs.submit("llmserve", "selftest", {"prompts": 1_000_000, "max_tokens": 32, "seed": 7})

    def state() -> str:
        node.metered()
        return next((attempt.state for attempt in agent.jobs.attempts()), "none")

    def shown() -> str:
        return next((unit["state"] or "" for unit in node.metered()["units"]), "")

    wait_for("it runs and is judged", lambda: state() == "running" and shown() == "holds", 120)
    assert not node.codes("GPU_DUTY_UNVERIFIED")
    with monkeypatch.context() as blind:
        unreadable = Unreadable("permission denied")
        blind.setattr(agent.meter, "read", lambda trees: dict.fromkeys(trees, unreadable))
        wait_for("it is held", lambda: state() == "held", 120)
        assert shown() == "held"
        (told,) = node.codes("GPU_DUTY_UNVERIFIED")
        assert (told["module"], told["why"]) == ("dev.cotenant.llmserve", "permission denied")
        (unit,) = node.duty()["units"]
        assert (unit["measured"], "permission denied" in unit["why"]) == (None, True)
    wait_for("it goes on", lambda: state() == "running" and shown() == "holds", 120)
    with monkeypatch.context() as old:
        # a meter that repeats its last figure: 5 s old on the governor's clock
        old.setattr(agent, "share_age_s", lambda attempt: 5.0 / PACE)
        wait_for("it is held", lambda: state() == "held", 120)
        assert "5 s old" in node.codes("GPU_DUTY_UNVERIFIED")[-1]["why"]
    wait_for("it goes on", lambda: state() == "running" and shown() == "holds", 120)
    agent.jobs.cancel(job.job)
    wait_for("it has ended", lambda: state() == "none", 120)


def test_harm_by_memory_takes_it_to_0_for_five_minutes_and_a_restart_does_not_shorten_them(
    node: Certified, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as short:
        short.setattr(node.agent.observer.memory, "read", lambda *_: None)
        node.agent.observer.memory.level = "hard"
        assert node.tick()["budget"] == 0.0
    node.agent.observer.memory.level = "clear"
    assert node.codes("GPU_DUTY_TAKE_BACK")[-1]["cause"] == "memory"
    taken_s = node.now_s
    node.tick(20)
    node.anew()
    view = node.until("running")
    assert node.now_s - taken_s >= 300.0
    assert view["budget"] == 0.15, "half its last level"


def test_the_memory_guard_does_not_rest_in_a_self_run(node: Certified, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = node.agent
    spec = RunSpec.model_validate(node.rig.spec(kind="self", duty=None, feed=None))
    agent.runs.begin(f"run-{node.now_s:.0f}", spec, own_id(), {"section_digest": "", "agent_version": "", "work": []})
    active = agent.runs.active
    assert active is not None
    active.resting = True
    full = MemoryReading((Pool(100 * 2**30, 2**30, "machine"),), 0)
    gone: list[str | None] = []
    with monkeypatch.context() as short:
        short.setattr("nodes.agent.memory_watch.read_memory", lambda: full)
        short.setattr(agent.enforcing, "evict_for_memory", lambda: gone.append(agent.observer.memory.take_victim()))
        node.tick()
        assert agent.observer.memory.level == "hard"
        assert agent.conditions(active).memory_hard, "which leaves the block out"
    assert gone, "and who holds most of it is asked to go"
    assert node.codes("MEMORY_HARD")
    active.resting = False
    agent.runs.end(active.run, "aborted", "test", None)
    node.tick()


def test_a_run_stands_it_down_and_afterwards_it_begins_with_a_baseline(node: Certified) -> None:
    spec = RunSpec.model_validate(node.rig.spec(duty=0.2, feed=None))
    facts = {"section_digest": "", "agent_version": "", "work": []}
    node.agent.runs.begin(f"run-{node.now_s:.0f}", spec, own_id(), facts)
    active = node.agent.runs.active
    assert active is not None
    view = node.tick()
    assert (view["state"], view["decides"], view["budget"]) == ("stood_down", "run", 0.0)
    active.part = "grant"
    assert node.tick()["budget"] == 0.2
    node.agent.runs.end(active.run, "aborted", "test", None)
    assert node.tick()["state"] == "baseline"
    assert node.until("running")["budget"] == 0.3


def test_other_choices_of_the_section_have_no_budget(node: Certified) -> None:
    for text, state in (("", "closed"), ('gpu_jobs = "always"', "free"), ('gpu_jobs = "never"', "closed")):
        node.agent.set_section(node.rig.section(text), "test")
        assert node.tick()["state"] == state
    before = len(node.codes("GPU_NOT_CERTIFIED"))
    node.agent.set_section(node.rig.section(""), "test")
    node.tick()
    assert len(node.codes("GPU_NOT_CERTIFIED")) == before, "only `certified` misses a certificate"


def test_demonstrations_admit_nothing_where_the_section_does_not_accept_them(node: Certified) -> None:
    text = node.rig.section(CERTIFIED).replace("accept_demonstration = true", "")
    node.agent.set_section(text, "test")
    assert node.duty()["state"] == "closed", "at once, not at the next tick"
    entry = node.codes("GPU_NOT_CERTIFIED")[-1]
    assert "demonstration" in entry["why"]["stepper"]
    assert entry["remedy"] == ["cotenant protection ab sweep local --rule stepper"]
    assert node.codes("GPU_DUTY_CLAMP")[-1]["budget"] == 0.0


def test_a_certificate_that_is_revoked_clamps_the_budget_to_what_is_left_then_closes(node: Certified) -> None:
    journal = node.agent.journal
    journal.revoke_certificate("cert-high", "a test")
    view = node.tick()
    assert (view["ceiling"], view["budget"], view["state"]) == (0.1, 0.1, "running")
    assert node.codes("GPU_DUTY_CLAMP")[-1]["before"] == 0.3
    journal.revoke_certificate("cert-low", "a test")
    assert node.tick()["state"] == "closed"
    assert node.codes("GPU_DUTY_CLAMP")[-1]["before"] == 0.1
    for name in ("cert-high", "cert-low"):
        journal.db.execute("UPDATE certificates SET revoked = NULL WHERE certificate = ?", (name,))
    journal.certificates_changed += 1
    assert node.tick()["state"] == "baseline"


def test_a_large_program_is_hashed_beside_the_tick_and_nothing_is_certified_until_then(
    node: Certified, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("nodes.agent.certificates.HASH_AT_ONCE_BYTES", 0)
    monkeypatch.setattr("nodes.file_digests._digests", {})
    assert node.tick()["state"] == "closed"
    assert node.until("baseline")
