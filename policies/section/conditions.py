"""Conditions between keys of one table, over plain tables as TOML gives them.

They work on tables that may hold any nonsense besides, since the parser reports every error of a section at once: a
condition only speaks where the keys it is about can be judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["ACTIONS", "ACTIVE_WHEN", "CAPS", "MATCH", "RESERVES", "Fault", "Table"]

Table = Mapping[str, Any]

ACTIONS = ("protect", "pause_fleet", "cap_fleet", "lower_fleet", "reserve", "evict")
MATCH = ("path_prefix", "path_contains", "argv_regex", "name")
CAPS = ("slots", "cpu_cores", "threads", "gpu_jobs")
RESERVES = ("cpu", "mem_gb")
ACTIVE_WHEN = ("cpu_cores_gt", "footprint_gb_gt", "gpu_active")

_MAX_METRICS = ("gpu_share", "cpu_stall")


@dataclass(frozen=True, slots=True)
class Fault:
    """``path`` leads from the judged table to the key (empty: the table itself), ``also`` to another key concerned."""

    message: str
    allowed: str
    path: tuple[str | int, ...] = ()
    also: tuple[str | int, ...] = ()


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value


def _above(table: Table, low: str, high: str, default_low: float, default_high: float, message: str) -> list[Fault]:
    """A fault where the number at ``low`` is above the one at ``high``. A default never contradicts alone."""
    if low not in table and high not in table:
        return []
    a, b = _number(table.get(low, default_low)), _number(table.get(high, default_high))
    if a is None or b is None or a <= b:
        return []
    at = low if low in table else high
    return [Fault(f"{message}: {low} is {a:g}, {high} is {b:g}", f"{low} at most {high}", (at,))]


def memory(table: Table) -> list[Fault]:
    return [
        *_above(table, "hard_free_pct", "soft_free_pct", 8.0, 12.0, "the hard level lies above the soft one"),
        *_above(
            table,
            "swap_growth_soft_mb_min",
            "swap_growth_hard_mb_min",
            256.0,
            1024.0,
            "the soft growth lies above the hard one",
        ),
    ]


def cooldown(table: Table) -> list[Fault]:
    return _above(table, "base_s", "max_s", 120.0, 3840.0, "the first wait is longer than the longest")


def at_least_one(table: Table, keys: Iterable[str], message: str) -> list[Fault]:
    keys = tuple(keys)
    return [] if any(key in table for key in keys) else [Fault(message, "at least one of " + ", ".join(keys))]


def protect(table: Table) -> list[Fault]:
    metric = table.get("metric")
    if metric == "progress_rate":
        limit, other, source = "max_slowdown", "max", True
    elif metric in _MAX_METRICS:
        limit, other, source = "max", "max_slowdown", False
    else:
        return []
    faults = []
    if other in table:
        faults.append(Fault(f"{metric} is limited by {limit}, not {other}", f"{limit} alone", (other,)))
    if limit not in table:
        faults.append(Fault(f"{metric} needs {limit}", f"{limit} = 0.05, for 5 %", (limit,)))
    if source and "source" not in table:
        faults.append(
            Fault(
                "progress_rate needs a source",
                "source = { jsonl = …, event = … } or { path = …, log_regex = … }",
                ("source",),
            )
        )
    if not source and "source" in table:
        faults.append(Fault(f"{metric} is measured by the agent and takes no source", "no source", ("source",)))
    return faults


def rule(table: Table) -> list[Fault]:
    """An action, or ``ignore = true`` alone. ``during`` blocks are actions of the rule."""
    acts = [key for key in ACTIONS if key in table]
    if table.get("during", ()) not in ([], ()):
        acts.append("during")
    ignore = table.get("ignore")
    if ignore is True:
        return [
            Fault(
                f"{key} cannot stand beside ignore = true, which stands alone",
                "ignore = true alone, or no ignore",
                (key,),
            )
            for key in acts
        ]
    if acts or not isinstance(ignore, bool | None):
        return []
    return [
        Fault(
            "a rule without an action does nothing",
            "at least one of " + ", ".join((*ACTIONS, "[[rule.during]]", "ignore")),
        )
    ]


def section(table: Table) -> list[Fault]:
    """Each rule id once; a rule's cooldown in order with what it takes from ``[node.defaults]``."""
    rules = table.get("rule")
    each = [entry if isinstance(entry, Mapping) else {} for entry in rules] if isinstance(rules, list | tuple) else []
    return [*_ids_once(each), *_rule_cooldowns(table, each)]


def _ids_once(rules: list[Table]) -> list[Fault]:
    first: dict[str, int] = {}
    faults = []
    for index, entry in enumerate(rules):
        name = entry.get("id")
        if not isinstance(name, str):
            continue
        if name in first:
            message = f"the id {name!r} is used twice, first by rule {first[name] + 1}"
            faults.append(
                Fault(message, "each id once in a section", ("rule", index, "id"), ("rule", first[name], "id"))
            )
        else:
            first[name] = index
    return faults


def _rule_cooldowns(table: Table, rules: list[Table]) -> list[Fault]:
    common: Any = table
    for key in ("node", "defaults", "cooldown"):
        common = common.get(key, {}) if isinstance(common, Mapping) else {}
    common = common if isinstance(common, Mapping) else {}
    faults = []
    for index, entry in enumerate(rules):
        own = entry.get("cooldown")
        if isinstance(own, Mapping) and own:
            for fault in cooldown({**common, **{key: value for key, value in own.items() if value is not None}}):
                at = next((key for key in ("base_s", "max_s") if key in own), None)
                if at is not None:
                    faults.append(Fault(fault.message, fault.allowed, ("rule", index, "cooldown", at)))
    return faults
