"""Each ``protect`` of the section: its figure is read, the graded reaction stepped, and what changed is journaled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from nodes.journal import Journal
from nodes.meters.reading import Unreadable
from nodes.meters.stall import StallMeter
from nodes.sources.hub import SourceHub
from policies.reaction import HarmSignals, Limit, Reaction, ReactionState, paused_before, step_reaction
from policies.rules import Group, PidStart, RuleState
from policies.section import Rule
from policies.section.effective import protect_key
from policies.section.models import Protect, Timing
from policies.share_window import ShareWindow
from policies.sources.windows import live_rate

__all__ = ["FleetNow", "HarmWatch"]

# While no fleet work runs or wants to, a program's figure is read this often.
IDLE_EVERY_S = 10.0
_LEVELS = ("free", "lowered", "paused")
# The program's share of device time since it was last asked for, 0..1; None: it cannot be told.
DeviceShare = Callable[[Rule, Group], float | None]
# The pause that an earlier process left of a rule's limit, by the limit's name; None: it left none.
LeftPause = Callable[[Rule, str, float], RuleState | None]


@dataclass(frozen=True, slots=True)
class FleetNow:
    """``ran``: some fleet work ran since the last tick; ``other_wanted``: work off the device runs or waits."""

    ran: bool = True
    other_wanted: bool = True
    run_active: bool = False


@dataclass(slots=True)
class _Watched:
    state: ReactionState = field(default_factory=ReactionState)
    reaction: Reaction | None = None
    stall: StallMeter | None = None
    window: ShareWindow | None = None
    seen: tuple[bool, frozenset[PidStart]] | None = None
    at_s: float = float("-inf")


class HarmWatch:
    """Not thread-safe. ``device_share`` answers for ``gpu_share``; ``left_pause`` is asked once a limit, at its first look."""

    def __init__(
        self,
        journal: Journal,
        hub: SourceHub,
        device_share: DeviceShare,
        left_pause: LeftPause = lambda _rule, _key, _now_s: None,
    ) -> None:
        self._journal = journal
        self._hub = hub
        self._device_share = device_share
        self._left_pause = left_pause
        self._watched: dict[str, _Watched] = {}

    def forget_but(self, rules: set[str]) -> None:
        """A rule that changed is judged anew."""
        self._watched = {key: kept for key, kept in self._watched.items() if key.partition("/")[0] in rules}

    def step(
        self, rule: Rule, found: Group, active: bool, on: set[int], fleet: FleetNow, times: Timing, now_s: float
    ) -> None:
        """One sample of each ``protect`` of the rule. ``on``: indices of its phases that are on."""
        program = frozenset(p.pid_start for p in found.roots)
        for key, protect, phase in protects(rule):
            watched = self._watched.get(key)
            if watched is None:
                left = self._left_pause(rule, key, now_s)
                watched = self._watched[key] = _Watched(ReactionState() if left is None else paused_before(left))
            in_force = active and (phase is None or phase in on)
            seen = (in_force, program)
            if (
                not fleet.ran
                and not fleet.other_wanted
                and seen == watched.seen
                and now_s - watched.at_s < IDLE_EVERY_S
            ):
                continue  # nothing runs that could do harm: only the baseline is kept up
            watched.seen, watched.at_s = seen, now_s
            figure, window_s, why = (
                self._figure(key, rule, protect, watched, found, now_s) if in_force else (None, 0.0, "")
            )
            target = protect.max_slowdown if protect.max_slowdown is not None else protect.max
            limit = Limit(protect.metric, target or 0.0, times.exit_after_s, times.cooldown)
            signals = HarmSignals(
                active=in_force,
                figure=figure,
                window_s=window_s,
                fleet_ran=fleet.ran,
                wanted=fleet.other_wanted,
                program=program,
                why=why,
                may_measure=not fleet.run_active,
            )
            watched.state, watched.reaction, events = step_reaction(watched.state, signals, now_s, limit)
            for event in events:
                self._journal.write(event.code, {"rule": rule.id, **event.data})

    def pauses(self) -> Iterator[tuple[str, str, RuleState]]:
        """(rule, name of the limit, its pause) of each that has paused work at some time."""
        for key, watched in self._watched.items():
            pause = watched.state.pause
            if pause.holds or pause.activations:
                yield key.partition("/")[0], key, pause

    def rest(self) -> None:
        """Nothing is judged (``fleet_first``); what was measured until now says nothing later."""
        self._watched.clear()

    def reaction(self, rule: Rule, *, stall: bool | None = None) -> Reaction | None:
        """The strictest of the rule's; None where it protects and was not judged yet.

        ``stall``: of its limits on ``cpu_stall`` alone, or (False) of the others alone.
        """
        found = [
            self._watched[key].reaction if key in self._watched else None
            for key, protect, _ in protects(rule)
            if stall is None or stall == (protect.metric == "cpu_stall")
        ]
        judged = [each for each in found if each is not None]
        if not judged or len(judged) < len(found):
            return None
        strictest = max(judged, key=lambda each: _LEVELS.index(each.level))
        measuring = next((each for each in judged if each.measures), None)
        return measuring or strictest

    def _figure(
        self, key: str, rule: Rule, protect: Protect, watched: _Watched, found: Group, now_s: float
    ) -> tuple[float | None, float, str]:
        """(figure, the window it is over, why it is not known)."""
        if protect.metric == "progress_rate":
            return self._rate(key, protect.window_s, now_s)
        if watched.window is None:
            watched.window = ShareWindow(2.0 * protect.window_s + 60.0)
        why = ""
        if protect.metric == "cpu_stall":
            why = self._read_stall(watched, found, now_s)
        else:
            share = self._device_share(rule, found)
            watched.window.add_level(now_s, share)
            why = "" if share is not None else "its share of the device cannot be told"
        figure = watched.window.over(now_s, protect.window_s)
        return figure, protect.window_s, why or ("" if figure is not None else "it is being measured")

    def _rate(self, key: str, window_s: float, now_s: float) -> tuple[float | None, float, str]:
        if not self._hub.has_progress(key):
            return None, window_s, "its progress is not read"
        view = self._hub.progress(key)
        if not view.readable:
            return None, window_s, view.why
        rate = live_rate(view.track, now_s, window_s)
        return rate.per_s, rate.window_s, rate.why if rate.per_s is None else ""

    def _read_stall(self, watched: _Watched, found: Group, now_s: float) -> str:
        if watched.stall is None:
            watched.stall = StallMeter()
        assert watched.window is not None
        if not watched.stall.due(now_s):
            return ""
        reading = watched.stall.read((p.pid_start for p in found.holding), now_s)
        if isinstance(reading, Unreadable):
            watched.window.add(now_s, None, None)
            return reading.why
        watched.window.add(now_s, *reading)
        return ""

    def describe(self, rule: Rule) -> dict[str, Any]:
        """For people: what other fleet work may do beside it, and why; empty where it protects nothing, or is not judged."""
        found = self.reaction(rule)
        if found is None:
            return {}
        return {"level": found.level, "why": found.why, "pressure": found.pressure, "measures": found.measures}


def protects(rule: Rule) -> Iterator[tuple[str, Protect, int | None]]:
    """(name of its source, the limit, its phase) of the rule's own ``protect`` and of each phase's."""
    if rule.protect is not None:
        yield rule.id, rule.protect, None
    for index, during in enumerate(rule.during):
        if during.protect is not None:
            yield protect_key(rule.id, index), during.protect, index
