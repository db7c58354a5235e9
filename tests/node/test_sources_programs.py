"""Probes and phases of running programs."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodes.sources.hub import SourceHub
from nodes.sources.probe import Owner, run_probe
from policies.rules import ProcInfo
from policies.section.models import Section
from tests.node.agent_rig import wait_for

ME = os.geteuid()
NOBODY = 65534


def section(argv: list[str] | None = None, on_exec: dict[str, Any] | None = None, window_s: float = 2.0) -> Section:
    rule: dict[str, Any] = {"id": "r", "match": {"name": "x"}}
    if argv is not None:
        source = {"exec": argv}
        rule["protect"] = {
            "metric": "progress_rate",
            "max_slowdown": 0.05,
            "window_s": window_s,
            "source": source,
        }
    if on_exec is not None:
        rule["during"] = [{"source": {"on_exec": on_exec}, "pause_fleet": {"scope": "all"}}]
    return Section.model_validate({"rule": [rule]})


@pytest.fixture
def hub() -> Iterator[SourceHub]:
    hub = SourceHub()
    yield hub
    hub.close()


def test_a_probes_rate_is_read_without_waiting_for_it(hub: SourceHub, tmp_path: Path) -> None:
    rate = tmp_path / "rate"
    rate.write_text("speed now\n12.5\n")
    hub.configure(section(["/bin/cat", str(rate)]), str(tmp_path))
    assert not hub.progress("r").readable, "unknown until it answered"

    def read() -> bool:
        hub.poll("tick")
        (row,) = hub.describe()
        return row["rate"] is not None and row["rate"] == pytest.approx(12.5)

    wait_for("the rate", read)
    (row,) = hub.describe()
    assert (row["kind"], row["counts"], row["state"], row["reader"]) == ("exec", "rate", "ok", "agent")
    assert row["timed"] is None, "a probe comes on a timer by nature"
    rate.write_text("0\n")

    def stalled() -> bool:
        hub.poll("tick")
        return hub.describe()[0]["rate"] == 0.0

    wait_for("a stalled program reads as 0, not as unknown", stalled)
    rate.unlink()

    def unknown() -> bool:
        hub.poll("tick")
        return not hub.progress("r").readable

    wait_for("a probe that fails reads as unknown", unknown)
    assert hub.describe()[0]["rate"] is None
    assert "status 1" in hub.describe()[0]["why"]


def test_a_hanging_probe_never_holds_up_the_loop(hub: SourceHub, tmp_path: Path) -> None:
    hub.configure(section([sys.executable, "-c", "import time; time.sleep(1000)"]), str(tmp_path))
    for _ in range(5):
        before = time.thread_time()
        hub.poll("tick")
        assert time.thread_time() - before < 1.0  # CPU of this thread: it does not wait, whatever the machine does
    assert "not answered" in hub.progress("r").why


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import time; time.sleep(1000)", "did not end within"),
        ("print('x' * 1000000)", "without end"),
        ("print('fast')", "no number"),
        ("print('nan')", "no rate"),
        ("print(-1)", "no rate"),
        ("", "no number"),
        ("import sys; print(5); sys.exit(3)", "status 3"),
        ("import os, time; print(7, flush=True); os.fork() or time.sleep(1000)", "did not end within"),
    ],
)
def test_what_is_no_rate_is_said_with_how_to_try_it(code: str, words: str, tmp_path: Path) -> None:
    answer = run_probe((sys.executable, "-c", code), Owner(ME, str(tmp_path)), limit_s=3.0)
    assert answer.rate is None
    assert answer.bad is not None
    assert words in answer.bad.why
    assert answer.bad.remedy.startswith("try it: env -i ")


def test_a_probe_that_is_not_there_is_said(tmp_path: Path) -> None:
    answer = run_probe(("/no/such/probe",), Owner(ME, str(tmp_path)))
    assert answer.bad is not None
    assert "cannot be started" in answer.bad.why


def test_a_probe_sees_a_clean_environment_and_no_descriptor_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "of the agent")
    out = tmp_path / "seen"
    code = (
        "import os, sys\n"
        f"print(sorted(os.environ), sorted(os.listdir('/proc/self/fd')), os.getcwd(), file=open({str(out)!r}, 'w'))\n"
        "print(1)\n"
    )
    kept = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(kept, True)
    answer = run_probe((sys.executable, "-S", "-E", "-c", code), Owner(ME, str(tmp_path)))
    os.close(kept)
    assert answer.rate == 1.0
    seen = out.read_text()
    assert "SECRET" not in seen
    assert set(ast.literal_eval(seen.split("]")[0] + "]")) <= {"HOME", "LANG", "LOGNAME", "PATH", "USER", "LC_CTYPE"}
    assert f"'{kept}'" not in seen


@pytest.mark.skipif(ME != 0, reason="not run: only root can start a process as another account")
def test_a_probe_runs_as_the_sections_owner() -> None:
    answer = run_probe(("/usr/bin/id", "-u"), Owner(NOBODY, "/nonexistent"))
    assert answer.rate == float(NOBODY)
    groups = run_probe(("/bin/sh", "-c", "id -G | wc -w"), Owner(NOBODY, "/nonexistent"))
    assert groups.rate == 1.0, "root's supplementary groups are given up"


def test_a_probe_of_another_account_is_not_run_as_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodes.sources.probe.os.geteuid", lambda: 4242)
    answer = run_probe(("/usr/bin/id", "-u"), Owner(NOBODY, "/nonexistent"))
    assert answer.rate is None
    assert answer.bad is not None
    assert "may not start processes of others" in answer.bad.why


def proc(pid: int, name: str | None, uid: int | None = ME, ppid: int = 1) -> ProcInfo:
    exe = None if name is None else f"/opt/{name}"
    return ProcInfo(pid, pid, ppid, name, exe, None if exe is None else (exe,), uid)


def test_a_phase_is_on_while_a_program_of_the_owners_runs(hub: SourceHub) -> None:
    hub.configure(section(on_exec={"match": {"path_prefix": "/opt/render"}}), "/nowhere")
    view = hub.phase("r", 0)
    assert (view.state, view.readable) == ("on", False), "on until the processes were looked at"
    nothing = {5: proc(5, "shell")}
    (update,) = hub.look_at_programs(nothing, ())
    assert (update.old, update.new, update.how) == ("on", "off", "tick")
    assert hub.look_at_programs(nothing, ()) == []
    running = nothing | {6: proc(6, "render")}
    (update,) = hub.look_at_programs(running, ())
    assert (update.old, update.new) == ("off", "on")
    assert hub.phase("r", 0).readable
    (update,) = hub.look_at_programs(running, {6})
    assert update.new == "off", "what the fleet runs is none of the owner's"
    assert hub.look_at_programs(nothing | {6: proc(6, "render", uid=ME + 1)}, ()) == [], "another account's"


def test_a_process_that_cannot_be_judged_counts_as_on(hub: SourceHub) -> None:
    hub.configure(section(on_exec={"match": {"path_prefix": "/opt/render"}}), "/nowhere")
    hub.look_at_programs({5: proc(5, "shell")}, ())
    (update,) = hub.look_at_programs({5: proc(5, "shell"), 7: proc(7, None)}, ())
    assert (update.new, update.code) == ("on", "PROTECTION_UNREADABLE")
    view = hub.phase("r", 0)
    assert (view.state, view.readable) == ("on", False)
    assert hub.look_at_programs({7: proc(7, None, uid=ME + 1), 5: proc(5, "shell")}, ())[0].new == "off"


def test_children_keep_a_phase_on_where_the_tree_is_asked_for(hub: SourceHub) -> None:
    procs = {6: proc(6, "render"), 7: proc(7, "worker", ppid=6)}
    hub.configure(section(on_exec={"match": {"name": "render"}, "tree": "descendants"}), "/nowhere")
    hub.look_at_programs(procs, ())
    assert hub.phase("r", 0).state == "on"


def test_a_real_program_is_seen(hub: SourceHub) -> None:
    from nodes.processes import ProcessTable

    hub.configure(section(on_exec={"match": {"argv_regex": "on-exec-test-marker"}}), "/nowhere")
    table = ProcessTable()
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600) # on-exec-test-marker"])
    try:

        def seen() -> bool:
            table.refresh(time.monotonic())
            hub.look_at_programs(table.snapshot(), {os.getpid()})
            return hub.phase("r", 0).state == "on" and hub.phase("r", 0).readable

        wait_for("the program", seen)
    finally:
        program.kill()
        program.wait(30)

    def ended() -> bool:
        table.refresh(time.monotonic())
        hub.look_at_programs(table.snapshot(), {os.getpid()})
        return hub.phase("r", 0).state == "off"

    wait_for("its end", ended)
