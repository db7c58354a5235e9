"""Builds give way to all other work, say what went wrong, and end with whoever began them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from nodes.builds import Builds, Built
from nodes.jobs.lowering import AUTOGROUP
from nodes.uv_environment import EnvironmentFailed, uv_environment
from policies.manifest import Runtime
from tests.node.agent_rig import ROOT, wait_for

# A build with a child in its group and one that left it, which it ends itself when it is told to, as ninja does. Shells alone: with the
# lowest weight on a busy machine an interpreter takes a minute to start.
TREE = """
sh -c 'echo $$ >"$0/child"; exec sleep 300' "$1" &
setsid sh -c 'echo $$ >"$0/apart"; exec sleep 300' "$1" & apart=$!
trap 'kill -KILL $apart; exit 3' TERM
echo $$ >"$1/parent"
wait
"""
ENV = {"PATH": os.environ["PATH"]}

pytestmark = pytest.mark.timeout(600)


def tree(place: Path) -> list[str]:
    return ["sh", "-c", TREE, "tree", str(place)]


def pids(place: Path) -> list[int]:
    files = [place / name for name in ("child", "apart", "parent")]
    return [int(file.read_text()) for file in files if file.exists() and file.read_text().strip()]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def all_of(place: Path) -> list[int]:
    return wait_for("the build runs", lambda: len(pids(place)) == 3 and pids(place), 280)


def test_its_whole_tree_ends_when_its_agent_is_killed(tmp_path: Path) -> None:
    code = "import os, sys; from nodes.builds import Builds; Builds().run(sys.argv[1:], dict(os.environ), 300.0)"
    agent = subprocess.Popen([sys.executable, "-c", code, *tree(tmp_path)], cwd=ROOT)
    found = all_of(tmp_path)
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    wait_for("all of the build is gone", lambda: all(is_gone(pid) for pid in found), 120)


def test_it_is_ended_when_the_agent_stops_and_none_begins_after(tmp_path: Path) -> None:
    builds = Builds()
    got: list[Built] = []
    thread = threading.Thread(target=lambda: got.append(builds.run(tree(tmp_path), ENV, 300.0)))
    thread.start()
    found = all_of(tmp_path)
    builds.end()
    thread.join(120)
    assert got
    assert got[0].ended
    wait_for("all of the build is gone", lambda: all(is_gone(pid) for pid in found), 120)
    assert builds.run(["touch", str(tmp_path / "later")], ENV, 60.0).ended
    assert not (tmp_path / "later").exists()


def test_one_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    done = Builds().run(["sh", "-c", 'echo $$ >"$0/parent"; echo begun; exec sleep 300', str(tmp_path)], ENV, 5.0)
    assert (done.late, done.ended) == (True, False)
    assert done.code != 0
    for pid in pids(tmp_path):
        wait_for("it is gone", lambda pid=pid: is_gone(pid), 60)


def test_its_status_and_its_words_come_back_and_nothing_else_of_it_stays(tmp_path: Path) -> None:
    script = 'sleep 300 & echo $! >"$0/child"; echo said; echo wrong >&2; exit 7'
    done = Builds().run(["sh", "-c", script, str(tmp_path)], ENV, 120.0)
    assert (done.code, done.words.split(), done.late, done.ended) == (7, ["said", "wrong"], False, False)
    (left,) = pids(tmp_path)
    wait_for("what it left is gone", lambda: is_gone(left), 60)


def test_case_048_a_build_has_the_lowest_weight_of_a_session_of_its_own() -> None:
    done = Builds().run(["cat", "/proc/self/stat", "/proc/self/autogroup"], ENV, 300.0)
    stat, *autogroup = done.words.splitlines()
    fields = stat.rpartition(")")[2].split()
    session, policy = int(fields[3]), int(fields[38])
    assert session != os.getsid(0)
    assert policy == os.SCHED_IDLE
    if AUTOGROUP.exists():
        assert autogroup[0].endswith(" nice 19")


@pytest.mark.parametrize(
    ("ending", "says"),
    [
        (Built(1, "no  solution\nfound"), "uv venv gave 1: no solution found"),
        (Built(-15, "", ended=True), "was ended with the agent"),
        (Built(-15, "", late=True), "was not done within 4 hours"),
    ],
)
def test_what_ended_a_build_is_told(tmp_path: Path, ending: Built, says: str) -> None:
    (tmp_path / "uv.lock").touch()
    (tmp_path / "pyproject.toml").touch()

    class Told(Builds):
        def run(self, *_: Any) -> Built:
            return ending

    with pytest.raises(EnvironmentFailed, match=says):
        uv_environment(tmp_path, "0", Runtime(kind="uv", lock="uv.lock"), tmp_path / "home", Told())
