"""Client of a node's agent: JSON-RPC 2.0, one JSON object a line, over the agent's unix socket. Standard library only.

``AgentClient(socket).call("status")`` gives the result, raises ``policies.refusal.Refused`` when the agent refuses, and
``AgentUnreachable`` when nobody answers. A call never waits without a limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from policies.json_text import parse_json
from policies.refusal import Refused

__all__ = ["PASSING", "AgentClient", "AgentUnreachable", "node_dir", "socket_path"]

# A unix socket path is limited to 108 bytes with its NUL; a longer home falls back to a short runtime directory.
MAX_SOCKET_PATH_BYTES = 100
DEFAULT_TIMEOUT_S = 30.0
_PIECE_BYTES = 65536
# Refusals that tell of the agent and not of what was asked: too many connections, a verb that failed (a full disk). The same
# may be answered a moment later.
PASSING = frozenset({"AGENT_BUSY", "AGENT_ERROR"})
# What the socket itself says no to: the code that it is known by, and the next step.
_PROTOCOL = {
    -32600: ("AGENT_BAD_REQUEST", "ask for less at once; else the agent is of another version: start it again"),
    -32601: ("AGENT_NO_VERB", "the agent is of another version: start it again"),
    -32602: ("AGENT_NO_VERB", "the agent is of another version: start it again"),
    -32001: (
        "AGENT_NOT_YOURS",
        "ask as the account that it runs as, or have it serve yours: cotenant service install --owners",
    ),
    -32002: ("AGENT_BUSY", "try again in a moment"),
}


class AgentUnreachable(Exception):
    """No agent answers on this socket (not running, stopped in the middle, or too slow)."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"no agent answers on {path}: {why}")
        self.path = path
        self.why = why


def node_dir(home: Path, node: str) -> Path:
    return home / "nodes" / node


def socket_path(home: Path, node: str) -> Path:
    """Where the node's agent listens."""
    wanted = node_dir(home, node) / "agent.sock"
    if len(os.fsencode(wanted)) <= MAX_SOCKET_PATH_BYTES:
        return wanted
    import hashlib

    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/tmp/cotenant-{os.getuid()}")
    digest = hashlib.sha256(os.fsencode(wanted)).hexdigest()[:16]
    return runtime / f"cotenant-{digest}.sock"


class AgentClient:
    """One connection a call: a call that was cut is never confused with the answer to another."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def call(self, method: str, /, _timeout_s: float = DEFAULT_TIMEOUT_S, **params: Any) -> Any:
        """Ask the agent.

        Args:
            method: the verb (``docs/architecture.md`` lists them).
            _timeout_s: longest wait for the answer, in seconds.
            params: the verb's parameters, plain JSON values.

        Raises:
            Refused: the agent answered no, with reason and remedy.
            AgentUnreachable: nobody answered in time.
        """
        until_s = time.monotonic() + _timeout_s
        request = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n"
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as conn:
                conn.settimeout(min(5.0, _timeout_s))
                conn.connect(str(self.path))
                with contextlib.suppress(BrokenPipeError):  # it may have said why it does not serve us, and closed
                    conn.sendall(request)
                line = _line(conn, until_s)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise AgentUnreachable(self.path, "it is not running") from error
        except TimeoutError as error:
            raise AgentUnreachable(self.path, f"no answer to {method} within {_timeout_s:g} s") from error
        except OSError as error:
            raise AgentUnreachable(self.path, error.strerror or str(error)) from error
        if not line.endswith(b"\n"):
            raise AgentUnreachable(self.path, f"the agent went away during {method}")
        try:
            answer = parse_json(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or not {"error", "result"} & answer.keys():
            raise AgentUnreachable(self.path, "what answers there is no agent")
        if "error" in answer:
            told = answer["error"]
            data = told.get("data")
            if isinstance(data, dict) and "code" in data:
                raise Refused.from_dict(data)
            code, remedy = _PROTOCOL.get(told.get("code"), ("AGENT_ERROR", "see the agent's log"))
            raise Refused(code, method, str(told.get("message")), remedy)
        return answer["result"]


def _line(conn: socket.socket, until_s: float) -> bytes:
    """What comes up to the end of the first line, or of the connection; an answer in drops has no more time than one in one piece.

    Raises:
        TimeoutError: it was not whole by then (monotonic seconds).
    """
    got = bytearray()
    while b"\n" not in got:
        left_s = until_s - time.monotonic()
        if left_s <= 0.0:
            raise TimeoutError
        conn.settimeout(left_s)
        piece = conn.recv(_PIECE_BYTES)
        if not piece:
            break
        got += piece
    return bytes(got)
