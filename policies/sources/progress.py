"""From events and counter values to fractional counts and rates (harness-statistics.md, rule 2).

A step is the gap between two points; it is spread evenly over its duration, so a window gets the share that lies inside
it. Times are seconds on one monotonic clock. What is not known is said to be unknown; it is never zero.
"""

from __future__ import annotations

import statistics
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from policies.sources.stamps import StampClock

__all__ = ["Counted", "ProgressTrack"]

# The newest baseline without fleet work may be 30 minutes old and needs its window before that.
RETAIN_S = 3900.0
# Beyond this many points neighbours are merged (see ProgressTrack._compact).
MAX_POINTS = 200_000
# "Longest known step", medians and cadence speak of the newest steps: what a start-up cost an hour ago says nothing.
RECENT = 512
# A counter that leaps further than this times its largest recent increment, and faster than this times its fastest, was
# set (a resumed run loading its checkpoint), not counted up.
LEAP = 20.0
LEAP_NEEDS = 8
# Stamps that all lie this far before the last point come from a clock that was set.
SET_BACK_S = 60.0
MAX_VOIDS = 4096


@dataclass(frozen=True, slots=True)
class Counted:
    """Fractional events in an interval.

    Attributes:
        events: what was counted in the known part; None when nothing of the interval is known.
        closed: the step that straddles the interval's end has ended, so the count is final.
        void_s: seconds inside steps that cannot be counted (a counter restarted, lines may have been lost).
        unknown_s: seconds before the first point.
    """

    events: float | None
    closed: bool
    void_s: float
    unknown_s: float


class ProgressTrack:
    """Points (time, cumulative count) of one progress source.

    The first event or counter value only anchors: when its step began is not known. Events that arrive together in one
    read are spread evenly over the time since the last point. A counter that is printed without having grown tells that
    its next unit is still under way; of a later increase, that unit is spread since the last growth and the others
    since that print.
    """

    def __init__(self, *, retain_s: float = RETAIN_S) -> None:
        self._retain_s = retain_s
        self._keep_since_s: float | None = None
        self._times = array("d")
        self._counts = array("d")
        self._voids: deque[tuple[float, float]] = deque(maxlen=MAX_VOIDS)
        self._steps: deque[tuple[float, float]] = deque(maxlen=RECENT)  # (duration, events) of each newest step
        self._arrivals: deque[float] = deque(maxlen=RECENT)  # reads that brought anything
        self._written: deque[tuple[float, float]] = deque(maxlen=RECENT)  # (time, events or increase) of each read
        self._clock = StampClock()
        self._broken = False
        self._value: float | None = None  # newest counter value
        self._flat_since_s: float | None = None  # newest print at which the counter had not grown
        self._stamped = 0
        self._unstamped = 0
        self.resets = 0
        self.late = 0
        self.total = 0.0
        self._is_rate = False

    # -- what comes in

    def add_events(self, arrival_s: float, count: int = 1, *, written_s: float | None = None) -> None:
        """``count`` events read at ``arrival_s``.

        ``written_s``: when the newest was written, where that is known better than by the arrival (a file seen by
        polling); used by the timer check only.
        """
        if count <= 0:
            return
        self._arrived(arrival_s)
        self._unstamped += count
        self._written.append((arrival_s if written_s is None else written_s, float(count)))
        self._add_point(arrival_s, float(count))

    def add_stamped(
        self, arrival_s: float, wall_s: float, stamps_s: Sequence[float], *, written_s: float | None = None
    ) -> None:
        """Events of one read that carry their own times, in the file's order.

        Stamps may have any origin (see ``StampClock``). One that lies before the last point (several writers) counts with
        the step that ended there; no step is ever negative. Where all of them lie far before it, the program's clock was
        set back, or one stamp before had run ahead: what happened since the last point is then not known.
        """
        if not stamps_s:
            return
        self._arrived(arrival_s)
        self._stamped += len(stamps_s)
        # not the stamps: many are rounded to a second, which would look like a timer
        self._written.append((arrival_s if written_s is None else written_s, float(len(stamps_s))))
        placed = self._clock.place(arrival_s, wall_s, stamps_s)
        if self._times and max(placed) < self._times[-1] - SET_BACK_S:
            self.break_here()
            self._clock = StampClock()
            placed = self._clock.place(arrival_s, wall_s, stamps_s)
        for when in placed:
            if self._times and not self._broken and when <= self._times[-1]:
                self.late += when < self._times[-1]
                self._counts[-1] += 1.0
                self.total += 1.0
            else:
                self._add_point(when, 1.0)

    def add_counter(self, arrival_s: float, values: Sequence[float], *, written_s: float | None = None) -> None:
        """Cumulative counter values of one read, in order. One that falls starts a new segment; the pair is void."""
        if not values:
            return
        self._arrived(arrival_s)
        previous = self._value
        grown = 0.0
        restarted = False
        for value in values:
            if previous is not None:
                if value < previous:
                    restarted = True
                    self.resets += 1
                else:
                    grown += value - previous
            previous = value
        self._value = previous
        self._written.append((arrival_s if written_s is None else written_s, grown))
        if restarted or self._broken or not self._times or self._leaps(arrival_s, grown):
            self.break_here()
            self._flat_since_s = None
            self._add_point(arrival_s, 0.0)
        elif grown > 0.0:
            self._add_growth(arrival_s, grown)
        else:
            self._flat_since_s = arrival_s

    def add_rate(self, read_s: float, per_s: float) -> None:
        """A rate that was read instead of counted: it holds for the time since the reading before, and until the next."""
        self._is_rate = True
        since_s = self._times[-1] if self._times else read_s
        self._add_point(read_s, per_s * max(0.0, read_s - since_s))

    def add_known(self, when_s: float, events: float) -> None:
        """A step that another reader counted: ``events`` between its last point and this one."""
        self._arrived(when_s)
        self._written.append((when_s, events))
        self._add_point(when_s, events)

    def points_after(
        self, when_s: float, counted: float, at_most: int
    ) -> tuple[list[tuple[float, float]], float, float]:
        """What ``add_known`` must be given to know what this track knows.

        Args:
            when_s, counted: the last point that was passed on and the cumulative count then (as this method answered).
            at_most: of these points; the others are told by the next call.

        Returns:
            (time, events since the point before) of each point after that, -1 events where that is not known; then the
            place up to which was told, for the next call.
        """
        first = bisect_right(self._times, when_s)
        void_ends = {high for _, high in self._voids}
        found: list[tuple[float, float]] = []
        for at in range(first, min(len(self._times), first + at_most)):
            time_s, count = self._times[at], self._counts[at]
            if time_s in void_ends:
                found.append((time_s, -1.0))
            found.append((time_s, max(0.0, count - counted)))
            when_s, counted = time_s, count
        return found, when_s, counted

    def break_here(self) -> None:
        """What happened since the last point cannot be known: the step up to the next point is void."""
        if self._times:
            self._broken = True

    def _add_growth(self, arrival_s: float, grown: float) -> None:
        flat = self._flat_since_s
        last = self._times[-1]
        self._flat_since_s = None
        if flat is not None and grown > 1.0 and last < flat < arrival_s:
            first_done = flat + (arrival_s - flat) / grown
            self._steps.append((arrival_s - last, grown))
            self._append(first_done, 1.0)
            self._append(arrival_s, grown - 1.0)
        else:
            self._add_point(arrival_s, grown)

    def _leaps(self, arrival_s: float, grown: float) -> bool:
        recent = [(span, events) for span, events in self._steps if span > 0.0]
        if len(recent) < LEAP_NEEDS:
            return False
        largest = max(events for _, events in recent)
        fastest = max(events / span for span, events in recent)
        since = max(arrival_s - self._times[-1], 1e-3)
        if grown > LEAP * largest and grown / since > LEAP * fastest:
            self.resets += 1
            return True
        return False

    def _add_point(self, when_s: float, events: float) -> None:
        if not self._times:
            self._append(when_s, 0.0)
            return
        last = self._times[-1]
        when_s = max(when_s, last)
        if self._broken:
            self._broken = False
            if when_s > last:
                self._voids.append((last, when_s))
            self._append(when_s, 0.0)
            return
        if when_s == last:
            self._counts[-1] += events
            self.total += events
            return
        self._steps.append((when_s - last, events))
        self._append(when_s, events)

    def _append(self, when_s: float, events: float) -> None:
        self.total += events
        self._times.append(when_s)
        self._counts.append(self.total)
        if len(self._times) % 4096 == 0:
            self._trim(when_s)

    def _arrived(self, arrival_s: float) -> None:
        if not self._arrivals or arrival_s > self._arrivals[-1]:
            self._arrivals.append(arrival_s)

    # -- memory

    def keep_since(self, since_s: float | None) -> None:
        """Keeps every point from here on whatever the retention (a harness block); None ends that."""
        self._keep_since_s = since_s

    def _trim(self, now_s: float) -> None:
        floor = now_s - self._retain_s
        if self._keep_since_s is not None:
            floor = min(floor, self._keep_since_s)
        cut = bisect_right(self._times, floor) - 1  # one point before the floor stays: its step reaches inside
        if cut > 0:
            del self._times[:cut]
            del self._counts[:cut]
        while self._voids and self._voids[0][1] < self._times[0]:
            self._voids.popleft()
        if len(self._times) > MAX_POINTS:
            self._compact()

    def _compact(self) -> None:
        """Merges neighbours until half the points are left.

        Totals stay exact. A count between two times changes at each of them by less than the events within one merged
        stretch, which is at most 1/100,000 of the span kept (0.04 s of an hour).
        """
        times, counts = self._times, self._counts
        spacing = (times[-1] - times[0]) / (MAX_POINTS // 2)
        edges = {edge for void in self._voids for edge in void}
        kept_times, kept_counts = array("d", times[:1]), array("d", counts[:1])
        last_index = len(times) - 1
        for index in range(1, len(times)):
            when = times[index]
            if when - kept_times[-1] >= spacing or index == last_index or when in edges:
                kept_times.append(when)
                kept_counts.append(counts[index])
        self._times, self._counts = kept_times, kept_counts

    # -- what is asked

    @property
    def points(self) -> int:
        return len(self._times)

    @property
    def median_step_s(self) -> float | None:
        """Median duration of the newest steps; several events read at once are one step."""
        return statistics.median(span for span, _ in self._steps) if self._steps else None

    def newest_steps_s(self, count: int) -> list[float]:
        """Durations of the newest steps, at most so many."""
        return [span for span, _ in list(self._steps)[-count:]]

    @property
    def longest_step_s(self) -> float | None:
        return max((span for span, _ in self._steps), default=None)

    @property
    def arrival_gaps_s(self) -> list[float]:
        """How far apart the newest reads lay that brought anything."""
        arrivals = list(self._arrivals)
        return [later - earlier for earlier, later in pairwise(arrivals)]

    @property
    def arrival_cadence_s(self) -> float | None:
        """The 90th percentile of those gaps; None with fewer than 5."""
        gaps = sorted(self.arrival_gaps_s)
        return gaps[min(len(gaps) - 1, int(0.9 * len(gaps)))] if len(gaps) >= 5 else None

    @property
    def is_stamped(self) -> bool:
        """Nine of ten events carry their own time, so that late arrival does not blur the counts."""
        return self._stamped > 9 * self._unstamped

    def recent_reads(self) -> list[tuple[float, float]]:
        """(time written, events or counter increase) of the newest reads: what the timer check looks at."""
        return list(self._written)

    def count_between(self, start_s: float, end_s: float, now_s: float | None = None) -> Counted:
        """Fractional events in ``[start_s, end_s]``.

        With ``now_s`` the step still open then counts elapsed ÷ longest known step, at most 1, times what a step brings
        (1 event; the median for steps of several). Without, an open step counts nothing. Additive over neighbouring
        intervals as long as nothing new comes in.
        """
        times = self._times
        if not times or end_s <= times[0]:
            return Counted(None, False, 0.0, max(end_s - start_s, 0.0))
        begin = max(start_s, times[0])
        void = sum(max(0.0, min(end_s, high) - max(begin, low)) for low, high in self._voids)
        events = self._upto(end_s) - self._upto(begin)
        closed = times[-1] >= end_s
        if self._broken and end_s > times[-1]:
            void += end_s - max(begin, times[-1])
        elif now_s is not None and not closed:
            events += self._open(min(end_s, now_s)) - self._open(min(begin, now_s))
        unknown = begin - start_s
        if void >= (end_s - begin) > 0.0:
            return Counted(None, closed, void, unknown)
        return Counted(events, closed, void, unknown)

    def steps_between(self, start_s: float, end_s: float) -> int:
        """How many steps ended in ``(start_s, end_s]``; events that were read together are one."""
        return bisect_right(self._times, end_s) - bisect_right(self._times, start_s)

    def rate(self, now_s: float, window_s: float) -> float | None:
        """Events per second over the last ``window_s``, the open step included; None where over half is unknown."""
        counted = self.count_between(now_s - window_s, now_s, now_s)
        known_s = window_s - counted.void_s - counted.unknown_s
        if counted.events is None or known_s < 0.5 * window_s or known_s <= 0.0:
            return None
        return counted.events / known_s

    def _upto(self, when_s: float) -> float:
        """Cumulative count at a time not before the first point."""
        times, counts = self._times, self._counts
        index = bisect_left(times, when_s)
        if index >= len(times):
            return counts[-1]
        if index == 0:
            return counts[0]
        low, high = times[index - 1], times[index]
        share = (when_s - low) / (high - low)
        return counts[index - 1] + share * (counts[index] - counts[index - 1])

    def _open(self, when_s: float) -> float:
        elapsed = when_s - self._times[-1]
        longest = self.longest_step_s
        if elapsed <= 0.0 or not longest:
            return 0.0
        if self._is_rate:
            span, events = self._steps[-1]
            return min(elapsed, longest) * events / span
        return min(1.0, elapsed / longest) * statistics.median(events for _, events in self._steps)
