"""`up` and `node run`: the pieces in the foreground, one view of them, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from cotenant.cli.result import Exit, OperationError, OperationResult
from cotenant.cli.supervisor import PieceState, Supervisor
from cotenant.cli.uplog import STOP_ORDER, Kind, NodeLock, UpLog, read_all
from cotenant.stopping import Stopping
from nodes.identity import own_id

if TYPE_CHECKING:
    from rich.live import Live

    from cotenant.cli.rows import Rows
    from cotenant.settings import Settings

__all__ = ["stay_up"]

Say = Callable[[str], None]
Shown = TypeVar("Shown")


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
    # What one started that was killed since: nobody else would stop it, or start it again.
    inherited = [name for left in read_all(settings.home) if left.node == node for name in left.living]
    log = UpLog.at(settings.home, node, kind, own_id())
    log.pieces = inherited[:]
    stopping = Stopping()
    owned = inherited[:]

    def stay(say: Say, shown: Callable[[list[PieceState]], None]) -> None:
        say(f"cotenant {'up' if kind == 'up' else 'node run'}: node {node}, home {settings.home}")
        pieces = node_pieces(settings, node, with_server=kind == "up", say=say)

        def changed() -> None:
            log.pieces = owned[:] = [state.piece.name for state in supervisor.states if state.owned]
            log.write()
            shown(supervisor.states)

        supervisor = Supervisor(
            pieces,
            stop_order=STOP_ORDER,
            say=say,
            changed=changed,
            inherited=inherited,
            restart_base_s=settings.restart_base_s,
            restart_max_s=settings.restart_max_s,
            steady_s=settings.steady_s,
        )
        log.write()
        try:
            supervisor.start()
            log.ready = True
            changed()
            say(f"all is up; stop it with Ctrl-C{' or: cotenant down' + _ui(settings) if kind == 'up' else ''}")
            while True:
                time.sleep(settings.supervise_every_s)
                supervisor.look()
        finally:
            stopping.not_again()
            say("stopping what was started here")
            supervisor.stop()

    try:
        with stopping.on_signals(), _view() as (say, shown):
            stopping.run(lambda: stay(say, shown))
        return OperationResult({"node": node, "stopped": owned})
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
def _view() -> Iterator[tuple[Say, Callable[[list[PieceState]], None]]]:
    """How to say a line, and how to show the pieces: a live table below the lines on a terminal, lines alone else."""

    def stamped(line: str) -> str:
        return f"{datetime.now().astimezone():%H:%M:%S}  {line}"

    if not sys.stderr.isatty():
        yield _tolerant(lambda line: print(stamped(line), file=sys.stderr, flush=True)), (lambda _: None)
        return
    from rich.live import Live

    from cotenant.cli.render import console

    out = console(sys.stderr)
    live: Live
    with Live(console=out, refresh_per_second=4, transient=True) as live:
        yield (
            _tolerant(lambda line: out.print(stamped(line), markup=False)),
            _tolerant(lambda states: live.update(_table(states))),
        )


def _tolerant(show: Callable[[Shown], None]) -> Callable[[Shown], None]:
    """A terminal that was closed keeps nobody from stopping what was started."""

    def shown(what: Shown) -> None:
        with suppress(OSError):
            show(what)

    return shown


def _table(states: list[PieceState]) -> Rows:
    from cotenant.cli.render import table

    return table(("piece", "state", "", "deaths"), (_row(state) for state in states))


def _row(state: PieceState) -> tuple[Any, ...]:
    detail = state.last_reason if state.state == "died" else state.piece.detail
    return state.piece.name, state.state, detail, state.deaths or ""
