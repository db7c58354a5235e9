"""A unit that is held and goes on using the GPU is stopped; and which digest a sweep compares."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nodes.agent.core import Agent
from nodes.agent.enforcing import Enforcing
from nodes.agent.verbs import Verbs
from nodes.meters.reading import Unreadable
from policies.governed import Work
from policies.section import digest


def agent_with(attempt: Any, stopped: list[str], on_gpu: bool = True) -> Any:
    jobs = SimpleNamespace(attempts=lambda: [attempt], stop=lambda name, why, requeue, fault: stopped.append(name))
    units = SimpleNamespace(attempt_on_gpu=lambda *_: on_gpu)
    return SimpleNamespace(jobs=jobs, shares={}, units=units, journal=SimpleNamespace(write=lambda *_: None))


def held(since_s: float | None = 100.0, state: str = "held") -> Any:
    return SimpleNamespace(
        attempt_id="a",
        job_id=1,
        module="m",
        stage="s",
        gpu=False,
        state=state,
        held_since_mono_s=since_s if state == "held" else None,
    )


@pytest.mark.parametrize(
    ("shares", "at_s", "state", "on_gpu", "ends"),
    [
        ([0.9, 0.9, 0.9], 112.0, "held", True, True),
        ([0.9, 0.9], 112.0, "held", True, False),
        ([0.9, 0.0, 0.9, 0.9], 112.0, "held", True, False),
        ([0.9, Unreadable("why"), 0.9, 0.9], 112.0, "held", True, True),  # unknown is no rest
        ([0.9, Unreadable("why"), Unreadable("why"), 0.9], 112.0, "held", True, False),  # nor use
        ([0.09] * 5, 112.0, "held", True, False),
        ([0.9, 0.9, 0.9], 102.0, "held", True, False),  # its last kernels
        ([0.9, 0.9, 0.9], 112.0, "running", True, False),
        ([0.9, 0.9, 0.9], 112.0, "held", False, False),
    ],
)
def test_what_no_pause_holds_is_stopped(
    shares: list[float | Unreadable], at_s: float, state: str, on_gpu: bool, ends: bool
) -> None:
    stopped: list[str] = []
    agent = agent_with(held(state=state), stopped, on_gpu)
    enforcing = Enforcing(agent)
    for number, share in enumerate(shares):
        agent.shares = {"a": share}
        enforcing.end_what_no_pause_holds(at_s + 2.0 * number)
    assert stopped == (["a"] if ends else [])


@pytest.mark.parametrize(
    ("share", "window", "on_gpu", "off"),
    [
        (0.05, (102.0, 104.0), True, True),
        (0.05, (100.0, 102.0), True, True),
        (0.2, (102.0, 104.0), True, False),
        (Unreadable("why"), (102.0, 104.0), True, False),
        (0.0, None, True, False),
        (0.0, (97.0, 99.0), True, False),  # read before it was held
        (0.0, (98.5, 100.5), True, False),  # too little of it after
        (0.09, (99.0, 101.0), True, False),  # all of it may have been after
        (0.04, (99.0, 101.0), True, True),
        (0.9, (102.0, 104.0), False, None),
    ],
)
def test_a_unit_left_the_gpu_where_the_meter_reads_so_since_it_was_held(
    share: float | Unreadable, window: tuple[float, float] | None, on_gpu: bool, off: bool | None
) -> None:
    attempt = held()
    attempt.held_for_s = lambda mono_s: mono_s - 100.0
    agent = agent_with(attempt, [], on_gpu)
    agent.gpus = SimpleNamespace(share=lambda _: share, share_window=lambda _: window)
    assert Enforcing(agent).off_gpu(attempt) is off


def test_an_agent_asks_its_meter_before_it_believes_a_pause_on_a_gpu(tmp_path: Path) -> None:
    """Of a module that is gone it cannot be told that it is on none, and no meter has read it."""
    agent = Agent(tmp_path, "n", tmp_path / "none")
    agent.governing.work_of_attempt = lambda attempt: Work("m", "s", None)  # type: ignore[method-assign]
    assert agent.jobs._off_gpu(held()) is False
    agent.journal.close()


def test_a_sweep_compares_the_digest_that_its_runs_were_recorded_with(tmp_path: Path) -> None:
    """With a section of the fleet the node's own digest is another one, and no sweep would go past its first level."""
    agent = Agent(tmp_path, "n", tmp_path / "none")
    rule = '[[rule]]\nid = "t"\nmatch = { name = "no-such-program" }\nevict = true\n'
    agent.set_section(rule, "me")
    agent.set_section(rule, "fleet", scope="fleet")
    shown = Verbs(agent).section_show()
    assert shown["in_force_digest"] == digest(agent.section_text) != shown["digest"]
    agent.journal.close()
