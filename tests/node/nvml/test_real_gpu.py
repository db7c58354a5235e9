"""The meter's promises on a real NVIDIA device (`make test-gpu`): what the stand-in cannot show."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from nodes.meters.nvml import NvmlMeter, Reading
from nodes.meters.nvml_probe import nvidia_present, probe_now
from nodes.meters.pidspace import PidSpace

pytestmark = pytest.mark.gpu

# Keeps the device busy through the driver interface alone: memory is set again and again, which needs no toolkit.
BUSY = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
def must(code):
    if code: sys.exit(f"CUDA error {code}")
device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
must(cuda.cuInit(0)); must(cuda.cuDeviceGet(ctypes.byref(device), 0))
must(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device))
size = 1 << 30
must(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)))
print("ready", flush=True)
on_s, off_s = float(sys.argv[1]), float(sys.argv[2])
while True:
    until = time.monotonic() + on_s
    while time.monotonic() < until:
        for _ in range(20): must(cuda.cuMemsetD32_v2(pointer, 7, ctypes.c_size_t(size // 4)))
        must(cuda.cuCtxSynchronize())
    time.sleep(off_s)
"""


@pytest.fixture(scope="module")
def real() -> None:
    if not nvidia_present():
        pytest.fail("there is no NVIDIA device here; these tests are for a machine with one")
    found = probe_now()
    assert found.why is None, (found.why, found.remedy)
    assert found.devices


@pytest.fixture
def busy(request: pytest.FixtureRequest) -> Iterator[int]:
    on_s, off_s = request.param
    process = subprocess.Popen([sys.executable, "-c", BUSY, str(on_s), str(off_s)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        yield process.pid
    finally:
        process.kill()
        process.wait()


def read_for(seconds: float, pids: list[int]) -> tuple[list[Reading], float]:
    """Readings of the first device a second apart, and the seconds between the first and the last."""
    meter = NvmlMeter()
    found: list[Reading] = []
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        found.append(meter.read(time.monotonic(), pids)[0])
        time.sleep(1.0)
    return found, found[-1].at_s - found[0].at_s


def own_pids_only() -> None:
    usable = PidSpace().usable
    if usable is not True:
        pytest.skip(f"no process's time can be told: {usable}")


@pytest.mark.usefixtures("real")
@pytest.mark.parametrize("busy", [(3600.0, 0.0)], indirect=True)
def test_a_process_that_keeps_the_device_busy_is_seen_to(busy: int) -> None:
    own_pids_only()
    readings, span_s = read_for(20.0, [busy, os.getpid()])
    used = [reading.use([busy]) for reading in readings[1:]]
    assert not [each.why for each in used if each.why is not None]
    assert (
        sum({reading.at_s: each.busy_s for reading, each in zip(readings[1:], used, strict=True)}.values())
        > 0.7 * span_s
    )
    assert readings[-1].use([os.getpid()]).busy_s == 0.0


@pytest.mark.usefixtures("real")
@pytest.mark.parametrize("busy", [(2.0, 4.0)], indirect=True)
def test_case_004_a_third_of_the_time_is_a_third(busy: int) -> None:
    own_pids_only()
    readings, span_s = read_for(40.0, [busy])
    total = sum({reading.at_s: reading.use([busy]).busy_s for reading in readings[1:]}.values())
    assert total / span_s == pytest.approx(1 / 3, abs=0.12)
    assert max(reading.use([busy]).busy_s / reading.span_s for reading in readings[1:]) > 0.6, (
        "the burst is seen as one"
    )


@pytest.mark.usefixtures("real")
@pytest.mark.parametrize("busy", [(3600.0, 0.0)], indirect=True)
def test_the_holder_and_its_memory_are_listed(busy: int) -> None:
    holders = read_for(2.0, [busy])[0][-1].holders
    assert isinstance(holders, tuple), holders
    held = {holder.pid: holder.memory_bytes for holder in holders}
    if PidSpace().usable is True:
        assert held[busy] is None or held[busy] >= 1 << 30
    else:
        assert set(held) <= {None}, "a number of another namespace is nobody here"


@pytest.mark.usefixtures("real")
def test_case_001_the_meter_costs_the_driver_little() -> None:
    meter = NvmlMeter()
    began = time.monotonic()
    while time.monotonic() - began < 30.0:
        meter.read(time.monotonic(), [os.getpid()])
        time.sleep(0.5)
    assert meter.gate.cost_ms_per_s() < 20.0
    print(f"driver {meter.driver}: {meter.gate.cost_ms_per_s():.2f} ms of driver time a second")


@pytest.mark.usefixtures("real")
def test_the_drivers_library_is_what_pynvml_loads() -> None:
    assert ctypes.CDLL("libnvidia-ml.so.1")
