"""Locks and state files: whose they are, and what a crash or a full disk does to them."""

from __future__ import annotations

import io
import os
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import rich.console

from cotenant.cli.node import state_parts
from nodes.agent.core import Agent
from nodes.agent.governing import FACT
from nodes.agent.process import take_lock
from nodes.agent.verbs import Verbs
from nodes.identity import boot_id
from nodes.journal import SET_ASIDE_FACT, Journal
from policies.admission import admission
from policies.governor import INITIAL
from policies.kept import governor_kept
from policies.views import Unit
from tests.node.agent_rig import wait_for
from tests.node.jobs_rig import state_of
from tests.node.test_event_path import Node

SECTION = '[[rule]]\nid = "x"\nmatch = { name = "no-such-program" }\npause_fleet = true\n'


def test_case_121_a_live_strangers_pid_in_the_lock_file_is_no_owner(tmp_path: Path) -> None:
    lock = tmp_path / "nodes" / "local" / "agent.lock"
    lock.parent.mkdir(parents=True)
    lock.write_text(f"{os.getppid()}\n")
    taken = take_lock(tmp_path, "local")
    assert taken is not None
    # and whoever has it keeps it, whatever the file says
    lock.write_text("999999999\n")
    code = "import sys; from pathlib import Path; from nodes.agent.process import take_lock; print(take_lock(Path(sys.argv[1]), 'local'))"
    second = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert second.stdout.strip() == "None"
    os.close(taken)


def test_case_123_no_child_keeps_the_lock_of_an_agent_that_died(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\nfrom pathlib import Path\nfrom nodes.agent.process import take_lock\n"
        "assert take_lock(Path(sys.argv[1]), 'local') is not None\n"
        "print(subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL).pid, flush=True)\nsys.stdin.read()\n"
    )
    agent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    assert agent.stdout is not None
    child = int(agent.stdout.readline())
    try:
        assert take_lock(tmp_path, "local") is None, "it lives and has the lock"
        agent.kill()
        agent.wait(30)
        os.kill(child, 0)  # what it started goes on
        taken = take_lock(tmp_path, "local")
        assert taken is not None
        os.close(taken)
    finally:
        os.kill(child, signal.SIGKILL)


def test_text_that_is_damaged_in_a_journal_sets_it_aside(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    journal = Journal(path)
    journal.db.execute("INSERT INTO facts (name, value) VALUES ('x', CAST(x'80ff' AS TEXT))")
    journal.close()
    journal = Journal(path)
    assert journal.set_aside is not None
    assert journal.set_aside.exists()
    assert journal.write("AGENT_STARTED") is not None
    journal.close()


@pytest.mark.parametrize("huge", [10**400, "many"])
def test_what_the_last_agent_left_of_the_governor_and_cannot_be_is_not_gone_on_with(
    tmp_path: Path, huge: object
) -> None:
    agent = Agent(tmp_path / "home", "local", tmp_path / "none")
    kept = {"boot_id": boot_id(), "pace": 1.0, "governor": {**governor_kept(INITIAL), "budget": huge}, "compliance": {}}
    agent.journal.set_fact(FACT, kept)
    agent.journal.close()
    agent.hub.close()
    agent = Agent(tmp_path / "home", "local", tmp_path / "none")
    assert agent.governing.state == INITIAL
    agent.journal.close()
    agent.hub.close()


@pytest.mark.parametrize("content", [b"\0" * 1891, b"\0" * 65536, b"{}" * 3000, b""])
def test_case_125_a_state_file_that_is_none_is_set_aside_and_nothing_runs_until_a_section_is_set(
    tmp_path: Path, content: bytes
) -> None:
    home = tmp_path / "home"
    agent = Agent(home, "local", tmp_path / "none")
    agent.start()
    agent.set_section(SECTION, "test")
    agent.journal.close()
    agent.hub.close()
    path = home / "nodes" / "local" / "journal.sqlite"
    for name in (path.name + "-wal", path.name + "-shm"):
        path.with_name(name).unlink(missing_ok=True)
    path.write_bytes(content)

    for start in range(2):  # the second start finds a good file, and still no section
        agent = Agent(home, "local", tmp_path / "none")
        agent.start()
        agent.tick()
        assert agent.section.node.pause, f"start {start}: the strictest mode"
        assert [each.code for each in agent.view.unknown] == ["JOURNAL_SET_ASIDE"] * 2
        (entry,) = agent.journal.entries(code="JOURNAL_SET_ASIDE")
        kept = Path(entry["data"]["kept_as"])
        assert kept.read_bytes() == content
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        if start == 0:
            agent.journal.close()
            agent.hub.close()
    say_anew_what_is_protected(agent)
    agent.journal.close()
    agent = Agent(home, "local", tmp_path / "none")
    assert not agent.section.node.pause, "the section that was set is in force"
    agent.journal.close()


def say_anew_what_is_protected(agent: Agent) -> None:
    """The node's section alone lets nothing go on: whether the fleet had one, which may be stricter, is as lost."""
    agent.set_section(SECTION, "test")
    assert agent.section.node.pause
    assert agent.sections.lost == ["fleet"]
    (held,) = agent.view.unknown
    assert (held.code, "the fleet's section was lost" in held.why) == ("JOURNAL_SET_ASIDE", True)
    agent.set_section("", "test", scope="fleet")
    assert agent.sections.lost == []
    assert not agent.section.node.pause
    assert [rule.id for rule in agent.section.rules] == ["x"]


def upgraded(tmp_path: Path, *, node_section: bool) -> Agent:
    """The agent on a home whose journal a version set aside that knew of the node's section alone."""
    agent = Agent(tmp_path / "home", "local", tmp_path / "none")
    agent.journal.set_fact(SET_ASIDE_FACT, "/home/journal.sqlite.damaged-2025-01-01")
    if node_section:
        agent.set_section(SECTION, "test")
    agent.journal.close()
    agent.hub.close()
    agent = Agent(tmp_path / "home", "local", tmp_path / "none")
    agent.start()
    agent.tick()
    return agent


def test_a_loss_that_an_earlier_version_noted_and_the_owner_mended_holds_nothing_after_an_upgrade(
    tmp_path: Path,
) -> None:
    agent = upgraded(tmp_path, node_section=True)
    assert not agent.section.node.pause
    assert agent.view.unknown == ()
    assert agent.certificates.forgotten is None, "nor is anything measured twice that one pass was enough for"
    assert [rule.id for rule in agent.section.rules] == ["x"]
    agent.journal.close()
    agent.hub.close()


def test_a_loss_that_an_earlier_version_noted_holds_until_the_nodes_section_is_set(tmp_path: Path) -> None:
    agent = upgraded(tmp_path, node_section=False)
    assert [each.why.split()[1] for each in agent.view.unknown] == ["node's"]
    agent.set_section(SECTION, "test")
    assert not agent.section.node.pause
    assert agent.view.unknown == ()
    agent.journal.close()
    agent.hub.close()


def test_work_held_for_a_lost_section_is_told_so_with_what_ends_it(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "nodes" / "local"
    folder.mkdir(parents=True)
    (folder / "key").write_bytes(b"k" * 32)
    agent = Agent(tmp_path / "home", "local", tmp_path / "none")
    agent.start()
    agent.tick()
    _says_what_was_lost(agent, "node", "cotenant protection set local FILE")
    fleet = "cotenant protection set local FILE --fleet (an empty FILE where the fleet has none)"
    _says_what_was_lost(agent, "fleet", fleet)

    agent.set_section("[node]\npause = true\n", "test")
    assert [each.code for each in admission(WORK, agent.view)] == ["JOURNAL_SET_ASIDE", "PROTECTION_PAUSE"]
    assert Verbs(agent).status()["pause"] is True, "one who paused it is named beside what was lost"
    agent.set_section("", "test")
    _says_what_was_lost(agent, "fleet", fleet)
    agent.set_section("", "test", scope="fleet")
    assert admission(WORK, agent.view) == ()
    assert Verbs(agent).explain()["unknown_sections"] == []
    agent.journal.close()
    agent.hub.close()


WORK = Unit("", 1, "dev.example.sim", "run", device=False)


def _says_what_was_lost(agent: Agent, scope: str, remedy: str) -> None:
    """In ``status``, in ``explain``, and of work that waits."""
    lost = f"the {scope}'s section was lost"
    verbs = Verbs(agent)
    for said in (verbs.status(), verbs.explain()):
        assert said["pause"] is False, "no owner paused anything"
        (row,) = [each for each in said["unknown_sections"] if lost in each["why"]]
        assert (row["code"], row["remedy"]) == ("JOURNAL_SET_ASIDE", remedy)
    shown = io.StringIO()
    rich.console.Console(file=shown, width=400).print(*state_parts(verbs.status()), sep="\n")
    assert f"JOURNAL_SET_ASIDE: {lost}" in shown.getvalue()
    waits = admission(WORK, agent.view)
    assert {each.code for each in waits} == {"JOURNAL_SET_ASIDE"}
    assert any(lost in each.why for each in waits)


@pytest.mark.parametrize("left", ["key", "jobs", "block.reserve", "journal.sqlite-wal", "journal.sqlite.damaged-then"])
def test_case_125_a_state_file_that_is_gone_from_a_home_in_use_is_no_first_start(tmp_path: Path, left: str) -> None:
    home = tmp_path / "home"
    folder = home / "nodes" / "local"
    if left == "key":
        agent = Agent(home, "local", tmp_path / "none")
        agent.start()
        agent.set_section(SECTION, "test")
        agent.journal.close()
        agent.hub.close()
        (folder / "journal.sqlite").unlink()
    else:
        folder.mkdir(parents=True)
        (folder / left).mkdir() if left == "jobs" else (folder / left).write_bytes(b"of before")

    for start in range(2):
        agent = Agent(home, "local", tmp_path / "none")
        agent.start()
        agent.tick()
        assert agent.section.node.pause, f"start {start}: nothing is known of what was protected"
        (entry,) = agent.journal.entries(code="JOURNAL_SET_ASIDE")
        lost = agent.certificates.forgotten
        assert lost is not None, "of runs that failed neither"
        assert lost.why.startswith("the node's journal was lost")
        if start == 0:
            agent.journal.close()
            agent.hub.close()
    if left == "journal.sqlite-wal":
        kept = Path(entry["data"]["kept_as"])
        assert kept.with_name(kept.name + "-wal").read_bytes() == b"of before", "entries that may be saved by hand"
    else:
        assert entry["data"]["kept_as"] is None
    say_anew_what_is_protected(agent)
    agent.journal.close()
    agent.hub.close()


def test_a_start_that_is_killed_while_it_begins_a_new_journal_forgets_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.sqlite"
    (tmp_path / "key").write_bytes(b"k" * 32)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as at_once:
        at_once.setattr(Journal, "set_fact", killed)
        with pytest.raises(KeyboardInterrupt):
            Journal(path)
    journal = Journal(path)
    assert journal.was_lost
    journal.close()


def test_a_first_start_that_is_killed_is_no_loss(tmp_path: Path) -> None:
    Journal(tmp_path / "journal.sqlite").close()
    (tmp_path / "key").write_bytes(b"k" * 32)  # the last thing that it did
    journal = Journal(tmp_path / "journal.sqlite")
    assert not journal.was_lost
    journal.close()


@pytest.mark.parametrize(
    ("killed_at", "left"),
    [
        ("sqlite3.connect", {"journal.sqlite"}),
        ("Journal.set_fact", {"journal.sqlite", "journal.sqlite-wal", "journal.sqlite-shm"}),
    ],
)
def test_a_first_start_that_is_killed_before_it_kept_anything_is_no_loss(
    tmp_path: Path, killed_at: str, left: set[str]
) -> None:
    code = (
        "import os, sqlite3, sys\nfrom pathlib import Path\nfrom nodes.journal import Journal\n"
        f"{killed_at} = lambda *_, **__: os.kill(os.getpid(), 9)\nJournal(Path(sys.argv[1]))\n"
    )
    path = tmp_path / "journal.sqlite"
    killed = subprocess.run([sys.executable, "-c", code, str(path)], timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert {file.name for file in tmp_path.iterdir()} == left
    for start in range(2):
        journal = Journal(path)
        assert not journal.was_lost, f"start {start}"
        assert not journal.section_lost("node")
        assert not journal.section_lost("fleet")
        journal.close()


def test_entries_beside_an_emptied_state_file_are_kept_and_it_counts_as_lost(tmp_path: Path) -> None:
    """SQLite deletes the -wal of an empty database: what could be saved from it by hand would be gone."""
    path = tmp_path / "journal.sqlite"
    path.touch()
    path.with_name("journal.sqlite-wal").write_bytes(b"of before")
    journal = Journal(path)
    assert journal.was_lost
    assert journal.set_aside is not None
    assert journal.set_aside.with_name(journal.set_aside.name + "-wal").read_bytes() == b"of before"
    journal.close()


def test_case_125_a_first_start_is_no_loss(tmp_path: Path) -> None:
    agent = Agent(tmp_path / "home", "local", tmp_path / "none")
    agent.start()
    assert not agent.section.node.pause
    assert agent.journal.set_aside is None
    agent.journal.close()


def test_case_125_a_key_of_nuls_signs_nothing(tmp_path: Path) -> None:
    from nodes.agent.certificates import KeptCertificates

    key = tmp_path / "key"
    journal = Journal(tmp_path / "journal.sqlite")
    key.write_bytes(b"\0" * len(KeptCertificates(journal, key).key))
    assert any(KeptCertificates(journal, key).key)
    assert (tmp_path / "key.broken").exists()
    journal.close()


def test_a_locked_database_is_not_taken_for_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    Journal(path).close()
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("PRAGMA locking_mode=EXCLUSIVE")
    blocker.execute("BEGIN EXCLUSIVE")
    with pytest.raises(sqlite3.OperationalError):
        Journal(path)
    blocker.close()
    assert [entry.name for entry in tmp_path.glob("*.damaged-*")] == []


def test_a_full_disk_counts_the_loss_and_says_it_when_there_is_space_again(tmp_path: Path) -> None:
    code = (
        "import resource, sys\nfrom pathlib import Path\nfrom nodes.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        "hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))\n"
        "written = 0\n"
        "while journal.lost < 25:\n"
        "    written += journal.write('PROTECTION_PAUSE', {'x': 'y' * 500}) is not None\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))\n"
        "assert journal.write('PROTECTION_RESUME') is not None\n"
        "print(written, journal.lost)\n"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY or pytest.skip("files are limited")
    path = tmp_path / "journal.sqlite"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    written, lost = map(int, done.stdout.split())
    journal = Journal(path)
    assert journal.set_aside is None
    entries = journal.entries(limit=5000)
    assert [e["seq"] for e in entries] == list(range(1, written + 3))
    assert [e["code"] for e in entries[-2:]] == ["JOURNAL_LOST", "PROTECTION_RESUME"]
    assert entries[-2]["data"] == {"lost": lost}
    journal.close()


def test_protection_goes_on_when_the_journal_is_full(tmp_path: Path) -> None:
    node = Node(tmp_path, ["freeze_ok"], jobs=1)
    db = node.agent.journal.db
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    db.execute(f"PRAGMA max_page_count={pages}")
    while node.agent.journal.write("AGENT_STARTED", {"x": "y" * 3000}) is not None:
        pass  # the last page fills up
    before = node.agent.journal.lost
    node.append("begin")
    (attempt,) = node.attempts

    def stopped() -> bool:
        node.agent.on_source_event()
        return attempt.state == "held" and state_of(attempt.runner_pid or 0) == "T"

    wait_for("the runner is stopped", stopped)
    assert node.agent.journal.lost > before, "and what could not be written was counted"
    node.agent.tick()
    db.execute("PRAGMA max_page_count=1000000")
    node.append("end")
    wait_for("it goes on", lambda: node.agent.on_source_event() or attempt.state == "running")
    (lost,) = node.agent.journal.entries(code="JOURNAL_LOST")
    assert lost["data"]["lost"] >= before + 1
    node.close()
