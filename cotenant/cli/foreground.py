"""`up` and `node run`: the pieces in the foreground, one view of them, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import TYPE_CHECKING, Any

from cotenant.cli.result import Exit, OperationError, OperationResult
from cotenant.cli.supervisor import PieceState, Supervisor
from cotenant.cli.uplog import STOP_ORDER, Kind, NodeLock, UpLog, read_all
from nodes.identity import own_id

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from cotenant.settings import Settings

__all__ = ["stay_up"]

Say = Callable[[str], None]


def stay_up(settings: Settings, node: str, *, kind: Kind) -> OperationResult:
    """Start what does not run yet, look after it, and stop it at the end, whatever ends it.

    Returns:
        Done after Ctrl-C or SIGTERM; a result with an error where a piece did not start (what was started is stopped).
    """
    from cotenant.cli.agents import checked_name
    from cotenant.cli.pieces import node_pieces

    checked_name(node)
    lock = NodeLock(settings.home, node)
    if not lock.take():
        return _looked_after(settings, node)
    log = UpLog.at(settings.home, node, kind, own_id())
    stopping = threading.Event()
    try:
        with _signals(stopping), _view() as (say, shown):
            say(f"cotenant {'up' if kind == 'up' else 'node run'}: node {node}, home {settings.home}")
            pieces = node_pieces(settings, node, with_server=kind == "up", say=say)

            def changed() -> None:
                log.pieces = {s.piece.name: who for s in supervisor.states if s.owned and (who := s.piece.identity)}
                log.write()
                shown(supervisor.states)

            supervisor = Supervisor(
                pieces,
                stop_order=STOP_ORDER,
                say=say,
                changed=changed,
                restart_base_s=settings.restart_base_s,
                restart_max_s=settings.restart_max_s,
                steady_s=settings.steady_s,
            )
            log.write()
            try:
                supervisor.start(stopping.is_set)
                if not stopping.is_set():
                    log.ready = True
                    changed()
                    say(f"all is up; stop it with Ctrl-C{' or: cotenant down' + _ui(settings) if kind == 'up' else ''}")
                while not stopping.wait(settings.supervise_every_s):
                    supervisor.look()
            finally:
                say("stopping what was started here")
                supervisor.stop()
        return OperationResult({"node": node, "stopped": [s.piece.name for s in supervisor.states if s.owned]})
    finally:
        log.remove()
        lock.release()


def _ui(settings: Settings) -> str:
    return f"; the UI: {(settings.api_url or '').removesuffix('/api')}"


def _looked_after(settings: Settings, node: str) -> OperationResult:
    """Another process has the node: say which. That is what was asked for, so it is no error when it is well."""
    other = next((log for log in read_all(settings.home) if log.node == node and log.alive), None)
    if other is None:
        error = OperationError(
            "NODE_BUSY",
            f"node {node}",
            "another process is starting or stopping it",
            "try again in a moment: cotenant status",
        )
        return OperationResult.failed(Exit.REFUSED_INPUT, error)
    how = "cotenant up" if other.kind == "up" else f"cotenant node run {node}"
    return OperationResult(
        {"node": node, "supervisor": other.supervisor.as_dict(), "ready": other.ready},
        messages=[f"node {node} is looked after already by `{how}` (pid {other.supervisor.pid}); see: cotenant status"],
    )


@contextmanager
def _signals(stopping: threading.Event) -> Iterator[None]:
    """SIGINT and SIGTERM ask to stop; both may come again without cutting the stop short."""

    def asked(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _view() -> Iterator[tuple[Say, Callable[[list[PieceState]], None]]]:
    """How to say a line, and how to show the pieces: a live table below the lines on a terminal, lines alone else."""

    def stamped(line: str) -> str:
        return f"{datetime.now().astimezone():%H:%M:%S}  {line}"

    if not sys.stderr.isatty():
        yield (lambda line: print(stamped(line), file=sys.stderr, flush=True)), (lambda _: None)
        return
    from rich.live import Live

    from cotenant.cli.render import console

    out = console(sys.stderr)
    live: Live
    with Live(console=out, refresh_per_second=4, transient=True) as live:
        yield (lambda line: out.print(stamped(line), markup=False)), (lambda states: live.update(_table(states)))


def _table(states: list[PieceState]) -> Table:
    from cotenant.cli.render import table

    return table(("piece", "state", "", "deaths"), (_row(state) for state in states))


def _row(state: PieceState) -> tuple[Any, ...]:
    detail = state.last_reason if state.state == "died" else state.piece.detail
    return state.piece.name, state.state, detail, state.deaths or ""
