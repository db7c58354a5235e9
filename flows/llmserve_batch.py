"""The flow ``llmserve-batch``: a batch of prompts through a language model on a node, ``per_job`` at a time.

Each prompt that finishes is kept as it finishes. The flow may be killed, retried or started again at any time: what is open in
the store is what is left to do. A batch that is left open by a run that ended is put back by the node's worker.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Annotated, Any, Literal
from uuid import UUID

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.exceptions import TerminationSignal
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelled, Completed, Failed, State
from pydantic import Field

from cotenant import store
from cotenant.settings import Settings
from policies.prompts import BatchSpec, batch_id, checked_spec, digest_of, parse_list
from policies.refusal import Refused
from tasks.agent_link import AgentLost, connect
from tasks.artifacts import artifact_key, show_progress, unless_away
from tasks.cancelled import is_cancelled
from tasks.prompt_words import batch_words, report_markdown
from tasks.prompts import BatchStalled, BatchStopped, BatchWork, Chunk, StoreLost
from tasks.quiet import watch_rarely
from tasks.words import refused_words

__all__ = ["llmserve_batch"]

watch_rarely()

step = task(cache_policy=NO_CACHE, persist_result=False)
SHOW_EVERY_S = 5.0


@flow(name="llmserve-batch", persist_result=False)
def llmserve_batch(
    node: str,
    prompts: list[str] | None = None,
    model: str = "",
    backend: Literal["auto", "mlx", "llamacpp", "stub"] = "auto",
    max_tokens: Annotated[int, Field(ge=1)] = 128,
    temperature: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0,
    top_p: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0,
    top_k: Annotated[int, Field(ge=0)] = 0,
    seed: Annotated[int, Field(ge=0)] | None = None,
    stop: list[str] | None = None,
    per_job: Annotated[int, Field(ge=1, le=10_000)] = 100,
    width: Annotated[int, Field(ge=1, le=64)] = 16,
    raw: bool = False,
    context: Annotated[int, Field(ge=16)] | None = None,
    wall_s: Annotated[float, Field(ge=0.1, le=86400.0)] | None = None,
    batch: str = "",
) -> State[Any]:
    """Send prompts through a language model, beside whatever the node protects.

    Args:
        node: The node to work on, by its name in the fleet (cotenant node list --fleet).
        prompts: The prompts, one an entry.
        model: A model of the node, as `cotenant llmserve models` names it.
        backend: What runs the model; auto takes MLX where it is installed, else llama.cpp.
        max_tokens: Longest answer to a prompt, in tokens.
        temperature: 0 takes the likeliest token each time.
        top_p: Draw from the likeliest tokens that together have this probability.
        top_k: Draw from so many likeliest tokens; 0 for all.
        seed: Seed of the draws of every prompt; empty for one of each prompt's own.
        stop: Texts that end an answer.
        per_job: Prompts that one job takes.
        width: Prompts decoded together, at most.
        raw: Give prompts to the model as they are, not as a user's message in its chat template.
        context: Longest prompt and answer together, in tokens; empty for what the model was made for.
        wall_s: A prompt that has generated for so many seconds, time held left out, ends with what it has; empty for 900.
        batch: A batch that is in the store already, as `cotenant llmserve queue` made it; prompts and options are then its own.
    """
    log = get_run_logger()
    flow_run_id = str(flow_run.id)
    settings = Settings.from_env()
    name = batch or batch_id(flow_run_id)
    work = BatchWork(connect(node), settings.store, name, log, node)
    begun = False
    try:
        if not batch:
            spec = checked_spec({
                "node": node, "model": model, "backend": backend, "max_tokens": max_tokens, "temperature": temperature,
                "top_p": top_p, "top_k": top_k, "seed": seed, "stop": tuple(stop or ()), "per_job": per_job,
                "width": width, "raw": raw, "context": context, "wall_s": wall_s,
            })  # fmt: skip
            make(work, spec, prompts or [], flow_run_id)
        begin_batch(work, flow_run_id)
        begun = True
        return drive(work, flow_run_id)
    except Refused as refusal:
        words = refused_words(refusal)
        if begun:
            work.end("failed", words)
        return Failed(name="Refused", message=words)
    except BatchStopped as stopped:
        work.end("failed", str(stopped))
        return Failed(message=f"{stopped}. {batch_words(work.status())}")
    except (AgentLost, StoreLost, BatchStalled) as lost:
        # left open: the node's worker puts it back, in growing steps
        return Failed(message=f"{lost}. It is tried again by itself; at once with: cotenant llmserve retry {name}")


def make(work: BatchWork, spec: BatchSpec, prompts: list[str], flow_run_id: str) -> None:
    """Keep the prompts of the run form; again the same batch where this run made it before."""
    parsed = parse_list(prompts)
    if parsed.bad:
        first = parsed.bad[0]
        raise Refused("PROMPT_BAD", f"prompt {first.line}", first.why, "set it right and start again")
    if not parsed.items:
        raise Refused("PROMPTS_NONE", "prompts", "there is none", "give at least one, or the name of a batch")
    digest = digest_of(spec.model_dump(), parsed.items)
    work.keep(
        lambda engine: store.make_batch(
            engine,
            work.batch,
            spec,
            parsed.items,
            source="run form",
            digest=digest,
            style="plain",
            flow_run_id=flow_run_id,
        )
    )


def drive(work: BatchWork, flow_run_id: str) -> State[Any]:
    """Job after job, until no prompt is open. A cancelled run stops its job; one that is only ended goes on later."""
    show = Progress(work)
    try:
        while (chunk := next_job(work)) is not None:
            follow_job(work, chunk, show)
            show(at_once=True)
    except TerminationSignal:
        if is_cancelled(flow_run_id):
            work.cancel()
            return Cancelled(message=batch_words(work.status()))
        if deployment.id:
            # A shutdown: Prefect would report a crash, which is final; a process that is just gone is put back.
            os.kill(os.getpid(), signal.SIGKILL)
        raise
    work.end("done")
    status = work.status()
    try:
        create_markdown_artifact(
            key=artifact_key(work.batch, "report"), markdown=report_markdown(status), description=f"Batch {work.batch}"
        )
    except Exception as error:
        get_run_logger().warning("the report could not be shown: %s", error)
    return Completed(message=batch_words(status))


class Progress:
    """The batch's progress bar in the UI, moved every few seconds at most. A server that is away stops nothing."""

    def __init__(self, work: BatchWork) -> None:
        self._work = work
        self._shown: UUID | None = None
        self._at_s = 0.0

    def __call__(self, *, at_once: bool = False) -> None:
        if not at_once and time.monotonic() - self._at_s < SHOW_EVERY_S:
            return
        self._at_s = time.monotonic()
        with unless_away(self._work.log):
            status = self._work.status()
            percent = 100.0 * (status["done"] + status["failed"]) / max(1, status["total"])
            key = artifact_key(self._work.batch, "progress")
            self._shown = show_progress(key, percent, batch_words(status), self._shown)


@step(name="begin", task_run_name="begin")
def begin_batch(work: BatchWork, flow_run_id: str) -> dict[str, Any]:
    return work.begin(flow_run_id)


@step(name="next job", task_run_name="next job")
def next_job(work: BatchWork) -> Chunk | None:
    return work.next()


@step(name="follow job", task_run_name="job {chunk.job}")
def follow_job(work: BatchWork, chunk: Chunk, show: Progress) -> int:
    return work.follow(chunk, show)
