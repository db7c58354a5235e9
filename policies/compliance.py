"""Whether each unit of device work holds its duty, judged by the meter alone, whatever the unit reports of itself.

``judge(state, samples, budget, now_s) -> (state, judgement)``, one call for each reading of the meter (every two
seconds). The judgement says for every unit what holds now, not what changed: the agent brings the unit there, so a call
that was missed costs nothing. Source: ``governor.md``, "Compliance".

An unknown share is no verdict: it neither adds to a unit's overruns nor clears them. But the unit is held until it reads.
A unit that ends before the meter could read it twice has no share at all. What such units used counts for the sum, and where they
are what is over it their module waits: work cut into pieces too short to be read is held like any other. And what a unit owed when it
ended the next one of its module takes over: ending and beginning anew wipes no overrun away, nor a hold.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from policies.codes import Entry

__all__ = [
    "CLEAR",
    "HOUR_S",
    "STATE_WORDS",
    "ComplianceState",
    "Entry",
    "Judgement",
    "Record",
    "Sample",
    "UnitState",
    "Verdict",
    "gets_duty",
    "judge",
]

SLACK: Final = 0.1
"""What a unit may use beyond its duty, and all units together beyond the budget."""
SAMPLES: Final = 3
"""An overrun is as many samples in a row: one long burst is none."""
HOLD_S: Final = 60.0
TIMES: Final = 3
"""So many overruns within an hour stop the unit."""
HOUR_S: Final = 3600.0
NONE_UNREAD: Final[Mapping[str, float]] = {}
MAX_AGE_S: Final = 4.0
"""A share older than two sampling periods is the last one, not the current one: no data."""

UnitState = Literal["holds", "held", "not_trusted", "cannot_throttle", "stopped"]
STATE_WORDS: Final[dict[UnitState, str]] = {
    "holds": "holds its duty",
    "held": "held",
    "not_trusted": "not trusted",
    "cannot_throttle": "cannot throttle",
    "stopped": "stopped",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One unit at one reading.

    Args:
        unit: the attempt's id.
        module: the module it belongs to.
        cooperative: it declares ``cooperative_throttle``.
        duty: the ``gpu_duty`` in force; None where it was given none (it counts as 0 while there is a budget).
        measured: busy share since the last reading, by the meter; None: unreadable.
        age_s: how old the meter's newest data for it is.
        why: why ``measured`` is None, in the meter's words, or is no data for its age.
    """

    unit: str
    module: str
    cooperative: bool
    duty: float | None
    measured: float | None
    age_s: float = 0.0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """What is remembered of a unit: samples in a row over its duty, times of overruns, until when and why it is held."""

    duty: float
    seen_s: float
    over: int = 0
    times: tuple[float, ...] = ()
    held_until_s: float = -math.inf
    why: str = ""
    unverified: bool = False
    stopped: bool = False
    module: str = ""


@dataclass(frozen=True, slots=True)
class ComplianceState:
    """``distrusted``: until when a module gets no duty. ``sum_over``: samples in a row with the sum over the budget."""

    records: Mapping[str, Record] = field(default_factory=dict)
    distrusted: Mapping[str, float] = field(default_factory=dict)
    sum_over: int = 0
    budget: float | None = None
    module_times: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """When a module's units that ended unread were over the budget."""


CLEAR: Final = ComplianceState()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a unit is to do: run where ``state`` is ``holds``, end where it is ``stopped``, else wait."""

    state: UnitState
    why: str
    duty: float
    measured: float | None
    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """``verdicts`` by unit; empty while no duty is set (nothing is asked of anyone)."""

    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()


def gets_duty(state: ComplianceState, unit: str, module: str, cooperative: bool, now_s: float) -> bool:
    """Whether a unit takes part in the shares. A held one does: the others' duty must not jump for a minute."""
    record = state.records.get(unit)
    return cooperative and not _distrusted(state, module, now_s) and not (record is not None and record.stopped)


def judge(
    state: ComplianceState,
    samples: Sequence[Sample],
    budget: float | None,
    now_s: float,
    unread: Mapping[str, float] = NONE_UNREAD,
) -> tuple[ComplianceState, Judgement]:
    """Judge one reading of all units.

    Args:
        state: ``CLEAR`` at first.
        samples: every running unit of device work.
        budget: the governor's budget; None while it sets no duty, or a harness run decides.
        now_s: a clock that runs through suspend.
        unread: by module the share of the device that units of it used which ended since the last reading and never had a
            share of their own.

    Returns:
        The new state, and what holds for each unit now.
    """
    records = {unit: record for unit, record in state.records.items() if now_s - record.seen_s < HOUR_S}
    distrusted = {module: until_s for module, until_s in state.distrusted.items() if now_s < until_s}
    lately = {name: tuple(at_s for at_s in at if now_s - at_s < HOUR_S) for name, at in state.module_times.items()}
    state = replace(
        state, records=records, distrusted=distrusted, module_times={n: at for n, at in lately.items() if at}
    )
    if budget is None:
        idle = {unit: replace(record, over=0, unverified=False) for unit, record in records.items()}
        return replace(state, records=idle, sum_over=0, budget=None), Judgement()
    entries: list[Entry] = []
    judged = [sample for sample in samples if sample.cooperative]
    there = {sample.unit for sample in samples}
    for sample in judged:
        first = sample.unit not in records
        if first:
            _take_over(records, there, sample, now_s)
        entries += _judge_unit(records, distrusted, sample, now_s, first=first)
    # A budget that just fell is judged from the next reading on: this one began under the old one.
    allowed = max(budget, state.budget or 0.0)
    sums = _Sums(records, distrusted, dict(state.module_times), unread, allowed)
    sum_over, held = _judge_sum(sums, judged, state.sum_over, now_s)
    after = ComplianceState(records, distrusted, sum_over, budget, sums.module_times)
    verdicts = {sample.unit: _verdict(after, sample, now_s) for sample in samples}
    return after, Judgement(verdicts, (*entries, *held))


def _share(sample: Sample) -> float | None:
    return None if sample.age_s > MAX_AGE_S else sample.measured


def _distrusted(state: ComplianceState, module: str, now_s: float) -> bool:
    return now_s < state.distrusted.get(module, -math.inf)


def _take_over(records: dict[str, Record], there: Collection[str], sample: Sample, now_s: float) -> None:
    """Give a unit that is seen for the first time what the worst of its module's ended ones owed, once."""
    left = {
        unit: record
        for unit, record in records.items()
        if record.module == sample.module
        and unit not in there
        and not record.stopped  # that its module is not trusted is enough
        and (record.times or record.over or now_s < record.held_until_s)
    }
    worst = max(left, key=lambda unit: (left[unit].held_until_s, len(left[unit].times), left[unit].over), default=None)
    if worst is None:
        return
    record = records.pop(worst)
    # samples of long ago are in no row with this one's
    over = record.over if now_s - record.seen_s <= HOLD_S else 0
    records[sample.unit] = replace(record, duty=sample.duty or 0.0, over=over, unverified=False)


def _judge_unit(
    records: dict[str, Record], distrusted: dict[str, float], sample: Sample, now_s: float, *, first: bool
) -> tuple[Entry, ...]:
    """Update the unit's record in place; the entries."""
    duty, share = sample.duty or 0.0, _share(sample)
    before = records.get(sample.unit)
    record = replace(before or Record(duty, now_s), duty=duty, seen_s=now_s, module=sample.module)
    records[sample.unit] = record
    if record.stopped:
        return ()
    if share is None:
        # A meter needs two readings: of a unit seen for the first time nothing could be known yet.
        if first:
            return ()
        records[sample.unit] = replace(record, unverified=True, why=sample.why)
        unread = Entry("GPU_DUTY_UNVERIFIED", {"unit": sample.unit, "module": sample.module, "why": sample.why})
        return () if record.unverified else (unread,)
    # A duty that just fell is judged from the next reading on.
    allowed = duty if before is None else max(duty, before.duty)
    over = record.over + 1 if _over(share, allowed) else 0
    record = replace(record, over=over, unverified=False)
    records[sample.unit] = record
    if over < SAMPLES:
        return ()
    times = (*(at_s for at_s in record.times if now_s - at_s < HOUR_S), now_s)
    facts: dict[str, Any] = {
        "unit": sample.unit,
        "module": sample.module,
        "duty": duty,
        "measured": share,
        "time": len(times),
    }
    if len(times) >= TIMES:
        distrusted[sample.module] = now_s + HOUR_S
        records[sample.unit] = replace(record, over=0, times=times, stopped=True)
        return (Entry("GPU_DUTY_EXCEEDED", {**facts, "action": "stopped", "no_duty_for_s": HOUR_S}),)
    why = f"over its duty in {SAMPLES} samples"
    records[sample.unit] = replace(record, over=0, times=times, held_until_s=now_s + HOLD_S, why=why)
    return (Entry("GPU_DUTY_EXCEEDED", {**facts, "action": "held", "for_s": HOLD_S}),)


def _over(share: float, allowed: float) -> bool:
    return share > allowed + SLACK + 1e-9


def _runs(record: Record, now_s: float) -> bool:
    return not record.stopped and not record.unverified and now_s >= record.held_until_s


@dataclass(frozen=True, slots=True)
class _Sums:
    """What the sum of one reading is judged on, and changes in place. ``allowed``: the budget."""

    records: dict[str, Record]
    distrusted: dict[str, float]
    module_times: dict[str, tuple[float, ...]]
    unread: Mapping[str, float]
    allowed: float


def _judge_sum(sums: _Sums, samples: Sequence[Sample], sum_over: int, now_s: float) -> tuple[int, tuple[Entry, ...]]:
    """Hold the largest overrunner where units that each keep within their slack are together over the budget's."""
    # A unit that waits already has its answer; what it still uses is no reason to hold another.
    running = [sample for sample in samples if _runs(sums.records[sample.unit], now_s)]
    shares = {sample.unit: share for sample in running if (share := _share(sample)) is not None}
    total = math.fsum((*shares.values(), *sums.unread.values()))
    if _over(total, sums.allowed):
        sum_over += 1
    elif len(shares) == len(running):
        # With a share unknown the known ones can show that there is too much, never that there is not.
        sum_over = 0
    if sum_over < SAMPLES:
        return sum_over, ()
    facts = {"sum": total, "budget": sums.allowed}
    worst = max(shares, key=lambda unit: (shares[unit] - sums.records[unit].duty, unit), default=None)
    module = max(sums.unread, key=lambda name: (sums.unread[name], name), default=None)
    if worst is not None and (module is None or shares[worst] - sums.records[worst].duty >= sums.unread[module]):
        sample = next(sample for sample in samples if sample.unit == worst)
        return 0, (_hold_unit(sums.records, sample, shares[worst], facts, now_s),)
    return (0, (_hold_module(sums, module, facts, now_s),)) if module is not None else (sum_over, ())


def _hold_unit(
    records: dict[str, Record], sample: Sample, share: float, facts: Mapping[str, Any], now_s: float
) -> Entry:
    why = f"the units together were over the budget in {SAMPLES} samples, this one furthest over its duty"
    records[sample.unit] = replace(records[sample.unit], over=0, held_until_s=now_s + HOLD_S, why=why)
    unit = {"unit": sample.unit, "module": sample.module, "duty": records[sample.unit].duty, "measured": share}
    return Entry("GPU_DUTY_EXCEEDED", {**unit, **facts, "action": "held", "for_s": HOLD_S})


def _hold_module(sums: _Sums, module: str, facts: Mapping[str, Any], now_s: float) -> Entry:
    times = (*sums.module_times.get(module, ()), now_s)
    sums.module_times[module] = times
    for_s = HOUR_S if len(times) >= TIMES else HOLD_S
    sums.distrusted[module] = max(now_s + for_s, sums.distrusted.get(module, -math.inf))
    measured = sums.unread[module]
    told = {"module": module, "measured": measured, **facts, "time": len(times), "action": "held", "for_s": for_s}
    return Entry("GPU_DUTY_EXCEEDED", {**told, "why": "its units end before their share can be read"})


def _verdict(state: ComplianceState, sample: Sample, now_s: float) -> Verdict:
    duty, share = sample.duty or 0.0, _share(sample)
    if not sample.cooperative:
        return Verdict("cannot_throttle", "its runner declares no cooperative_throttle", duty, share)
    record = state.records[sample.unit]
    if record.stopped:
        return Verdict("stopped", f"over its duty {TIMES} times within an hour", duty, share)
    if _distrusted(state, sample.module, now_s):
        until_s = state.distrusted[sample.module]
        return Verdict("not_trusted", f"units of {sample.module} overran their duty", duty, share, until_s)
    if record.unverified:
        return Verdict("held", f"its device time cannot be read: {record.why or 'no reason given'}", duty, share)
    if now_s < record.held_until_s:
        return Verdict("held", record.why, duty, share, record.held_until_s)
    return Verdict("holds", "", duty, share)
