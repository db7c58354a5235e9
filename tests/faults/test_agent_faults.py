"""What must not unleash work or lose a window: the flow's process and the agent killed, stopped and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from nodes.client import AgentUnreachable
from policies.refusal import Refused
from tests.node.agent_rig import ROOT, Rig, cpu_s, runners_of, wait_for

# Long windows: on a busy host a short one would be over before it could be broken into.
SPEC = {"window_s": 60.0, "washout_s": 1.0, "max_hours": 1.0}
TICK_S = 2.0


def hold(rig: Rig, run: str = "run-1", **changes: Any) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.holder", str(rig.home), run, json.dumps(rig.spec(**(SPEC | changes)))],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    rig.started.append(process)
    return process


def said(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    return dict(json.loads(process.stdout.readline()))


def in_on_window(rig: Rig) -> list[int]:
    """Wait until the work runs in an ON window; the runners' pids."""
    rig.wait_window("on", 240)
    return wait_for("a runner", lambda: runners_of(rig.home))


def quiet(pids: list[int], stretch_s: float = 3.0) -> bool:
    """Whether these processes use no CPU over a stretch, by the kernel's count (a runner that waits uses next to none)."""
    before = cpu_s(pids)
    time.sleep(stretch_s)
    return cpu_s(pids) - before <= 0.02 * stretch_s


def on_first_seed() -> int:
    from policies.harness.schedule import coin

    return next(seed for seed in range(100) if coin(seed, 1) == "on_first" and coin(seed, 2) == "on_first")


def test_kill_9_of_the_flows_process_ends_hold_and_grant_within_a_tick_and_the_run_goes_on(measured: Rig) -> None:
    rig, seed = measured, on_first_seed()
    flow = hold(rig, seed=seed)
    assert said(flow) == {"resumed": False, "blocks": []}
    in_on_window(rig)
    killed = time.monotonic()
    flow.kill()
    entry = wait_for("the agent lets go", lambda: rig.timeline("RUN_RELEASED"))[0]
    # The agent's own clock against ours (both monotonic of this boot); a tick, and what a busy host adds to a wake-up.
    assert entry["mono_s"] - killed <= TICK_S + 3.0
    wait_for("no work runs on ungoverned", lambda: not runners_of(rig.home), 60)
    assert rig.client.call("run_status") is None
    record = rig.client.call("run_show", run="run-1")
    assert record["state"] == "open"
    assert [(row["number"], row["state"]) for row in record["blocks"]] == [(1, "cut")]
    again = hold(rig, seed=seed)
    assert said(again) == {"resumed": True, "blocks": [1]}
    in_on_window(rig)
    assert rig.client.call("run_show", run="run-1")["begun"]["number"] == 2, (
        "the cut block is repeated under a new number"
    )
    rig.client.call("run_abort", run="run-1")


def test_another_process_cannot_take_a_run_that_is_driven_and_none_can_name_another_as_holder(measured: Rig) -> None:
    rig = measured
    flow = hold(rig, seed=on_first_seed())
    said(flow)
    with pytest.raises(Refused) as refused:
        rig.begin(**SPEC, seed=on_first_seed())
    assert refused.value.code == "RUN_LOCKED"
    with pytest.raises(Refused) as refused:
        rig.client.call(
            "run_begin",
            run="run-9",
            spec=rig.spec(),
            holder={"pid": 1, "start_ticks": 1, "boot_id": "x"},
            reviewed_by="t",
        )
    assert refused.value.code == "RUN_BAD_HOLDER"


def test_kill_9_of_the_agent_holds_the_work_and_the_run_goes_on_under_the_next_agent(measured: Rig) -> None:
    rig, seed = measured, on_first_seed()
    flow = hold(rig, seed=seed)
    said(flow)
    runners = in_on_window(rig)
    assert rig.agent is not None
    rig.agent.kill()
    rig.agent.wait(30)
    # cooperative_pause: the launcher writes the pause document and nudges within a second; it stops one that runs on.
    wait_for("the launcher holds the work without the agent", lambda: quiet(runners), 30)
    assert runners_of(rig.home), "held, not lost"
    flow.wait(60)
    rig.start_agent()
    wait_for("adopted", lambda: rig.timeline("AGENT_ADOPTED"))
    assert rig.client.call("run_status") is None
    # The feed belongs to a run that nobody drives: it may not run on.
    wait_for("the feed is ended", lambda: not runners_of(rig.home), 60)
    wait_for("the program is seen again", lambda: rig.client.call("status")["rules"][0]["processes"])
    again = hold(rig, seed=seed)
    assert said(again) == {"resumed": True, "blocks": [1]}
    record = rig.client.call("run_show", run="run-1")
    assert [(row["number"], row["state"], row["reason"]) for row in record["blocks"]] == [(1, "cut", "cut")]
    in_on_window(rig)
    rig.client.call("run_abort", run="run-1")


def test_an_agent_that_is_stopped_counts_as_dead_after_ten_seconds(measured: Rig) -> None:
    rig = measured
    flow = hold(rig, seed=on_first_seed())
    said(flow)
    runners = in_on_window(rig)
    assert rig.agent is not None
    os.kill(rig.agent.pid, signal.SIGSTOP)
    try:
        wait_for("the launcher holds the work of a silent agent", lambda: quiet(runners), 60)
    finally:
        os.kill(rig.agent.pid, signal.SIGCONT)
    wait_for("the agent is back", lambda: rig.client.call("hello"))
    rig.client.call("run_abort", run="run-1")
    wait_for("nothing is left", lambda: not runners_of(rig.home), 60)


def test_a_normal_stop_of_the_agent_leaves_nothing_running(measured: Rig) -> None:
    rig = measured
    flow = hold(rig, seed=on_first_seed())
    said(flow)
    in_on_window(rig)
    assert rig.agent is not None
    rig.agent.terminate()
    assert rig.agent.wait(90) == 0
    assert not runners_of(rig.home)
    with pytest.raises(AgentUnreachable):
        rig.client.call("hello")


def test_a_changed_section_or_program_ends_the_resumed_run_and_says_what_changed(measured: Rig) -> None:
    rig, seed = measured, on_first_seed()
    flow = hold(rig, seed=seed)
    said(flow)
    in_on_window(rig)
    flow.kill()
    wait_for("the agent lets go", lambda: rig.client.call("run_status") is None)
    rig.client.call("section_set", text=rig.section(extra_node='mode = "fleet_first"'), by="test")
    with pytest.raises(Refused) as refused:
        rig.begin(**SPEC, seed=seed)
    assert refused.value.code == "RUN_CHANGED"
    assert "section" in refused.value.why
    rig.client.call("section_set", text=rig.section(), by="test")
    # a death in the washout after ON would be the run's ending
    wait_for("the washout is over", lambda: rig.client.call("run_show", run="run-1")["left"] is None)
    rig.started[1].kill()
    rig.started[1].wait(10)
    rig.stepper.write_text(rig.stepper.read_text() + "\n# another version\n")
    rig.start_program()
    wait_for(
        "the new program is seen",
        lambda: [p["pid"] for p in rig.client.call("status")["rules"][0]["processes"]] == [rig.started[-1].pid],
    )
    with pytest.raises(Refused) as refused:
        rig.begin(**SPEC, seed=seed)
    assert refused.value.code == "RUN_CHANGED"
    assert "stepper.py" in refused.value.why
    ended = rig.client.call("run_end", run="run-1", ending="interrupted", reason=refused.value.why)
    assert ended["ending"] == "interrupted"
