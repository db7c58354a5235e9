"""Repetition must not manufacture certificates (harness.md, "Certificates").

A run that is repeated until it passes passes in the end, whatever the truth is. So an ending that was no pass costs two
passes in a row, and one that showed harm takes back what was certified for the same work at that duty or more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from policies.harness.kept import DAMAGED, WHY_DAMAGED, asked_of, came_when
from policies.harness.spec import RunSpec
from policies.harness.verdict import PASS
from policies.instants import aware_utc

if TYPE_CHECKING:
    from policies.certificate.model import Certificate

__all__ = [
    "HARM",
    "PASSES_WITHIN",
    "Forgotten",
    "PastRun",
    "Standing",
    "check_when",
    "comes_after",
    "revocations",
    "standing",
    "unreadable_runs",
]

HARM = ("slowdown", "harm_suspected")
PASSES_WITHIN = timedelta(days=14)
PASSES_OWED = 2
NEAR_DUTY = 0.05
_SAME_DUTY = 1e-9
_SAME_MARGIN = 1e-9

Record = Mapping[str, Any]
Work = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class PastRun:
    """What counts of an ended run.

    ``stages`` are the (module, stage) pairs under test, ``work`` what was asked for in words. ``looked``: its blocks
    were judged at least once, or could have been. ``share`` is the mean metered share over its counted ON windows; None: unknown.
    ``came_at`` tells which of two runs came first, also where the wall clock was set back between them; ``ended_at`` is
    what the wall clock said.
    """

    run: str
    rule: str
    work: str
    stages: Work
    duty: float | None
    kind: str
    ending: str
    came_at: datetime
    ended_at: datetime
    looked: bool
    demonstration: bool
    margin: float
    share: float | None = None
    refused_for: str | None = None

    @classmethod
    def of(cls, record: Record) -> PastRun:
        """From a RunRecord that has ended. Raises ``ValueError`` on one whose end has no aware time."""
        spec = RunSpec.model_validate(record["spec"])
        ended_at = _end(record, record["ended_at"])
        return cls(
            run=str(record["run"]),
            rule=spec.rule,
            work=spec.work,
            stages=frozenset((str(item["module"]), str(item["stage"])) for item in record.get("work") or ()),
            duty=spec.duty,
            kind=spec.kind,
            ending=str(record["ending"]),
            came_at=_end(record, record["came_at"]) if record.get("came_at") else ended_at,
            ended_at=ended_at,
            looked=bool(record.get("looks", True)) or bool(record.get("reached_look")),
            demonstration=spec.demonstration or bool((record.get("source") or {}).get("timed")),
            margin=spec.margin,
            share=_mean_share(record.get("blocks") or ()),
            refused_for=None if record.get("certificate") else record.get("certificate_refused_for"),
        )

    @property
    def passed(self) -> bool:
        """A pass that the agent itself did not keep (but for repetition) is none."""
        return self.ending == PASS and self.refused_for in (None, "repetition")

    @property
    def counts(self) -> bool:
        """Whether it stands in the way of a certificate: no pass, and not an abort before anything was judged."""
        if self.ending == PASS:
            return self.refused_for == "verdict"
        return self.ending != "aborted" or self.looked

    def shows_as_much_as(self, other: PastRun) -> bool:
        """Whether a pass of this is worth one of the other: it allowed no more slowdown, and no demonstration alone counts."""
        return (other.demonstration or not self.demonstration) and self.margin <= other.margin + _SAME_MARGIN

    def same_thing(self, other: PastRun) -> bool:
        """Same rule, work and duty: calling the same stages by another name makes it no other work."""
        return self.rule == other.rule and _same_duty(self.duty, other.duty) and _same_work(self, other)


class _HasWork(Protocol):
    @property
    def work(self) -> str: ...

    @property
    def stages(self) -> Work: ...


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether a pass may certify, and if not why and what would. ``passes_needed`` counts passes after this one."""

    may_certify: bool
    passes_needed: int = 0
    why: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Runs came that nobody knows of any more: ``why`` in words. ``known`` are those from before, by name."""

    why: str
    known: frozenset[str] = frozenset()


def standing(run: PastRun | Record, others: Iterable[PastRun | Record], forgotten: Forgotten | None = None) -> Standing:
    """May the pass ``run`` certify, after ``others`` (in any order; other kinds are left aside, and open runs that were not judged)?

    After an ending that counts, the same rule, work and duty needs two passes in a row within 14 days, this one among
    them. A demonstration pass counts for demonstration certificates only, one with a wider margin for none with a narrower; a
    failed run counts always. What was forgotten may have been such an ending, of anything: it counts as one.
    """
    others = list(others)
    this = _past(run)
    if not this.passed:
        return Standing(False, PASSES_OWED, f"it ended {this.ending}", "only a pass certifies")
    known = frozenset() if forgotten is None else forgotten.known
    if forgotten is not None and this.run in known:
        return Standing(False, PASSES_OWED, f"{forgotten.why}; this run is from before", "measure it anew")
    before: list[tuple[datetime, PastRun | Record]] = [
        (each.came_at, each) for each in _ended(others) if each.run != this.run and each.run not in known
    ]
    # of one that cannot be understood it is not believed that it passed, or was of other work; without a time it is the oldest
    before += [(_when(each), each) for each in _unread(others) if _rule_of(each) == this.rule]
    before.sort(key=lambda each: each[0])
    owed = None if forgotten is None else forgotten.why
    in_row: list[PastRun] = []
    for past in [*(each for when, each in before if when <= this.came_at), this]:
        if not isinstance(past, PastRun):
            owed, in_row = f"how run {past.get('run')} of the same rule ended cannot be told ({WHY_DAMAGED})", []
            continue
        if past.kind != "ab" or past.rule != this.rule or not _same_work(past, this):
            continue
        if past.counts and _binds(past, this):
            owed, in_row = f"run {past.run} for the same rule, work and duty ended {past.ending}", []
        elif past.passed and past.same_thing(this) and past.shows_as_much_as(this):
            in_row = [each for each in in_row if _within(each, past)] + [past]
            if len(in_row) >= PASSES_OWED and past is not this:
                owed = None
    if owed is None or len(in_row) >= PASSES_OWED:
        return Standing(True)
    return Standing(
        False,
        1,
        f"{owed}, so it takes two passes in a row within {PASSES_WITHIN.days} days, and this is the first",
        "run the same once more; a second pass certifies",
    )


def _within(earlier: PastRun, later: PastRun) -> bool:
    """By the order of runs as by the wall clock: either alone was led astray by a clock that was ahead for a moment."""
    return max(later.came_at - earlier.came_at, later.ended_at - earlier.ended_at) <= PASSES_WITHIN


def comes_after(run: PastRun | Record, other: PastRun | Record) -> bool:
    """Whether the ended ``run`` came after the ended ``other``; of either only the time is looked at. Raises ``ValueError``."""
    return _came_at(run) > _came_at(other)


def check_when(run: PastRun | Record) -> None:
    """Raises ``ValueError`` where it cannot be told when the ended ``run`` came, so that it is neither before nor after any other."""
    _came_at(run)


def _came_at(run: PastRun | Record) -> datetime:
    if isinstance(run, PastRun):
        return run.came_at
    return _end(run, run.get("came_at") or run.get("ended_at"))


def _end(run: Record, said: object) -> datetime:
    """The time of its end that the record says, in UTC. Raises ``ValueError`` naming the run."""
    try:
        return aware_utc(datetime.fromisoformat(str(said)))
    except ValueError as error:
        raise ValueError(f"run {run.get('run')}: when it ended cannot be told: {error}") from None


def unreadable_runs(runs: Iterable[PastRun | Record]) -> list[str]:
    """The runs of which not even the rule can be told, by name: nobody knows whose repetition they are."""
    return [str(run.get("run")) for run in _unread(runs) if _rule_of(run) is None]


def _unread(runs: Iterable[PastRun | Record]) -> list[Record]:
    """The records that may have failed and cannot be understood."""
    found: list[Record] = []
    for run in runs:
        if isinstance(run, PastRun):
            continue
        try:
            list(_read([run]))
        except DAMAGED:
            found.append(run)
    return found


def _rule_of(run: Record) -> str | None:
    rule = asked_of(run).get("rule")
    return rule if isinstance(rule, str) else None


def _when(run: Record) -> datetime:
    """When a record that cannot be understood came, as far as it says; else before all others."""
    return came_when(run) or datetime.min.replace(tzinfo=UTC)


def revocations(run: PastRun | Record, certificates: Sequence[Certificate]) -> list[Certificate]:
    """The certificates that the ended ``run`` takes back: harm at a duty speaks against that work at that duty or more.

    The duty of harm is the smaller of the duty asked and the share that was metered; where neither is known, any
    certificate for that work falls; and where it cannot be understood what the run measured, any of its rule.
    """
    try:
        past = _past(run)
    except DAMAGED:
        return _all_of_its_rule(run, certificates)
    if past.kind != "ab" or past.ending not in HARM:
        return []
    known = [value for value in (past.duty, past.share) if value is not None]
    at = min(known, default=0.0)
    return [
        certificate
        for certificate in certificates
        if certificate.rule == past.rule
        and _same_work(past, _Certified(certificate))
        and (certificate.certified_duty >= at - _SAME_DUTY or _asked_as_much(certificate, past))
    ]


def _all_of_its_rule(run: PastRun | Record, certificates: Sequence[Certificate]) -> list[Certificate]:
    if isinstance(run, PastRun) or run.get("ending") not in HARM or not isinstance(spec := run.get("spec"), Mapping):
        return []
    if spec.get("kind", "ab") != "ab":
        return []
    return [certificate for certificate in certificates if certificate.rule == spec.get("rule")]


@dataclass(frozen=True, slots=True)
class _Certified:
    certificate: Certificate

    @property
    def work(self) -> str:
        return self.certificate.work_asked

    @property
    def stages(self) -> Work:
        return frozenset((item.module, item.stage) for item in self.certificate.work)


def _asked_as_much(certificate: Certificate, past: PastRun) -> bool:
    """Whether the certificate's run was asked for that duty or more and held a little less of it."""
    if certificate.duty_asked is None or past.duty is None:
        return False
    return certificate.duty_asked >= past.duty - _SAME_DUTY


def _binds(failed: PastRun, this: PastRun) -> bool:
    """A failure at a duty speaks against that duty and all above it; asking for a hair less is the same thing."""
    return _level(this.duty) >= _level(failed.duty) - NEAR_DUTY


def _level(duty: float | None) -> float:
    return 1.0 if duty is None else duty


def _past(run: PastRun | Record) -> PastRun:
    return run if isinstance(run, PastRun) else PastRun.of(run)


def _ended(runs: Iterable[PastRun | Record]) -> Iterable[PastRun]:
    """As ``_read``, without what cannot be understood (``_unread`` has it)."""
    for run in runs:
        try:
            yield from _read([run])
        except DAMAGED:
            continue


def _read(runs: Iterable[PastRun | Record]) -> Iterable[PastRun]:
    """Also an open run that was judged, or could have been, and is no pass, as interrupted where it was driven last: whoever
    drove it away after what it showed did not please, and began another, has not made it undone.
    """
    for run in runs:
        if isinstance(run, PastRun):
            yield run
        elif run.get("state") == "ended":
            yield PastRun.of(run)
        elif not _is_pass(looks[-1]) if (looks := run.get("looks")) else run.get("reached_look"):
            left_at = run.get("driven_at") or run["started_at"]
            yield PastRun.of({**run, "ending": "interrupted", "ended_at": left_at})


def _is_pass(look: Any) -> bool:
    """A look that cannot be understood is none."""
    return isinstance(look, Mapping) and look.get("verdict") == PASS


def _same_duty(a: float | None, b: float | None) -> bool:
    return a is b if a is None or b is None else abs(a - b) <= _SAME_DUTY


def _same_work(a: _HasWork, b: _HasWork) -> bool:
    return a.work == b.work or bool(a.stages & b.stages)


def _mean_share(blocks: Iterable[Mapping[str, Any]]) -> float | None:
    """Mean metered share over the ON windows of the counted blocks; None where one is unknown, or there is none."""
    shares = [(block.get("on") or {}).get("dose") for block in blocks if block.get("state") == "counted"]
    known = [float(share) for share in shares if share is not None and math.isfinite(share)]
    return math.fsum(known) / len(known) if known and len(known) == len(shares) else None
