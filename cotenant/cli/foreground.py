"""`up` and `node run`: the pieces in the foreground, one view of them, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
import sys
import time
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
    stopping = Stopping()
    owned: list[str] = []
    try:
        with stopping.on_signals(), _view() as (say, shown), stopping.unwinding():
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


class Stopping:
    """SIGINT, SIGTERM and SIGHUP end what is going on, in the middle of a long start too; the stopping itself is not cut
    short by another one."""

    class _Asked(BaseException):
        """Unwinds to ``unwinding``. Not an ``Exception``: nothing on the way may take it for a failed piece."""

    def __init__(self) -> None:
        self._unwinds = False

    @contextmanager
    def unwinding(self) -> Iterator[None]:
        self._unwinds = True
        try:
            yield
        except Stopping._Asked:
            pass
        finally:
            self._unwinds = False

    def not_again(self) -> None:
        """From here on the stopping runs to its end."""
        self._unwinds = False

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        def asked(_signal: int, _frame: FrameType | None) -> None:
            if self._unwinds:
                self._unwinds = False
                raise Stopping._Asked

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
