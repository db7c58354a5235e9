"""Where and with what a run happened, in labelled lines. Parts that the record lacks read "not recorded"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from policies.harness.plan_text import planned_blocks
from policies.harness.spec import RunSpec
from policies.report.document import Attempt, Fact
from policies.report.evidence import measured, number
from policies.report.words import clean

__all__ = ["attempts", "facts", "rate_unit"]


def rate_unit(record: Mapping[str, Any]) -> str:
    """What a rate counts a second: "steps/s"; "events/s" where the source has no unit."""
    source = record.get("source")
    unit = source.get("unit") if isinstance(source, Mapping) else None
    return f"{clean(unit, 40) or 'events'}/s"


def attempts(record: Mapping[str, Any]) -> tuple[Attempt, ...]:
    """Earlier runs of the same rule and work, at whatever duty, as the agent lists them."""
    return tuple(
        Attempt(
            run=clean(raw.get("run")) or "?",
            ending=clean(raw.get("ending")) or "not ended",
            ended_at=clean(raw["ended_at"]) if raw.get("ended_at") else None,
            duty=raw.get("duty"),
            R=measured(raw.get("R"), f"run {clean(raw.get('run'))}", otherwise="it ended without an estimate"),
        )
        for raw in record.get("attempts_before") or ()
    )


def facts(record: Mapping[str, Any], spec: RunSpec) -> tuple[Fact, ...]:
    """Work, section, program, source, machine, seed, versions, times: one line each."""
    fingerprint = _map(record.get("fingerprint"))
    return (
        Fact("Run", clean(record.get("run")) or None),
        Fact("Node", clean(record.get("node") or spec.node)),
        Fact("Rule", clean(spec.rule)),
        Fact("Work", _work(record, spec)),
        Fact("Windows", f"{spec.window_s:g} s, {spec.washout_s:g} s washout after each switch; OFF is {spec.off}"),
        Fact(
            "Asked for",
            f"{planned_blocks(spec)} blocks planned, {spec.n_max} at most in {spec.max_hours:g} h, first look at {spec.first_look}",
        ),
        Fact("Seed of the coin", str(spec.seed)),
        Fact("Section", _section(record)),
        Fact("Program", _program(record, fingerprint)),
        Fact("Source", _source(record)),
        Fact("Reference", _reference(record)),
        Fact("Hardware", _hardware(fingerprint)),
        Fact("System", _system(fingerprint)),
        Fact("Agent", clean(record.get("agent_version")) or None),
        Fact("Started", clean(record.get("started_at")) or None),
        Fact("Ended", clean(record.get("ended_at")) or ("not yet" if record.get("state") == "open" else None)),
        Fact("Reviewed by", clean(record.get("reviewed_by")) or None),
        Fact("Flow run", clean(record.get("flow_run_id")) or None),
    )


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _work(record: Mapping[str, Any], spec: RunSpec) -> str | None:
    if spec.kind == "null":
        return "none: both windows are OFF"
    if spec.kind == "self":
        return "none: ON is the agent as usual, OFF the agent stopped"
    lines = []
    for raw in record.get("work") or ():
        part = _map(raw)
        name = f"{clean(part.get('module'))}/{clean(part.get('stage'))} {clean(part.get('version'))}".strip()
        digest = clean(part.get("digest"), 80)
        lines.append(f"{name} (bundle {digest})" if digest else name)
    return "; ".join(lines) or None


def _section(record: Mapping[str, Any]) -> str | None:
    if record.get("section_version") is None:
        return None
    digest = clean(record.get("section_digest"), 80)
    return f"version {clean(record['section_version'])}" + (f" ({digest})" if digest else "")


def _program(record: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> str | None:
    lines = []
    for raw in _map(record.get("program")).get("processes") or ():
        process = _map(raw)
        argv = process.get("argv")
        command = " ".join(clean(a) for a in argv) if isinstance(argv, Sequence) and not isinstance(argv, str) else ""
        lines.append(clean(f"pid {process.get('pid')}: {command or process.get('exe')}"))
    for raw in _list(fingerprint.get("program")):
        program = _map(raw)
        for label, key in (("sha256", "exe_sha256"), ("script sha256", "script_sha256")):
            if program.get(key):
                lines.append(f"{label} {clean(program[key], 16)}")
    return "; ".join(lines) or None


def _source(record: Mapping[str, Any]) -> str | None:
    source = _map(record.get("source"))
    if not source:
        return None
    timed = {True: "; events are timed by the reader, not by the program", False: ""}.get(source.get("timed"), "")  # type: ignore[arg-type]
    return f"{clean(source.get('kind'))} {clean(source.get('path'))}".strip() + timed


def _reference(record: Mapping[str, Any]) -> str | None:
    reference = _map(record.get("reference"))
    if reference.get("rate") is None:
        return None
    return f"{number(reference['rate'])} {rate_unit(record)} over {reference.get('length_s', 0):g} s, the work held (collapse check only)"


def _hardware(fingerprint: Mapping[str, Any]) -> str | None:
    parts = [clean(fingerprint.get("cpu_model"))]
    if fingerprint.get("cores"):
        parts.append(f"{clean(fingerprint['cores'])} cores")
    if isinstance(fingerprint.get("memory_gib"), (int, float)):
        parts.append(f"{fingerprint['memory_gib']:.1f} GiB")
    gpus = fingerprint.get("gpus")
    if gpus is not None and not _list(gpus):
        parts.append("no GPU")
    for raw in _list(gpus):
        gpu = _map(raw)
        driver = f" (driver {clean(gpu['driver'])})" if gpu.get("driver") else ""
        parts.append((clean(gpu.get("name")) or "GPU of unknown name") + driver)
    if fingerprint and gpus is None:
        parts.append("GPUs unknown")
    return ", ".join(p for p in parts if p) or None


def _system(fingerprint: Mapping[str, Any]) -> str | None:
    name = " ".join(clean(fingerprint[k]) for k in ("os_name", "os_major") if fingerprint.get(k))
    kernel = clean(fingerprint.get("kernel"))
    return ", ".join(p for p in (name, f"kernel {kernel}" if kernel else "") if p) or None
