"""The plan of a run in words, as the reviewer reads it before anything starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["plan_lines"]

MOST_PROCESSES = 5


def plan_lines(plan: dict[str, Any]) -> Iterator[str]:
    """One line an item; everything in it comes from the agent's answer to ``run_plan``."""
    from policies.harness.plan_text import plan_words
    from policies.harness.spec import RunSpec

    spec, rule, source = plan["spec"], plan["rule"], plan["source"]
    kind = {
        "ab": "measure fleet work",
        "null": "measure the noise (both windows OFF)",
        "self": "measure the agent's own cost",
    }
    yield f"Plan: {kind.get(spec['kind'], spec['kind'])} beside the program of rule {rule['id']} on node {spec['node']}"
    yield from _item("program", list(_processes(plan["processes"])))
    yield from _item("source", [f"{source['path']} ({source['kind']})", f"reads {_rate(source)} over the last minute"])
    if source.get("timed"):
        yield from _item("", [f"its lines look timed: {source.get('timed_why')}"])
    yield from _item("work", list(_work(plan)) or ["none: no fleet work runs in this kind of run"])
    yield from _item("length", [plan_words(RunSpec.model_validate(spec)), "ON or OFF first by a coin, block by block"])
    yield from _item("margin", [f"a slowdown of {100 * spec['margin']:g} % counts"])
    yield from _item("held", plan["held"])
    yield from _item("may happen", plan["allowed"])
    before = plan.get("attempts_before") or []
    if before:
        yield from _item("earlier", [_attempt(attempt) for attempt in before])
    yield from _item("warning", [str(warning) for warning in plan.get("warnings") or []])
    earns = {
        "certificate": "a co-tenancy certificate, valid for 14 days",
        "demonstration": "a certificate marked demonstration: it admits work only where the section accepts those",
        "none": "no certificate",
    }
    yield from _item("a pass earns", [earns.get(plan["certificate_kind"], plan["certificate_kind"])])


def _item(name: str, lines: list[str]) -> Iterator[str]:
    for place, line in enumerate(lines):
        yield f"  {name if place == 0 else '':<13}{line}"


def _processes(processes: list[Any]) -> Iterator[str]:
    for process in processes[:MOST_PROCESSES]:
        if isinstance(process, dict):
            argv = process.get("argv") or [process.get("exe") or process.get("name") or "?"]
            words = " ".join(str(part) for part in argv)
            yield f"pid {process.get('pid')}: {words if len(words) <= 100 else words[:99] + '…'}"
        else:
            yield str(process)
    if len(processes) > MOST_PROCESSES:
        yield f"and {len(processes) - MOST_PROCESSES} more processes"


def _rate(source: dict[str, Any]) -> str:
    return "at an unknown rate" if source.get("rate") is None else f"{source['rate']:.4g} events a second"


def _work(plan: dict[str, Any]) -> Iterator[str]:
    from policies.work import feed_parts

    spec = plan["spec"]
    duty = "uncapped" if spec.get("duty") is None else f"held to a duty of {spec['duty']:g}"
    for item in plan["work"]:
        name = f"{item.get('short') or item['module']}/{item['stage']}"
        work, model = feed_parts(plan.get("feed") or "")
        of = f" with {model}" if model else ""
        fed = f", kept loaded{of} during ON windows (--feed)" if work == name else ""
        yield f"{name}, {duty}; {item['queued']} queued, {item['running']} running{fed}"


def _attempt(attempt: dict[str, Any]) -> str:
    from cotenant.cli.render import when

    ratio = attempt.get("R")
    read = f", R {100 * ratio:.1f} %" if isinstance(ratio, (int, float)) else ""
    return (
        f"run {attempt['run']} ended {attempt['ending']}{read} ({when(attempt.get('ended_at')) or 'when is unknown'})"
    )
