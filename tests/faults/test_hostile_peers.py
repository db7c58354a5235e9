"""Peers of a real agent's socket that send rubbish, too much, half of it, or ask for nothing and stay; and another account's."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from nodes.client import AgentUnreachable, node_dir, socket_path
from nodes.jobs.registry import Registry
from nodes.journal import Journal
from nodes.mirror import Mirror
from policies.refusal import Refused
from tests.faults.beside import Beside
from tests.node.agent_rig import ROOT, wait_for

RUBBISH = [
    b"\0" * 4096 + b"\n",
    b"{" * 60_000 + b"\n",
    b'{"jsonrpc": "2.0", "id": 1, "method": "section_set", "params": {"text": 7, "by": []}}\n',
    b'{"method": "job_show", "params": {"job": 1e400}}\n',
    b'{"method": "job_show", "params": {"job": ' + b"9" * 5000 + b"}}\n",
    b'{"method": "job_show", "params": {"job": NaN}}\n',
    b'{"method": "timeline", "params": {"after_seq": -1, "limit": 100000000000}}\n',
    b'{"method": "timeline", "params": {"code": "' + b"*" * 50_000 + b'"}}\n',
    b'{"method": "job_submit", "params": {"module": "../..", "stage": "\\u0000", "payload": {}}}\n',
    b'{"method": "section_preview", "params": {"text": "\\ud800"}}\n',
    b'{"method": "hello", "method": "hello", "params": {}, "params": []}\n',
    b"\xef\xbb\xbf" + b'{"method": "hello"}\r\n',
]
AS_NOBODY = """
import json, os, sys
from pathlib import Path
from nodes.client import AgentClient
from policies.refusal import Refused
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    print(AgentClient(Path(sys.argv[1])).call("status"))
except Exception as error:
    print(type(error).__name__, error)
"""


def sent(path: Path, data: bytes) -> bytes:
    """What the agent answers, at most 64 KiB of it; nothing where it hung up."""
    with socket.socket(socket.AF_UNIX) as conn:
        conn.settimeout(60)
        conn.connect(str(path))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            conn.sendall(data)
            conn.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            return conn.recv(1 << 16)
    return b""


def test_nothing_that_a_peer_sends_keeps_the_agent_from_holding_work_or_answering_others(node: Beside) -> None:
    (job,) = node.begin(["freeze_ok"], {"do": "work"})
    path = socket_path(node.home, "local")
    for line in RUBBISH:
        answer = sent(path, line)
        assert answer == b"" or answer.startswith(b'{"jsonrpc": "2.0"'), answer[:200]
        assert b"Traceback" not in answer
    sent(path, b'{"method": "hello", "params": {"x": "' + b"y" * (8 << 20))
    with contextlib.ExitStack() as stack:
        for number in range(200):
            conn = stack.enter_context(socket.socket(socket.AF_UNIX))
            conn.setblocking(False)
            with contextlib.suppress(BlockingIOError, ConnectionError):
                conn.connect(str(path))
                conn.send(b'{"jsonrpc": "2.0", "id": %d, "meth' % number)
        # all of them stay, with half a request each: the work is held by its source all the same
        node.say("busy")
        node.is_held()
        node.say("idle")
        node.goes_on()
    wait_for("others are served", lambda: _state(node, job) == "running", 60)
    assert node.agent is not None
    assert node.agent.poll() is None
    assert len(os.listdir(f"/proc/{node.agent.pid}/fd")) < 100, "no connection is kept"


def _state(node: Beside, job: int) -> str | None:
    """None while the socket serves as many as it may."""
    try:
        return str(node.job(job)["state"])
    except (AgentUnreachable, Refused):
        return None


@pytest.mark.skipif(os.geteuid() != 0, reason="another account is needed to ask as")
def test_a_peer_of_another_account_gets_nothing_even_where_it_may_connect(node: Beside) -> None:
    node.start_agent()
    path = socket_path(node.home, "local")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def asks() -> str:
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, str(path)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout + done.stderr

    assert asks().startswith("AgentUnreachable"), "its folders are closed"
    opened = [part for part in path.parents if part.owner() == "root" and part not in (Path("/"), Path("/tmp"))]
    before = {part: stat.S_IMODE(part.stat().st_mode) for part in opened}
    try:
        for part in opened:
            part.chmod(0o755)
        path.chmod(0o666)
        told = asks()
    finally:
        for part, mode in before.items():
            part.chmod(mode)
    assert "does not serve uid 65534" in told
    assert "node" not in told.partition("uid")[2]


def test_two_thousand_entries_at_once_reach_the_store_and_hold_nothing_up(node: Beside) -> None:
    """Two thousand jobs wait, and with one line of the source all of them wait for something else."""
    node.begin(["freeze_ok"], {"do": "work"}, jobs=4)
    assert node.agent is not None
    node.agent.kill()
    node.agent.wait()
    # by the agent's own hand while it is away, since two thousand requests take a while on a busy machine
    journal = Journal(node_dir(node.home, "local") / "journal.sqlite")
    registry = Registry(journal.db)
    with journal.together():
        for _ in range(2000):
            job = registry.add_job("org.example.stranger", "stranger", "act", {"do": "exit", "code": 0}, None, 1, None)
            journal.write("JOB_QUEUED", {"job": job.job})
    journal.close()
    node.start_agent()
    node.goes_on()
    # one line may come in the very moment of a tick, which then sees it first; not every one of six
    for _ in range(6):
        node.say("busy")
        node.is_held()
        node.say("idle")
        node.goes_on()
    seen = [entry["data"]["how"] for entry in node.timeline("PROTECTION_PHASE_ON")[-6:]]
    assert "event" in seen, "between two ticks, as with an empty queue"
    waiting = node.timeline("JOB_WAITING")
    assert max(entry["data"].get("jobs", 1) for entry in waiting) >= 2000, "told as one"
    sent_on: list[int] = []
    mirror = Mirror(
        node.client,
        f"sqlite:///{node.home / 'store.sqlite'}",
        "local",
        send=lambda _node, entries: sent_on.extend(entry["seq"] for entry in entries),
    )
    while mirror.step():
        pass
    mirror.close()
    assert len(sent_on) > 2000
    assert sent_on == list(range(1, len(sent_on) + 1)), "each once, in order"
    assert node.agent is not None
    assert node.agent.poll() is None
