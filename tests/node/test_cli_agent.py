"""The command line with a real agent and a real protected program: from a section to a plan, before anything starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.demo import section_text
from nodes.client import AgentClient, AgentUnreachable, socket_path
from tests.node.agent_rig import typed

ROOT = Path(__file__).parents[2]
LONG_S = 240.0


class Node:
    """A real agent in a home of its own, a trainer, and the command line as an owner runs it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.events = home / "trainer" / "events.jsonl"
        self.env = {key: value for key, value in os.environ.items() if not key.startswith("COTENANT_")}
        self.env |= {"COTENANT_HOME": str(home)}

    def cotenant(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return typed(self.env, *arguments, limit_s=LONG_S, stdin=stdin)

    def section(self, text: str | None = None) -> str:
        path = self.home / "section.toml"
        path.write_text(section_text(self.events) if text is None else text)
        return str(path)

    def await_rate(self) -> None:
        client, until = AgentClient(socket_path(self.home, "local")), time.monotonic() + LONG_S
        while not any(source["role"] == "progress" and source["rate"] for source in client.call("sources")):
            assert time.monotonic() < until, "the agent reads no rate"
            time.sleep(0.2)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    made = Node(tmp_path_factory.mktemp("h"))
    agent = [sys.executable, "-m", "nodes.agent", "--home", str(made.home), "--node", "local"]
    trainer = [sys.executable, str(ROOT / "examples" / "trainer.py"), "--events", str(made.events)]
    with open(made.home / "agent.log", "wb") as log:
        started = [subprocess.Popen(agent, cwd=ROOT, env=made.env, stdout=log, stderr=log), subprocess.Popen(trainer)]
    try:
        client, until = AgentClient(socket_path(made.home, "local")), time.monotonic() + LONG_S
        while True:
            try:
                client.call("hello", _timeout_s=5.0)
                break
            except AgentUnreachable:
                assert started[0].poll() is None, (made.home / "agent.log").read_text()
                assert time.monotonic() < until
                time.sleep(0.2)
        yield made
    finally:
        for process in started:
            process.send_signal(signal.SIGTERM)
        for process in started:
            try:
                process.wait(60.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def test_a_section_is_previewed_set_and_shown_again(node: Node) -> None:
    file = node.section()
    seen = node.cotenant("protection", "preview", "local", file)
    assert seen.returncode == 0, seen.stderr
    assert "rule trainer: added" in seen.stdout
    assert str(node.events) in seen.stdout, "the trainer that runs now matches"
    assert json.loads(node.cotenant("node", "show", "local", "--json").stdout)["data"]["section_version"] == 0

    unasked = node.cotenant("protection", "set", "local", file)
    assert unasked.returncode == 4, "nobody agreed"
    assert node.cotenant("protection", "show", "local").stdout == ""

    done = node.cotenant("protection", "set", "local", file, "--yes")
    assert done.returncode == 0, done.stderr
    assert node.cotenant("protection", "show", "local").stdout.rstrip() == Path(file).read_text().rstrip()
    node.await_rate()
    sources = node.cotenant("protection", "sources", "local")
    assert "/s" in sources.stdout
    timeline = node.cotenant("timeline", "local", "--code", "PROTECTION_CONFIG", "--json")
    assert json.loads(timeline.stdout)["data"]["entries"]


BAD_SECTIONS = {
    "no toml": ("[node\n", "line 1"),
    "an unknown key": ("[node]\nmood = 'x'\n", "mood"),
    "a rule without an action": ("[[rule]]\nid = 'a'\nmatch = { name = 'x' }\n", "rule a"),
    "a word where a number belongs": ("[node.memory]\nsoft_free_pct = 'much'\n", "soft_free_pct"),
}


@pytest.mark.parametrize("name", BAD_SECTIONS)
def test_a_bad_section_is_refused_with_its_place_and_changes_nothing(name: str, node: Node) -> None:
    text, words = BAD_SECTIONS[name]
    before = node.cotenant("protection", "show", "local").stdout
    for command in (("preview",), ("set", "--yes")):
        said = node.cotenant("protection", command[0], "local", node.section(text), *command[1:])
        assert said.returncode == 2, said.stdout
        assert words in said.stderr
        assert "Traceback" not in said.stderr
    assert node.cotenant("protection", "show", "local").stdout == before


def test_what_a_run_cannot_be_started_with_is_refused_by_the_agent(node: Node) -> None:
    node.cotenant("protection", "set", "local", node.section(), "--yes")
    node.await_rate()
    start = ("protection", "ab", "start", "local", "--yes", "--window", "8", "--washout", "2", "--max-hours", "0.1")
    for options, words in (
        (("--rule", "trainr"), "no such rule"),
        (("--rule", "trainer", "--work", "llmserve/selftest"), "--feed"),
        (("--rule", "trainer", "--work", "nosuch/stage"), "nosuch/stage"),
        (("--rule", "trainer", "--work", "llmserve/selftest", "--feed", "llmserve/nosuch"), "nosuch"),
    ):
        said = node.cotenant(*start, *options)
        assert said.returncode == 2, (options, said.stdout, said.stderr)
        assert words in said.stderr, (options, said.stderr)


def test_a_good_run_stops_at_the_server_that_is_not_there(node: Node) -> None:
    node.cotenant("protection", "set", "local", node.section(), "--yes")
    node.await_rate()
    work = ("--rule", "trainer", "--work", "llmserve/selftest", "--feed", "llmserve/selftest", "--duty", "0.3")
    # On a machine this busy a window of seconds may be refused for the gaps between steps; a minute never is.
    said = node.cotenant("protection", "ab", "start", "local", *work, "--window", "60", "--washout", "10", "--yes")
    assert said.returncode == 3, said.stderr
    assert "cotenant up" in said.stderr


def test_jobs_and_modules(node: Node) -> None:
    modules = json.loads(node.cotenant("module", "list", "--json").stdout)["data"]
    assert "llmserve" in {module["short"] for module in modules}
    submitted = node.cotenant("job", "submit", "llmserve/selftest", "--json")
    assert submitted.returncode == 0, submitted.stderr
    job = json.loads(submitted.stdout)["data"]["job"]
    assert str(job) in node.cotenant("job", "list").stdout
    assert node.cotenant("job", "show", str(job)).returncode == 0
    assert node.cotenant("job", "cancel", str(job)).returncode == 0
    for arguments in (
        ("job", "show", "999999"),
        ("job", "submit", "llmserve"),
        ("job", "submit", "llmserve/selftest", "-p", "{"),
    ):
        said = node.cotenant(*arguments)
        assert said.returncode == 2, (arguments, said.stderr)
        assert "next:" in said.stderr


def test_one_view_of_everything(node: Node) -> None:
    said = node.cotenant("status")
    assert said.returncode == 3, "the server does not run"
    assert "node local: agent running, worker not running" in said.stdout
    assert "cotenant up" in said.stderr
