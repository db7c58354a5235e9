"""``job``: fleet work of a node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cotenant.cli.command import command, group
from cotenant.cli.options import NodeOption, agent_of
from cotenant.cli.result import OperationResult

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["jobs_view", "json_object", "register"]

STATES = ("waiting", "running", "held", "stopping", "ended")

JobArg = Annotated[str, typer.Argument(metavar="JOB", help="A job, as `job list` names it.")]


def register(app: typer.Typer) -> None:
    jobs = group("Fleet work: what runs or waits, and why.")
    app.add_typer(jobs, name="job")

    @command(jobs, "list", example="cotenant job list\ncotenant job list --state waiting --json")
    def list_jobs(
        node: NodeOption = None,
        state: Annotated[
            str | None, typer.Option("--state", help=f"{', '.join(STATES[:-1])} or {STATES[-1]}; all by default.")
        ] = None,
        limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The newest so many jobs.")] = 50,
    ) -> OperationResult:
        """Jobs of the node, newest first, with why each waits."""
        if state is not None and state not in STATES:
            raise _no_such_state(state)
        wanted: dict[str, Any] = {"limit": limit} | ({"state": state} if state else {})
        return OperationResult(agent_of(node).ask("job_list", **wanted), view=jobs_view)

    @command(jobs, "show", example="cotenant job show 812")
    def show(job: JobArg, node: NodeOption = None) -> OperationResult:
        """One job: its attempts, result or failure, and newest events."""
        from cotenant.cli.agents import with_node

        agent = agent_of(node)
        found = agent.ask("job_show", job=job_id(job))
        if found.get("remedy"):
            found["remedy"] = with_node(found["remedy"], agent.node)
        return OperationResult(found, view=_show)

    @command(
        jobs,
        "submit",
        example="cotenant job submit llmserve/selftest\ncotenant job submit llmserve/selftest --timeout-s 600",
    )
    def submit(
        work: Annotated[str, typer.Argument(metavar="MODULE/STAGE", help="The stage to run.")],
        payload: Annotated[str, typer.Option("--payload", "-p", metavar="JSON", help="Its parameters.")] = "{}",
        file: Annotated[Path | None, typer.Option("--file", help="Parameters from a JSON file.")] = None,
        timeout_s: Annotated[
            float | None, typer.Option("--timeout-s", min=0.1, help="Longest run, in seconds.")
        ] = None,
        node: NodeOption = None,
    ) -> OperationResult:
        """Queue a job on the node."""
        module, stage = module_and_stage(work)
        text, where = (file.expanduser().read_bytes(), str(file)) if file is not None else (payload, "--payload")
        limits = {} if timeout_s is None else {"timeout_s": timeout_s}
        agent = agent_of(node)
        return OperationResult(
            agent.ask("job_submit", module=module, stage=stage, payload=json_object(text, where), **limits),
            view=_submitted,
        )

    @command(jobs, "cancel", example="cotenant job cancel 812")
    def cancel(job: JobArg, node: NodeOption = None) -> OperationResult:
        """Cancel a job: waiting ones at once, running ones within their grace."""
        return OperationResult(agent_of(node).ask("job_cancel", job=job_id(job)), view=_show)


def _no_such_state(state: str) -> Exception:
    from policies.refusal import Refused

    return Refused("JOB_BAD_STATE", f"--state {state}", "no job has such a state", f"one of: {', '.join(STATES)}")


def job_id(text: str) -> int:
    """The job's number.

    Raises:
        Refused: it is none.
    """
    from policies.refusal import Refused

    if text.isascii() and text.isdigit():
        return int(text)
    raise Refused("JOB_UNKNOWN", f"job {text!r}", "jobs have numbers", "cotenant job list")


def module_and_stage(text: str) -> tuple[str, str]:
    """The two parts of MODULE/STAGE.

    Raises:
        Refused: there are not two parts.
    """
    from policies.refusal import Refused

    module, slash, stage = text.rpartition("/")
    if not slash or not module or not stage:
        raise Refused(
            "WORK_BAD",
            f"work {text!r}",
            "it is not MODULE/STAGE",
            "cotenant module list shows modules and their stages",
        )
    return module, stage


def json_object(text: str | bytes, where: str) -> dict[str, Any]:
    """The object that the text is.

    Raises:
        Refused: it is none.
    """
    from policies.json_text import parse_json
    from policies.refusal import Refused

    try:
        value = parse_json(text)
    except json.JSONDecodeError as error:
        raise Refused(
            "PAYLOAD_BAD", f"{where}, line {error.lineno}", f"this is no JSON: {error.msg}", "give a JSON object"
        ) from error
    except ValueError as error:
        raise Refused("PAYLOAD_BAD", where, f"this is no JSON: {error}", "give a JSON object, in UTF-8") from error
    if not isinstance(value, dict):
        raise Refused(
            "PAYLOAD_BAD", where, "the parameters are not a JSON object", 'give one, e.g. {"prompts": ["Hi"]}'
        )
    return value


def jobs_view(jobs: list[dict[str, Any]]) -> Iterator[RenderableType]:
    from cotenant.cli.render import table, when

    if not jobs:
        yield "no jobs"
        return
    yield table(
        ("job", "work", "state", "code", "why", "duty", "share", "queued"),
        (
            (
                job["job"],
                f"{job['module']}/{job['stage']}",
                job.get("outcome") or job["state"] if job["state"] == "ended" else job["state"],
                None if job["state"] == "ended" else job.get("code"),
                job.get("reason") or None,
                job.get("duty"),
                job.get("share"),
                when(job.get("queued_at")),
            )
            for job in jobs
        ),
    )


def _why(job: dict[str, Any]) -> str | None:
    """Why it waits or is held; of a job that ended, why it ended: the code is then of what it waited for once."""
    code = None if job["state"] == "ended" else job.get("code")
    parts = [part for part in (code, job.get("reason")) if part]
    return ": ".join(parts) or None


def _show(job: dict[str, Any]) -> Iterator[RenderableType]:
    from cotenant.cli.render import fields, table, when

    lines = [
        ("job", job["job"]),
        ("work", f"{job['module']}/{job['stage']}"),
        ("state", f"{job['state']}, {job['outcome']}" if job.get("outcome") else job["state"]),
        ("why", _why(job)),
        ("remedy", None if job["state"] == "ended" else job.get("remedy")),
        ("duty asked", job.get("duty")),
        ("share metered", job.get("share")),
        ("queued", when(job.get("queued_at"))),
        ("started", when(job.get("started_at"))),
        ("ended", when(job.get("ended_at"))),
        ("failure", job.get("failure")),
        ("result", json.dumps(job["result"], ensure_ascii=False) if job.get("result") is not None else None),
    ]
    yield fields((name, value) for name, value in lines if value is not None or name in ("state", "share metered"))
    attempts = job.get("attempts")
    if isinstance(attempts, list) and attempts:
        yield ""
        keys = [key for key in attempts[-1] if not isinstance(attempts[-1][key], (dict, list))]
        yield table(keys, ([attempt.get(key) for key in keys] for attempt in attempts))


def _submitted(answer: dict[str, Any]) -> Iterator[str]:
    job = answer["job"] if isinstance(answer["job"], dict) else answer
    yield f"job {job['job']} is queued; see it with: cotenant job show {job['job']}"
