"""A system agent and a session helper as two Unix accounts, and what the second socket gives to whom."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodes.client import AgentClient, AgentUnreachable
from nodes.sources.follower import Follower
from nodes.sources.hub import SourceHub
from nodes.sources.probe import Owner
from policies.refusal import Refused
from policies.section import parse_section
from tests.node.agent_rig import ROOT, wait_for

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("useradd"),
    reason="not run: only root can make the accounts that this needs (agent, owner, a stranger)",
)

STEP = json.dumps({"event": "step_done", "secret": "of the owner"}).encode() + b"\n"

# Runs a module of ours as another account: argv is uid, gid, module, its arguments. Everything is imported before the rights
# are given up, since the interpreter itself may lie where only root can read.
AS_ACCOUNT = """
import encodings.idna, hashlib, importlib, os, sys
uid, gid, name = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
main = importlib.import_module(name).main
import nodes.session_helper, nodes.agent.verbs, nodes.patience
os.setgroups([]); os.setgid(gid); os.setuid(uid)
sys.argv[:] = sys.argv[3:]
sys.exit(main())
"""

# Asks the owners' socket as another account: argv is uid, socket, verb, parameters.
ASK = """
import json, os, sys
from pathlib import Path
from nodes.client import AgentClient
from policies.refusal import Refused
os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
try:
    print(json.dumps(["answer", AgentClient(Path(sys.argv[2])).call(sys.argv[3], **json.loads(sys.argv[4]))]))
except Refused as refused:
    print(json.dumps(["refused", refused.code, refused.why]))
"""


class Account:
    def __init__(self, name: str, home: Path) -> None:
        subprocess.run(["useradd", "--no-create-home", "--home-dir", str(home), name], check=True, capture_output=True)
        entry = pwd.getpwnam(name)
        self.name, self.uid, self.gid, self.home = name, entry.pw_uid, entry.pw_gid, home
        home.mkdir(mode=0o700)
        os.chown(home, self.uid, self.gid)

    def start(self, module: str, *argv: str, log: Path) -> subprocess.Popen[bytes]:
        with open(log, "ab") as out:
            return subprocess.Popen(
                [sys.executable, "-c", AS_ACCOUNT, str(self.uid), str(self.gid), module, *argv],
                cwd=ROOT,
                env={"HOME": str(self.home), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def own(self, path: Path) -> None:
        os.chown(path, self.uid, self.gid)

    def remove(self) -> None:
        subprocess.run(["userdel", self.name], check=False, capture_output=True)


class World:
    """Accounts for the agent, the owner and a stranger; everything they start is ended, by pid."""

    def __init__(self, place: Path) -> None:
        place.chmod(0o755)
        tag = f"{os.getpid() % 100000}"
        self.place = place
        self.agent, self.owner, self.other = (
            Account(f"ct{part}{tag}", place / part) for part in ("agent", "owner", "other")
        )
        self.started: list[subprocess.Popen[bytes]] = []
        self.socket = place / "run" / "owners.sock"
        self.socket.parent.mkdir(mode=0o755)
        self.agent.own(self.socket.parent)
        self.events = self.owner.home / "runs" / "events.jsonl"
        self.events.parent.mkdir(mode=0o700)
        self.events.write_bytes(b"")
        for path in (self.events.parent, self.events):
            self.owner.own(path)
        self.client = AgentClient(self.agent.home / "nodes" / "local" / "agent.sock")

    def start_agent(self) -> None:
        argv = ["nodes.agent.__main__", "--home", str(self.agent.home), "--node", "local", "--modules", "/nonexistent"]
        argv += ["--owners", f"{self.owner.uid},{self.other.uid}", "--owner-socket", str(self.socket)]
        self.started.append(self.agent.start(*argv, log=self.place / "agent.log"))
        wait_for("the agent", self._answers)

    def _answers(self) -> bool:
        try:
            return bool(self.client.call("hello"))
        except AgentUnreachable:
            return False

    def start_helper(self) -> subprocess.Popen[bytes]:
        argv = ["nodes.session_helper", "--socket", str(self.socket)]
        helper = self.owner.start(*argv, log=self.place / "helper.log")
        self.started.append(helper)
        return helper

    def ask(self, uid: int, verb: str, **params: Any) -> list[Any]:
        argv = [sys.executable, "-c", ASK, str(uid), str(self.socket), verb, json.dumps(params)]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
        found: list[Any] = json.loads(done.stdout)
        return found

    def append(self, data: bytes) -> None:
        with self.events.open("ab") as file:
            file.write(data)

    def row(self, role: str) -> dict[str, Any]:
        return next(row for row in self.client.call("sources") if row["role"] == role)

    def timeline(self, code: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.client.call("timeline", code=code, limit=5000)["entries"]
        return found

    def close(self) -> None:
        for process in reversed(self.started):
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait(10)
        for account in (self.agent, self.owner, self.other):
            account.remove()


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that every account may enter (``tmp_path`` is root's alone)."""
    place = Path(f"/var/tmp/cotenant-test-{os.getpid()}-{time.monotonic_ns()}")
    place.mkdir(mode=0o755)
    yield place
    shutil.rmtree(place)


@pytest.fixture
def world(open_place: Path) -> Iterator[World]:
    made = World(open_place)
    yield made
    made.close()


SECTION = """
[[rule]]
id = "trainer"
match = { argv_regex = "no-such-program-anywhere" }
immediate = true
protect = { metric = "progress_rate", max_slowdown = 0.05, window_s = 2, source = { jsonl = "~/runs/*.jsonl", event = "step_done" } }
[[rule.during]]
source = { jsonl = "~/runs/*.jsonl", enter = "begin", exit = "end" }
pause_fleet = { scope = "all" }
"""


def test_the_helper_reads_what_the_agent_may_not_and_its_end_makes_it_unknown_again(world: World) -> None:
    world.start_agent()
    answer = world.ask(world.owner.uid, "section_set", text=SECTION, by="somebody else")
    assert answer[0] == "answer", answer
    assert world.client.call("section_show")["set_by"] == world.owner.name, "the kernel's word, not the caller's"

    # nobody is logged in: on and unknown, with the fix as a command
    phase, progress = world.row("phase"), world.row("progress")
    assert (phase["phase"], phase["state"]) == ("on", "unreadable")
    assert (progress["rate"], progress["state"]) == (None, "unreadable")
    for row in (phase, progress):
        assert row["code"] == "PROTECTION_SOURCE_NEEDS_HELPER"
        assert row["pattern"].startswith(str(world.owner.home)), "~ is the home of the account that set the section"
        assert f"cotenant session-helper --socket {world.socket}" in row["remedy"]

    helper = world.start_helper()
    wait_for("off, by the helper", lambda: world.row("phase")["phase"] == "off")
    assert (world.row("phase")["reader"], world.row("phase")["state"]) == ("helper", "ok")
    for _ in range(40):
        world.append(STEP)
        time.sleep(0.02)
    wait_for("steps are counted", lambda: (world.row("progress")["rate"] or 0.0) > 0.0)
    assert world.row("progress")["reader"] == "helper"

    world.append(json.dumps({"event": "begin", "time": time.time()}).encode() + b"\n")
    wait_for("on, by the helper", lambda: world.row("phase")["phase"] == "on")
    on = wait_for(
        "the entry", lambda: [e for e in world.timeline("PROTECTION_PHASE_ON") if e["data"]["how"] == "helper"]
    )
    assert on[0]["data"]["rule"] == "trainer"
    world.append(json.dumps({"event": "end"}).encode() + b"\n")
    wait_for("off again", lambda: world.row("phase")["phase"] == "off")
    assert b"of the owner" not in b"".join(
        path.read_bytes() for path in (world.agent.home / "nodes" / "local").glob("journal.sqlite*")
    )

    helper.send_signal(signal.SIGKILL)
    helper.wait(30)
    wait_for("on and unknown without the helper", lambda: world.row("phase")["state"] == "unreadable")
    assert (world.row("phase")["phase"], world.row("progress")["rate"]) == ("on", None)
    assert world.row("progress")["code"] == "PROTECTION_SOURCE_NEEDS_HELPER"


def test_an_account_reports_only_sources_in_its_own_home(world: World) -> None:
    world.start_agent()
    world.ask(world.owner.uid, "section_set", text=SECTION)
    assert world.ask(world.other.uid, "helper_sources")[1]["sources"] == []
    asked = world.ask(world.owner.uid, "helper_sources")[1]
    assert {(row["rule"], row["role"]) for row in asked["sources"]} == {("trainer", "progress"), ("trainer", "phase")}
    version = asked["section_version"]
    row = {"rule": "trainer", "role": "phase", "index": 0, "readable": True, "state": "off"}
    assert world.ask(world.other.uid, "helper_report", section_version=version, rows=[row])[0] == "answer"
    assert world.row("phase")["phase"] == "on", "a stranger's report says nothing"
    assert world.ask(world.owner.uid, "helper_report", section_version=version, rows=[row])[0] == "answer"
    wait_for("the owner's report counts", lambda: world.row("phase")["phase"] == "off")
    late = world.ask(world.owner.uid, "helper_report", section_version=version + 1, rows=[row])
    assert late[:2] == ["refused", "HELPER_OTHER_SECTION"]
    said = world.ask(world.owner.uid, "helper_report", section_version=version, rows=[row | {"line": "secret"}])
    assert said[:2] == ["refused", "BAD_PARAMETER"], "no field can carry what a line says"


def test_the_second_socket_serves_its_verbs_to_its_accounts_and_nothing_else(world: World) -> None:
    world.start_agent()
    assert world.ask(world.owner.uid, "status")[0] == "answer"
    for verb in ("job_submit", "module_add", "run_begin", "run_block", "certificate_offer", "job_cancel", "admit_flow"):
        answer = world.ask(world.owner.uid, verb)
        assert answer[0] == "refused", verb
        assert f"no verb '{verb}'" in answer[2]
    stranger = world.ask(65534, "hello")
    assert stranger[0] == "refused"
    assert "does not serve uid 65534" in stranger[2]
    with pytest.raises((Refused, AgentUnreachable)):
        AgentClient(world.socket).call("no_such_verb")
    # the agent's own socket and all its files are closed to the owners by the file system already
    argv = [sys.executable, "-c", ASK, str(world.owner.uid), str(world.client.path), "hello", "{}"]
    assert subprocess.run(argv, cwd=ROOT, capture_output=True, timeout=120).returncode != 0
    for path in (world.agent.home / "nodes").rglob("*"):
        assert not stat.S_IMODE(path.lstat().st_mode) & 0o077, path


def test_a_second_socket_that_cannot_be_made_does_not_end_protection(world: World) -> None:
    world.socket.parent.chmod(0o555)
    os.chown(world.socket.parent, 0, 0)
    world.start_agent()
    assert world.client.call("hello")["node"] == "local"
    assert "owners' socket" in (world.place / "agent.log").read_text()


def test_a_half_sent_and_a_huge_request_of_an_owner_do_no_harm(world: World) -> None:
    world.start_agent()
    with socket.socket(socket.AF_UNIX) as half, socket.socket(socket.AF_UNIX) as huge:
        half.connect(str(world.socket))
        half.sendall(b'{"jsonrpc": "2.0", "id": 1, "method": "hello"')
        huge.connect(str(world.socket))
        huge.settimeout(60)
        try:
            huge.sendall(b"x" * (2 << 20))
        except OSError:
            pass  # it hung up in the middle
        assert world.ask(world.owner.uid, "hello")[0] == "answer"


def test_an_agent_of_root_reads_for_an_owner_only_what_the_owner_may_read(open_place: Path) -> None:
    nobody = 65534
    secret, shared = open_place / "secret.jsonl", open_place / "shared.jsonl"
    for path, mode in ((secret, 0o600), (shared, 0o644)):
        path.write_bytes(STEP)
        path.chmod(mode)
    link = open_place / "link.jsonl"
    link.symlink_to(secret)
    closed = open_place / "closed"
    closed.mkdir(mode=0o700)
    (closed / "open.jsonl").write_bytes(STEP)
    (closed / "open.jsonl").chmod(0o644)
    readable = {}
    for path in (secret, shared, link, closed / "open.jsonl"):
        follower = Follower(str(path), owner_home="/nonexistent", owner_uid=nobody)
        found = follower.poll(0.0).unreadable
        follower.close()
        readable[path.name] = found is None
        if found is not None:
            assert "may not read" in found.why
            assert found.remedy
    assert readable == {"secret.jsonl": False, "shared.jsonl": True, "link.jsonl": False, "open.jsonl": False}
    link.unlink()
    link.symlink_to(shared)
    follower = Follower(str(link), owner_home="/nonexistent", owner_uid=nobody)
    assert follower.poll(0.0).unreadable is None, "a link to what the owner may read is followed"
    follower.close()


def test_the_sources_of_an_owners_section_are_read_with_the_owners_rights(open_place: Path) -> None:
    """A section may name any file, and what is counted of it comes back: root must not read for its owner what that may not."""
    secret = open_place / "secret.jsonl"
    secret.write_bytes(STEP)
    secret.chmod(0o600)
    protect = f'protect = {{ metric = "progress_rate", max_slowdown = 0.1, source = {{ jsonl = "{secret}", event = "step_done" }} }}'
    section = parse_section(f'[[rule]]\nid = "trainer"\nmatch = {{ name = "trainer" }}\n{protect}\n')
    seen = {}
    for uid in (65534, 0):
        hub = SourceHub()
        hub.configure(section, Owner(uid, "/nonexistent"))
        seen[uid] = hub.progress("trainer")
        hub.close()
    assert not seen[65534].readable
    assert "may not read" in seen[65534].why
    assert seen[0].readable, seen[0].why
