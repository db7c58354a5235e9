"""A real agent on two devices of the stand-in driver, whose time is the CPU time of real processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodes.meters.pidspace import PidSpace
from policies.refusal import Refused
from tests.node.agent_rig import STEPPER, Rig, cpu_s, runners_of, wait_for
from tests.node.nvml.rig import Driver

TWO = ("device 0 GPU-a 17179869184 0", "device 1 GPU-b 17179869184 0")


# Of each step. Light: many steps a window. Heavy: at work most of the time, so that the program uses its device beyond
# doubt also where it gets a tenth of a core.
LIGHT, HEAVY = 20_000, 1_000_000
LONG = {"prompts": 1_000_000, "max_tokens": 1000}


class GpuRig(Rig):
    """Every process of the program is on GPU-a; fleet runners are on the device that they were put on."""

    def __init__(self, home: Path, driver: Driver, loops: int = LIGHT) -> None:
        super().__init__(home)
        self.stepper.write_text(STEPPER.replace("20000", str(loops)))
        self.driver = driver
        self.program_on: tuple[int, ...] = (0,)
        self.programs: list[int] = []
        self._stopping = threading.Event()
        self._follower = threading.Thread(target=self._follow, daemon=True)

    def begin_following(self) -> None:
        self._follower.start()

    def _follow(self) -> None:
        while not self._stopping.wait(0.2):
            facts = [f"follow {device} {pid}" for device in self.program_on for pid in self.programs]
            for pid in runners_of(self.home):
                on = {"GPU-a": 0, "GPU-b": 1}.get(visible(pid) or "")
                facts += [f"follow {on} {pid}"] if on is not None else []
            self.driver.say(*TWO, *facts)

    def stop(self) -> None:
        self._stopping.set()
        super().stop()

    def section(self, extra_node: str = "", extra_rule: str = "", name: str = "stepper") -> str:
        return super().section(extra_node, extra_rule, name).replace('duty_device = "cpu"', 'duty_device = "gpu"')

    def rule(self) -> dict[str, Any]:
        return dict(self.client.call("status")["rules"][0])


def visible(pid: int) -> str | None:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    told = [part for part in environ.split(b"\0") if part.startswith(b"CUDA_VISIBLE_DEVICES=")]
    return told[0].partition(b"=")[2].decode() if told else None


@pytest.fixture
def rig(request: pytest.FixtureRequest, tmp_path: Path, driver: Driver) -> Iterator[GpuRig]:
    usable = PidSpace().usable
    if usable is not True:
        pytest.skip(f"per-process metering: {usable}")
    made = GpuRig(tmp_path, driver, getattr(request, "param", LIGHT))
    driver.say(*TWO)
    program = made.start_program()
    made.programs = [program.pid]
    made.begin_following()
    try:
        made.start_agent()
        yield made
    finally:
        made.stop()


def placed(rig: Rig) -> set[str]:
    """Devices that processes of the home's runners were given."""
    return {found for pid in runners_of(rig.home) if (found := visible(pid)) is not None}


def job_state(rig: Rig, job: int) -> dict[str, Any]:
    return dict(rig.client.call("job_show", job=job))


@pytest.mark.parametrize("rig", [HEAVY], indirect=True)
def test_case_080_a_rule_holds_work_on_the_devices_that_its_program_uses_and_no_other(rig: GpuRig) -> None:
    rig.protect()
    wait_for("the program is seen on its device", lambda: rig.rule()["uses_device"] is True)
    assert rig.rule()["devices"] == ["GPU-a"]
    job = rig.client.call("job_submit", module="llmserve", stage="selftest", payload=LONG)["job"]
    wait_for("the job runs", lambda: job_state(rig, job)["state"] == "running")
    wait_for("its runner", lambda: placed(rig))
    assert placed(rig) == {"GPU-b"}
    attempt = job_state(rig, job)["attempt"]
    devices = {row["device"]: row["attempts"] for row in rig.client.call("status")["devices"]}
    assert devices == {"GPU-a": [], "GPU-b": [attempt]}
    wait_for("the unit's share of its device is metered", lambda: (job_state(rig, job)["share"] or 0.0) > 0.0)

    rig.program_on = (0, 1)
    wait_for("the program is seen on both", lambda: rig.rule()["devices"] == ["GPU-a", "GPU-b"])
    wait_for("the unit is held", lambda: job_state(rig, job)["state"] == "held")


@pytest.mark.parametrize("rig", [HEAVY], indirect=True)
def test_a_restarted_agent_knows_on_which_device_each_unit_is(rig: GpuRig) -> None:
    rig.protect()
    wait_for("the program is seen on its device", lambda: rig.rule()["uses_device"] is True)
    job = rig.client.call("job_submit", module="llmserve", stage="selftest", payload=LONG)["job"]
    wait_for("its runner works", lambda: placed(rig) and (job_state(rig, job)["share"] or 0.0) > 0.0, 120)
    (before,), attempt = placed(rig), job_state(rig, job)["attempt"]
    assert rig.agent is not None
    rig.agent.kill()
    rig.agent.wait()
    rig.start_agent()

    def known() -> list[str]:
        return [row["device"] for row in rig.client.call("status")["devices"] if attempt in row["attempts"]]

    assert wait_for("its device", known) == [before]


def test_gpu_work_is_measured_with_a_metered_dose(rig: GpuRig) -> None:
    rig.protect()
    wait_for("the devices are read", lambda: rig.client.call("status")["devices"])
    plan = rig.client.call("run_plan", spec=rig.spec())
    assert plan["work"]
    rig.begin()
    used: list[tuple[float, float]] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.1):
            used.append((time.monotonic(), cpu_s(runners_of(rig.home))))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    row = rig.client.call("run_block", run="run-1", number=1, order="on_first", _timeout_s=240.0)
    stop.set()
    watcher.join()
    on = row["on"]
    assert on is not None, row
    assert on["dose"] is not None, on["dose_unknown_reason"]
    begin, end = on["started_mono_s"], on["started_mono_s"] + on["length_s"]
    inside = [cpu for at, cpu in used if begin <= at <= end]
    seen = (inside[-1] - inside[0]) / on["length_s"]
    # A device's samples end up to a second before the window's edge on either side: a fifth of a window of 5 s each.
    assert on["dose"] == pytest.approx(seen, abs=0.4 * max(seen, on["dose"]) + 0.03)
    if row["off"] is not None:
        assert row["off"]["dose"] is not None


def test_case_022_no_gpu_work_starts_while_the_driver_does_not_answer(tmp_path: Path, driver: Driver) -> None:
    driver.say("init 18")
    rig = Rig(tmp_path)
    try:
        rig.start_agent()
        wait_for("llmserve is ready", lambda: rig.client.call("modules")[0]["state"] == "ready", 300)
        job = rig.client.call("job_submit", module="llmserve", stage="selftest", payload=LONG)["job"]
        waits = wait_for("the job waits with its reason", lambda: job_state(rig, job)["code"] and job_state(rig, job))
        assert waits["code"] == "GPU_METER_DOWN"
        wait_for("the remedy", lambda: "reboot" in (job_state(rig, job)["remedy"] or ""))
        assert rig.timeline("GPU_METER_DOWN")
    finally:
        rig.stop()


def test_a_gpu_without_a_meter_cannot_be_measured_on(tmp_path: Path, driver: Driver) -> None:
    driver.say("device 0 GPU-a 17179869184 0", "mig 0 1")
    rig = GpuRig(tmp_path, driver)
    rig.programs = [rig.start_program().pid]
    try:
        rig.start_agent()
        rig.protect()
        wait_for(
            "the device is read", lambda: [r for r in rig.client.call("status")["devices"] if "MIG" in str(r["why"])]
        )
        with pytest.raises(Refused) as refused:
            rig.client.call("run_plan", spec=rig.spec())
        assert refused.value.code == "RUN_NO_METER"
        assert "MIG" in refused.value.why
    finally:
        rig.stop()
