"""``cotenant protection duty``: what the governor and the compliance check hold, as data and as text.

``duty_view`` makes plain JSON of the pure state; the agent hands it over its socket. ``duty_text`` makes the lines of it,
in the reference's layout. Source: ``governor.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from policies.compliance import STATE_WORDS, Verdict
from policies.governor import GovernorState, Inputs, Outputs

__all__ = ["DUTY_COLUMNS", "UnitName", "duty_key", "duty_row", "duty_text", "duty_view", "has_budget"]

DUTY_COLUMNS = ("node", "budget", "ceiling", "state", "beside", "pressure", "units", "measured")


@dataclass(frozen=True, slots=True)
class UnitName:
    """How a unit is called: its key in verdicts and shares, its module and stage, its number."""

    unit: str
    module: str
    stage: str
    attempt: str


def duty_view(
    node: str,
    state: GovernorState,
    inputs: Inputs,
    outputs: Outputs,
    names: Sequence[UnitName],
    verdicts: Mapping[str, Verdict],
    now_s: float,
) -> dict[str, Any]:
    """Plain JSON of a node's duty after a tick: ``{node, gpu_jobs, state, budget, ceiling, decides, rules, share, units}``.

    Unknown figures are null. ``share`` is what each unit in the shares has; null where there is none.
    """
    pressures = dict(state.pressures)
    rules = []
    for rule in inputs.holding:
        baseline = state.baseline_of(rule.rule)
        rules.append(
            {
                "rule": rule.rule,
                "certified_duty": rule.certified_duty,
                "baseline_rate": None if baseline is None else baseline.rate,
                "baseline_age_s": None if baseline is None else now_s - baseline.at_s,
                "low": baseline is not None and baseline.low,
                "pressure": pressures.get(rule.rule),
            }
        )
    return {
        "node": node,
        "gpu_jobs": inputs.gpu_jobs,
        "state": state.name,
        "budget": outputs.budget,
        "ceiling": outputs.ceiling,
        "decides": outputs.decides,
        "rules": rules,
        "shared_by": len(outputs.shares),
        "share": next(iter(outputs.shares.values()), None),
        "units": [_unit(name, outputs, verdicts.get(name.unit)) for name in names],
    }


def _unit(name: UnitName, outputs: Outputs, verdict: Verdict | None) -> dict[str, Any]:
    return {
        "module": name.module,
        "stage": name.stage,
        "attempt": name.attempt,
        "duty": outputs.shares.get(name.unit),
        "measured": None if verdict is None else verdict.measured,
        "state": None if verdict is None else verdict.state,
        "why": "" if verdict is None else verdict.why,
    }


def duty_text(view: Mapping[str, Any]) -> str:
    """The text of one node's view, ending in a newline."""
    if not has_budget(view):
        return _without(view) + "\n"
    lines = [_first(view)]
    for rule in view["rules"]:
        lines += _rule(rule, view["node"])
    lines += [_unit_line(unit) for unit in view["units"]]
    return "\n".join(lines) + "\n"


def has_budget(view: Mapping[str, Any]) -> bool:
    """Whether the node has a budget now: its section says ``certified`` and a rule holds, or a harness run decides."""
    return view["decides"] == "run" or (view["decides"] == "governor" and view.get("gpu_jobs") == "certified")


def duty_key(view: Mapping[str, Any]) -> Any:
    """What of a view is decided, without what is only measured: two views of one key say the same of the node."""
    rules = tuple((rule["rule"], rule["certified_duty"]) for rule in view["rules"])
    units = tuple((unit["attempt"], unit["duty"], unit["state"]) for unit in view["units"])
    return view["gpu_jobs"], view["state"], view["budget"], view["ceiling"], view["decides"], rules, units


def duty_row(view: Mapping[str, Any]) -> tuple[str | int | None, ...]:
    """A node's row in a table of many nodes, under ``DUTY_COLUMNS``. None is unknown; "none" is known to be none.

    ``pressure``: the worst of the rules. ``measured``: the units' shares together, unknown where one of them is.
    """
    name, units = view["node"], view["units"]
    if not has_budget(view):
        state = "free" if view.get("gpu_jobs") == "certified" else f"gpu_jobs {view.get('gpu_jobs')}"
        return name, "none", "none", state, "none", None, len(units), _measured(units)
    pressures = [rule["pressure"] for rule in view["rules"] if rule["pressure"] is not None]
    budget = "none" if view["budget"] is None else _share(view["budget"])
    ceiling = "none" if view["ceiling"] is None else _share(view["ceiling"])
    state = "set by a run" if view["decides"] == "run" else view["state"]
    beside = ", ".join(rule["rule"] for rule in view["rules"]) or "none"
    pressure = f"{max(pressures):.2f}" if pressures else None
    return name, budget, ceiling, state, beside, pressure, len(units), _measured(units)


def _measured(units: Sequence[Mapping[str, Any]]) -> str | None:
    shares = [unit["measured"] for unit in units]
    return None if any(share is None for share in shares) else f"{sum(shares):.2f}"


def _without(view: Mapping[str, Any]) -> str:
    node, jobs = view["node"], view.get("gpu_jobs")
    if view["decides"] == "nobody" and jobs == "certified":
        return f"{node}: no gpu_duty budget (free): no rule holds device work back"
    return f'{node}: no gpu_duty budget: its section says gpu_jobs = "{jobs}"; "certified" gives it one'


def _first(view: Mapping[str, Any]) -> str:
    state, rules = view["state"], ", ".join(rule["rule"] for rule in view["rules"])
    beside = f" beside {rules}" if rules else ""
    if view["decides"] == "run":
        duty = "no limit" if view["budget"] is None else f"duty {_share(view['budget'])}"
        return f"{view['node']}: gpu_duty set by a harness run, {duty} ({state}){beside}"
    ceiling = "none" if view["ceiling"] is None else _share(view["ceiling"])
    count, share = view["shared_by"], view["share"]
    units = f"{count} unit(s)" + ("" if share is None else f" at {_share(share)} each")
    return f"{view['node']}: gpu_duty budget {_share(view['budget'])} of ceiling {ceiling} ({state}){beside}; {units}"


def _rule(rule: Mapping[str, Any], node: str) -> list[str]:
    name, lines = rule["rule"], []
    if rule["certified_duty"] is None:
        lines.append(f"  GPU_NOT_CERTIFIED {name}: cotenant protection ab sweep {node} --rule {name}")
    if rule["baseline_rate"] is None:
        return [*lines, f"  baseline {name}: not measured yet"]
    pressure = "unknown" if rule["pressure"] is None else f"{rule['pressure']:.2f}"
    low = "; over 10 % under the certificate's OFF rate: no growth" if rule["low"] else ""
    age = f"{rule['baseline_age_s']:.0f} s old"
    return [*lines, f"  baseline {name}: {_rate(rule['baseline_rate'])}/s, {age}, last pressure {pressure}{low}"]


def _unit_line(unit: Mapping[str, Any]) -> str:
    duty = "none" if unit["duty"] is None else _share(unit["duty"])
    measured = "unknown" if unit["measured"] is None else f"{unit['measured']:.2f}"
    state = "" if unit["state"] is None else " ok" if unit["state"] == "holds" else f" {STATE_WORDS[unit['state']]}"
    why = f": {unit['why']}" if unit["why"] else ""
    return f"  {unit['module']}/{unit['stage']} attempt {unit['attempt']} duty {duty} measured {measured}{state}{why}"


def _share(value: float) -> str:
    """At most three decimals, no trailing zeros: 0.3, 0.15, 0.088."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


def _rate(value: float) -> str:
    """Three significant digits, never an exponent: 9.94, 0.0123, 1230."""
    return f"{value:.0f}" if value >= 100.0 else f"{value:#.3g}"
