"""Carrying out what was decided for the units that live: pause, evict, release, limits. Level-triggered: what a unit does is compared
with what it should do, so a missed moment is repaired by the next look.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nodes.jobs import Attempt
from policies.run_holds import follows_the_arm
from policies.units import desired
from policies.views import Desired, Unit

if TYPE_CHECKING:
    from nodes.agent.core import Agent

__all__ = ["Enforcing"]

# A held unit's last kernels have ended by then; a share above this in so many samples in a row is no pause.
HELD_SETTLES_S, HELD_SHARE, HELD_SAMPLES = 10.0, 0.1, 3
# the newest readings reach at least so far beyond the hold; they come every two seconds
HELD_READ_S = 1.0


class Enforcing:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._going_on: dict[str, int] = {}

    def carry_out(self) -> None:
        """Bring each unit to what it should do. Pauses first, all of one reason together: they are what cannot wait."""
        live = {attempt.attempt_id: attempt for attempt in self._agent.jobs.attempts() if attempt.state != "stopping"}
        units = [self._agent.units.of_attempt(attempt) for attempt in live.values()]
        wanted = [each for each in desired(units, self._agent.view) if each.attempt in live]
        self._keep_from_following_the_arm(units, wanted)
        pauses: dict[tuple[str, bool], list[str]] = {}
        for each in wanted:
            attempt = live[each.attempt]
            if each.action == "pause" and (attempt.state != "held" or attempt.hold_unlimited != each.unlimited):
                why = "; ".join(reason.why for reason in each.reasons)
                pauses.setdefault((why, each.unlimited), []).append(each.attempt)
        newly_held = [name for names in pauses.values() for name in names if live[name].state != "held"]
        for (why, unlimited), names in pauses.items():
            self._agent.jobs.hold_all(names, why, unlimited=unlimited)
        for each in wanted:
            self._one(live[each.attempt], each, each.attempt in newly_held)

    def _keep_from_following_the_arm(self, units: Sequence[Unit], wanted: Sequence[Desired]) -> None:
        run = self._agent.runs.active
        if run is not None:
            held, lowered = follows_the_arm(units, wanted, run.view())
            run.stays_held |= held
            run.stays_lowered |= lowered

    def _one(self, attempt: Attempt, wanted: Desired, newly_held: bool) -> None:
        facts = {"attempt": attempt.attempt_id, "job": attempt.job_id, "why": [reason.why for reason in wanted.reasons]}
        if wanted.action == "evict":
            self._agent.journal.write("PROTECTION_EVICT", facts)
            requeue = attempt.feed_of is None
            self._agent.jobs.stop(attempt.attempt_id, wanted.reasons[0].why, requeue=requeue, fault=False)
        elif wanted.action == "pause":
            if newly_held:
                self._agent.journal.write("PROTECTION_PAUSE", facts)
        else:
            if attempt.duty != wanted.duty:
                self._agent.jobs.set_duty(attempt.attempt_id, wanted.duty)
            self._limit(attempt, wanted)
            if attempt.braked and attempt.state != "held" and self._agent.view.fresh:
                # a phase that was over before it was judged, or a line that the whole reading takes otherwise
                self._agent.journal.write("PROTECTION_RESUME", facts | {"duty": wanted.duty})
                self._agent.jobs.unbrake(attempt.attempt_id)
            if attempt.state == "held" and self._agent.view.fresh:
                self._agent.journal.write("PROTECTION_RESUME", facts | {"duty": wanted.duty})
                self._agent.jobs.release(attempt.attempt_id)

    def _limit(self, attempt: Attempt, wanted: Desired) -> None:
        """Its threads and its scheduling class; both are left as they are while it is held or stopped."""
        if attempt.threads != wanted.threads:
            self._agent.jobs.set_threads(attempt.attempt_id, wanted.threads)
        if attempt.lowered != wanted.lowered:
            code = "PROTECTION_LOWERED" if wanted.lowered else "PROTECTION_RAISED"
            self._agent.journal.write(code, {"attempt": attempt.attempt_id, "job": attempt.job_id})
            self._agent.jobs.set_lowered(attempt.attempt_id, wanted.lowered)

    def evict_for_memory(self) -> None:
        victim = self._agent.observer.memory.take_victim()
        for attempt in self._agent.jobs.attempts():
            if attempt.attempt_id == victim and attempt.state != "stopping":
                self._agent.journal.write("PROTECTION_EVICT", {"attempt": victim, "why": ["memory is very short"]})
                self._agent.jobs.stop(victim, "memory is very short", requeue=True, fault=False)

    def off_gpu(self, attempt: Attempt) -> bool | None:
        """Whether the meter reads that a held unit left the GPU: all that it used in the newest readings counts as used since
        it was held. False where that cannot be read; None: it is not held, or its work is on no GPU.
        """
        if attempt.state != "held" or not self._agent.units.attempt_on_gpu(attempt):
            return None
        share = self._agent.gpus.share(attempt.attempt_id)
        window = self._agent.gpus.share_window(attempt.attempt_id)
        if not isinstance(share, float) or window is None:
            return False
        span_s, held_s = window[1] - window[0], attempt.held_for_s(window[1])
        return held_s >= HELD_READ_S and share * span_s < HELD_SHARE * min(held_s, span_s)

    def end_what_no_pause_holds(self, now_s: float) -> None:
        """Stop a unit that is held and goes on using the GPU: its CPU time alone does not show that."""
        jobs, going = self._agent.jobs, dict[str, int]()
        for attempt in jobs.attempts():
            name, since_s = attempt.attempt_id, attempt.held_since_mono_s
            if attempt.state != "held" or since_s is None or now_s - since_s <= HELD_SETTLES_S:
                continue
            if not self._agent.units.attempt_on_gpu(attempt):
                continue
            share = self._agent.shares.get(name)
            if not isinstance(share, float):
                going[name] = self._going_on.get(name, 0)  # unknown is no rest: what was counted stands
            elif share > HELD_SHARE:
                going[name] = self._going_on.get(name, 0) + 1
                if going[name] == HELD_SAMPLES:
                    facts = {"job": attempt.job_id, "attempt": name, "device_share": round(share, 3)}
                    self._agent.journal.write("JOB_NOT_HELD", facts)
                    jobs.stop(name, "held, and still using the GPU", requeue=True, fault=False)
        self._going_on = going
