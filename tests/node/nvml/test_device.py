"""All meters behind one face, on the stand-in driver."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from nodes.meters.device import OLD_S, Device, DeviceMeters, UnitPids
from nodes.meters.reading import Unreadable
from policies.compliance import MAX_AGE_S
from policies.devices import UseState, device_use, step_use
from tests.node.agent_rig import wait_for
from tests.node.nvml.rig import MIB, Driver, FakeProc

TWO = ("device 0 GPU-a 17179869184 0", "device 1 GPU-b 17179869184 0")
PROGRAM, FLEET = 501, 777


class Rig:
    """Time that is moved by hand; the driver's stamps stay on the real wall clock, as the meter's are."""

    def __init__(self, driver: Driver, proc: FakeProc, tmp: Path) -> None:
        (tmp / "root/dev").mkdir(parents=True)
        (tmp / "root/dev/nvidiactl").touch()
        self.driver = driver
        self.notes: list[tuple[str, dict[str, Any]]] = []
        self.meters = DeviceMeters(
            lambda code, data: self.notes.append((code, data)), proc=proc.root, sys=tmp / "sys", root=tmp / "root"
        )
        self.began_s, self.began_us = 1000.0, time.time_ns() // 1000
        self.now_s = self.began_s

    def tick(self, units: dict[str, UnitPids] | None = None, step_s: float = 2.0) -> None:
        self.now_s += step_s
        self.meters.tick(self.now_s, [PROGRAM], units or {}, wait_s=20.0)

    def up(self, *facts: str) -> None:
        self.driver.say(*facts)
        wait_for("the probe's answer", lambda: self.tick() or self.meters.devices or self.meters.down)


@pytest.fixture
def rig(driver: Driver, proc: FakeProc, tmp_path: Path) -> Rig:
    for pid in (PROGRAM, FLEET):
        proc.add(pid)
    return Rig(driver, proc, tmp_path)


def sample(rig: Rig, device: int, pid: int, pct: int) -> str:
    """From the real now on, so that it comes after every query before it."""
    return f"sample {device} {pid} {time.time_ns() // 1000} {pct} 0 0"


def test_each_device_is_read_and_each_unit_counted_on_its_own(rig: Rig) -> None:
    rig.up(*TWO)
    units = {"a": UnitPids([FLEET], frozenset({"GPU-b"}))}
    rig.tick(units)
    time.sleep(0.3)
    rig.driver.say(*TWO, sample(rig, 0, PROGRAM, 100), sample(rig, 1, FLEET, 50))
    rig.tick(units)
    shares = rig.meters.shares([PROGRAM], rig.now_s)
    assert shares["GPU-a"][0] > 0.1
    assert shares["GPU-b"] == (0.0, None)
    total = rig.meters.unit_total("a")
    assert isinstance(total, float)
    assert total > 0.1
    assert rig.meters.unit_share("a") == pytest.approx(total / 2.0)
    assert rig.meters.unit_window("a") == pytest.approx((rig.now_s - 2.0, rig.now_s))
    rig.tick(units, step_s=0.2)
    assert rig.meters.unit_total("a") == total, "a reading that is not due is not counted again"
    rig.driver.say(*TWO, "utilcode 1 3")
    rig.tick(units)
    assert isinstance(rig.meters.unit_share("a"), Unreadable)
    assert isinstance(rig.meters.unit_total("a", since_s=rig.now_s - 1.0), Unreadable), "a hole lies in that stretch"
    assert rig.meters.unit_total("a", since_s=rig.now_s + 1.0) == total


def test_a_driver_that_hangs_makes_readings_old_and_stops_nobody(rig: Rig) -> None:
    rig.up(*TWO)
    rig.tick()
    rig.tick()
    assert rig.meters.shares([PROGRAM], rig.now_s)["GPU-a"] == (0.0, None)
    units = {"a": UnitPids([FLEET], frozenset({"GPU-a"}))}
    rig.tick(units)
    assert rig.meters.unit_age_s("a", rig.now_s) < 1.0
    rig.driver.say("hang 4", *TWO)
    began = time.monotonic()
    rig.meters.tick(rig.now_s + 2.0, [PROGRAM], units)
    rig.meters.tick(rig.now_s + 5.0, [PROGRAM], units)
    assert isinstance(rig.meters.unit_share("a"), float), "it is still the last figure"
    assert rig.meters.unit_age_s("a", rig.now_s + 5.0) > MAX_AGE_S, "and says so"
    rig.meters.tick(rig.now_s + OLD_S + 3.0, [PROGRAM], units)
    assert time.monotonic() - began < 4.0, "the driver's own pause, which a tick must not wait for"
    assert rig.meters.shares([PROGRAM], rig.now_s + OLD_S + 3.0)["GPU-a"][1] is not None
    rig.driver.say(*TWO)


def test_case_022_a_driver_that_does_not_answer_is_journaled_and_comes_back(rig: Rig) -> None:
    rig.up("init 18")
    assert rig.meters.down is not None
    assert "reboot" in rig.meters.down[1]
    assert rig.meters.cannot_meter() is not None
    rig.tick(step_s=1.0)
    rig.driver.say(*TWO)
    rig.now_s += 200.0
    wait_for("the second probe's answer", lambda: rig.tick(step_s=0.1) or rig.meters.devices)
    assert [code for code, _ in rig.notes] == ["GPU_METER_DOWN", "GPU_METER_UP"]
    assert rig.meters.cannot_meter() is None


def test_case_018_a_unit_beside_work_of_nobody_has_no_dose(rig: Rig) -> None:
    rig.up(*TWO)
    units = {"a": UnitPids([FLEET], frozenset({"GPU-a"}))}
    rig.tick(units)
    time.sleep(0.05)
    rig.driver.say(*TWO, sample(rig, 0, FLEET, 90))
    rig.tick(units)
    assert isinstance(rig.meters.unit_share("a"), float)
    rig.driver.say(*TWO, "util 0 100")
    for _ in range(8):
        rig.tick(units)
    assert isinstance(rig.meters.unit_share("a"), Unreadable)
    assert rig.meters.shares([PROGRAM], rig.now_s)["GPU-a"] == (0.0, None), "it holds nobody back for ever"


def test_case_025_a_lost_holders_memory_counts_and_is_shown(rig: Rig) -> None:
    rig.up("device 0 GPU-a 17179869184 16106127360", f"proc 0 C 4040 {800 * MIB}")
    rig.tick()
    row = rig.meters.describe()[0]
    assert (row["unresolvable"], row["free_bytes"]) == (1, 17179869184 - 16106127360)


def test_nothing_is_read_where_there_is_no_sign_of_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    meters = DeviceMeters(root=tmp_path, proc=tmp_path)
    meters.tick(1.0, [1], {"a": UnitPids([2])})
    assert (meters.present, meters.devices, meters.shares([1], 1.0)) == (False, (), {})
    assert isinstance(meters.unit_share("a"), Unreadable)
    assert isinstance(meters.share([1], 1.0), Unreadable)


def test_a_driver_that_is_not_known_yet_or_down_leaves_it_open_what_a_program_uses(rig: Rig) -> None:
    """Beside a second GPU that reads: the program may be on those that are not listed."""
    other = Device("0000:00:02.0", "i915 0000:00:02.0", "drm", "i915")
    rig.meters.devices = (other,)
    probed = rig.meters.shares([PROGRAM], rig.now_s)
    assert any("probed" in (why or "") for _, why in probed.values())
    assert isinstance(rig.meters.share([PROGRAM], rig.now_s), Unreadable)
    rig.meters.devices = ()
    rig.up("init 18")
    rig.meters.devices = (other,)
    assert rig.meters.down is not None
    assert (0.0, rig.meters.down[0]) in rig.meters.shares([PROGRAM], rig.now_s).values()
    state = step_use(UseState(), {**rig.meters.shares([PROGRAM], rig.now_s), other.key: (0.0, None)}, rig.now_s)
    assert device_use(state, rig.now_s).uses is None
