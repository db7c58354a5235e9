"""``llmserve``: batches of prompts through a language model on a node."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cotenant.cli.command import command, group
from cotenant.cli.options import NodeOption, agent_of, settings
from cotenant.cli.result import Exit, OperationResult

__all__ = ["register"]

BatchArg = Annotated[str, typer.Argument(metavar="BATCH", help="A batch, as `llmserve list` and `queue` name it.")]


class Backend(StrEnum):
    auto = "auto"
    mlx = "mlx"
    llamacpp = "llamacpp"
    stub = "stub"


def register(app: typer.Typer) -> None:
    llmserve = group("Prompts through a language model, beside what the node protects.")
    app.add_typer(llmserve, name="llmserve")
    _queue(llmserve)
    _look(llmserve)
    _models(llmserve)


def _queue(llmserve: typer.Typer) -> None:
    @command(
        llmserve,
        "queue",
        example="cotenant llmserve queue prompts.jsonl --model SmolLM2-135M-Instruct.Q4_1.gguf --max-tokens 128\n"
        "cotenant llmserve queue requests.jsonl --model m.gguf --skip-bad --dedupe",
    )
    def queue(
        file: Annotated[
            Path, typer.Argument(metavar="FILE", help="A JSON list, JSON lines or OpenAI batch requests; - for stdin.")
        ],
        model: Annotated[str | None, typer.Option("--model", help="A model, as `llmserve models` names it.")] = None,
        backend: Annotated[Backend, typer.Option("--backend", help="What runs it.")] = Backend.auto,
        max_tokens: Annotated[int | None, typer.Option("--max-tokens", help="Longest answer, in tokens; 128.")] = None,
        temperature: Annotated[
            float | None, typer.Option("--temperature", help="0, the default, takes the likeliest token.")
        ] = None,
        top_p: Annotated[float | None, typer.Option("--top-p", help="Draw from tokens of this probability.")] = None,
        top_k: Annotated[int | None, typer.Option("--top-k", help="Draw from so many likeliest tokens.")] = None,
        seed: Annotated[
            int | None, typer.Option("--seed", help="Seed of the draws; each prompt's own by default.")
        ] = None,
        stop: Annotated[
            list[str] | None, typer.Option("--stop", help="A text that ends an answer; repeatable.")
        ] = None,
        raw: Annotated[bool, typer.Option("--raw", help="Prompts as they are, without the chat template.")] = False,
        per_job: Annotated[int | None, typer.Option("--per-job", help="Prompts a job takes; 100.")] = None,
        width: Annotated[int | None, typer.Option("--width", help="Prompts decoded together, at most; 16.")] = None,
        context: Annotated[int | None, typer.Option("--context", help="Longest prompt and answer, in tokens.")] = None,
        wall_s: Annotated[
            float | None,
            typer.Option("--wall-s", help="Longest that a prompt may generate, time held left out; 900 s."),
        ] = None,
        skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out lines that cannot be used.")] = False,
        dedupe: Annotated[bool, typer.Option("--dedupe", help="Queue nothing that was queued before.")] = False,
        node: NodeOption = None,
    ) -> OperationResult:
        """Queue the prompts of FILE as a flow run on the node.

        Bad lines are listed with their number and reason, and nothing starts, unless --skip-bad.
        """
        from cotenant.cli.llmserve_input import checked, queue, read_file, spec_of

        in_force = settings()
        parsed = read_file(file)
        source = "standard input" if str(file) == "-" else str(file)
        notes = checked(parsed, source, skip_bad=skip_bad)
        asked = {
            "node": node or in_force.node,
            "model": model,
            "backend": backend.value,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "seed": seed,
            "stop": tuple(stop) if stop else None,
            "raw": raw,
            "per_job": per_job,
            "width": width,
            "context": context,
            "wall_s": wall_s,
        }
        return queue(in_force, spec_of(asked, parsed), parsed, source, dedupe=dedupe, notes=notes)


def _look(llmserve: typer.Typer) -> None:
    @command(llmserve, "list", example="cotenant llmserve list")
    def list_batches(
        node: NodeOption = None,
        limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The newest so many.")] = 50,
    ) -> OperationResult:
        """Batches, newest first."""
        from cotenant import store
        from cotenant.cli.llmserve_show import batches_view
        from cotenant.cli.runs import NO_STORE, of_store

        rows = of_store(settings(), lambda engine: store.list_batches(engine, node, limit))
        return OperationResult(rows or [], messages=[NO_STORE] if rows is None else [], view=batches_view)

    @command(llmserve, "status", example="cotenant llmserve status batch-1a2b3c4d5e --watch")
    def status(
        batch: BatchArg,
        watch: Annotated[bool, typer.Option("--watch", help="Stay until it ends; Ctrl-C leaves it going.")] = False,
    ) -> OperationResult:
        """How far a batch is, how fast, and why it waits."""
        from cotenant.cli import llmserve_show as show
        from cotenant.cli.runs import made_store

        in_force = settings()
        engine = made_store(in_force, f"batch {batch!r}")
        found = show.watch(in_force, engine, batch) if watch else show.one_batch(in_force, engine, batch)
        return OperationResult(found, view=show.batch_view)

    @command(llmserve, "results", example="cotenant llmserve results batch-1a2b3c4d5e -o out.jsonl")
    def results(
        batch: BatchArg,
        out: Annotated[
            Path | None, typer.Option("--out", "-o", help="A file; standard output by default, and for -.")
        ] = None,
    ) -> OperationResult:
        """A batch's answers, a line a prompt in the order they came in; OpenAI batch output for OpenAI batch requests.

        Prompts that are not finished have a line that says so. Exit code 1 while there are any.
        """
        from cotenant import store
        from cotenant.cli.llmserve_show import one_batch, write_lines
        from cotenant.cli.runs import made_store
        from policies.prompts import model_words, result_lines

        in_force = settings()
        engine = made_store(in_force, f"batch {batch!r}")
        found = one_batch(in_force, engine, batch)
        lines = result_lines(batch, model_words(found["spec"]), found["format"], store.prompt_rows(engine, batch))
        counts = {key: found[key] for key in ("batch", "state", "total", "done", "failed", "open")}
        code = Exit.OTHER_ANSWER if found["open"] or found["failed"] else Exit.DONE
        if out is None or str(out) == "-":
            return OperationResult(list(lines), exit_code=code, view=lambda texts: texts)
        write_lines(out, lines)
        return OperationResult(
            counts | {"out": str(out)},
            exit_code=code,
            view=lambda data: [
                f"{data['done']} answers of {data['total']} prompts are in {data['out']}; "
                f"{data['failed']} failed, {data['open']} open"
            ],
        )

    @command(llmserve, "cancel", example="cotenant llmserve cancel batch-1a2b3c4d5e")
    def cancel(batch: BatchArg) -> OperationResult:
        """Cancel a batch's flow run: its job stops within its grace, and what is done is kept."""
        from cotenant.cli import fleet_link
        from cotenant.cli.llmserve_again import cancel_here
        from cotenant.cli.llmserve_show import one_batch
        from cotenant.cli.runs import made_store
        from policies.refusal import Refused

        in_force = settings()
        engine = made_store(in_force, f"batch {batch!r}")
        found = one_batch(in_force, engine, batch)
        if found["state"] != "open":
            why = f"it is {found['state']}"
            raise Refused("BATCH_NOT_OPEN", f"batch {batch}", why, f"cotenant llmserve status {batch}")
        data = {"batch": batch, "flow_run_id": found["flow_run_id"]}
        if (found["flow"] or {}).get("final"):
            notes = cancel_here(in_force, engine, found)
            return OperationResult(data, messages=notes, view=lambda one: [f"batch {one['batch']} is cancelled"])
        fleet_link.connect(in_force).cancel(found["flow_run_id"])
        return OperationResult(data, view=lambda one: [f"batch {one['batch']} is being cancelled"])

    @command(llmserve, "retry", example="cotenant llmserve retry batch-1a2b3c4d5e")
    def retry(
        batch: BatchArg,
        failed: Annotated[bool, typer.Option("--failed", help="Ask the prompts that failed again too.")] = False,
    ) -> OperationResult:
        """Go on with a batch that was cancelled, failed or waits to be put back: a new flow run takes what is open."""
        from cotenant.cli.llmserve_again import retry as go_on

        return go_on(settings(), batch, failed=failed)


def _models(llmserve: typer.Typer) -> None:
    @command(llmserve, "models", example="cotenant llmserve models")
    def models(node: NodeOption = None) -> OperationResult:
        """Models of the node, and whether each fits in the memory that is free beside what runs now."""
        from cotenant.cli import llmserve_models
        from cotenant.cli.llmserve_show import models_view

        return OperationResult(llmserve_models.models(settings(), agent_of(node)), view=models_view)

    @command(llmserve, "add-model", example="cotenant llmserve add-model ~/Downloads/model.gguf --name small.gguf")
    def add_model(
        path: Annotated[Path, typer.Argument(metavar="PATH", help="A GGUF file, or a folder of an MLX model.")],
        name: Annotated[str | None, typer.Option("--name", help="Its name; the file's by default.")] = None,
        copy: Annotated[bool, typer.Option("--copy", help="Copy it, also where it could be linked.")] = False,
        node: NodeOption = None,
    ) -> OperationResult:
        """Check a model and put it where the module looks for it: linked on the same file system, else copied."""
        from cotenant.cli import llmserve_models

        added = llmserve_models.add_model(settings(), agent_of(node), path, name, copy=copy)
        return OperationResult(added, view=lambda data: [f"model {data['model']} is at {data['path']}"])

    @command(llmserve, "install", example="cotenant llmserve install\ncotenant llmserve install --wheels ./wheels")
    def install(
        wheels: Annotated[
            Path | None, typer.Option("--wheels", help="Folder of wheels to take everything from, without a network.")
        ] = None,
        node: NodeOption = None,
    ) -> OperationResult:
        """Build the module's own environment with a backend for real models (llama.cpp; MLX on Apple silicon).

        Where there is no wheel for this machine it is built from source, at idle priority: minutes to an hour.
        """
        from cotenant.cli import llmserve_models

        agent = agent_of(node)
        if wheels is None:
            words = (
                "the agent builds the module's environment; compiling llama.cpp takes from ten minutes to an hour, once"
            )
            print(words, file=sys.stderr, flush=True)
        added = llmserve_models.install(agent, wheels)
        result = OperationResult(added, view=lambda one: [f"{one['short']} {one['version']} is {one['state']}"])
        result.messages += added.get("notes") or []
        if added.get("state") != "ready":
            result.exit_code = Exit.OTHER_ANSWER
            result.messages.append(f"it is not ready: {added.get('why')}")
        return result
