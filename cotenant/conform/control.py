"""Pause, resume and stop of one stage, by document and nudge, and what the runner does then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cotenant.conform import judge
from cotenant.conform.check import Check
from cotenant.conform.host import Host, probe
from cotenant.conform.running import Bench, Run
from nodes.jobs.attempt import hold_way
from nodes.modules import ModuleState

__all__ = ["check_control"]

BEGIN_LIMIT_S = 60.0
BEFORE_S = 1.0
HELD_S = 1.0


def check_control(bench: Bench, module: ModuleState, stage: str, payload: Any, seen: list[Run]) -> Iterator[Check]:
    """Checks ``pause``, ``resume``, ``stop-acknowledged`` and ``stop-exit`` of a stage; the run is added to ``seen``."""
    host = probe(1.0)
    run = bench.start(module, stage, payload, watched=True)
    seen.append(run)
    try:
        if not run.until(lambda: run.begun, BEGIN_LIMIT_S / host.share):
            said = f"it never began (no phase); {run.last_words()}".rstrip("; ")
            yield Check(f"stop-acknowledged {stage}", "FAIL", said)
            return
        yield from _pause(run, stage, host)
        yield from _stop(run, stage, host)
    finally:
        run.finish()


def _pause(run: Run, stage: str, host: Host) -> Iterator[Check]:
    way = hold_way(run.attempt.capabilities)
    if way == "stop":
        yield Check(f"pause {stage}", "skip", "it declares neither cooperative_pause nor freeze_ok")
        return
    before, _ = run.cores_used(BEFORE_S)
    run.pause()
    verdict, said = _answered(run, host, HELD_S, lambda held, took_s: judge.paused(before, held, took_s))
    if run.ended is not None:
        yield Check(f"pause {stage}", "FAIL", "it ended instead")
        return
    yield Check(f"pause {stage}", verdict, said)
    if verdict == "FAIL":
        return
    run.release()
    verdict, said = _answered(run, host, BEFORE_S, lambda again, took_s: judge.resumed(before, again, took_s))
    if run.ended is not None:
        yield Check(f"resume {stage}", "skip", "it ended with the pause")
        return
    yield Check(f"resume {stage}", verdict, said)


def _answered(
    run: Run, host: Host, look_s: float, judged: Callable[[float | None, float], judge.Judged]
) -> judge.Judged:
    """Looks of so many seconds until one is good, or a pause had its time: like a stop it is answered at the next safe point."""
    left_s = judge.ACKNOWLEDGE_S / host.share + host.late_s
    while True:
        cores, took_s = run.cores_used(look_s)
        left_s -= took_s
        verdict, said = judged(cores, took_s)
        if verdict != "FAIL" or left_s <= 0.0 or run.ended is not None:
            return verdict, said


def _stop(run: Run, stage: str, host: Host) -> Iterator[Check]:
    if run.ended is not None:
        yield Check(f"stop-acknowledged {stage}", "skip", "it ended before: give it a longer task in conformance.json")
        return
    grace_s = run.attempt.stop_grace_s
    cancellable = "cancellable" in run.attempt.capabilities
    nudged = run.stop()
    limit_s = max(judge.ACKNOWLEDGE_S / host.share + host.late_s, grace_s) + 1.0
    if cancellable:
        answered = run.until(lambda: run.answered, min(limit_s, grace_s + 1.0))
        run.look()
        at = run.answered_at
        seconds = at - nudged if answered and at is not None else None
        yield Check(f"stop-acknowledged {stage}", *judge.acknowledged(seconds, host.share, host.late_s))
    else:
        yield Check(f"stop-acknowledged {stage}", "skip", "it does not declare cancellable")
    run.until(lambda: run.ended is not None, limit_s)
    told: dict[str, Any] = run.ended or {}
    left = run.outcome()
    ended_s = told["ended_mono_s"] - run.lingered_s - nudged if "ended_mono_s" in told else None
    if not cancellable:
        in_time = ended_s is not None and ended_s <= grace_s
        said = f"{ended_s:.2f} s after the nudge, stop_grace_s {grace_s:g}" if ended_s is not None else "still there"
        yield Check(f"stop-exit {stage}", "ok" if in_time else "FAIL", said)
        return
    failure = left.failure_document or {}
    judged = judge.ended(
        ended_s, grace_s, told.get("exit_code"), told.get("signal"), failure.get("fault") == "transient"
    )
    yield Check(f"stop-exit {stage}", *judged)
