"""The socket: who may ask, what a request may be, and that nothing a peer sends harms the agent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodes.client import PASSING, AgentClient, AgentUnreachable, socket_path
from nodes.rpc import Peer, RpcServer
from policies.refusal import Refused


def _refuse() -> None:
    raise Refused("RUN_LOCKED", "a run", "another one is there", "wait", {"run": "r1"})


async def _slow(peer: Peer) -> str:
    await asyncio.wait_for(peer.gone.wait(), 30)
    GONE.set()
    return "nobody hears this"


GONE = threading.Event()


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "a.sock"
    loop = asyncio.new_event_loop()
    verbs: dict[str, Any] = {
        "echo": lambda text, times=1: text * times,
        "refuse": _refuse,
        "boom": lambda: 1 / 0,
        "slow": _slow,
    }
    server = RpcServer(where, verbs)
    serving = threading.Event()

    def serve() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(server.start())
        serving.set()
        loop.run_forever()
        loop.run_until_complete(server.stop())

    thread = threading.Thread(target=serve)
    thread.start()
    # the file is there a moment before anybody listens
    assert serving.wait(60)
    yield where
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


def raw(path: Path, data: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as conn:
        conn.settimeout(30)
        conn.connect(str(path))
        found = b""
        try:
            conn.sendall(data)
            conn.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server may hang up on what it will not read
        try:
            while chunk := conn.recv(65536):
                found += chunk
        except ConnectionResetError:
            pass
    return found


def test_a_verb_answers(path: Path) -> None:
    assert AgentClient(path).call("echo", text="ab", times=2) == "abab"


def test_a_refusal_comes_back_whole(path: Path) -> None:
    with pytest.raises(Refused) as refused:
        AgentClient(path).call("refuse")
    assert refused.value.as_dict() == {
        "code": "RUN_LOCKED",
        "what": "a run",
        "why": "another one is there",
        "remedy": "wait",
        "data": {"run": "r1"},
    }


@pytest.mark.parametrize(
    "request_line",
    [
        b"not json\n",
        b"[1,2]\n",
        b'{"method": 5}\n',
        b'{"method": "echo", "params": [1]}\n',
        b'{"method": "echo", "params": {}}\n',
        b'{"method": "echo", "params": {"text": "a", "more": 1}}\n',
        b'{"method": "__class__"}\n',
        b'{"method": "boom"}\n',
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
    ],
)
def test_what_is_no_request_gets_an_error_and_the_next_one_is_served(path: Path, request_line: bytes) -> None:
    assert b'"error"' in raw(path, request_line)
    assert AgentClient(path).call("echo", text="still here") == "still here"


def test_a_huge_request_is_refused_and_the_next_one_is_served(path: Path) -> None:
    answer = raw(path, b'{"method": "echo", "params": {"text": "' + b"x" * (3 << 20) + b'"}}\n')
    assert answer == b"" or b"at most" in answer
    assert AgentClient(path).call("echo", text="still here") == "still here"


def test_what_may_be_answered_later_is_told_apart_from_what_never_will(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def code(verb: str, **params: Any) -> str:
        with pytest.raises(Refused) as refused:
            AgentClient(path).call(verb, **params)
        return refused.value.code

    assert code("boom") in PASSING
    assert code("echo", text=float("nan")) == "AGENT_BAD_REQUEST"
    assert not {"AGENT_BAD_REQUEST", code("refuse"), code("no_such_verb")} & PASSING
    monkeypatch.setattr("nodes.rpc.MAX_CONNECTIONS", 0)
    assert code("echo", text="x") in PASSING


def test_a_half_sent_request_is_dropped(path: Path) -> None:
    assert raw(path, b'{"method": "ec') == b""


def test_a_request_that_stops_in_the_middle_is_dropped_in_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodes.rpc.REQUEST_WITHIN_S", 0.3)
    with socket.socket(socket.AF_UNIX) as conn:
        conn.settimeout(60)
        conn.connect(str(path))
        conn.sendall(b'{"jsonrpc": "2.0", "id": 1, "method": "echo", ')
        assert conn.recv(10) == b"", "the server hung up"
    assert AgentClient(path).call("echo", text="x") == "x"


def test_an_answer_that_is_not_taken_is_given_up_in_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodes.rpc.REQUEST_WITHIN_S", 0.3)
    request = {"jsonrpc": "2.0", "id": 1, "method": "echo", "params": {"text": "x" * 100_000, "times": 100}}
    with socket.socket(socket.AF_UNIX) as conn:
        conn.settimeout(60)
        conn.connect(str(path))
        conn.sendall(json.dumps(request).encode() + b"\n")
        poll = select.poll()
        poll.register(conn, 0)  # hang-ups alone: nothing of the 10 MB is read
        assert poll.poll(60_000), "the server hung up"
        taken = 0
        try:
            while chunk := conn.recv(65536):
                taken += len(chunk)
        except ConnectionResetError:
            pass
        assert taken < 10_000_000
    assert AgentClient(path).call("echo", text="x") == "x"


def test_the_socket_is_its_owners_alone(path: Path) -> None:
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


@pytest.mark.skipif(os.getuid() != 0, reason="another account is needed to ask as")
def test_another_account_is_refused(path: Path) -> None:
    os.chmod(path, 0o666)
    for parent in list(path.parents)[:-1]:
        if parent.owner() == "root" and parent != Path("/tmp"):
            os.chmod(parent, 0o755)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            line = json.dumps({"method": "echo", "params": {"text": "x"}}).encode() + b"\n"
            os.write(write_end, raw(path, line) or b"closed")
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as answers:
        answer = answers.read()
    os.waitpid(child, 0)
    assert b"does not serve uid" in answer


def test_a_verb_learns_that_its_caller_hung_up(path: Path) -> None:
    GONE.clear()
    with pytest.raises(AgentUnreachable):
        AgentClient(path).call("slow", _timeout_s=0.3)
    assert GONE.wait(20)


def test_an_answer_in_drops_has_no_more_time_than_one_in_one_piece(tmp_path: Path) -> None:
    def dripping(listener: socket.socket) -> None:
        conn, _ = listener.accept()
        with conn, contextlib.suppress(OSError):
            for _ in range(300):  # a minute of drops, each well before a receive of its own would be given up
                conn.sendall(b" ")
                time.sleep(0.2)

    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        drip = threading.Thread(target=dripping, args=(listener,), daemon=True)
        drip.start()
        with pytest.raises(AgentUnreachable, match="no answer to hello within 1 s"):
            AgentClient(path).call("hello", _timeout_s=1.0)
        assert drip.is_alive(), "given up while it still dripped"
        drip.join(30)
    assert not drip.is_alive()


def test_nobody_there_is_said_with_the_path(tmp_path: Path) -> None:
    with pytest.raises(AgentUnreachable) as unreachable:
        AgentClient(tmp_path / "none.sock").call("hello")
    assert "not running" in unreachable.value.why


def test_a_long_home_falls_back_to_a_short_socket_path(tmp_path: Path) -> None:
    long = tmp_path / ("d" * 120)
    assert len(str(socket_path(long, "local"))) < 104
    assert socket_path(long, "local") != socket_path(long, "other")
    assert socket_path(Path("/srv/h"), "local") == Path("/srv/h/nodes/local/agent.sock")
