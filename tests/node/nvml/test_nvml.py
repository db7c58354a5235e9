"""The NVIDIA meter on a driver that answers what a test says, through the real pynvml."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from nodes.meters.nvml import UNATTRIBUTED_AFTER, NvmlMeter, Reading, Unusable
from nodes.meters.nvml_gate import Gate
from nodes.meters.nvml_probe import Probe, nvidia_present
from nodes.meters.reading import Unreadable
from tests.node.nvml.rig import MIB, Clock, Driver, FakeProc, build, run_python

DEVICE = ("device 0 GPU-a 17179869184 1073741824",)
PROGRAM, FLEET = 501, 777


def meter(proc: FakeProc, clock: Clock, **options: object) -> NvmlMeter:
    # calls that cost nothing, so that a busy machine does not stretch the meter's periods under the test
    options = {"gate": Gate(lambda: clock.now_s)} | options
    return NvmlMeter(proc.root, wall_us=clock.wall_us, **options)  # type: ignore[arg-type]


def first(made: NvmlMeter, clock: Clock, *wanted: int) -> Reading:
    return made.read(clock.now_s, wanted)[0]


def started(
    driver: Driver,
    proc: FakeProc,
    clock: Clock,
    *facts: str,
    wanted: tuple[int, ...] = (PROGRAM,),
    gate: Gate | None = None,
) -> NvmlMeter:
    """A meter with a baseline at second 0."""
    for pid in {PROGRAM, FLEET} - {int(p.name) for p in proc.root.iterdir() if p.name.isdigit()}:
        proc.add(pid)
    driver.say(*DEVICE, *facts)
    made = meter(proc, clock, gate=gate or Gate(lambda: clock.now_s))
    assert first(made, clock, *wanted).use(wanted).why is not None, "the first reading has no baseline"
    return made


def test_case_001_lists_are_rarer_than_utilisation_calls_and_the_cost_is_known_and_bounded(
    driver: Driver, proc: FakeProc, clock: Clock
) -> None:
    lists, utils = driver.calls("lists"), driver.calls("utils")
    made = started(driver, proc, clock, "list_sleep_us 5000", f"proc 0 C {PROGRAM} {MIB}", gate=Gate())
    for half in range(1, 121):
        clock.go(half / 2)
        first(made, clock, PROGRAM)
    seconds = 60
    rounds = (driver.calls("utils") - utils) / 4  # two calls for the samples, one or two beside it, each twice at most
    assert driver.calls("lists") - lists <= 2 * 3 * (1 + seconds / 10), (
        "three lists, each in two calls, every ten seconds"
    )
    assert rounds <= seconds + 1, "never oftener than once a second, however often it is read"
    cost = made.gate.cost_ms_per_s()
    assert cost > 0.0
    # the stand-in sleeps 5 ms in each list: what the gate says must cover what was slept, whatever else it took
    assert sum(ms for _, kind, ms in made.gate._costs if kind == "list") >= 5.0 * 3


def test_case_001_a_dear_call_is_made_less_often() -> None:
    ticks = itertools.count()
    gate = Gate(lambda: next(ticks) * 0.005)
    gate.call("list", lambda: 1)
    assert gate.period_s("list", 10.0, 60.0, calls=3) == pytest.approx(15.0), "15 ms a round at 1 ms a second"
    assert gate.period_s("list", 10.0, 60.0, calls=30) == 60.0
    assert gate.period_s("util", 1.0, 8.0) == 1.0


def test_case_002_no_samples_on_an_idle_device_is_zero_and_on_a_busy_one_unknown(
    driver: Driver, proc: FakeProc, clock: Clock
) -> None:
    made = started(driver, proc, clock, f"proc 0 C {PROGRAM} {MIB}", "util 0 0")
    clock.go(2)
    idle = first(made, clock, PROGRAM).use([PROGRAM])
    assert (idle.busy_s, idle.why) == (0.0, None)
    assert "no_samples" in idle.flags
    driver.say(*DEVICE, f"proc 0 C {PROGRAM} {MIB}", "util 0 80")
    clock.go(4)
    busy = first(made, clock, PROGRAM).use([PROGRAM])
    assert busy.why is not None
    assert "80 %" in busy.why


def test_case_003_an_old_stamp_is_no_present_value(driver: Driver, proc: FakeProc, clock: Clock) -> None:
    made = started(driver, proc, clock, f"sample 0 {PROGRAM} {clock.at_us(-9)} 80 0 0")
    clock.go(2)
    driver.say(
        *DEVICE,
        f"sample 0 {PROGRAM} {clock.at_us(-7)} 80 0 0",
        f"sample 0 {FLEET} {clock.at_us(1.5)} 5 0 0",
    )
    seen = first(made, clock, PROGRAM, FLEET)
    assert seen.use([PROGRAM]).busy_s == 0.0
    assert seen.use([FLEET]).busy_s == pytest.approx(0.05 * 1.5)


def test_case_004_a_burst_is_neither_spread_nor_counted_twice(driver: Driver, proc: FakeProc, clock: Clock) -> None:
    """2 s at 100 % in 12 s, as a driver that answers with means since the stamp asked for."""
    made = started(driver, proc, clock, "mean 1", wanted=(FLEET,))
    shares, total, samples = [], 0.0, []
    step = 1 / 6
    for tick in range(1, 13):
        clock.go(2 * tick)
        for index in range(round(2 * (tick - 1) / step) + 1, round(2 * tick / step) + 1):
            at = index * step
            samples.append(f"sample 0 {FLEET} {clock.at_us(at)} {100 if at % 12 > 10 or at % 12 == 0 else 0} 0 0")
        driver.say(*DEVICE, "mean 1", *samples)
        used = first(made, clock, FLEET).use([FLEET])
        assert used.why is None
        shares.append(used.busy_s / 2)
        total += used.busy_s
    assert total == pytest.approx(2 * 2.0, rel=0.05), "two bursts of 2 s in 24 s"
    assert max(shares) > 0.9, "the burst is seen as one"
    assert sum(share > 0.05 for share in shares) == 2


def test_case_006_a_sample_that_comes_while_the_meter_asks_is_counted_next_time(
    driver: Driver, proc: FakeProc, clock: Clock
) -> None:
    made = started(driver, proc, clock, f"sample 0 {FLEET} {clock.at_us(0)} 10 0 0")
    clock.go(2)
    driver.say(*DEVICE, *(early := [f"sample 0 {FLEET} {clock.at_us(at)} 50 0 0" for at in (0.5, 1.0, 1.5)]))
    one = first(made, clock, FLEET).use([FLEET]).busy_s
    # stamped before the first reading ended, handed out after it
    late = [f"sample 0 {FLEET} {clock.at_us(at)} 50 0 0" for at in (2.0, 2.5, 3.0, 3.5, 4.0)]
    driver.say(*DEVICE, *early, *late)
    clock.go(4)
    two = first(made, clock, FLEET).use([FLEET]).busy_s
    assert one + two == pytest.approx(4.0 * 0.5)


def test_case_009_large_records_are_read_as_what_they_are_or_not_at_all(
    driver: Driver, proc: FakeProc, clock: Clock, tmp_path: Path
) -> None:
    facts = ["layout large", f"proc 0 C {PROGRAM} {MIB}", f"proc 0 C {FLEET} {5 * MIB}"]
    made = started(driver, proc, clock, *facts)
    clock.go(2)
    seen = first(made, clock, PROGRAM)
    assert isinstance(seen.holders, Unreadable)
    assert seen.use([PROGRAM]).why == seen.holders.why
    assert "unusable" in seen.holders.why

    driver.say(*DEVICE, *facts, f"sample 0 {PROGRAM} 1 1 0 0")
    library = build(tmp_path, "-DLARGE_RECORDS")
    code = (
        "from nodes.meters.nvml import NvmlMeter\nfrom pathlib import Path\n"
        f"r = NvmlMeter(Path({str(proc.root)!r})).read(1.0, [{PROGRAM}])[0]\n"
        "print({h.pid: h.memory_bytes for h in r.holders})"
    )
    done = run_python(code, {"LD_LIBRARY_PATH": str(library.parent)})
    assert done.stdout.strip() == str({PROGRAM: MIB, FLEET: 5 * MIB}), done.stderr


def test_case_010_one_record_a_process_whatever_lists_it_stands_in(
    driver: Driver, proc: FakeProc, clock: Clock
) -> None:
    made = started(
        driver,
        proc,
        clock,
        f"proc 0 G {PROGRAM} {100 * MIB}",
        f"proc 0 C {FLEET} {500 * MIB}",
        f"proc 0 G {FLEET} {500 * MIB}",
    )
    holders = first(made, clock, PROGRAM).holders
    assert not isinstance(holders, Unreadable)
    assert {h.pid: (h.memory_bytes, set(h.kinds)) for h in holders} == {
        PROGRAM: (100 * MIB, {"Graphics"}),
        FLEET: (500 * MIB, {"Compute", "Graphics"}),
    }


def test_case_012_a_number_of_another_namespace_is_nobody_here(driver: Driver, tmp_path: Path, clock: Clock) -> None:
    """The driver's 1234 is a stranger's; here that number is one of our jobs."""
    proc = FakeProc(tmp_path / "inside", namespace="pid:[4026532999]")
    proc.add(1234)
    driver.say(*DEVICE, f"proc 0 C 1234 {MIB}")
    made = meter(proc, clock)
    first(made, clock, 1234)
    driver.say(*DEVICE, f"proc 0 C 1234 {MIB}", f"sample 0 1234 {clock.at_us(1)} 90 0 0")
    clock.go(2)
    seen = first(made, clock, 1234)
    assert "pid namespace" in str(seen.use([1234]).why)
    assert [holder.pid for holder in seen.holders] == [None]  # type: ignore[union-attr]


def test_case_012_pids_are_mapped_where_the_outer_namespace_can_be_seen(
    driver: Driver, tmp_path: Path, clock: Clock
) -> None:
    proc = FakeProc(tmp_path / "outer", namespace="pid:[4026532999]")
    (proc.root / "self/status").write_text("NSpid:\t9000\t50\n")
    proc.add(1234, nspid=(1234, 7))
    proc.add(4321, nspid=(4321,))
    driver.say(*DEVICE)
    made = meter(proc, clock)
    first(made, clock, 7)
    driver.say(*DEVICE, *(f"sample 0 {pid} {clock.at_us(2)} {pct} 0 0" for pid, pct in ((1234, 50), (4321, 20))))
    clock.go(2)
    assert dict(first(made, clock, 7).busy_s) == {7: pytest.approx(1.0)}


def test_case_013_memory_that_the_driver_does_not_give_is_unknown(driver: Driver, proc: FakeProc, clock: Clock) -> None:
    made = started(driver, proc, clock, f"proc 0 C {PROGRAM} -1")
    seen = first(made, clock, PROGRAM)
    assert [holder.memory_bytes for holder in seen.holders] == [None]  # type: ignore[union-attr]
    assert seen.memory.free_bytes == 17179869184 - 1073741824


def test_case_013_memory_that_cannot_be_read_any_more_is_unknown_and_not_all_of_it_free(
    driver: Driver, proc: FakeProc, clock: Clock
) -> None:
    made = started(driver, proc, clock)
    clock.go(2)
    driver.say(*DEVICE, "memcode 0 999")
    memory = first(made, clock, PROGRAM).memory
    assert (memory.total_bytes, memory.free_bytes, memory.unified) == (17179869184, None, False)


@pytest.mark.parametrize("engines", ["80 0 0", "0 80 0", "10 0 80"])
def test_the_busiest_of_multiprocessors_encoder_and_decoder_counts(
    driver: Driver, proc: FakeProc, clock: Clock, engines: str
) -> None:
    made = started(driver, proc, clock)
    clock.go(2)
    driver.say(*DEVICE, f"sample 0 {PROGRAM} {clock.at_us(2)} {engines}")
    assert first(made, clock, PROGRAM).use([PROGRAM]).busy_s == pytest.approx(1.6)


@pytest.mark.parametrize("facts", [("mig 0 1",), ("utilcode 0 3",)])
def test_case_014_a_split_device_is_not_measurable(
    driver: Driver, proc: FakeProc, clock: Clock, facts: tuple[str, ...]
) -> None:
    made = started(driver, proc, clock, *facts)
    clock.go(2)
    assert str(first(made, clock, PROGRAM).use([PROGRAM]).why).startswith("not measurable")


def test_case_016_a_library_that_ends_its_process_ends_the_probe_alone(driver: Driver) -> None:
    driver.say("crash")
    found = Probe().wait()
    assert found.devices == ()
    assert "not supported" in str(found.why)


def test_case_016_an_empty_list_on_a_busy_device_clears_nobody(driver: Driver, proc: FakeProc, clock: Clock) -> None:
    made = started(driver, proc, clock, "util 0 90")
    for tick in range(1, 3 * UNATTRIBUTED_AFTER):
        clock.go(2 * tick)
        assert first(made, clock, PROGRAM).use([PROGRAM]).why is not None, "a driver that never names anyone"


@pytest.mark.parametrize("facts", [("memcode 0 3",), ()])
def test_case_017_memory_of_a_unified_device_is_the_machines(
    driver: Driver, proc: FakeProc, clock: Clock, facts: tuple[str, ...]
) -> None:
    driver.say("device 0 GPU-a 0 0", *facts)
    made = meter(proc, clock, machine_memory=lambda: (64 * MIB, 16 * MIB))
    memory = first(made, clock, PROGRAM).memory
    assert (memory.unified, memory.total_bytes, memory.free_bytes) == (True, 64 * MIB, 16 * MIB)


def test_case_018_work_that_outlived_its_process_holds_nobody_for_ever(
    driver: Driver, proc: FakeProc, clock: Clock
) -> None:
    made = started(driver, proc, clock)
    clock.go(2)
    driver.say(*DEVICE, "util 0 99", f"sample 0 {FLEET} {clock.at_us(2)} 99 0 0")
    assert first(made, clock, FLEET).use([FLEET]).busy_s > 1.9
    driver.say(*DEVICE, "util 0 100")
    for tick in range(2, 2 + UNATTRIBUTED_AFTER - 1):
        clock.go(2 * tick)
        assert first(made, clock, PROGRAM).use([PROGRAM]).why is not None, "at first nobody is cleared"
    clock.go(2 * (2 + UNATTRIBUTED_AFTER))
    seen = first(made, clock, PROGRAM)
    used = seen.use([PROGRAM])
    assert seen.unattributed
    assert (used.busy_s, used.why) == (0.0, None)
    assert "busy_unattributed" in used.flags, "no certificate rests on such a reading"


def test_case_019_the_devices_time_is_nobodys_who_has_no_samples(driver: Driver, proc: FakeProc, clock: Clock) -> None:
    made = started(driver, proc, clock)
    clock.go(2)
    driver.say(*DEVICE, "util 0 90", f"sample 0 {FLEET} {clock.at_us(2)} 90 0 0")
    used = first(made, clock, PROGRAM, FLEET).use([PROGRAM])
    assert (used.busy_s, used.why) == (0.0, None)


def test_case_021_an_mps_servers_time_is_nobodys(driver: Driver, proc: FakeProc, clock: Clock) -> None:
    proc.add(900, "nvidia-cuda-mps-server")
    proc.add(901)
    lists = [f"proc 0 C 900 {MIB}", f"proc 0 M {PROGRAM} {MIB}", f"proc 0 M {FLEET} {MIB}"]
    made = started(driver, proc, clock, *lists)
    clock.go(2)
    driver.say(*DEVICE, *lists, "util 0 99", f"sample 0 900 {clock.at_us(2)} 99 0 0")
    seen = first(made, clock, PROGRAM, FLEET, 901)
    assert seen.mixed_s == pytest.approx(1.98)
    assert "MPS" in str(seen.use([FLEET]).why)
    assert "MPS" in str(seen.use([PROGRAM]).why)
    assert seen.use([900]).busy_s == 0.0
    assert seen.use([901]).why is None, "a process without a context is no client of it"


def test_case_022_a_driver_that_was_upgraded_underneath_says_reboot(
    driver: Driver, proc: FakeProc, clock: Clock
) -> None:
    driver.say("init 18")
    found = Probe().wait()
    assert "mismatch" in str(found.why)
    assert "reboot" in found.remedy
    with pytest.raises(Unusable):
        meter(proc, clock)


def test_case_025_a_holder_that_nobody_finds_keeps_its_memory_and_is_no_process(
    driver: Driver, proc: FakeProc, clock: Clock
) -> None:
    made = started(driver, proc, clock, f"proc 0 C 4040 {800 * MIB}", f"proc 0 C {PROGRAM} {MIB}")
    lost = first(made, clock, PROGRAM).unresolvable
    assert [(holder.driver_pid, holder.pid, holder.memory_bytes) for holder in lost] == [(4040, None, 800 * MIB)]


def test_a_probe_names_devices_and_driver(driver: Driver) -> None:
    driver.say("driver 550.54.15", *DEVICE, "device 1 GPU-b 1048576 0", "mig 1 1")
    found = Probe().wait()
    assert found.driver == "550.54.15"
    assert [(d.index, d.uuid, d.mig) for d in found.devices] == [(0, "GPU-a", False), (1, "GPU-b", True)]


def test_no_sign_of_a_device_costs_a_few_lookups_and_imports_nothing(tmp_path: Path) -> None:
    assert not nvidia_present(tmp_path, {})
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    assert nvidia_present(tmp_path, {})
    code = "import sys, json, nodes.meters.device; print(json.dumps('pynvml' in sys.modules))"
    done = run_python(code, {})
    assert json.loads(done.stdout) is False, done.stderr
