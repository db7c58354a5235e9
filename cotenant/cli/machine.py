"""``up``, ``down``, ``status``, ``demo``: everything on this machine at once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cotenant.cli.command import command
from cotenant.cli.options import NodeOption, settings
from cotenant.cli.result import Exit, OperationError, OperationResult

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cotenant.cli.uplog import UpLog
    from cotenant.settings import Settings

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    @command(app, "up", example="cotenant up\ncotenant up --node mac-01 --detach")
    def up(
        node: NodeOption = None,
        detach: Annotated[
            bool, typer.Option("--detach", help="Return when all is up; it runs on without this shell.")
        ] = False,
    ) -> OperationResult:
        """Start what does not run yet: Prefect server, deployments, agent and worker. Stays in the foreground.

        A piece that dies is started again. Ctrl-C stops what this command started, and only that.
        """
        from cotenant.cli.foreground import stay_up

        in_force = settings()
        name = node or in_force.node
        return _detached(in_force, name) if detach else stay_up(in_force, name, kind="up")

    @command(app, "down", example="cotenant down")
    def down(
        node: Annotated[
            str | None, typer.Option("--node", metavar="NODE", help="Only this node's; all by default.")
        ] = None,
    ) -> OperationResult:
        """Stop what `cotenant up` started in this home, and only that."""
        return _down(settings(), node)

    @command(app, "status", example="cotenant status\ncotenant status --json")
    def status() -> OperationResult:
        """One view of everything: server, store, each node with its agent and worker, runs and jobs.

        Exit code 3 where something does not answer; it says which, and the command that starts it.
        """
        return _status(settings())

    @command(app, "demo", example="cotenant demo\ncotenant demo --full\ncotenant demo --llm")
    def demo(
        full: Annotated[
            bool, typer.Option("--full", help="Once more with the work uncapped, and both side by side.")
        ] = False,
        llm: Annotated[
            bool, typer.Option("--llm", help="A real language model as the work: certified, then a hundred prompts.")
        ] = False,
        keep: Annotated[bool, typer.Option("--keep", help="Keep everything running at the end, until Ctrl-C.")] = False,
        out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the reports go.")] = Path(
            "cotenant-demo"
        ),
    ) -> OperationResult:
        """The main job on a sample protected program, in a home of its own: about five minutes, everything real.

        Exit code 0 when it came to an honest answer, whichever that is.
        """
        from cotenant.demo import run_demo

        return run_demo(full=full, keep=keep, out=out, llm=llm)


# -- up ----------------------------------------------------------------------------------------------------------------


def _detached(in_force: Settings, node: str) -> OperationResult:
    """`up` in a session of its own; returns when every piece answered, or with why not."""
    from cotenant.cli.agents import checked_name
    from cotenant.cli.uplog import read_all
    from cotenant.fleet.process import log_tail
    from nodes.identity import identify

    checked_name(node)
    log_file = in_force.logs / f"up-{node}.log"
    words = f"starting node {node}; the first start, or a busy machine, takes minutes. What it does: {log_file}"
    print(words, file=sys.stderr, flush=True)
    log_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "cotenant.cli.main", "up", "--node", node],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=os.environ | {"COTENANT_HOME": str(in_force.home)},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    until = time.monotonic() + in_force.server_start_s + in_force.agent_start_s + in_force.worker_start_s
    while time.monotonic() < until:
        found = next((log for log in read_all(in_force.home) if log.node == node and log.alive and log.ready), None)
        if found is not None:
            return OperationResult(
                {"node": node, "supervisor": found.supervisor.as_dict(), "log": str(log_file)},
                view=lambda data: [f"node {node} is up (pid {data['supervisor']['pid']}); stop it with: cotenant down"],
            )
        if process.poll() is not None:
            break
        time.sleep(0.2)
    who = identify(process.pid)
    if who is not None:
        from cotenant.signals import end

        end(who, 3 * in_force.stop_s)
    error = OperationError(
        "UP_FAILED", f"node {node}", f"it did not come up; it said:\n{log_tail(log_file, 12)}", f"see {log_file}"
    )
    return OperationResult.failed(Exit.UNREACHABLE, error)


# -- down --------------------------------------------------------------------------------------------------------------


def _down(in_force: Settings, node: str | None) -> OperationResult:
    from cotenant.cli.uplog import read_all

    logs = [log for log in read_all(in_force.home) if log.kind == "up" and node in (None, log.node)]
    stopped: list[dict[str, Any]] = []
    errors: list[OperationError] = []
    for log in logs:
        for name, outcome in _stop(log, in_force.stop_s):
            stopped.append({"node": log.node, "piece": name, "outcome": outcome})
            if outcome == "stuck":
                errors.append(OperationError("STUCK", f"{name} of node {log.node}", "it survives SIGKILL", "see dmesg"))
        if not any(row["node"] == log.node and row["outcome"] == "stuck" for row in stopped):
            log.remove()
    messages = [] if logs else [f"nothing to stop: `cotenant up` started nothing that still runs in {in_force.home}"]
    return OperationResult(
        {"stopped": stopped},
        exit_code=Exit.OTHER_ANSWER if errors else Exit.DONE,
        errors=errors,
        messages=messages,
        view=lambda data: [f"{row['piece']} of node {row['node']}: {row['outcome']}" for row in data["stopped"]],
    )


def _stop(log: UpLog, stop_s: float) -> Iterator[tuple[str, str]]:
    """Ask the supervisor, which stops its pieces in order; what outlives it (it was killed) is ended by identity."""
    from cotenant.signals import end

    names = list(log.living)
    if log.alive:
        yield "up", end(log.supervisor, stop_s * (len(names) + 1))
    left = log.living
    for name in names:
        yield name, end(left[name], stop_s) if name in left else "ended"


# -- status ------------------------------------------------------------------------------------------------------------


def _status(in_force: Settings) -> OperationResult:
    from cotenant.cli.agents import Agent, local_nodes, start_command
    from cotenant.cli.failures import Unreachable
    from cotenant.cli.fleet_link import start_server, why_silent
    from cotenant.cli.uplog import note_of, read_all
    from nodes.identity import liveness, noted
    from policies.refusal import Refused

    url = in_force.api_url
    why = why_silent(in_force)
    errors: list[OperationError] = []
    up_command = start_command(in_force.home, "up")
    logs = {log.node: log for log in read_all(in_force.home) if log.alive or log.living}
    if why is not None:
        what = f"Prefect server {url or ''}".strip()
        with_server = next((log for log in logs.values() if log.kind == "up" and log.alive), None)
        errors.append(OperationError("SERVER_UNREACHABLE", what, why, _starts(with_server, start_server(in_force))))
    names = local_nodes(in_force.home) or [in_force.node]
    nodes: list[dict[str, Any]] = []
    for name in names:
        row: dict[str, Any] = {"node": name, "agent": "not running", "worker": "not running", "status": None}
        try:
            row["status"] = Agent(in_force, name).ask("status", _timeout_s=10.0)
            row["agent"] = "running"
        except Unreachable as error:
            errors.append(replace(error.error, remedy=_starts(logs.get(name), error.error.remedy)))
        except Refused as refusal:  # it lives and cannot say how it is: the other nodes are told of all the same
            row["agent"] = "running"
            errors.append(OperationError.of(refusal))
        log = logs.get(name)
        worker = noted(note_of(in_force.home, name, "worker"))
        if worker is not None and liveness(worker) != "gone":
            row["worker"] = "running"
        elif row["agent"] == "running":
            errors.append(
                OperationError(
                    "WORKER_NOT_RUNNING",
                    f"worker of node {name}",
                    "it does not run, so no run can start on the node",
                    _starts(log, up_command),
                )
            )
        row["looked_after_by"] = None if log is None or not log.alive else {"how": log.kind, "pid": log.supervisor.pid}
        nodes.append(row)
    data = {
        "home": str(in_force.home),
        "server": {"url": url, "state": "running" if why is None else "not running", "why": why},
        "store": {"url": _store_words(in_force), "state": _store_state(in_force)},
        "disk_free_bytes": shutil.disk_usage(in_force.home).free if in_force.home.exists() else None,
        "nodes": nodes,
    }
    return OperationResult(data, exit_code=Exit.UNREACHABLE if errors else Exit.DONE, errors=errors, view=_status_view)


def _starts(log: UpLog | None, command: str) -> str:
    """What brings a piece up: the command, or who is about to start it (again)."""
    if log is None or not log.alive:
        return command
    return f"wait a moment, then cotenant status: {_looks_after(log.kind)} (pid {log.supervisor.pid}) starts it"


def _looks_after(kind: str) -> str:
    return f"`cotenant {'up' if kind == 'up' else 'node run'}`"


def _store_words(in_force: Settings) -> str:
    """The store's address without a password; of one that is none nothing, since what it was meant to be may have one."""
    from urllib.parse import urlsplit, urlunsplit

    try:
        parts = urlsplit(in_force.store)
        host, port, secret = parts.hostname or "", parts.port, parts.password
    except ValueError:
        return "what is set is no address"
    if secret is None:
        return in_force.store
    return urlunsplit(parts._replace(netloc=f"{parts.username}:***@{host}{f':{port}' if port else ''}"))


def _store_state(in_force: Settings) -> str:
    if in_force.store_url is None:
        return "there" if (in_force.home / "store.sqlite").exists() else "not made yet"
    return "not asked"


def _status_view(data: dict[str, Any]) -> Iterator[RenderableType]:
    from cotenant.cli.node import state_parts
    from cotenant.cli.render import fields

    server = data["server"]
    yield fields(
        [
            ("home", data["home"]),
            ("server", f"{server['state']}, {server['url'] or 'no address yet'}"),
            ("UI", server["url"].removesuffix("/api") if server["url"] else None),
            ("store", f"{data['store']['state']}, {data['store']['url']}"),
        ]
    )
    for row in data["nodes"]:
        by = row["looked_after_by"]
        how = f", looked after by {_looks_after(by['how'])} (pid {by['pid']})" if by else ""
        yield ""
        yield f"node {row['node']}: agent {row['agent']}, worker {row['worker']}{how}"
        if row["status"] is not None:
            yield from state_parts(row["status"])
