"""The kit's judgements by arithmetic: duty, reports, stops, pauses, and what is said of them."""

from __future__ import annotations

import pytest

from cotenant.conform import judge
from cotenant.conform.check import Check, summary
from cotenant.conform.duty import Measured, compared, verdicts, whole
from cotenant.conform.meter import TreeMeter
from cotenant.conform.specs import DutySpec
from nodes.meters.reading import Unreadable


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "ok"), (0.5, "FAIL"), (2.0, "FAIL"), (0.8, "FAIL")])
def test_a_meter_with_a_factor_is_found(factor: float, verdict: str) -> None:
    assert judge.meter_agrees(factor * 2.0, 1.5, 0.5)[0] == verdict
    assert judge.tree_agrees(factor * 4.0, 4.0, 0.2)[0] == verdict


def test_a_meter_that_drops_kernel_time_is_found() -> None:
    assert judge.meter_agrees(1.5, 1.5, 0.5)[0] == "FAIL"
    assert judge.meter_agrees(0.1, 0.1, 0.0)[0] == "skip", "too little to say"


def test_what_it_used_after_the_last_reading_is_allowed_for() -> None:
    assert judge.tree_agrees(2.0, 3.0, 1.0)[0] == "ok"
    assert judge.tree_agrees(2.0, 3.0, 0.2)[0] == "FAIL"
    assert judge.tree_agrees(3.0, 2.0, 1.0)[0] == "FAIL", "more than the kernel counted"


@pytest.mark.parametrize(
    ("share", "cores", "host", "verdict"),
    [
        (0.30, 1.0, 1.0, "ok"),
        (0.40, 1.0, 1.0, "ok"),
        (0.41, 1.0, 1.0, "FAIL"),
        (0.45, 1.0, 0.3, "FAIL"),
        (0.20, 1.0, 0.3, "skip"),
        (0.29, 1.0, 0.3, "skip"),
        (0.29, 1.0, 0.45, "ok"),
        (0.29, 2.0, 0.7, "skip"),
        (0.10, 1.0, 1.0, "ok"),
    ],
)
def test_a_share_against_its_duty(share: float, cores: float, host: float, verdict: str) -> None:
    assert judge.within(share, 0.3, cores, host)[0] == verdict


def test_a_share_is_of_the_cores_that_the_stage_declares() -> None:
    assert judge.share_of(3.0, 10.0, 1.0) == pytest.approx(0.3)
    assert judge.share_of(6.0, 10.0, 2.0) == pytest.approx(0.3)


def intervals(*values: float, measured: float) -> list[judge.Interval]:
    return [judge.Interval(2.0, value, 2.0 * measured) for value in values]


@pytest.mark.parametrize(
    ("values", "measured", "verdict"),
    [
        ((0.3, 0.3), 0.3, "ok"),
        ((0.26, 0.26), 0.3, "ok"),
        ((0.15, 0.15), 0.3, "FAIL"),
        ((0.5,), 0.3, "ok"),
        ((), 0.3, "FAIL"),
    ],
)
def test_reports_against_the_same_stretches(values: tuple[float, ...], measured: float, verdict: str) -> None:
    assert judge.honest(intervals(*values, measured=measured), 1.0)[0] == verdict


def line(value: object = 0.3, duty: object = 0.3, device: object = "cpu", t: object = 100.0) -> dict[str, object]:
    return {"type": "metric", "name": "gpu_duty", "value": value, "duty": duty, "device": device, "t": t}


@pytest.mark.parametrize(
    ("reports", "verdict"),
    [
        ([], "FAIL"),
        ([line()], "ok"),
        ([line(value=0.41)], "FAIL"),
        ([line(), line(value=0.5)], "FAIL"),
        ([line(duty=0.45)], "FAIL"),
        ([line(duty=None)], "FAIL"),
        ([line(value="little")], "FAIL"),
        ([line(value=True)], "FAIL"),
        ([line(device="tpu")], "FAIL"),
    ],
)
def test_what_is_reported(reports: list[dict[str, object]], verdict: str) -> None:
    assert judge.reported(reports, 0.3)[0] == verdict


def test_only_reports_about_the_measured_stretch_count() -> None:
    reports = [line(t=98.0), line(t=100.0), line(t=102.0), line(t="soon")]
    assert [report["t"] for report in whole(reports, 99.0)] == [102.0]
    assert [report["t"] for report in whole([line(t=101.5)], 99.0)] == [101.5]
    assert whole([line(t=100.5)], 99.0) == []


def test_each_report_stands_beside_the_kits_own_count_of_the_same_time() -> None:
    meter = TreeMeter(at_s=[0.0, 10.0], wall_s=[100.0, 110.0], cpu_s=[5.0, 8.0])
    found = compared([line(t=99.0), line(t=101.0), line(value=0.2, t=103.0), line(t=111.0)], 100.0, meter)
    assert found == [judge.Interval(2.0, 0.2, pytest.approx(0.6))]


def judged(used: float, told: float, kind: str, device: float | Unreadable | None = None) -> list[Check]:
    """Of a stage at duty 0.3 whose tree used so much of a core, and so much of a device as the host meters it."""
    meter = TreeMeter(at_s=[0.0, 10.0], wall_s=[100.0, 110.0], cpu_s=[1.0, 1.0 + 10.0 * used])
    reports = [line(value=told, device=kind, t=102.0 + 2.0 * number) for number in range(4)]
    spec = DutySpec("n", "s", 0.3, 4.0, {})
    return list(verdicts(spec, Measured(reports, 100.0, meter, 1.0, 9.0, 1.0, 1.0, device)))


@pytest.mark.parametrize(
    ("used", "told", "device", "expected"),
    [
        (0.3, 0.3, "cpu", ["ok", "ok", "ok"]),
        (0.45, 0.3, "cpu", ["ok", "FAIL", "FAIL"]),
        (0.45, 0.45, "cpu", ["FAIL", "FAIL", "ok"]),
        (0.3, 0.15, "cpu", ["ok", "ok", "FAIL"]),
        (0.3, 0.3, "gpu", ["ok", "skip"]),
    ],
)
def test_the_meter_is_what_counts_whatever_is_reported(
    used: float, told: float, device: str, expected: list[str]
) -> None:
    assert [check.verdict for check in judged(used, told, device)] == expected


@pytest.mark.parametrize(
    ("device", "told", "expected"),
    [
        (0.3, 0.32, ["ok", "ok", "ok"]),
        (0.4, 0.4, ["ok", "ok", "ok"]),
        (0.41, 0.38, ["ok", "FAIL", "ok"]),
        (0.3, 0.15, ["ok", "ok", "FAIL"]),
        (Unreadable("MIG"), 0.3, ["ok", "skip"]),
        (None, 0.3, ["ok", "skip"]),
    ],
)
def test_where_the_host_meters_the_device_that_is_what_counts(
    device: float | Unreadable | None, told: float, expected: list[str]
) -> None:
    """The tree's CPU time says nothing of a GPU: it is far over the duty here."""
    checks = judged(0.9, told, "gpu", device)
    assert [check.verdict for check in checks] == expected
    if isinstance(device, Unreadable):
        assert "MIG" in checks[1].said


@pytest.mark.parametrize(
    ("seconds", "host", "late", "verdict"),
    [
        (1.9, 1.0, 0.0, "ok"),
        (2.1, 1.0, 0.0, "FAIL"),
        (3.9, 0.5, 0.0, "ok"),
        (4.2, 0.5, 0.0, "FAIL"),
        (None, 0.5, 9.0, "FAIL"),
        (2.4, 1.0, 0.5, "ok"),
    ],
)
def test_acknowledging_a_stop(seconds: float | None, host: float, late: float, verdict: str) -> None:
    assert judge.acknowledged(seconds, host, late)[0] == verdict


@pytest.mark.parametrize(
    ("seconds", "code", "signal", "transient", "verdict"),
    [
        (1.0, 75, None, True, "ok"),
        (1.0, 0, None, False, "ok"),
        (1.0, 75, None, False, "FAIL"),
        (1.0, 1, None, True, "FAIL"),
        (5.0, None, 9, True, "FAIL"),
        (None, None, None, False, "FAIL"),
    ],
)
def test_the_end_after_a_stop(
    seconds: float | None, code: int | None, signal: int | None, transient: bool, verdict: str
) -> None:
    assert judge.ended(seconds, 5.0, code, signal, transient)[0] == verdict


def test_a_runner_that_had_to_be_killed_is_told_so_and_not_of_an_exit_code_it_never_had() -> None:
    verdict, said = judge.ended(5.0, 5.0, None, 9, True)
    assert verdict == "FAIL"
    assert "signal 9, not by itself" in said
    assert "exit" not in said


@pytest.mark.parametrize(
    ("before", "held", "verdict"),
    [
        (1.0, 0.0, "ok"),
        (1.0, 0.1, "ok"),
        (1.0, 0.11, "FAIL"),
        (0.3, 0.3, "FAIL"),
        (0.3, 0.05, "ok"),
        (0.3, 0.06, "FAIL"),
        (0.04, 0.0, "skip"),
        (2.0, 0.12, "FAIL"),
        (1.0, None, "skip"),  # unknown is not held
        (None, 0.0, "skip"),
    ],
)
def test_a_pause_by_what_is_used(before: float | None, held: float | None, verdict: str) -> None:
    assert judge.paused(before, held, 1.0)[0] == verdict


@pytest.mark.parametrize(
    ("before", "again", "verdict"),
    [(1.0, 0.9, "ok"), (1.0, 0.11, "ok"), (1.0, 0.05, "FAIL"), (0.04, 0.0, "skip"), (1.0, None, "skip")],
)
def test_a_resumed_runner_uses_more_than_a_paused_one_may(before: float, again: float | None, verdict: str) -> None:
    assert judge.resumed(before, again, 1.0)[0] == verdict


def test_lines_and_the_last_one() -> None:
    checks = [Check("a", "ok", "1"), Check("b", "FAIL", "2"), Check("c", "skip", "3"), Check("d", "ok", "4")]
    assert [check.line() for check in checks[:3]] == ["ok    a: 1", "FAIL  b: 2", "skip  c: 3"]
    assert summary(checks) == "2 passed, 1 failed, 1 skipped"
