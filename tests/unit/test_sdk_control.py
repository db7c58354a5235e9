"""The control document from the runner's side."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cotenant.sdk.control import Control, Stopped

ROOT = Path(__file__).parents[2]


def write(workdir: Path, document: object) -> None:
    temporary = workdir / "control.tmp"
    temporary.write_text(document if isinstance(document, str) else json.dumps(document))
    temporary.replace(workdir / "control.json")


def nudge() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[Control]:
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)}
    write(tmp_path, {"seq": 0})
    yield Control(tmp_path)
    for number, handler in before.items():
        signal.signal(number, handler)


LEAVING = """
import builtins, os, signal, sys
{make}

class Last:  # goes with the interpreter's own modules, after every handler was taken back
    def __del__(self):
        os.kill(os.getpid(), signal.SIGUSR1)

builtins.last = Last()
sys.exit(7)
"""


@pytest.mark.parametrize(
    ("make", "code"),
    [
        ("from cotenant.sdk.control import Control; ctl = Control()", 7),
        ("from cotenant.sdk.supervisor import Supervisor; sup = Supervisor(['true'])", 7),
        ("signal.signal(signal.SIGUSR1, lambda *_: None)", -signal.SIGUSR1),  # what the others would come to
    ],
)
def test_a_nudge_does_not_end_a_runner_that_is_leaving(tmp_path: Path, make: str, code: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LEAVING.format(make=make)],
        env={**os.environ, "OARBANK_WORKDIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert ended.returncode == code


def test_limits_in_force_at_the_start_are_read(tmp_path: Path, ctl: Control) -> None:
    write(tmp_path, {"seq": 1, "stop": False, "pause": False, "gpu_duty": 0.3, "threads": 2})
    fresh = Control(tmp_path)
    assert (fresh.gpu_duty, fresh.threads, fresh.seq) == (0.3, 2, 1)


def test_the_document_is_read_when_nudged_and_only_then(tmp_path: Path, ctl: Control) -> None:
    write(tmp_path, {"seq": 1, "gpu_duty": 0.5})
    assert ctl.gpu_duty is None
    nudge()
    assert ctl.gpu_duty == 0.5


def test_only_a_newer_seq_applies(tmp_path: Path, ctl: Control) -> None:
    for seq, duty, expected in ((3, 0.5, 0.5), (3, 0.9, 0.5), (2, 0.9, 0.5), (4, 0.1, 0.1)):
        write(tmp_path, {"seq": seq, "gpu_duty": duty})
        nudge()
        assert ctl.gpu_duty == expected


def wait(seen: Callable[[], bool], limit_s: float = 60.0) -> None:
    until_s = time.monotonic() + limit_s
    while not seen():
        assert time.monotonic() < until_s, "it did not come to pass"
        time.sleep(0.02)


@pytest.mark.parametrize("bad", ["", "{", "[]", '"x"', '{"gpu_duty": 1}', '{"seq": true}', '{"seq": "9"}', "\udcff"])
def test_a_document_that_cannot_be_read_holds_the_work_until_it_can(tmp_path: Path, ctl: Control, bad: str) -> None:
    """What it asked is not known: it may have been a stop, or a pause."""
    write(tmp_path, {"seq": 1, "gpu_duty": 0.5})
    nudge()
    assert (ctl.pause, ctl.gpu_duty) == (False, 0.5)
    (tmp_path / "control.json").write_bytes(bad.encode("utf-8", "surrogateescape"))
    nudge()
    assert (ctl.check(), ctl.pause, ctl.gpu_duty) == (True, True, 0.0)
    (tmp_path / "control.json").unlink()
    assert (ctl.pause, ctl.gpu_duty) == (True, 0.0)
    write(tmp_path, {"seq": 2, "gpu_duty": 0.25})
    assert (ctl.pause, ctl.gpu_duty) == (False, 0.25), "tried again at each safe point, without another nudge"


def test_a_safe_point_waits_out_a_document_that_cannot_be_read(tmp_path: Path, ctl: Control) -> None:
    write(tmp_path, "{")
    nudge()
    ended = threading.Event()
    thread = threading.Thread(target=lambda: (ctl.safe_point(), ended.set()), daemon=True)
    thread.start()
    assert not ended.wait(1.0)
    assert (tmp_path / "phase").read_text() == "paused\n"
    assert ctl.paused_s > 0.0
    write(tmp_path, {"seq": 1, "gpu_duty": 0.5})
    assert ended.wait(60.0), "no nudge comes for it"
    thread.join()
    write(tmp_path, "{")
    nudge()
    write(tmp_path, {"seq": 2, "stop": True})
    with pytest.raises(Stopped):
        ctl.safe_point()


def test_a_wait_does_not_spin_while_the_document_cannot_be_read(tmp_path: Path, ctl: Control) -> None:
    write(tmp_path, "{")
    nudge()
    assert ctl.check()
    woken = [ctl.wait(ctl.news, 0.1) for _ in range(10)]
    assert sum(woken) <= 1, "the nudge itself, where it is told late; then nothing is new and it sleeps its time out"


def test_listeners_hear_when_it_can_be_read_again(tmp_path: Path, ctl: Control) -> None:
    heard: list[bool] = []
    ctl.listen(lambda: heard.append(ctl.pause))
    write(tmp_path, "{")
    nudge()
    wait(lambda: heard == [True])
    write(tmp_path, {"seq": 1})
    wait(lambda: heard == [True, False])


def test_the_first_document_is_no_licence_where_it_cannot_be_read(
    tmp_path: Path, ctl: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "{")
    fresh = Control(tmp_path)
    assert (fresh.pause, fresh.gpu_duty) == (True, 0.0)
    (tmp_path / "control.json").unlink()
    by_hand = Control(tmp_path)
    assert (by_hand.pause, by_hand.gpu_duty) == (False, None), "nobody is there who would set a limit"
    monkeypatch.setenv("OARBANK_ATTEMPT_ID", "1")
    attempt = Control(tmp_path)
    assert (attempt.pause, attempt.gpu_duty) == (True, 0.0), "an agent puts one there before it starts a runner"


def test_the_first_limit_is_the_least_where_it_makes_no_sense(tmp_path: Path, ctl: Control) -> None:
    write(tmp_path, {"seq": 1, "gpu_duty": 7, "threads": 0.5})
    fresh = Control(tmp_path)
    assert (fresh.gpu_duty, fresh.threads) == (0.0, 1)


@pytest.mark.parametrize("bad", [-0.1, 1.1, "0.2", True, float("nan")])
def test_a_limit_that_makes_no_sense_leaves_the_one_in_force(tmp_path: Path, ctl: Control, bad: object) -> None:
    write(tmp_path, {"seq": 1, "gpu_duty": 0.5})
    nudge()
    assert ctl.gpu_duty == 0.5
    write(tmp_path, {"seq": 2, "gpu_duty": bad, "pause": True})
    nudge()
    assert (ctl.gpu_duty, ctl.pause) == (0.5, True)


def test_stop_stays_and_is_acknowledged(tmp_path: Path, ctl: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OARBANK_MODULE", "llmserve")
    write(tmp_path, {"seq": 1, "stop": True, "reason": "evicted"})
    nudge()
    with pytest.raises(Stopped, match="evicted"):
        ctl.safe_point()
    write(tmp_path, {"seq": 2, "stop": False})
    nudge()
    with pytest.raises(Stopped):
        ctl.check()
    assert ctl.acknowledge_stop() == 75
    failure = json.loads((tmp_path / "failure.json").read_text())
    assert (failure["reason"], failure["fault"]) == ("llmserve/stopped", "transient")


def test_term_is_a_stop(ctl: Control) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Stopped):
        ctl.safe_point()


def test_a_pause_blocks_until_a_newer_document_clears_it(tmp_path: Path, ctl: Control) -> None:
    write(tmp_path, {"seq": 1, "pause": True})
    nudge()
    assert ctl.check() is True
    passed: list[float] = []
    thread = threading.Thread(target=lambda: (ctl.safe_point(), passed.append(time.monotonic())))
    thread.start()
    for seq in (2, 3, 4):  # nudges that leave the pause in force
        write(tmp_path, {"seq": seq, "pause": True})
        nudge()
        time.sleep(0.02)
    assert passed == []
    cleared = time.monotonic()
    write(tmp_path, {"seq": 5, "pause": False})
    nudge()
    thread.join(60)
    assert passed
    assert passed[0] >= cleared
    assert 0.0 < ctl.paused_s <= time.monotonic() - cleared + 60


def test_a_pause_in_the_main_thread_ends_with_the_nudge(tmp_path: Path, ctl: Control) -> None:
    write(tmp_path, {"seq": 1, "pause": True})
    nudge()

    def clear() -> None:
        time.sleep(0.1)
        write(tmp_path, {"seq": 2, "pause": False})
        nudge()

    thread = threading.Thread(target=clear)
    thread.start()
    ctl.safe_point()  # the test's own time limit is the deadline
    thread.join()


def test_a_nudge_between_look_and_sleep_is_not_slept_through(tmp_path: Path, ctl: Control) -> None:
    for seq in range(1, 200):
        seen = ctl.news
        write(tmp_path, {"seq": seq, "gpu_duty": 0.5})
        nudge()
        assert ctl.wait(seen, 60.0), "the nudge came after the look"


def test_phase_is_one_line(tmp_path: Path, ctl: Control) -> None:
    ctl.phase("loading\nmodel")
    assert (tmp_path / "phase").read_text() == "loading model\n"


def phase(workdir: Path) -> str | None:
    try:
        return (workdir / "phase").read_text().strip()
    except FileNotFoundError:
        return None


def until(workdir: Path, expected: str | None) -> None:
    deadline = time.monotonic() + 60.0
    while phase(workdir) != expected and time.monotonic() < deadline:
        time.sleep(0.01)
    assert phase(workdir) == expected


@pytest.mark.parametrize("named", [None, "decode"])
def test_a_pause_is_confirmed_where_it_holds_and_the_phase_comes_back(
    tmp_path: Path, ctl: Control, named: str | None
) -> None:
    """Each pause document anew: a confirmation of an earlier one says nothing of this one."""
    if named is not None:
        ctl.phase(named)
    write(tmp_path, {"seq": 1, "pause": True})
    nudge()
    assert ctl.check()
    assert phase(tmp_path) == named, "asked for, and not held yet: other threads may still work"
    held = threading.Thread(target=ctl.safe_point)
    held.start()
    until(tmp_path, "paused")
    first_ns = os.stat(tmp_path / "phase").st_mtime_ns
    time.sleep(0.05)
    write(tmp_path, {"seq": 2, "pause": True})
    nudge()
    deadline = time.monotonic() + 60.0
    while os.stat(tmp_path / "phase").st_mtime_ns == first_ns and time.monotonic() < deadline:
        time.sleep(0.01)
    assert os.stat(tmp_path / "phase").st_mtime_ns > first_ns
    write(tmp_path, {"seq": 3, "pause": False})
    nudge()
    held.join(60.0)
    assert not held.is_alive()
    assert phase(tmp_path) == named
