"""What the ``llmserve`` commands show: a batch, batches, models."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotenant.cli.failures import Unreachable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from sqlalchemy import Engine

    from cotenant.settings import Settings

__all__ = ["batch_view", "batches_view", "models_view", "one_batch", "watch", "write_lines"]


def one_batch(settings: Settings, engine: Engine, batch: str) -> dict[str, Any]:
    """The batch's status with what its job does now (``now``), how its flow run stands (``flow``) and what to do (``next``).

    ``now.held`` says why the job waits, None where that is not known; ``flow`` is ``{words, final}``, None where nobody says.

    Raises:
        Refused: there is no such batch.
    """
    import difflib

    from cotenant import store
    from policies.refusal import Refused

    status = store.batch_status(engine, batch)
    if status is None:
        known = [row["batch"] for row in store.list_batches(engine)]
        near = difflib.get_close_matches(batch, known, 1)
        why = "the store has none of that name" + (f"; did you mean {near[0]!r}?" if near else "")
        raise Refused("BATCH_UNKNOWN", f"batch {batch!r}", why, "cotenant llmserve list")
    flow = _flow(settings, status)
    return status | {"now": _now(settings, status), "flow": flow, "next": _next_step(status, flow)}


def _flow(settings: Settings, status: dict[str, Any]) -> dict[str, Any] | None:
    """How the flow run stands that is to work on an open batch."""
    if status["state"] != "open":
        return None
    if status["flow_run_id"] is None:
        return {"words": "no flow run works on it", "final": True}
    from cotenant.cli import fleet_link

    try:
        return fleet_link.connect(settings).state_of(status["flow_run_id"])
    except Unreachable as gone:
        return {"words": f"not known: {gone}", "final": False}


def _next_step(status: dict[str, Any], flow: dict[str, Any] | None) -> str | None:
    """What its owner may do, where it does not go on by itself or some of its prompts failed."""
    retry = f"cotenant llmserve retry {status['batch']}"
    if status["state"] == "open":
        if flow is None or not flow["final"]:
            return None
        # the node's worker puts it back within half a minute, or says in the batch's state why not
        by_itself = status["flow_run_id"] is not None
        return f"it goes on by itself while node {status['node']} is up; at once: {retry}" if by_itself else retry
    if status["open"]:
        return retry
    return f"{retry} --failed" if status["failed"] else None


def _now(settings: Settings, status: dict[str, Any]) -> dict[str, Any] | None:
    if status["job"] is None:
        return None
    from cotenant.cli.agents import NOT_HERE, Agent
    from policies.refusal import Refused

    nobody = {"job": status["job"], "detail": None, "duty": None, "share": None, "state": "not known"}
    silent = nobody | {"held": f"node {status['node']} does not answer here"}
    try:
        job = Agent(settings, status["node"]).ask("job_show", job=status["job"], _timeout_s=5.0)
    except Unreachable:
        return silent
    except Refused as refusal:
        if refusal.code in NOT_HERE:
            return silent
        job = {"key": ""}
    if job.get("key") not in (None, status["job_key"]):
        # an agent that lost its journal gives the number to another job
        return nobody | {"held": f"node {status['node']} does not know it any more"}
    why = ": ".join(str(part) for part in (job.get("code"), job.get("reason")) if part)
    detail = (job.get("failure") or {}).get("detail")
    return {
        "job": job["job"],
        "state": job["state"],
        "held": why or None,
        "detail": detail,
        "duty": job.get("duty"),
        "share": job.get("share"),
    }


def watch(settings: Settings, engine: Engine, batch: str) -> dict[str, Any]:
    """Follow a batch to its end, with a bar on a terminal. Ctrl-C leaves it going."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from cotenant.cli.render import console

    status = one_batch(settings, engine, batch)
    shown = Progress(
        BarColumn(bar_width=24),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=console(sys.stderr),
        disable=not sys.stderr.isatty(),
    )
    with shown:
        bar = shown.add_task("", total=status["total"])
        try:
            while status["state"] == "open":
                done = status["done"] + status["failed"]
                shown.update(bar, completed=done, total=status["total"], description=words(status))
                time.sleep(settings.watch_every_s)
                status = one_batch(settings, engine, batch)
            shown.update(bar, completed=status["done"] + status["failed"], description=words(status))
        except KeyboardInterrupt:
            pass
    return status


def words(status: dict[str, Any]) -> str:
    """``12 of 20 done; 31.2 tokens/s busy, 9.1 wall; running, duty 0.3``."""
    from tasks.prompt_words import batch_words

    now, flow = status.get("now"), status.get("flow")
    if not now:
        return batch_words(status) + (f"; its flow run: {flow['words']}" if flow else "")
    said = f"{batch_words(status)}; {now['state']}"
    if now["duty"] is not None:
        said += f", duty {now['duty']:g}"
    return said + (f" ({now['held']})" if now["held"] else "")


def write_lines(out: Path, lines: Iterable[str]) -> None:
    """Into a file: whole or not at all, through a link to what it names. A pipe or a device is written to, never replaced.

    Raises:
        OSError: it cannot be written.
    """
    texts = (line + "\n" for line in lines)
    if out.exists() and not out.is_file():
        with open(out, "w", encoding="utf-8") as file:
            file.writelines(texts)
        return
    target = out.resolve()
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with open(draft, "w", encoding="utf-8") as file:
            file.writelines(texts)
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)


def batch_view(status: dict[str, Any]) -> Iterator[RenderableType]:
    from cotenant.cli.render import fields
    from policies.prompts import model_words

    figures, now = status["figures"], status.get("now") or {}
    yield fields(
        [
            ("batch", status["batch"]),
            ("state", status["state"] if not status["reason"] else f"{status['state']}: {status['reason']}"),
            ("node", status["node"]),
            ("from", status["source"]),
            ("model", model_words(status["spec"])),
            ("prompts", f"{_bar(status)} {status['done']} of {status['total']} done, {status['failed']} failed"),
            ("cut at limit", figures.get("at_limit") or None),
            ("tokens/s, busy", figures.get("tokens_per_busy_s")),
            ("tokens/s, wall", figures.get("tokens_per_wall_s")),
            ("flow run", (status.get("flow") or {}).get("words")),
            ("job", f"{now['job']}, {now['state']}" if now else None),
            ("held because", now.get("held")),
            ("detail", now.get("detail")),
            ("duty asked", now.get("duty")),
            ("share metered", now.get("share")),
            ("longest unit, s", figures.get("unit_worst_s")),
            ("yield latency, s", figures.get("yield_s")),
            ("next", status.get("next")),
        ]
    )


def _bar(status: dict[str, Any], width: int = 24) -> str:
    full = round(width * (status["done"] + status["failed"]) / max(1, status["total"]))
    return "█" * full + "░" * (width - full)


def batches_view(rows: list[dict[str, Any]]) -> Iterator[RenderableType]:
    from cotenant.cli.render import table, when
    from policies.prompts import model_words

    if not rows:
        yield "no batches"
        return
    yield table(
        ("batch", "node", "state", "done", "failed", "open", "model", "from", "queued"),
        (
            (
                row["batch"],
                row["node"],
                row["state"],
                row["done"],
                row["failed"],
                row["open"],
                model_words(row["spec"]),
                row["source"],
                when(row["created_at"]),
            )
            for row in rows
        ),
    )


def models_view(data: dict[str, Any]) -> Iterator[RenderableType]:
    from cotenant.cli.render import table

    yield f"backends: {', '.join(data['backends']) or 'none'}"
    if not data["models"]:
        yield f"no models in {data['folder']}; add one with: cotenant llmserve add-model PATH"
        return
    yield table(
        ("model", "size", "architecture", "context", "fits", "why"),
        (
            (
                model["name"],
                None if model.get("bytes") is None else f"{model['bytes'] / 2**20:.0f} MiB",
                model.get("architecture"),
                model.get("context"),
                {True: "yes", False: "no", None: None}[model["fits"]],
                model["why"] or None,
            )
            for model in data["models"]
        ),
    )
