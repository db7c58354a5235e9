"""What governor and compliance check leave for the agent's next process, as plain JSON. Times hold on one boot only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from policies.compliance import ComplianceState, Record
from policies.governor import STATES, Baseline, GovernorState

__all__ = ["compliance_from", "compliance_kept", "governor_from", "governor_kept"]

# Not worth a write each tick; nothing that a new process starts from depends on them.
_FLEETING = ("ticks", "last_tick_s", "stretch_s", "since_s", "again")


def governor_kept(state: GovernorState) -> dict[str, Any]:
    """JSON of what ``restarted`` reads. It changes only when something happened, so an equal one need not be written."""
    return {key: _out(value) for key, value in asdict(state).items() if key not in _FLEETING}


def governor_from(raw: Mapping[str, Any]) -> GovernorState:
    """The state of ``governor_kept``. Raises ``ValueError``, ``TypeError``, ``KeyError`` or ``OverflowError`` on anything else."""
    if raw["name"] not in STATES:
        raise ValueError(f"no state {raw['name']!r}")
    return GovernorState(
        name=raw["name"],
        budget=_share(raw["budget"]),
        resume=_share(raw["resume"]),
        barred_until_s=_time(raw["barred_until_s"]),
        ended_s=_time(raw["ended_s"]),
        harm_s=_time(raw["harm_s"]),
        baselines=tuple(
            Baseline(str(b["rule"]), float(b["rate"]), float(b["measured"]), float(b["at_s"]), bool(b["low"]))
            for b in raw["baselines"]
        ),
    )


def compliance_kept(state: ComplianceState) -> dict[str, Any]:
    """JSON of the overruns and of who is not trusted; the samples in a row begin anew."""
    return {
        "distrusted": dict(state.distrusted),
        "module_times": {name: list(times) for name, times in state.module_times.items()},
        "records": {
            unit: {field.name: _out(getattr(record, field.name)) for field in fields(Record) if field.name != "seen_s"}
            for unit, record in state.records.items()
            if record.times or record.stopped or record.held_until_s > -math.inf
        },
    }


def compliance_from(raw: Mapping[str, Any], now_s: float) -> ComplianceState:
    """The state of ``compliance_kept``. Raises ``ValueError``, ``TypeError``, ``KeyError`` or ``OverflowError`` on anything else."""
    records = {
        str(unit): Record(
            duty=float(row["duty"]),
            seen_s=now_s,
            times=tuple(float(when) for when in row["times"]),
            held_until_s=_time(row["held_until_s"]),
            why=str(row["why"]),
            stopped=bool(row["stopped"]),
            module=str(row.get("module", "")),
        )
        for unit, row in raw["records"].items()
    }
    return ComplianceState(
        records,
        {str(name): float(until_s) for name, until_s in raw["distrusted"].items()},
        # what an agent of an earlier version left has none
        module_times={str(name): tuple(map(float, times)) for name, times in raw.get("module_times", {}).items()},
    )


def _out(value: Any) -> Any:
    return None if value == -math.inf else value


def _time(value: Any) -> float:
    return -math.inf if value is None else float(value)


def _share(value: Any) -> float | None:
    if value is None:
        return None
    share = float(value)
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"no share: {value!r}")
    return share
