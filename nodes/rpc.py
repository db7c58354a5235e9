"""The agent's end of the socket: JSON-RPC 2.0, one object a line, bounded in size, time and number of connections.

Only processes of the agent's own account and root may ask, or of those that are named (``SO_PEERCRED``). A verb is a
function or coroutine of its parameters; it answers with plain JSON values or raises ``Refused``. What a verb must know about
its caller comes as ``Peer``.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from policies.refusal import Refused

__all__ = ["Peer", "RpcServer", "Verb"]

log = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 1 << 20
REQUEST_WITHIN_S = 10.0
MAX_CONNECTIONS = 64
STOP_WITHIN_S = 5.0
# What SQLite keeps as an integer.
MAX_INTEGER = (1 << 63) - 1

Verb = Callable[..., Any | Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Peer:
    """Who asks. ``gone`` is set when the connection ends before the answer."""

    pid: int
    uid: int
    gone: asyncio.Event


class RpcServer:
    """Serves ``verbs`` (name -> function). A verb whose first parameter is named ``peer`` gets the ``Peer``.

    Args:
        uids: whose processes are served; by default this account's and root's.
        mode: of the socket's file. Who may connect is one thing, who is served another: the peer's uid decides that.
    """

    def __init__(
        self, path: Path, verbs: Mapping[str, Verb], *, uids: Collection[int] | None = None, mode: int = 0o600
    ) -> None:
        self.path = path
        self.uids = frozenset(uids) if uids is not None else frozenset((os.getuid(), 0))
        self.mode = mode
        self.verbs = dict(verbs)
        self._server: asyncio.AbstractServer | None = None
        self._open = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        if not self.path.parent.is_dir():
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self.mode & 0o007:
                self.path.parent.chmod(0o755)  # a directory of its own, that those may enter who may connect
        self.path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._serve, path=str(self.path), limit=MAX_REQUEST_BYTES)
        finally:
            os.umask(before)
        os.chmod(self.path, self.mode)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        open_ones = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in open_ones:
            task.cancel()
        if open_ones:
            await asyncio.wait(open_ones, timeout=STOP_WITHIN_S)
        self.path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._open += 1
        try:
            await self._converse(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            writer.transport.abort()  # what the peer did not take is not kept for it
        except Exception:
            log.exception("socket: a connection failed")
        finally:
            self._open -= 1
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = _peer(writer.get_extra_info("socket"))
        if peer.uid not in self.uids:
            await _answer(writer, None, error=(-32001, f"this socket does not serve uid {peer.uid}", None))
            return
        if self._open > MAX_CONNECTIONS:
            await _answer(writer, None, error=(-32002, "too many connections, try again", None))
            return
        while True:
            try:
                line = await asyncio.wait_for(reader.readline(), REQUEST_WITHIN_S)
            except TimeoutError:
                return
            except (ValueError, asyncio.LimitOverrunError):
                await _answer(writer, None, error=(-32600, f"a request is at most {MAX_REQUEST_BYTES} bytes", None))
                return
            if not line.endswith(b"\n"):
                return
            await self._one(line, peer, reader, writer)

    async def _one(self, line: bytes, peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ident: Any = None
        try:
            request = json.loads(line, parse_constant=_no_constant)
            if not isinstance(request, dict):
                raise ValueError("a request is an object")
            ident = request.get("id")
            name, params = request.get("method"), request.get("params", {})
            if not isinstance(name, str) or not isinstance(params, dict):
                raise ValueError("'method' is a string and 'params' an object")
        except (ValueError, RecursionError) as error:
            await _answer(writer, ident, error=(-32600, f"not a request: {error}", None))
            return
        verb = self.verbs.get(name)
        if verb is None:
            await _answer(writer, ident, error=(-32601, f"no verb {name!r}", None))
            return
        takes_peer = next(iter(inspect.signature(verb).parameters), None) == "peer"
        try:
            bound = inspect.signature(verb).bind(*([peer] if takes_peer else []), **params)
            _check_types(verb, params)
        except (TypeError, ValueError) as error:
            await _answer(writer, ident, error=(-32602, f"{name}: {error}", None))
            return
        watch = asyncio.ensure_future(_watch_gone(reader, peer)) if takes_peer else None
        try:
            result = verb(*bound.args, **bound.kwargs)
            if inspect.isawaitable(result):
                result = await result
            await _answer(writer, ident, result=result)
        except Refused as refused:
            await _answer(writer, ident, error=(-32000, str(refused), refused.as_dict()))
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:
            log.exception("verb %s failed", name)
            await _answer(writer, ident, error=(-32603, f"{name} failed: {type(error).__name__}: {error}", None))
        finally:
            if watch is not None:
                watch.cancel()


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON value")


@lru_cache(maxsize=256)
def _adapters(verb: Verb) -> dict[str, TypeAdapter[Any]]:
    """What each parameter of a verb must be, from its annotations."""
    hints = get_type_hints(inspect.unwrap(verb))
    return {name: TypeAdapter(hint) for name, hint in hints.items() if name not in ("peer", "return")}


def _check_types(verb: Verb, params: Mapping[str, Any]) -> None:
    """Raises ValueError, naming the parameter, where a value is not of the annotated type or too large to keep."""
    adapters = _adapters(verb)
    for name, value in params.items():
        if isinstance(value, int) and abs(value) > MAX_INTEGER:
            raise ValueError(f"{name} is too large")
        if name in adapters:
            try:
                adapters[name].validate_python(value, strict=True)
            except ValidationError as error:
                raise ValueError(f"{name}: {error.errors()[0]['msg']}") from None


async def _watch_gone(reader: asyncio.StreamReader, peer: Peer) -> None:
    """Sets ``peer.gone`` when the caller hangs up while its verb still runs (a client asks one thing a connection)."""
    if await reader.read(1) == b"":
        peer.gone.set()


def _peer(sock: socket.socket) -> Peer:
    pid, uid, _gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return Peer(pid, uid, asyncio.Event())


async def _answer(
    writer: asyncio.StreamWriter,
    ident: Any,
    result: Any = None,
    error: tuple[int, str, dict[str, Any] | None] | None = None,
) -> None:
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": ident}
    if error is None:
        body["result"] = result
    else:
        body["error"] = {"code": error[0], "message": error[1]} | ({"data": error[2]} if error[2] is not None else {})
    writer.write(json.dumps(body, default=str).encode() + b"\n")
    try:
        await asyncio.wait_for(writer.drain(), REQUEST_WITHIN_S)
    except TimeoutError:
        raise ConnectionResetError("the answer was not taken in time") from None
