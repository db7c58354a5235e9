"""Which certificates need their owner, and the runs that renew them. Pure: rows and dates in, a list out.

A row is what the agent's verb ``certificates`` gives: the certificate's fields with its ``validity``. Source:
``harness.md``, "Certificates".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Any

from policies.harness.hours import Hours
from policies.harness.schedule import longest_s
from policies.harness.spec import RunSpec
from policies.instants import aware_utc

__all__ = ["FORGOTTEN_AFTER", "SOON", "Due", "Renewal", "due", "renewals"]

SOON = timedelta(days=3)
# A certificate that nobody renewed for so long is not missed any more.
FORGOTTEN_AFTER = timedelta(days=14)
RENEWABLE = ("expires soon", "expired", "stale")
USUAL_HOURS = 8.0

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Due:
    """One certificate that needs attention. ``state``: expires soon, expired, stale, revoked or invalid."""

    certificate: str
    node: str
    rule: str
    work: str
    certified_duty: float
    state: str
    why: str
    expires_at: str
    days_left: float
    renew: str
    demonstration: bool
    asked: dict[str, Any]

    @property
    def renewable(self) -> bool:
        """A run may renew it unasked. Harm that was shown, and a clock or digest that is wrong, are for a person."""
        return self.state in RENEWABLE

    def as_dict(self) -> dict[str, Any]:
        """For a table: without what only a renewal needs."""
        return {key: value for key, value in asdict(self).items() if key != "asked"}


@dataclass(frozen=True, slots=True)
class Renewal:
    """A run to start at ``start_at``, or why none is: ``spec`` is then None."""

    of: str
    spec: dict[str, Any] | None
    start_at: datetime | None
    why: str


def due(rows: Iterable[Row], now: datetime, soon: timedelta = SOON) -> list[Due]:
    """What expires within ``soon`` or does not hold any more, the most urgent first.

    Left out: what a newer valid certificate covers (the same rule and stages at the duty or more), and what expired or was
    revoked longer ago than ``FORGOTTEN_AFTER``.
    """
    now, rows = aware_utc(now), list(rows)
    found = []
    for row in rows:
        expires = aware_utc(datetime.fromisoformat(str(row["expires_at"])))
        state = _state(str(row["validity"]["state"]), expires, now, soon)
        if state is None or now - expires > FORGOTTEN_AFTER or _is_covered(row, rows, now, soon):
            continue
        why = str(row["validity"]["why"])
        if state == "expires soon":
            why = f"expires on {expires:%Y-%m-%d %H:%M} UTC"
        found.append(
            Due(
                certificate=str(row["certificate"]),
                node=str(row["node"]),
                rule=str(row["rule"]),
                work=str(row["work_asked"]),
                certified_duty=float(row["certified_duty"]),
                state=state,
                why=why,
                expires_at=expires.isoformat(),
                days_left=round((expires - now).total_seconds() / 86400.0, 2),
                renew=str(row["validity"]["renew"]),
                demonstration=bool(row.get("demonstration")),
                asked=_asked(row),
            )
        )
    return sorted(found, key=lambda each: (each.days_left, each.certificate))


def renewals(dues: Sequence[Due], now: datetime, hours: Hours | None, zone: tzinfo) -> list[Renewal]:
    """The runs that renew these, one after the other within the owner's hours; the highest duty for each rule and work.

    A certificate covers every duty up to its own, so lower ones need no run. What does not fit into the next hours is left
    for the next check, with the reason.
    """
    now = aware_utc(now)
    highest: dict[tuple[str, str], Due] = {}
    for each in dues:
        kept = highest.get((each.rule, each.work))
        if each.renewable and (kept is None or each.certified_duty > kept.certified_duty):
            highest[each.rule, each.work] = each
    span = None if hours is None else hours.next_span(now, zone)
    start = now if span is None else max(now, span.start)
    found = []
    for each in highest.values():
        spec = RunSpec.model_validate(each.asked)
        if span is not None:
            left_h = max((span.end - start).total_seconds(), 0.0) / 3600.0
            spec = spec.model_copy(update={"max_hours": min(spec.max_hours, left_h)})
        if spec.n_max < spec.first_look:
            why = f"its {spec.first_look} blocks do not fit into what is left of the hours {hours}"
            found.append(Renewal(each.certificate, None, None, why))
            continue
        found.append(Renewal(each.certificate, spec.model_dump(), start, each.why))
        start += timedelta(seconds=longest_s(spec))
    return found


def _state(validity: str, expires: datetime, now: datetime, soon: timedelta) -> str | None:
    if validity != "valid":
        return validity
    return "expires soon" if expires - now <= soon else None


def _is_covered(row: Row, rows: Sequence[Row], now: datetime, soon: timedelta) -> bool:
    stages = _stages(row)
    return any(
        other["certificate"] != row["certificate"]
        and other["rule"] == row["rule"]
        and other["validity"]["state"] == "valid"
        and bool(row.get("demonstration")) >= bool(other.get("demonstration"))
        and aware_utc(datetime.fromisoformat(str(other["expires_at"]))) - now > soon
        and float(other["certified_duty"]) >= float(row["certified_duty"])
        and stages <= _stages(other)
        and set(row.get("devices") or ()) <= set(other.get("devices") or ())
        for other in rows
    )


def _stages(row: Row) -> set[tuple[str, str, str | None]]:
    return {(item["module"], item["stage"], item.get("model")) for item in row["work"]}


def _asked(row: Row) -> dict[str, Any]:
    """The run that earned it, to be run again."""
    return {
        "node": row["node"],
        "rule": row["rule"],
        "work": row["work_asked"],
        "duty": row["duty_asked"],
        "window_s": row["window_s"],
        "washout_s": row["washout_s"],
        "margin": row["margin"],
        "off": row["off"],
        "feed": row["feed"],
        "max_hours": row.get("max_hours") or USUAL_HOURS,
        "first_look": row.get("first_look") or RunSpec.model_fields["first_look"].default,
        "accept_timed_source": bool(row.get("accept_timed_source")),
    }
