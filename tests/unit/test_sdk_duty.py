"""The account of a duty, on a clock that the test moves."""

from __future__ import annotations

import itertools
import json
import time as real_time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.sdk import duty as module
from cotenant.sdk.duty import BURST_S, CREDIT_S, WAKE_S, Duty
from tests.unit.duty_rig import Clock, governed


@settings(max_examples=200, deadline=None)
@given(
    units=st.lists(st.floats(0.0005, 0.3), min_size=2, max_size=60),
    duty=st.floats(0.05, 0.95),
    overshoot=st.floats(0.0, 0.05),
    wake_cpu=st.floats(0.0, 0.0005),
    given_share=st.floats(0.2, 1.0),
    device=st.sampled_from(["gpu", "cpu"]),
)
def test_no_stretch_holds_more_than_the_duty(
    units: list[float], duty: float, overshoot: float, wake_cpu: float, given_share: float, device: str
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        clock = Clock(overshoot_s=overshoot, wake_cpu_s=wake_cpu if device == "cpu" else 0.0)
        governor = governed(clock, device, duty, monkeypatch)
        begun: list[tuple[float, float]] = []
        for unit_s in units:
            with governor.unit():
                begun.append((clock.now, unit_s))
                # on cpu the host gives only a part of the time
                clock.work(unit_s / given_share if device == "cpu" else unit_s, unit_s)
    owed = WAKE_S if device == "gpu" else BURST_S + WAKE_S
    for first in range(len(begun)):
        used = 0.0
        for last in range(first, len(begun) - 1):
            used += begun[last][1]
            stretch = begun[last + 1][0] - begun[first][0]
            assert used <= duty * (stretch + CREDIT_S) + owed + 1e-6


def test_the_next_unit_starts_after_b_over_d(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    governor = governed(clock, "gpu", 0.25, monkeypatch)
    starts = []
    for _ in range(4):
        with governor.unit():
            starts.append(clock.now)
            clock.work(0.1)
    assert [b - a for a, b in itertools.pairwise(starts)] == pytest.approx([0.4] * 3)
    assert governor.busy_s == pytest.approx(0.4)
    assert governor.idle_s == pytest.approx(0.9)


def test_lateness_is_not_paid_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(overshoot_s=0.002)
    governor = governed(clock, "gpu", 0.5, monkeypatch)
    begin = clock.now
    for _ in range(1000):
        with governor.unit():
            clock.work(0.001)
    # 1 ms units at 0.5 leave 1 ms of idle; sleeps that last 2 ms longer are made good by units that do not sleep
    assert governor.busy_s / (clock.now - begin) > 0.49


def test_a_host_that_gives_nothing_earns_no_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    governor = governed(clock, "cpu", 0.5, monkeypatch)
    with governor.unit():
        clock.work(30.0, 0.01)  # starved for half a minute
    begin, before = clock.now, governor.busy_s
    for _ in range(200):
        with governor.unit():
            clock.work(0.01)
    share = (governor.busy_s - before) / (clock.now - begin)
    assert share <= 0.5 + 0.01


def test_cpu_between_units_is_owed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    governor = governed(clock, "cpu", 0.5, monkeypatch)
    begin = clock.now
    for _ in range(50):
        clock.work(0.01)  # tokenising, outside of any unit
        with governor.unit():
            clock.work(0.01)
    assert (clock.cpu - 5.0) / (clock.now - begin) <= 0.52


def test_cores_make_a_duty_of_1(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    governor = governed(clock, "cpu", 0.5, monkeypatch, cores=2.0)
    begin = clock.now
    for _ in range(50):
        with governor.unit():
            clock.work(0.01, 0.02)  # two threads
    assert (clock.cpu - 5.0) / 2.0 / (clock.now - begin) == pytest.approx(0.5, abs=0.02)


def test_a_new_duty_changes_the_remaining_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    governor = governed(clock, "gpu", 0.1, monkeypatch)
    with governor.unit():
        clock.work(0.1)
    clock.now += 0.4  # of 0.9 s idle; 0.05 device seconds are owed still
    governor.set(0.5)
    begin = clock.now
    with governor.unit():
        pass
    assert clock.now - begin == pytest.approx(0.1, abs=0.001)


def test_without_a_duty_nothing_idles_and_nothing_is_owed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    governor = governed(clock, "gpu", 0.1, monkeypatch)
    governor.set(None)
    begin = clock.now
    for _ in range(10):
        with governor.unit():
            clock.work(1.0)
    assert clock.now - begin == pytest.approx(10.0)
    governor.set(0.5)
    with governor.unit():
        assert clock.now - begin == pytest.approx(10.0)


def test_scale_fits_a_unit_into_the_share_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    governor = governed(clock, "gpu", 0.2, monkeypatch)
    assert governor.scale() == 1.0
    with governor.unit():
        clock.work(0.1)
    assert governor.scale() == 1.0
    with governor.unit():
        clock.work(0.8)
    assert governor.scale() == pytest.approx(0.25)
    governor.set(None)
    assert governor.scale() == 1.0


@pytest.mark.parametrize("unit_s", [0.01, 0.8])
def test_scale_on_cpu_is_by_the_whole_time_of_a_unit(unit_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    governor = governed(clock, "cpu", 0.005, monkeypatch)
    with governor.unit():
        clock.work(unit_s / 2.0)
        assert governor.busy_s == pytest.approx(unit_s / 2.0), "a report in the middle of a unit takes nothing from it"
        clock.work(unit_s / 2.0)
    assert governor.scale() == pytest.approx(0.005 / unit_s)
    assert governor.busy_s == pytest.approx(unit_s)


def test_a_long_unit_is_not_longer_by_what_is_done_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    governor = governed(clock, "cpu", 0.2, monkeypatch)
    with governor.unit():
        clock.work(0.4)
    clock.work(5.0)
    assert governor.scale() == pytest.approx(0.5)
    assert governor.busy_s == pytest.approx(5.4), "and is owed all the same"


def test_the_stage_declares_how_many_cores_a_duty_of_1_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's meter divides by the same: ``resources.cpu`` of ``spec.json``."""
    clock = Clock()
    governed(clock, "cpu", 0.5, monkeypatch)  # for the clock
    for cpu, share in ((2, 0.5), (0.5, 0.5), ("many", 0.5)):
        (tmp_path / "spec.json").write_text(json.dumps({"resources": {"cpu": cpu}}))
        ctl = SimpleNamespace(workdir=str(tmp_path), gpu_duty=0.5, safe_point=lambda: None)
        governor = Duty(ctl, device="cpu")  # type: ignore[arg-type]
        cores = cpu if isinstance(cpu, (int, float)) else 1.0
        begin, used = clock.now, clock.cpu
        for _ in range(200):
            with governor.unit():
                clock.work(0.01, 0.01 * cores)
        assert (clock.cpu - used) / cores / (clock.now - begin) == pytest.approx(share, abs=0.02), cpu


def test_units_that_are_open_at_once_use_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    governor = governed(clock, "gpu", None, monkeypatch)
    with governor.unit(), governor.unit(), governor.unit():
        clock.work(2.0)
    assert governor.busy_s == pytest.approx(2.0)


def test_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REPORT_S", 0.2)
    path = tmp_path / "events.ndjson"
    with Duty(None, events=path, device="cpu") as governor:
        governor.set(0.5)
        with governor.unit():
            real_time.sleep(0.5)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines
    for line in lines:
        assert {"type", "name", "value", "duty", "device", "t"} == set(line)
        assert (line["type"], line["name"], line["device"], line["duty"]) == ("metric", "gpu_duty", "cpu", 0.5)


def test_a_device_that_is_in_use_all_the_time_is_reported_as_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REPORT_S", 0.05)
    path = tmp_path / "events.ndjson"

    def values() -> list[float]:
        return [json.loads(line)["value"] for line in path.read_text().splitlines()] if path.exists() else []

    with Duty(None, events=path) as governor, governor.unit():
        end = real_time.monotonic() + 60.0
        while len(values()) < 4 and real_time.monotonic() < end:
            real_time.sleep(0.02)
        inside = values()[1:4]  # the first may have begun before the unit did
    assert inside == pytest.approx([1.0, 1.0, 1.0])


def test_nonsense_is_refused() -> None:
    governor = Duty(None)
    for bad in (-0.1, 1.5):
        with pytest.raises(ValueError, match="between 0 and 1"):
            governor.set(bad)
    with pytest.raises(ValueError, match="gpu"):
        Duty(None, device="tpu")  # type: ignore[arg-type]


def test_short_units_share_a_wake_up_on_cpu_and_none_waits_less_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waking costs 0.1 ms here: with an idle after each unit of 1 ms a tenth of the duty would go into waking."""
    sleeps: dict[str, int] = {}
    for device in ("cpu", "gpu"):
        clock = Clock(wake_cpu_s=0.0001)
        governor = governed(clock, device, 0.1, monkeypatch)
        slept = 0

        def sleep(seconds: float, clock: Clock = clock) -> None:
            nonlocal slept
            slept += 1
            Clock.sleep(clock, seconds)

        monkeypatch.setattr(module.time, "sleep", sleep)
        begin = clock.now
        for _ in range(1000):
            with governor.unit():
                clock.work(0.001)
        sleeps[device] = slept
        assert 1.0 / (clock.now - begin) == pytest.approx(0.1, rel=0.03), device
    assert sleeps["gpu"] >= 990
    assert sleeps["cpu"] <= 200


def test_bursts_stay_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """However dear waking is, no more than 20 ms of units run in a row."""
    clock = Clock(wake_cpu_s=0.0009)
    governor = governed(clock, "cpu", 0.2, monkeypatch)
    row, longest = 0, 0
    before = clock.now
    for _ in range(600):
        with governor.unit():
            row = row + 1 if clock.now == before else 1
            longest = max(longest, row)
            clock.work(0.001)
            before = clock.now
    assert 2 < longest <= 23, "twenty, and what lateness earned"
