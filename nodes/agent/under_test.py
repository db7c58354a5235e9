"""The work that a run measures: whether it runs or is held, and what it took of the device."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nodes.feeds import feed_payload
from nodes.jobs import Attempt
from nodes.meters.reading import Unreadable
from policies.refusal import Refused
from policies.work import CPU

if TYPE_CHECKING:
    from nodes.agent.core import Agent
    from nodes.agent.runs import ActiveRun

__all__ = ["TestedUnit", "UnderTest", "covered_s"]


@dataclass(frozen=True, slots=True)
class TestedUnit:
    """What a window's dose needs to know of a unit under test. ``busy_s``: metered device seconds since it started;
    ``device``: it is device work; ``by_device``: the seconds of each device that it may be on.
    """

    module: str
    stage: str
    cores: float
    duty: float | None
    busy_s: float | Unreadable
    digest: str | None
    model: str | None = None
    device: bool = True
    by_device: Mapping[str, float] = field(default_factory=dict)
    model_file: str | None = None


def covered_s(spans: Sequence[tuple[float, float]], begin_s: float, end_s: float) -> float:
    """Seconds of [begin, end] that at least one of the spans covers."""
    total, at = 0.0, begin_s
    for start, stop in sorted(spans):
        low, high = max(start, at), min(stop, end_s)
        if high > low:
            total, at = total + high - low, high
    return total


class UnderTest:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def attempts(self, run: ActiveRun) -> list[Attempt]:
        view = run.view()
        return [attempt for attempt in self._agent.jobs.attempts() if view.tests(self._agent.units.of_attempt(attempt))]

    def runs(self, run: ActiveRun) -> bool:
        """Whether the work under test runs: some unit of it is not held and has written its first phase."""
        return any(a.state == "running" and a.first_phase_mono_s is not None for a in self.attempts(run))

    def runs_or_never_will(self, run: ActiveRun) -> bool:
        return self.runs(run) or (run.feed_failed and not self.attempts(run) and not self._wait(run))

    def _wait(self, run: ActiveRun) -> bool:
        view = run.view()
        return any(view.tests(self._agent.units.of_job(job)) for job in self._agent.jobs.registry.waiting())

    def held(self, run: ActiveRun) -> bool:
        """Whether nothing of the work under test can run: each unit is seen held, or gone."""
        return all(a.state == "held" and a.hold_confirmed for a in self.attempts(run))

    def why_not_running(self, run: ActiveRun) -> str:
        if run.feed_why is not None:
            return run.feed_why
        view = run.view()
        for job in self._agent.jobs.registry.waiting():
            if view.tests(self._agent.units.of_job(job)):
                return job.reason or "it waits"
        return "none of it is queued" if not self.attempts(run) else "it has not written its first phase"

    def stop(self, run: ActiveRun, why: str) -> None:
        for attempt in self.attempts(run):
            if attempt.state != "stopping":
                self._agent.jobs.stop(attempt.attempt_id, why, requeue=attempt.feed_of is None, fault=False)

    def begin_feed(self, run: ActiveRun) -> None:
        """A new ON: what failed in an earlier one is tried anew."""
        run.feed_from = max((job.job for job in self._agent.jobs.registry.feeds(run.run, 1)), default=0)
        run.feed_why, run.feed_failed = None, False
        self.feed(run)

    def feed(self, run: ActiveRun) -> None:
        """See that a unit of the fed stage is there: one lives or waits, else one is queued; none where it failed for good."""
        if any(a.feed_of == run.run and a.state != "stopping" for a in self._agent.jobs.attempts()):
            self._agent.evaluate("tick")
            return
        # Also one that waits to be tried again: else each tick would queue another.
        if not run.feed_failed and not any(job.feed_of == run.run for job in self._agent.jobs.registry.waiting()):
            run.feed_why = self._failed_for_good(run)
            run.feed_failed = run.feed_why is not None
            if not run.feed_failed:
                self._queue_feed(run)
        self._agent.evaluate("tick")

    def _queue_feed(self, run: ActiveRun) -> None:
        try:
            module, stage, payload = feed_payload(self._agent.modules, str(run.spec.feed))
            self._agent.jobs.submit(module, stage, payload, feed_of=run.run)
        except sqlite3.Error:
            pass  # a full disk: asked again on the next tick
        except Refused as refused:  # its module is not ready any more: a tick that failed here would judge no rule
            run.feed_why = f"its feed cannot be queued: {refused.why}"

    def _failed_for_good(self, run: ActiveRun) -> str | None:
        """Why its feed is not queued again in this ON: the newest failed for good, and none before it had come to an end."""
        ended = [job for job in self._agent.jobs.registry.feeds(run.run, 2) if job.state == "ended"]
        if not ended or ended[0].outcome != "failed" or ended[0].job <= run.feed_from:
            return None
        if any(job.outcome == "thrown_away" for job in ended[1:]):
            return None
        return f"its feed failed for good: {ended[0].reason}"

    def end_feed(self, run: str) -> None:
        for attempt in self._agent.jobs.attempts():
            if attempt.feed_of == run and attempt.state != "stopping":
                self._agent.jobs.stop(attempt.attempt_id, "the run it fed has ended", requeue=False, fault=False)
        for job in self._agent.jobs.registry.waiting():
            if job.feed_of == run:
                self._agent.jobs.cancel(job.job)

    def ran_s(self, run: ActiveRun, begin_s: float, end_s: float) -> float:
        """Seconds of the stretch in which some unit under test ran; two at once count once."""
        view, spans = run.view(), []
        for attempt in [*self._agent.jobs.attempts(), *self._agent.jobs.ended_since(begin_s)]:
            begun = attempt.first_phase_mono_s
            if begun is not None and view.tests(self._agent.units.of_attempt(attempt)):
                spans += [(max(start, begun), end_s if end is None else end) for start, end in attempt.transitions]
        return covered_s(spans, begin_s, end_s)

    def has_device_work(self, run: ActiveRun) -> bool:
        """Whether some of the work under test is device work: then the dose is what that held of the device."""
        work = self._agent.runs.record(run.run).get("work") or ()
        return any(self._agent.units.device_work(str(item["module"]), str(item["stage"])) for item in work)

    def busy_totals(
        self, run: ActiveRun, since_s: float | None = None, only: frozenset[str] | None = None
    ) -> dict[str, TestedUnit]:
        """Metered seconds so far of each unit under test, by attempt; ``since_s``: also of those that ended since;
        ``only``: of GPUs, these.
        """
        tested = self.attempts(run)
        totals = dict(self._agent.meter.total({a.attempt_id: self._agent.jobs.tree(a.attempt_id) for a in tested}))
        on_gpu = [a.attempt_id for a in tested if self._agent.units.attempt_on_gpu(a)]
        if on_gpu:
            self._agent.gpus.read_now()
            totals |= {name: self._agent.gpus.total(name, since_s, only) for name in on_gpu}
        found = {a.attempt_id: self._tested_unit(a, totals[a.attempt_id]) for a in tested}
        if since_s is not None:
            view = run.view()
            for attempt in self._agent.jobs.ended_since(since_s):
                if view.tests(self._agent.units.of_attempt(attempt)):
                    busy: float | Unreadable = Unreadable("it ended unseen") if attempt.cpu_s is None else attempt.cpu_s
                    if self._agent.units.attempt_on_gpu(attempt):
                        busy = self._agent.gpus.total(attempt.attempt_id, since_s, only)
                    found[attempt.attempt_id] = self._tested_unit(attempt, busy)
        return found

    def _tested_unit(self, attempt: Attempt, busy_s: float | Unreadable) -> TestedUnit:
        digest = self._agent.jobs.registry.digest_of(attempt.attempt_id)
        # of a GPU a unit has one whole
        cores = 1.0 if self._agent.units.attempt_on_gpu(attempt) else attempt.cores
        device = self._agent.units.attempt_is_device(attempt)
        by_device: dict[str, float] = {}
        if self._agent.units.attempt_on_gpu(attempt):
            by_device = self._agent.gpus.totals(attempt.attempt_id)
        elif device and isinstance(busy_s, float):
            by_device = {CPU: busy_s}
        work = self._agent.governing.work_of_attempt(attempt)
        return TestedUnit(
            attempt.module,
            attempt.stage,
            cores,
            attempt.duty,
            busy_s,
            digest,
            work.model,
            device,
            by_device,
            work.model_file,
        )
