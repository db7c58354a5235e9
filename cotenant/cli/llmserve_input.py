"""Prompts as they come on a command line: read, checked, kept as a batch, given to a flow run."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotenant.cli.failures import Unreachable
from cotenant.cli.llmserve_models import DOCTOR_S
from cotenant.cli.result import OperationResult

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cotenant.settings import Settings
    from policies.prompts import BatchSpec, Parsed

__all__ = ["DEPLOYMENT", "checked", "queue", "read_file", "spec_of"]

DEPLOYMENT = "llmserve-batch/llmserve-batch"
BAD_SHOWN = 20


def read_file(path: Path) -> Parsed:
    """Prompts of a file; ``-`` is standard input.

    Raises:
        Refused: it is no text.
        OSError: it cannot be read.
    """
    from policies.prompts import parse_text
    from policies.refusal import Refused

    try:
        raw = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        return parse_text(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Refused("PROMPTS_NO_TEXT", str(path), f"it is no UTF-8 text: {error}", "save it as UTF-8") from error


def checked(parsed: Parsed, source: str, *, skip_bad: bool) -> list[str]:
    """Notes for the owner.

    Raises:
        Refused: bad lines, each with its number and reason, or no prompt at all.
    """
    from policies.refusal import Refused

    lines = [f"{source}, line {bad.line}: {bad.why}" for bad in parsed.bad]
    if lines and not skip_bad:
        for line in lines[:BAD_SHOWN]:
            print(line, file=sys.stderr)
        if len(lines) > BAD_SHOWN:
            print(f"… and {len(lines) - BAD_SHOWN} more", file=sys.stderr)
        raise Refused(
            "PROMPTS_BAD",
            source,
            f"{len(lines)} of {len(lines) + len(parsed.items)} lines cannot be used; nothing was started",
            "set them right, or run the rest with --skip-bad",
            {"lines": [{"line": bad.line, "why": bad.why} for bad in parsed.bad]},
        )
    if not parsed.items:
        raise Refused("PROMPTS_NONE", source, "it holds no prompt", 'a line is a text or {"prompt": "…"}')
    return [f"left out: {line}" for line in lines]


def spec_of(asked: dict[str, Any], parsed: Parsed) -> BatchSpec:
    """The batch's options; the model is that of the requests where they name one and the command line does not.

    Raises:
        Refused: an option that cannot be used.
    """
    from policies.prompts import checked_spec
    from policies.refusal import Refused

    given = {name: value for name, value in asked.items() if value is not None}
    if not given.get("model") and len(parsed.models) == 1:
        given["model"] = parsed.models[0]
    elif not given.get("model") and parsed.models:
        raise Refused(
            "PROMPTS_MODELS",
            "the requests",
            f"they name the models {', '.join(parsed.models)}",
            "choose one with --model",
        )
    return checked_spec(given)


def queue(
    settings: Settings, spec: BatchSpec, parsed: Parsed, source: str, *, dedupe: bool, notes: list[str]
) -> OperationResult:
    """Keep the batch and start its flow run. What can be refused is refused before anything is kept."""
    from cotenant import fleet, store
    from cotenant.cli import fleet_link
    from policies.prompts import digest_of

    check_model(settings, spec, notes)
    api = fleet_link.connect(settings)
    engine = store.open(settings.store)
    digest = digest_of(spec.model_dump(), parsed.items)
    before = store.same_batches(engine, spec.node, digest)
    if before and dedupe:
        status = store.batch_status(engine, before[-1]) or {}
        words = f"the same prompts are batch {before[-1]} already; nothing was queued"
        if status.get("state") in ("cancelled", "failed"):
            words += f"; it is {status['state']} with {status['open']} open: cotenant llmserve retry {before[-1]}"
        return OperationResult(
            {"batch": before[-1], "queued": False, "same_as": before, "status": status},
            messages=[*notes, words],
            view=lambda data: [f"batch {data['batch']}; see it with: cotenant llmserve status {data['batch']}"],
        )
    if before:
        notes.append(
            f"the same prompts were queued before, as {', '.join(before)}; this is another batch (--dedupe skips it)"
        )
    batch = f"batch-{secrets.token_hex(5)}"
    store.make_batch(engine, batch, spec, parsed.items, source=source, digest=digest, style=parsed.format)
    try:
        flow_run = fleet.run_flow(api.url, DEPLOYMENT, {"node": spec.node, "batch": batch}, spec.node)
    except BaseException:
        store.end_batch(engine, batch, "failed", "its flow run could not be started")
        raise
    store.set_flow_run(engine, batch, flow_run)
    data = {
        "batch": batch,
        "queued": True,
        "same_as": before,
        "prompts": len(parsed.items),
        "flow_run_id": flow_run,
        "ui": fleet.ui_link(api.url, flow_run),
        "node": spec.node,
    }
    return OperationResult(data, messages=notes, view=_queued)


def check_model(settings: Settings, spec: BatchSpec, notes: list[str]) -> None:
    """Ask the module's doctor of a node of this machine whether it has the backend and the model.

    Raises:
        Refused: it has not, with what it has.
    """
    from cotenant.cli.agents import Agent
    from policies.refusal import Refused

    try:
        told = Agent(settings, spec.node).ask("module_doctor", module="llmserve", _timeout_s=DOCTOR_S)
    except Unreachable:
        notes.append(f"node {spec.node} does not answer here, so its models were not looked at")
        return
    except Refused as refused:
        if refused.code not in ("MODULE_HELD", "RUN_LOCKED"):
            raise
        # prompts may be queued at any time; each job looks at its model itself
        notes.append(f"the models of node {spec.node} were not looked at now: {refused.why}")
        return
    there = [name for name in told["attrs"].get("backends") or [] if name != "stub"]
    if spec.backend == "stub":
        return
    if (spec.backend != "auto" and spec.backend not in there) or not there:
        what = f"backend {spec.backend}" if spec.backend != "auto" else "a backend for real models"
        why = f"the module on node {spec.node} has {', '.join(there) or 'none'}"
        raise Refused("BACKEND_MISSING", what, why, "cotenant llmserve install")
    models = {model["name"]: model for model in told["attrs"].get("models") or []}
    found = models.get(spec.model)
    if found is None:
        known = ", ".join(sorted(models)) or "none"
        what = f"model {spec.model}" if spec.model else "the model"
        why = (
            f"node {spec.node} has no such model; it has: {known}"
            if spec.model
            else f"none was named; there is: {known}"
        )
        raise Refused("MODEL_UNKNOWN", what, why, "cotenant llmserve add-model PATH, or --model NAME")
    if not found["ok"]:
        raise Refused("MODEL_BAD", f"model {spec.model}", str(found["why"]), "copy the file again, or name another one")
    needs = {"gguf": "llamacpp", "mlx": "mlx"}.get(str(found.get("kind")))
    if needs is not None and (spec.backend not in ("auto", needs) or needs not in there):
        why = f"it needs backend {needs}, and " + (
            f"the batch asks for {spec.backend}" if needs in there else f"node {spec.node} has {', '.join(there)}"
        )
        raise Refused("MODEL_OTHER_BACKEND", f"model {spec.model}", why, "name another model, or leave --backend out")


def _queued(data: dict[str, Any]) -> Iterator[str]:
    yield f"batch {data['batch']}: {data['prompts']} prompts are queued on node {data['node']}"
    yield f"in the Prefect UI: {data['ui']}"
    yield f"see it with: cotenant llmserve status {data['batch']}"
