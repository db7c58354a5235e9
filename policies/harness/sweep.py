"""The duty sweep: which level comes next, of which sweep, and for how long. Pure, from the runs that the agent keeps.

Fixed sequence, stop at the first level that does not pass: the chance to certify any level at or beyond the first harmful
one is then at most that of one run, whatever the pattern of harm. It rests on no level being run twice or skipped within
a sweep. Source: ``harness.md``, "The sweep"; ``harness-statistics.md``, section 4.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from itertools import pairwise
from typing import Any

from policies.harness.hours import Hours
from policies.harness.kept import DAMAGED
from policies.harness.spec import RunSpec
from policies.harness.verdict import PASS
from policies.refusal import Refused

__all__ = [
    "LEVELS",
    "Asked",
    "Finished",
    "Level",
    "PastLevel",
    "certified_level",
    "check_levels",
    "level_hours",
    "level_run",
    "level_spec",
    "next_step",
]

LEVELS = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 1.0)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a sweep measures. Hours, names of reviewers and seeds are no part of it: another night has other ones."""

    rule: str
    work: str
    levels: tuple[float, ...]
    window_s: float
    washout_s: float
    margin: float
    off: str
    first_look: int
    feed: str | None
    accept_timed_source: bool

    @classmethod
    def of(cls, spec: RunSpec, levels: Sequence[float]) -> Asked:
        fields = {name: getattr(spec, name) for name in cls.__slots__ if name != "levels"}
        return cls(levels=tuple(levels), **fields)

    @property
    def digest(self) -> str:
        fields = {name: getattr(self, name) for name in self.__slots__}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class PastLevel:
    """One level as the agent keeps it. ``sweep`` is its sweep's name, ``index`` its place in the sequence."""

    run: str
    sweep: str
    index: int
    level: float
    asked: str
    rule: str
    work: str
    state: str
    ending: str | None
    certificate: str | None
    refused_for: str | None
    section_digest: str | None
    started_at: str
    flow_run_id: str | None
    driven_by: tuple[str, ...] = ()
    damaged: bool = False

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> PastLevel | None:
        """From a row of ``run_list`` or a RunRecord; None for a run that belongs to no sweep, or of which that cannot be told.

        One that is damaged passed nothing and goes on with nothing: its sweep is over.
        """
        sweep = row.get("sweep")
        if not isinstance(sweep, Mapping):
            return None
        asked = row.get("spec") or row
        certificate = row.get("certificate") or {}
        damaged = bool(row.get("damaged"))
        try:
            index = int(sweep["index"])
            name, level, digest = str(sweep["sweep"]), float(sweep["levels"][index]), str(sweep["asked"])
        except (*DAMAGED, IndexError):
            return None
        return cls(
            run=str(row["run"]),
            sweep=name,
            index=index,
            level=level,
            asked=digest,
            rule=str(asked["rule"]),
            work=str(asked["work"]),
            state="ended" if damaged else str(row["state"]),
            ending="damaged" if damaged else row.get("ending"),
            certificate=None if damaged else certificate.get("certificate"),
            refused_for=row.get("certificate_refused_for"),
            section_digest=row.get("section_digest"),
            started_at=str(row["started_at"]),
            flow_run_id=row.get("flow_run_id"),
            driven_by=tuple(str(each) for each in row.get("driven_by") or ()),
            damaged=damaged,
        )

    @property
    def is_by(self) -> frozenset[str]:
        """The flow runs that drove it."""
        return frozenset((*self.driven_by, *((self.flow_run_id,) if self.flow_run_id else ())))

    @property
    def unsettled(self) -> bool:
        """Open, or a pass that was not offered for its certificate yet: whoever drove it died on the way."""
        return self.state != "ended" or (self.ending == PASS and not self.certificate and self.refused_for is None)

    @property
    def passed(self) -> bool:
        """A pass that the agent kept, or would have kept but for an earlier failure (then it takes another one)."""
        return self.ending == PASS and (bool(self.certificate) or self.refused_for == "repetition")


@dataclass(frozen=True, slots=True)
class Level:
    """Run this level. ``run`` is set where it was begun already and goes on; ``repeat_of`` are earlier sweeps of the same."""

    sweep: str | None
    index: int
    level: float
    run: str | None = None
    repeat_of: tuple[str, ...] = ()
    why_new: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """Nothing more to run in this sweep."""

    sweep: str
    why: str


def check_levels(levels: Sequence[float]) -> tuple[float, ...]:
    """The levels of a sweep: ascending, each in (0, 1].

    Raises:
        Refused: they are not; says which.
    """

    def no(why: str) -> Refused:
        shown = ", ".join(f"{level:g}" for level in levels)
        return Refused("SWEEP_BAD_LEVELS", f"levels {shown or '(none)'}", why, "for example: --levels 0.1,0.2,0.35,0.5")

    if not levels:
        raise no("a sweep needs at least one")
    for level in levels:
        if not (math.isfinite(level) and 0.0 < level <= 1.0):
            raise no(f"{level:g} is no duty: above 0 and at most 1")
    for lower, upper in pairwise(levels):
        if upper <= lower:
            raise no(f"{upper:g} comes after {lower:g}: they must ascend, as the sweep stops at the first that fails")
    return tuple(float(level) for level in levels)


def level_run(sweep: str, index: int) -> str:
    """The run of a sweep's level: the same for whichever night and process goes on with it."""
    return "run-" + hashlib.sha256(f"{sweep} {index}".encode()).hexdigest()[:10]


def level_hours(max_hours: float, hours: Hours | None, now: datetime, zone: tzinfo) -> float:
    """The longest that a level which starts ``now`` may take: ``max_hours``, or what is left of the owner's hours."""
    if hours is None:
        return max_hours
    return min(max_hours, hours.left_s(now, zone) / 3600.0)


def level_spec(base: RunSpec, level: float, max_hours: float, seed: int) -> RunSpec:
    """The run of one level. ``max_hours`` gives its N_max, which is fixed from here on."""
    return base.model_copy(update={"duty": level, "max_hours": max_hours, "seed": seed})


def next_step(
    asked: Asked,
    past: Iterable[PastLevel],
    *,
    section_digest: str | None,
    standing: Mapping[str, str],
    flow_run_id: str,
) -> Level | Finished:
    """What a sweep that asks for ``asked`` does now.

    Args:
        past: every level that the agent keeps, of any sweep.
        section_digest: of the section in force.
        standing: for each passed run why its certificate does not stand any more; one that is left out stands.
        flow_run_id: of the flow run that asks. It never begins a second sweep after one of its own.

    The newest sweep of the same levels and windows goes on where nothing changed; else a new one begins, and names those
    before it for the same rule and work.
    """
    # the digest is of rule and work, too: a damaged record may have lost those
    levels = [
        each
        for each in past
        if (each.rule, each.work) == (asked.rule, asked.work) or (each.damaged and each.asked == asked.digest)
    ]
    earlier = _names(levels)
    mine = [each for each in levels if each.asked == asked.digest]
    if not mine:
        return Level(None, 0, asked.levels[0], repeat_of=earlier)
    newest = max(mine, key=lambda each: (each.started_at, each.index)).sweep
    done = sorted((each for each in mine if each.sweep == newest), key=lambda each: each.index)
    is_own = any(flow_run_id in each.is_by for each in done)
    last = done[-1]
    if last.unsettled:
        return Level(newest, last.index, last.level, run=last.run, repeat_of=_names(levels, newest))
    over = _over(asked, done)
    if over is None:
        why = _changed(done, section_digest, standing)
        if why is None:
            index = last.index + 1
            return Level(newest, index, asked.levels[index], repeat_of=_names(levels, newest))
        over = f"it cannot go on: {why}"
    if is_own:
        return Finished(newest, over)
    return Level(None, 0, asked.levels[0], repeat_of=earlier, why_new=f"sweep {newest}: {over}")


def certified_level(levels: Iterable[PastLevel]) -> float | None:
    """The highest level of a sweep whose certificate was kept; None where none was."""
    return max((each.level for each in levels if each.passed and each.certificate), default=None)


def _over(asked: Asked, done: Sequence[PastLevel]) -> str | None:
    """Why no level is left, or None."""
    failed = next((each for each in done if not each.passed), None)
    if failed is not None:
        kept = "" if failed.ending != PASS else ", and the agent kept no certificate"
        return f"it stopped at duty {failed.level:g}, which ended: {failed.ending}{kept}"
    if done[-1].index + 1 >= len(asked.levels):
        return "all its levels passed"
    return None


def _changed(done: Sequence[PastLevel], section_digest: str | None, standing: Mapping[str, str]) -> str | None:
    for each in done:
        if each.section_digest != section_digest:
            return "the protection section changed since"
        if not each.certificate:
            return f"duty {each.level:g} passed without a certificate"
        if each.run in standing:
            return f"the certificate of duty {each.level:g} does not stand any more ({standing[each.run]})"
    return None


def _names(levels: Iterable[PastLevel], without: str | None = None) -> tuple[str, ...]:
    """The sweeps of these levels, oldest first."""
    first: dict[str, str] = {}
    for each in sorted(levels, key=lambda each: each.started_at):
        if each.sweep != without:
            first.setdefault(each.sweep, each.started_at)
    return tuple(first)
