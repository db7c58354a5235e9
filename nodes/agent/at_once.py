"""What cannot wait for the next judgement: a phase began, and the fleet work that it pauses is stopped now.

Between the line that was read and the signals stands a look into a table: which attempts each phase pauses. It is made
anew after each judgement, by the same pure question (is the unit in the phase's scope?). Everything else of a hold (walks of
trees, the journal, admission) follows when the signals are out; ``evaluate``, which comes after, sees the same facts and
carries on from there.

Where the lookout's thread runs, ``reflex.py`` has a table of its own from here, and mostly has sent the signals by the time the loop
reads the line. The loop then does all the same: what the thread did is never taken for done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from nodes.agent.reflex import Reflex, Stopped, Wanted, seen_stopped
from nodes.jobs import Attempt, JobManager
from nodes.jobs.attempt import hold_way
from nodes.jobs.proctree import STOPPED
from nodes.sources.hub import SourceHub
from nodes.sources.views import PhaseUpdate
from policies.section import Section
from policies.sources.latency import latency_s
from policies.units import in_scope
from policies.views import Unit

__all__ = ["AtOnce", "Paused"]


@dataclass(frozen=True, slots=True)
class Paused:
    """What was done at once for a phase.

    Attributes:
        attempts: the attempts that were paused, in order.
        held: those of them whose hold is complete; the others' follows with the whole judgement.
        why: in the words of ``policies.units``.
        to: what the latency runs to: every runner seen stopped, the last signal sent, or the last pause document written.
        latency_ms: from the source's write; None where that is not known or nothing ran.
    """

    attempts: tuple[str, ...]
    held: tuple[str, ...]
    why: str
    to: Literal["stopped", "signalled", "asked"]
    latency_ms: float | None


class AtOnce:
    """Holds what a phase's ``pause_fleet`` names, ahead of the whole judgement."""

    def __init__(self, jobs: JobManager, unit: Callable[[Attempt], Unit], hub: SourceHub) -> None:
        self._jobs = jobs
        self._unit = unit
        self._hub = hub
        self._reflex: Reflex | None = None
        self._armed: tuple[Wanted, ...] = ()
        self._stopped: dict[tuple[str, int], Stopped] = {}
        self._section = Section()
        self._paused_by: dict[tuple[str, int], list[Attempt]] = {}
        self._immediate: frozenset[str] = frozenset()
        self._prepared: tuple[Section, list[str]] | None = None

    def configure(self, section: Section) -> None:
        self._section = section
        self._prepared = None
        self._immediate = frozenset(rule.id for rule in section.rules if rule.immediate)
        self.prepare()

    def look_out(self, begin: Callable[[], object]) -> bool:
        """From now on a thread stops what it sees begin; ``begin`` is called in it first. False where that is not to be had."""
        reflex = Reflex(self._jobs.guard.hold_of)
        if not self._hub.look_out(reflex.glance, begin):
            return False
        self._reflex = reflex
        self._arm()
        return True

    def prepare(self) -> None:
        """Which attempts each phase pauses, and where to see it begin. To be called when attempts or sources may have changed."""
        self._map()
        self._arm()

    def _arm(self) -> None:
        """Give the reflex what it needs, where that is not what it has."""
        if self._reflex is None:
            return
        wanted = tuple(self._wanted())
        if wanted != self._armed or self._reflex.lost:
            self._reflex.arm(wanted)
            self._armed = wanted

    def _wanted(self) -> Iterator[Wanted]:
        for key, attempts in self._paused_by.items():
            if key[0] not in self._immediate:
                continue
            aims = tuple((a.attempt_id, whom) for a in attempts if (whom := a.within_reach()))
            followed = self._hub.followed(*key) if aims else None
            if followed is not None:
                source, reader, names = followed
                yield Wanted(key, source, reader, reader.restarts, names, aims)

    def notice(self) -> bool:
        """Take over what the reflex stopped; whether there is anything. To be called before the lines are read."""
        self._stopped.clear()
        for each in self._reflex.take() if self._reflex is not None else ():
            self._stopped[each.key] = each
            self._jobs.note_brakes(each.attempts)
        return bool(self._stopped)

    def _map(self) -> None:
        now = (self._section, [attempt.attempt_id for attempt in self._jobs.attempts()])
        if now == self._prepared:
            return
        self._prepared = now
        device = self._section.node.duty_device
        units = [(attempt, self._unit(attempt)) for attempt in self._jobs.attempts()]
        self._paused_by = {
            (rule.id, index): [attempt for attempt, unit in units if in_scope(unit, during.pause_fleet.scope, device)]
            for rule in self._section.rules
            for index, during in enumerate(rule.during)
            if during.pause_fleet is not None
        }

    def pause(self, updates: Sequence[PhaseUpdate], *, every_rule: bool) -> Mapping[int, Paused]:
        """Stop what the phases that are on after ``updates`` pause.

        Args:
            updates: phase changes in their order.
            every_rule: at a tick all phases count; between ticks those of ``immediate`` rules.

        Returns:
            What was done, by the index in ``updates`` of the change that asked for it.
        """
        newest = {(update.rule_id, update.index): at for at, update in enumerate(updates)}
        done = self._over_already(updates, newest)
        for key, at in newest.items():
            if updates[at].new == "on" and (every_rule or key[0] in self._immediate):
                running = [a for a in self._paused_by.get(key, ()) if a.state in ("starting", "running")]
                if running:
                    done[at] = self._stop(running, updates[at])
        return done

    def _over_already(self, updates: Sequence[PhaseUpdate], newest: Mapping[tuple[str, int], int]) -> dict[int, Paused]:
        """What the reflex stopped for phases that were over when they were read. It goes on; that it was stopped is told."""
        begun = {(update.rule_id, update.index): at for at, update in enumerate(updates) if update.new == "on"}
        done: dict[int, Paused] = {}
        for key, ahead in self._stopped.items():
            at = begun.get(key)
            if at is not None and updates[newest[key]].new != "on":
                seen_s = latency_s(ahead.wall_s, updates[at].source_mtime_s, updates[at].line_time_s)
                done[at] = Paused(ahead.attempts, (), "", ahead.to, None if seen_s is None else seen_s * 1e3)
        return done

    def _stop(self, attempts: Sequence[Attempt], update: PhaseUpdate) -> Paused:
        frozen = [attempt for attempt in attempts if hold_way(attempt.capabilities) == "freeze"]
        asked = [attempt for attempt in attempts if hold_way(attempt.capabilities) == "document"]
        for attempt in frozen:
            attempt.brake()
        to: Literal["stopped", "signalled", "asked"] = "asked"
        why = f"phase {update.index + 1} of rule {update.rule_id} is on"
        if asked:
            self._jobs.hold_all([attempt.attempt_id for attempt in asked], why)
        paused_s = time.time()
        if not asked:
            to, paused_s = self._by_signals(frozen, self._stopped.get((update.rule_id, update.index)))
        seen_s = latency_s(paused_s, update.source_mtime_s, update.line_time_s)
        latency_ms = None if seen_s is None or not (frozen or asked) else seen_s * 1e3
        held = tuple(attempt.attempt_id for attempt in asked if attempt.state == "held")
        return Paused(tuple(a.attempt_id for a in (*frozen, *asked)), held, why, to, latency_ms)

    def _by_signals(
        self, attempts: Sequence[Attempt], ahead: Stopped | None
    ) -> tuple[Literal["stopped", "signalled"], float]:
        """How far it got with these attempts, and when (wall clock): with all of them ahead of us, or now."""
        if ahead is not None and {attempt.attempt_id for attempt in attempts} <= set(ahead.attempts):
            return ahead.to, ahead.wall_s
        to: Literal["stopped", "signalled"] = "stopped" if _seen_stopped(attempts) else "signalled"
        return to, time.time()


def _seen_stopped(attempts: Sequence[Attempt]) -> bool:
    """Whether every runner's process is in state T."""
    return all(attempt.runner is not None for attempt in attempts) and seen_stopped(attempts, _stopped)


def _stopped(attempt: Attempt) -> bool:
    assert attempt.runner is not None
    try:
        proc = attempt.system.stat(attempt.runner.pid)
    except OSError:
        return False
    return proc is None or proc.dead or proc.state in STOPPED
