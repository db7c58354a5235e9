"""The conformance kit where the host meters the device: the stand-in driver's time is the CPU time of the runner."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.conform import Check, conform
from cotenant.conform.newmodule import new_module
from nodes.meters.pidspace import PidSpace
from tests.node.agent_rig import runners_of
from tests.node.broken_modules import DEAF, DUTY, FAKED, OF_CONTROL
from tests.node.nvml.rig import Driver

ONE = "device 0 GPU-a 17179869184 0"
ON_GPU = ('device: Literal["gpu", "cpu"] = "cpu"', 'device: Literal["gpu", "cpu"] = "gpu"')
# takes all that it is given, and reports what it was asked for
GREEDY = (
    ("\ndef checked(", DEAF.replace("asked + 0.15", "1.0")),
    (OF_CONTROL, OF_CONTROL.replace("Control", "Greedy")),
    ("def checked(", FAKED.lstrip("\n").replace('"device": "cpu"', '"device": "gpu"')),
    (DUTY, "        fake(args.events, 0.05)\n" + DUTY.replace("args.events", "None")),
)


@pytest.fixture
def followed(driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every runner under ``tmp_path`` works on the one device."""
    usable = PidSpace().usable
    if usable is not True:
        pytest.skip(f"per-process metering: {usable}")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    driver.say(ONE)
    stop = threading.Event()

    def follow() -> None:
        while not stop.wait(0.2):
            driver.say(ONE, *(f"follow 0 {pid}" for pid in runners_of(tmp_path)))

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    yield
    stop.set()
    follower.join()


def checked(folder: Path, *edits: tuple[str, str], duty: float) -> dict[str, Check]:
    new_module(folder)
    runner, specs = folder / "runner.py", folder / "conformance.json"
    text = runner.read_text(encoding="utf-8")
    for before, after in (ON_GPU, *edits):
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    runner.write_text(text, encoding="utf-8")
    specs.write_text(specs.read_text(encoding="utf-8").replace('"duty": 0.3', f'"duty": {duty}'), encoding="utf-8")
    return {check.name.partition(" ")[0]: check for check in conform(folder, ("duty",))}


@pytest.mark.usefixtures("followed")
def test_a_runner_that_holds_its_duty_on_a_device_that_is_metered_passes(tmp_path: Path) -> None:
    checks = checked(tmp_path / "bundle", duty=0.3)
    assert not [check.line() for check in checks.values() if check.verdict == "FAIL"]
    measured = checks["duty-measured"]
    assert (measured.verdict, "of the device measured" in measured.said) == ("ok", True), measured.line()
    assert float(measured.said.partition(" ")[0]) > 0.0
    assert checks["duty-honest"].verdict == "ok"


@pytest.mark.usefixtures("followed")
def test_one_that_overruns_is_found_by_the_devices_meter_and_not_by_its_word(tmp_path: Path) -> None:
    checks = checked(tmp_path / "bundle", *GREEDY, duty=0.05)
    failed = {name for name, check in checks.items() if check.verdict == "FAIL"}
    assert failed == {"duty-measured", "duty-honest"}, [check.line() for check in checks.values()]
