"""One duty spec: the runner's reports and the kit's own measure, over the same stretch."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cotenant.conform import judge
from cotenant.conform.check import Check
from cotenant.conform.gpu import EVERY_S, GpuMeter
from cotenant.conform.host import probe
from cotenant.conform.meter import TreeMeter
from cotenant.conform.running import Bench, Run
from cotenant.conform.specs import DutySpec
from nodes.meters.reading import Unreadable
from nodes.modules import ModuleState

__all__ = ["Measured", "check_duty", "compared", "verdicts", "whole"]

BEGIN_LIMIT_S = 60.0
# the unit that was under way when the document changed
SETTLE_S = 0.5
REPORT_S = 2.0
# a report may be this late, and two in a row are needed
REPORTS_WAIT_S = 3.0 * REPORT_S


def check_duty(bench: Bench, module: ModuleState, spec: DutySpec) -> Iterator[Check]:
    """Checks ``duty-reported``, ``duty-measured``, ``duty-honest`` and ``meter`` of one spec."""
    host = probe(1.0)
    gpu = _gpu_meter(module, spec.stage)
    run = bench.start(module, spec.stage, spec.payload)
    try:
        if not run.until(lambda: run.begun, BEGIN_LIMIT_S / host.share):
            why = "it ended before" if run.ended is not None else f"not within {BEGIN_LIMIT_S / host.share:.0f} s"
            yield Check(f"duty-reported {spec.name}", "FAIL", f"no phase: {why}; {run.last_words()}".rstrip("; "))
            return
        run.set_duty(spec.duty)
        asked_wall_s = time.time()
        run.read_gpu(gpu)
        run.for_s(SETTLE_S / host.share)
        run.measure()
        run.read_gpu(gpu)
        began = time.monotonic()
        run.for_s(spec.window_s, gpu)
        run.until(
            lambda: len(compared(run.reports(), asked_wall_s, run.meter)) >= 1,
            REPORTS_WAIT_S / host.share + host.late_s,
        )
        ended_early = run.ended is not None
        if not ended_early:
            run.measure()
        ended = run.meter.at_s[-1] if run.meter.at_s else began
        reports = run.reports()
    finally:
        run.finish()
    if ended_early:
        why = f"it ended after {ended - began:.1f} s of the {spec.window_s:g} s window: give it a longer task"
        yield Check(f"duty-measured {spec.name}", "FAIL", f"{why}; {run.last_words()}".rstrip("; "))
        return
    given = min(host.share, probe(1.0).share)
    device = None if gpu is None else gpu.share(began, began + spec.window_s + EVERY_S)
    measured = Measured(reports, asked_wall_s, run.meter, began, ended, run.attempt.cores, given, device)
    yield from verdicts(spec, measured)
    yield _meter(spec.name, run)
    run.remove()


def _gpu_meter(module: ModuleState, stage: str) -> GpuMeter | None:
    """The meter of the device that the stage says it uses; None where it says that it uses none."""
    if module.manifest is None or module.manifest.gpu_of(stage).use == "none":
        return None
    meter = GpuMeter()
    meter.find()
    return meter


@dataclass(frozen=True, slots=True)
class Measured:
    """What one spec's run gave.

    Args:
        reports: the runner's, all of them.
        asked_wall_s: when the duty was asked for (wall clock).
        began, ended: the measured stretch (monotonic seconds).
        given: the share of a core that the host gave, by the probe.
        device: the share of a GPU's time, by the host's own meter; None: it was not asked.
    """

    reports: Sequence[Mapping[str, Any]]
    asked_wall_s: float
    meter: TreeMeter
    began: float
    ended: float
    cores: float
    given: float
    device: float | Unreadable | None = None


def verdicts(spec: DutySpec, run: Measured) -> Iterator[Check]:
    """From readings and reports to checks: pure."""
    kept = whole(run.reports, run.asked_wall_s)
    yield Check(f"duty-reported {spec.name}", *judge.reported(kept, spec.duty))
    if {str(report.get("device")) for report in kept} == {"cpu"}:
        share = judge.share_of(run.meter.used_s(run.began, run.ended), run.ended - run.began, run.cores)
        yield Check(f"duty-measured {spec.name}", *judge.within(share, spec.duty, run.cores, run.given))
        intervals = compared(run.reports, run.asked_wall_s, run.meter)
        yield Check(f"duty-honest {spec.name}", *judge.honest(intervals, run.cores))
    elif kept and isinstance(run.device, float):
        yield Check(f"duty-measured {spec.name}", *judge.within_device(run.device, spec.duty))
        told = [value for report in kept if isinstance(value := report.get("value"), (int, float))]
        intervals = [judge.Interval(REPORT_S, float(value), REPORT_S * run.device) for value in told]
        yield Check(f"duty-honest {spec.name}", *judge.honest(intervals, 1.0))
    else:
        unread = run.device.why if isinstance(run.device, Unreadable) else "the manifest names no use of a GPU"
        why = f"no meter of this device on this host: {unread}" if kept else "no report says on which device"
        yield Check(f"duty-measured {spec.name}", "skip", why)


def _meter(name: str, run: Run) -> Check:
    """The kit's meter of this run against the kernel's own count at its end."""
    told = run.ended or {}
    if not run.meter.at_s or told.get("cpu_s") is None:
        return Check(f"meter {name}", "FAIL", "the runner's end was not seen")
    after_s = max(0.0, float(told["ended_mono_s"]) - run.meter.at_s[-1]) * max(1.0, run.attempt.cores)
    return Check(f"meter {name}", *judge.tree_agrees(run.meter.total_s, float(told["cpu_s"]), after_s))


def whole(reports: Sequence[Mapping[str, Any]], since_wall_s: float) -> list[Mapping[str, Any]]:
    """Reports that are about nothing earlier than a moment (wall-clock seconds)."""
    found = []
    for number, report in enumerate(reports):
        moment = _moment(report)
        earlier = _moment(reports[number - 1]) if number else None
        if moment is not None and (earlier if earlier is not None else moment - REPORT_S) >= since_wall_s:
            found.append(report)
    return found


def compared(reports: Sequence[Mapping[str, Any]], since_wall_s: float, meter: TreeMeter) -> list[judge.Interval]:
    """Each report that follows another beside the kit's count of the time between the two."""
    found = []
    for earlier, report in itertools.pairwise(reports):
        a, b, value = _moment(earlier), _moment(report), report.get("value")
        if a is None or b is None or not since_wall_s <= a < b or b > (meter.wall_s or [0.0])[-1]:
            continue
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found.append(judge.Interval(b - a, float(value), meter.used_wall_s(a, b)))
    return found


def _moment(report: Mapping[str, Any]) -> float | None:
    moment = report.get("t")
    return float(moment) if isinstance(moment, (int, float)) and not isinstance(moment, bool) else None
