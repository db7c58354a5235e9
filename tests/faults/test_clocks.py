"""The wall clock set back and forward, and the machine asleep, under a real agent in the middle of a block. Durations come from
the monotonic clock, so a step changes no count, no timeout and nobody's identity; a suspend leaves the block out.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from policies.harness.schedule import coin
from tests.node.agent_rig import ROOT, Rig, runners_of, wait_for
from tests.node.test_agent_blocks import in_background, lines

DAY_S = 86_400.0


class Shifted(Rig):
    """An agent whose clocks the test sets."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.clock = home / "clock.json"

    def set(self, **shifts: float) -> None:
        draft = self.clock.with_suffix(".new")
        draft.write_text(json.dumps(shifts))
        os.replace(draft, self.clock)

    def start_agent(self) -> None:
        with open(self.home / "agent.log", "ab") as log:
            self.agent = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.shifted_agent", "--home", str(self.home), "--node", "local"],
                cwd=ROOT,
                stderr=log,
                stdout=log,
                env=os.environ | {"COTENANT_TEST_CLOCK": str(self.clock)},
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        self.started.append(self.agent)
        wait_for("the agent answers", self._answers)


@pytest.fixture
def shifted(tmp_path: Path) -> Iterator[Shifted]:
    found = Shifted(tmp_path)
    found.start_agent()
    found.start_program()
    found.protect()
    yield found
    found.stop()


def off_by_days(entry: dict[str, Any]) -> float:
    return (datetime.fromisoformat(entry["at"]) - datetime.now(UTC)).total_seconds() / DAY_S


def test_a_clock_that_is_set_changes_nothing_and_a_suspend_leaves_its_block_out(shifted: Shifted) -> None:
    rig = shifted
    before = rig.client.call("status")["rules"][0]
    rig.begin(window_s=8.0, max_hours=0.1)
    thread, rows = in_background(rig, 1, "on_first")
    rig.wait_window("on", 180)
    (work,) = runners_of(rig.home)
    counted = lines(rig.events)
    rig.set(wall_s=30 * DAY_S)
    wait_for("the ON window's end", lambda: rig.part()[1] != "window", 60)
    counted = lines(rig.events) - counted
    rig.wait_window("off", 180)
    rig.set(wall_s=-400 * DAY_S)
    thread.join(120)
    (row,) = rows
    assert row["state"] == "counted", row
    assert row["on"]["events"] == pytest.approx(counted, rel=0.4), "what the file grew by, over nearly the same stretch"
    # the runner has a timeout, the program an identity: neither knows of dates
    assert runners_of(rig.home) == [work]
    after = rig.client.call("status")["rules"][0]
    assert after["active"]
    assert after["processes"] == before["processes"]
    entries = rig.timeline()
    codes = {entry["code"] for entry in entries}
    assert not codes & {"PROTECTION_CLEARED", "PROTECTION_SOURCE_UNREADABLE", "JOB_REQUEUED", "S16_GUARD"}, codes
    (hold,) = [entry for entry in entries if entry["code"] == "RUN_HOLD"]
    assert off_by_days(hold) == pytest.approx(30, abs=0.1), "the agent's clock was set"
    assert off_by_days(entries[-1]) == pytest.approx(-400, abs=0.1)
    assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1)), "in order by number all the same"

    rig.set(wall_s=0.0)
    order = coin(rig.spec()["seed"], 2)
    first = "on" if order == "on_first" else "off"
    thread, rows = in_background(rig, 2, order)
    rig.wait_window(first, 180)
    rig.set(asleep_s=7200.0)
    thread.join(120)
    (row,) = rows
    assert (row["state"], row["reason"], row["reason_arm"]) == ("left_out", "suspend", first), row
    assert "7200 s" in row["reason_detail"]
    assert row[first] is None, "a window that was slept through has no count"
    rig.client.call("run_abort", run="run-1")
