"""Builds give way to all other work, say what went wrong, and end with whoever began them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nodes.builds import Builds, Built
from nodes.clock import monotonic_s
from nodes.doctor import run_doctor
from nodes.jobs.lowering import AUTOGROUP
from nodes.uv_environment import EnvironmentEnded, EnvironmentFailed, uv_environment
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


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


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


# -- while something holds fleet work -----------------------------------------------------------------------------------

# Counts, in a child of the shell.
COUNTS = """
(while :; do echo . >>"$0/counted"; sleep 0.05; done) & wait
"""


def counted(place: Path) -> int:
    file = place / "counted"
    return file.stat().st_size if file.exists() else 0


def stands_still(place: Path) -> bool:
    before = counted(place)
    time.sleep(1.0)
    return counted(place) == before


@pytest.fixture(params=["sh", "bash"])
def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``/bin/sh`` is, or may be: under the name ``sh`` bash behaves as that."""
    if request.param == "sh":
        return Path("/bin/sh")
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    named = tmp_path_factory.mktemp("shell") / "sh"
    named.symlink_to(bash)
    return named


def test_while_something_holds_it_its_tree_is_stopped_and_no_limit_runs(
    tmp_path: Path, shell: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodes.builds.SHELL", str(shell))
    builds = Builds()
    got: list[Built] = []
    command = ["sh", "-c", COUNTS, str(tmp_path)]
    thread = threading.Thread(target=lambda: got.append(builds.run(command, ENV, 20.0)))
    thread.start()
    wait_for("it counts", lambda: counted(tmp_path) > 0, 60)
    builds.hold("a rule pauses fleet work")
    wait_for("it stands still", lambda: stands_still(tmp_path), 60)
    time.sleep(22.0)
    assert not got, "the time that it was held is not its own"
    before = counted(tmp_path)
    builds.hold(None)
    wait_for("it goes on", lambda: counted(tmp_path) > before, 60)
    builds.hold("again")
    wait_for("it stands still", lambda: stands_still(tmp_path), 60)
    builds.end()
    thread.join(120)
    assert got[0].ended


def test_it_is_held_while_nobody_judges_any_more(tmp_path: Path) -> None:
    builds = Builds()
    builds.hold(None)
    assert builds.held(gpu=True) is None
    builds.judged(monotonic_s() - 11.0)
    assert "nothing was judged for 11 s" in str(builds.held(gpu=False))
    builds.judged(monotonic_s())
    assert builds.held(gpu=True) is None
    judges = threading.Event()

    def go_on_judging() -> None:
        while not judges.wait(0.5):
            builds.judged(monotonic_s())

    judging = threading.Thread(target=go_on_judging)
    judging.start()
    got: list[Built] = []
    thread = threading.Thread(target=lambda: got.append(builds.run(["sh", "-c", COUNTS, str(tmp_path)], ENV, 300.0)))
    thread.start()
    wait_for("it counts", lambda: counted(tmp_path) > 0, 120)
    judges.set()
    judging.join()
    wait_for("it stands still", lambda: stands_still(tmp_path), 60)
    builds.end()
    thread.join(120)
    assert got[0].ended


def test_one_that_is_stopped_is_ended_while_memory_is_short_for_it_keeps_its_own(tmp_path: Path) -> None:
    builds = Builds()
    got: list[Built] = []
    thread = threading.Thread(target=lambda: got.append(builds.run(tree(tmp_path), ENV, 300.0)))
    thread.start()
    found = all_of(tmp_path)
    builds.hold("a rule pauses fleet work")
    wait_for("all of it is stopped", lambda: all(state_of(pid) == "T" for pid in found), 60)
    builds.hold("memory is short", short_of_memory="5.0 % of memory is free")
    thread.join(120)
    assert (got[0].ended, got[0].late) == (True, False)
    assert got[0].how_ended == "out of memory: 5.0 % of memory is free"
    wait_for("all of the build is gone", lambda: all(is_gone(pid) for pid in found), 120)
    assert builds.run(["true"], ENV, 120.0, insists=True).code == 0, "a person insists"
    builds.hold(None)
    assert builds.run(["true"], ENV, 120.0).code == 0, "it may be tried again"


def pidfds() -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += "pidfd" in os.readlink(f"/proc/self/fd/{name}")
    return found


def test_what_one_that_was_held_needed_to_be_stopped_is_given_back(tmp_path: Path) -> None:
    builds = Builds()
    before = pidfds()
    command = ["sh", "-c", 'echo >"$0/begun"; while [ ! -e "$0/end" ]; do sleep 0.2; done', str(tmp_path)]
    thread = threading.Thread(target=lambda: builds.run(command, ENV, 300.0))
    thread.start()
    wait_for("it runs", lambda: (tmp_path / "begun").exists(), 120)
    builds.hold("held")
    wait_for("it is stopped", lambda: pidfds() > before, 60)
    (tmp_path / "end").touch()
    builds.hold(None)
    thread.join(120)
    assert pidfds() == before


def test_none_begins_while_something_holds_them_but_for_one_that_a_person_insists_on(tmp_path: Path) -> None:
    builds = Builds()
    builds.hold("the owner paused all fleet work")
    got: list[Built] = []
    thread = threading.Thread(target=lambda: got.append(builds.run(["touch", str(tmp_path / "begun")], ENV, 60.0)))
    thread.start()
    assert builds.run(["true"], ENV, 120.0, insists=True).code == 0
    assert not got
    assert not (tmp_path / "begun").exists()
    builds.hold(None)
    thread.join(120)
    assert got[0].code == 0


def test_one_that_is_held_ends_with_an_agent_that_is_killed(tmp_path: Path, shell: Path) -> None:
    code = """
import os, pathlib, sys, threading, time
import nodes.builds
from nodes.builds import Builds
nodes.builds.SHELL = sys.argv.pop(1)
builds = Builds()
def hold():
    while not pathlib.Path(sys.argv[5], "apart").exists():
        time.sleep(0.05)
    builds.hold("held")
threading.Thread(target=hold, daemon=True).start()
builds.run(sys.argv[1:], dict(os.environ), 300.0)
"""
    agent = subprocess.Popen([sys.executable, "-c", code, str(shell), *tree(tmp_path)], cwd=ROOT)
    found = all_of(tmp_path)

    wait_for("all of it is stopped", lambda: all(state_of(pid) == "T" for pid in found), 60)
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    wait_for("all of the build is gone", lambda: all(is_gone(pid) for pid in found), 120)


# -- doctors ------------------------------------------------------------------------------------------------------------

DOCTOR = """
import json, os, pathlib, time
fields = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()
pathlib.Path("seen").write_text(json.dumps([int(fields[3]), int(fields[16]), os.getpid()]))
print(json.dumps({"health": "healthy", "checks": [], "runner_protocol": {"supported": [1]}}), flush=True)
time.sleep(float(open("sleeps").read()))
"""


def doctor_of(place: Path, sleeps_s: float) -> Any:
    code = place / "doctor.py"
    code.write_text(DOCTOR)
    data = place / "data"
    data.mkdir(exist_ok=True)
    (data / "sleeps").write_text(str(sleeps_s))
    return cast(
        Any,
        SimpleNamespace(
            short="m", data=data, search=os.defpath, variables={}, command=lambda: [sys.executable, str(code)]
        ),
    )


def test_a_doctor_gives_way_to_all_other_work(tmp_path: Path) -> None:
    module = doctor_of(tmp_path, 0.0)
    assert run_doctor(module).health == "healthy"
    session, nice, _ = json.loads((module.data / "seen").read_text())
    assert session != os.getsid(0)
    assert nice == 10


def test_a_doctor_ends_with_an_agent_that_is_killed(tmp_path: Path) -> None:
    module = doctor_of(tmp_path, 300.0)
    code = """
import sys
from types import SimpleNamespace
from pathlib import Path
from nodes.doctor import run_doctor
place = Path(sys.argv[1])
run_doctor(SimpleNamespace(short="m", data=place / "data", search="/usr/bin:/bin", variables={},
                           command=lambda: [sys.executable, str(place / "doctor.py")]))
"""
    agent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT)
    seen = wait_for("it runs", lambda: (module.data / "seen").exists() and (module.data / "seen").read_text(), 120)
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    wait_for("the doctor is gone", lambda: is_gone(json.loads(seen)[2]), 60)


def test_a_doctor_that_hangs_is_not_waited_for_longer_than_its_limit(tmp_path: Path) -> None:
    report = run_doctor(doctor_of(tmp_path, 300.0), limit_s=10.0)
    assert report.health == "undetected"
    assert "did not answer within 10 s" in report.why


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
        def run(self, *_: Any, **__: Any) -> Built:
            return ending

    with pytest.raises(EnvironmentFailed, match=says):
        uv_environment(tmp_path, "0", Runtime(kind="uv", lock="uv.lock"), tmp_path / "home", Told())


def test_nothing_is_built_from_source_because_the_try_without_was_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uv.lock").touch()
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr("nodes.uv_environment.build_settings", lambda _: {})
    asked: list[list[str]] = []

    class Short(Builds):
        def run(self, argv: Any, *_: Any, **__: Any) -> Built:
            asked.append(list(argv))
            return Built(-15, "", ended=True, short_of_memory="5 % free") if "--no-build" in argv else Built(0, "")

    with pytest.raises(EnvironmentEnded, match="out of memory: 5 % free"):
        uv_environment(tmp_path, "0", Runtime(kind="uv", lock="uv.lock"), tmp_path / "home", Short())
    assert "--no-build" in asked[-1]
