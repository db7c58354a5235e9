"""The memory guard: when memory is too short for more fleet work, and which job goes (protection.md).

Levels rise at once and fall late: soft below ``soft_free_pct``, hard below ``hard_free_pct``, and back only once free
memory is ``CLEAR_MARGIN_PCT`` points above the level that was left (or nothing is evicted and admitted in turn). Swap
that grows by the section's MB within the last minute counts as much. Unknown memory admits nothing and evicts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from policies.section.models import Memory

__all__ = ["GuardDecision", "GuardState", "Level", "MemorySignals", "Pool", "step_guard"]

Level = Literal["clear", "soft", "hard"]
Code = Literal["MEMORY_CLEAR", "MEMORY_SOFT", "MEMORY_HARD"]

CLEAR_MARGIN_PCT = 2.0
SWAP_WINDOW_S = 60.0
# How long an evicted job may take to be gone before the next one is asked to go; it still counts until it is.
GONE_WITHIN_S = 60.0
# How long memory may take to show as available after a process is gone.
SETTLE_S = 4.0

_MB = 1_000_000
_GB = 1_000_000_000
_CODES: dict[Level, Code] = {"clear": "MEMORY_CLEAR", "soft": "MEMORY_SOFT", "hard": "MEMORY_HARD"}


@dataclass(frozen=True, slots=True)
class Pool:
    """One bound on memory: the host, or a cgroup with a limit (available = limit − (current − inactive file pages)).

    A total of 0 is no reading (unified-memory devices report it): unknown, like None.
    """

    total_bytes: int | None
    available_bytes: int | None
    name: str = "memory"

    @property
    def free_pct(self) -> float | None:
        if self.total_bytes is None or self.available_bytes is None or self.total_bytes <= 0:
            return None
        return 100.0 * max(0, min(self.available_bytes, self.total_bytes)) / self.total_bytes


@dataclass(frozen=True, slots=True)
class MemorySignals:
    """One reading. Every pool binds: the one with the least free share decides, so host memory has the last word.

    ``footprints``: bytes that each fleet job holds, held ones too; None could not be read.
    """

    pools: tuple[Pool, ...]
    swap_used_bytes: int | None
    footprints: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Eviction:
    """The job that was told to go, when, and since when it is gone."""

    job: str
    at_s: float
    gone_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class GuardState:
    """``from_bytes``: memory available when evicting began, None while none is going on. Times are monotonic seconds."""

    level: Level = "clear"
    swap: tuple[tuple[float, int], ...] = ()
    from_bytes: int | None = None
    eviction: Eviction | None = None
    now_s: float = float("-inf")


@dataclass(frozen=True, slots=True)
class GuardDecision:
    """What follows. ``code`` is there on a change of level only; ``evict`` names one job to stop and requeue now.

    ``not_gone``: a job that did not go in time. ``short``: memory is known to be short, rather than not known.
    """

    level: Level
    admit: bool
    why: str
    evict: str | None = None
    code: Code | None = None
    not_gone: str | None = None
    short: bool = False


def step_guard(
    state: GuardState, signals: MemorySignals, now_s: float, limits: Memory
) -> tuple[GuardState, GuardDecision]:
    """One tick. A clock that went back stands still instead."""
    state = replace(state, now_s=max(now_s, state.now_s))
    free_pct, all_known = _least_free(signals)
    state, grown_mb = _swap_growth(state, signals.swap_used_bytes)
    known = all_known and signals.swap_used_bytes is not None
    level = _level(state.level, free_pct, grown_mb, limits, known)
    short = free_pct is not None and _level(state.level, free_pct, grown_mb, limits, known=True) != "clear"
    code = _CODES[level] if level != state.level else None
    state = replace(state, level=level)
    evict: str | None = None
    not_gone: str | None = None
    if free_pct is not None:
        pressing = free_pct < limits.hard_free_pct or grown_mb >= limits.swap_growth_hard_mb_min
        state, evict, not_gone = _evict(state, signals, limits, pressing)
    why = _why(free_pct, grown_mb, known, limits)
    return state, GuardDecision(level, level == "clear", why, evict, code, not_gone, short)


def _least_free(signals: MemorySignals) -> tuple[float | None, bool]:
    """(the smallest free share that is known, whether all are). One that cannot be read hides no shortage of another."""
    shares = [pool.free_pct for pool in signals.pools]
    known = [share for share in shares if share is not None]
    return min(known, default=None), bool(known) and len(known) == len(shares)


def _swap_growth(state: GuardState, used: int | None) -> tuple[GuardState, float]:
    """MB that swap grew by within the last minute. The first reading has nothing to grow from."""
    recent = tuple((at_s, was) for at_s, was in state.swap if state.now_s - at_s <= SWAP_WINDOW_S)
    if used is None:
        return replace(state, swap=recent), 0.0
    least = min((was for _, was in recent), default=used)
    # a reading that a later one went below, or met, is never the least again
    lower = tuple((at_s, was) for at_s, was in recent if was < used)
    return replace(state, swap=(*lower, (state.now_s, used))), max(0, used - least) / _MB


def _level(before: Level, free_pct: float | None, grown_mb: float, limits: Memory, known: bool) -> Level:
    if free_pct is None:
        # hard stays hard: nothing says that memory came back
        return "hard" if before == "hard" else "soft"
    hard_pct = limits.hard_free_pct + (CLEAR_MARGIN_PCT if before == "hard" else 0.0)
    soft_pct = limits.soft_free_pct + (CLEAR_MARGIN_PCT if before != "clear" else 0.0)
    if free_pct < hard_pct or grown_mb >= limits.swap_growth_hard_mb_min:
        return "hard"
    if free_pct < soft_pct or grown_mb >= limits.swap_growth_soft_mb_min or not known:
        return "soft"
    return "clear"


def _evict(
    state: GuardState, signals: MemorySignals, limits: Memory, pressing: bool
) -> tuple[GuardState, str | None, str | None]:
    """(state, job to evict, job that did not go). One at a time, until ``min_reclaim_gb`` came back or memory is clear.

    Evicting begins (again) only while memory presses without the margin: the margin keeps the level, it costs no job.
    """
    available = min((pool.available_bytes for pool in signals.pools if pool.available_bytes is not None), default=0)
    if state.from_bytes is not None:
        came_back = available - state.from_bytes >= limits.min_reclaim_gb * _GB
        if came_back or state.level == "clear":
            # what swap grew by until now has been answered
            state = replace(state, from_bytes=None, swap=state.swap[-1:])
    elif pressing:
        state = replace(state, from_bytes=available)
    state, not_gone = _still_going(state, signals)
    if state.from_bytes is None or state.eviction is not None:
        return state, None, not_gone
    victim = _largest(signals.footprints, not_gone)
    if victim is None:
        return state, None, not_gone
    return replace(state, eviction=Eviction(victim, state.now_s)), victim, not_gone


def _still_going(state: GuardState, signals: MemorySignals) -> tuple[GuardState, str | None]:
    """Wait for the job that was told to go: until it is gone and memory has settled, or its time is up (its name)."""
    going = state.eviction
    if going is None:
        return state, None
    if going.job not in signals.footprints:
        gone_at_s = going.gone_at_s if going.gone_at_s is not None else state.now_s
        settled = state.now_s - gone_at_s >= SETTLE_S
        return replace(state, eviction=None if settled else replace(going, gone_at_s=gone_at_s)), None
    if state.now_s - going.at_s < GONE_WITHIN_S:
        return state, None
    return replace(state, eviction=None), going.job


def _largest(footprints: Mapping[str, int | None], but: str | None) -> str | None:
    """The job with the largest known footprint; one of unknown size only where none is known. Never ``but``."""
    known = {job: size for job, size in footprints.items() if size is not None and job != but}
    if known:
        return max(sorted(known), key=lambda job: known[job])
    return next((job for job in sorted(footprints) if job != but), None)


def _why(free_pct: float | None, grown_mb: float, known: bool, limits: Memory) -> str:
    if free_pct is None:
        return "memory cannot be read"
    grown = f", swap grew by {grown_mb:.0f} MB in a minute" if grown_mb >= 1 else ""
    unread = "" if known else "; a cgroup's memory or the swap cannot be read"
    return (
        f"{free_pct:.1f} % of memory is free (nothing is admitted below {limits.soft_free_pct:g} %, "
        f"a job goes below {limits.hard_free_pct:g} %){grown}{unread}"
    )
