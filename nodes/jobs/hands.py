"""What is done to a live attempt: held, let go, limited, lowered, stopped. Each act is carried on by the attempt's own steps."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence

from nodes.jobs.attempt import Attempt
from nodes.jobs.jobqueue import JobQueue, Journal, Modules
from nodes.jobs.registry import Registry
from policies.jobs import Stop
from policies.refusal import Refused

__all__ = ["Hands"]


class Hands(JobQueue):
    """The live attempts of a node and the acts on them."""

    def __init__(self, registry: Registry, modules: Modules, journal: Journal, clock: Callable[[], float]) -> None:
        super().__init__(registry, modules, journal, clock)
        self._live: dict[str, Attempt] = {}

    def attempts(self) -> list[Attempt]:
        """Live attempts, oldest first."""
        return list(self._live.values())

    def attempt(self, attempt_id: str) -> Attempt:
        found = self._live.get(attempt_id)
        if found is None:
            raise Refused(
                "JOB_NO_ATTEMPT", f"attempt {attempt_id!r}", "it is not running on this node", "cotenant job list"
            )
        return found

    def hold(self, attempt_id: str, reason: str, *, unlimited: bool = False) -> None:
        """Keep an attempt from running, by what its runner declares; one that cannot be held is stopped and requeued.

        ``unlimited``: a harness run's hold, which the ten-minute limit does not end.
        """
        self.hold_all([attempt_id], reason, unlimited=unlimited)

    def hold_all(self, attempt_ids: Sequence[str], reason: str, *, unlimited: bool = False) -> None:
        """``hold`` for several: what can be stopped by a signal is, in all of them, before any of them is looked at closer."""
        attempts = [self.attempt(attempt_id) for attempt_id in attempt_ids]
        for attempt in attempts:
            attempt.brake()
        for attempt in attempts:
            self._hold(attempt, reason, unlimited)

    def _hold(self, attempt: Attempt, reason: str, unlimited: bool) -> None:
        if not attempt.hold(reason, self._clock(), unlimited=unlimited):
            self.stop(attempt.attempt_id, reason, requeue=True, fault=False)

    def release(self, attempt_id: str) -> None:
        """Let a held attempt go on."""
        attempt = self.attempt(attempt_id)
        try:
            attempt.release(self._clock())
        except OSError as error:
            self.stop(attempt_id, f"cannot be released: {error}", requeue=True, fault=False)

    def note_brakes(self, attempt_ids: Iterable[str]) -> None:
        """These were stopped by signals ahead of this thread. One that is on its way to its end must run to get there."""
        for attempt_id in attempt_ids:
            attempt = self._live.get(attempt_id)
            if attempt is not None:
                attempt.braked = True
                if attempt.stopping is not None:
                    attempt.unbrake(self._clock())

    def unbrake(self, attempt_id: str) -> None:
        """Let an attempt go on that a brake has stopped and no hold keeps."""
        self.attempt(attempt_id).unbrake(self._clock())

    def set_duty(self, attempt_id: str, duty: float | None) -> None:
        """A new ``gpu_duty`` for the attempt (None: no limit), written and nudged at once."""
        self._set_limits(attempt_id, duty, self.attempt(attempt_id).threads)

    def set_threads(self, attempt_id: str, threads: int | None) -> None:
        self._set_limits(attempt_id, self.attempt(attempt_id).duty, threads)

    def set_lowered(self, attempt_id: str, lowered: bool) -> bool:
        """Lowest scheduling class for the whole tree, or the normal one again; processes that come later follow at each tick.

        False where it was not reached: no way to lower here, or none to raise again without privilege (it then stays low).
        """
        return self.attempt(attempt_id).lower(lowered)

    def _set_limits(self, attempt_id: str, duty: float | None, threads: int | None) -> None:
        attempt = self.attempt(attempt_id)
        try:
            attempt.set_limits(duty=duty, threads=threads)
        except OSError as error:
            self.stop(attempt_id, f"its limits cannot be written: {error}", requeue=True, fault=False)
            return
        with contextlib.suppress(sqlite3.Error):
            self.registry.change_attempt(attempt_id, duty=duty)

    def stop(self, attempt_id: str, reason: str, *, requeue: bool, fault: bool) -> None:
        """End an attempt: thaw, stop document, nudge, TERM, KILL after its grace. ``fault``: it costs the job an attempt."""
        attempt = self.attempt(attempt_id)
        if attempt.stopping is not None:
            if not requeue and attempt.stopping.requeue:
                attempt.stopping = Stop(reason, requeue, fault)  # a cancel outweighs an eviction
                self._keep_stop(attempt)
            return
        attempt.stop(Stop(reason, requeue, fault), self._clock())
        self._keep_stop(attempt)

    def _keep_stop(self, attempt: Attempt) -> None:
        stop = attempt.stopping
        assert stop is not None
        with contextlib.suppress(sqlite3.Error):
            self.registry.change_attempt(
                attempt.attempt_id,
                stop=json.dumps({"reason": stop.reason, "requeue": stop.requeue, "fault": stop.fault}),
            )
