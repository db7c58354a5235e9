"""The sample trainer: it learns, resumes exactly, stops cleanly, and its speed tells what happens to its core."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TRAINER = Path(__file__).parents[2] / "examples" / "trainer.py"
LONG_S = 240.0


@pytest.fixture(scope="module")
def trainer() -> Iterator[ModuleType]:
    before = dict(os.environ)
    spec = importlib.util.spec_from_file_location("sample_trainer", TRAINER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    os.environ.clear()
    os.environ.update(before)


def train(*arguments: str) -> None:
    subprocess.run([sys.executable, str(TRAINER), *arguments], check=True, timeout=LONG_S)


def events_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def losses_of(path: Path) -> list[float]:
    return [event["loss"] for event in events_of(path) if event["event"] == "step_done"]


def test_it_learns(tmp_path: Path) -> None:
    train("--steps", "150", "--events", str(tmp_path / "e.jsonl"))
    losses = losses_of(tmp_path / "e.jsonl")
    assert losses[0] > math.log(10) - 0.1, "ten classes, nothing learnt yet"
    first, last = sum(losses[:10]) / 10, sum(losses[-10:]) / 10
    assert last < 0.6 * first
    assert [event["step"] for event in events_of(tmp_path / "e.jsonl") if event["event"] == "step_done"] == list(
        range(1, 151)
    )


def test_its_gradient_is_the_slope_of_its_loss(trainer: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    rng = np.random.default_rng(3)
    x, labels = trainer.Teacher(7).batch(rng)
    start = {name: value.astype(np.float64) for name, value in trainer.new_weights(rng).items()}
    monkeypatch.setattr(trainer, "LEARNING_RATE", 1.0)
    stepped = {name: value.copy() for name, value in start.items()}
    trainer.train_step(stepped, x, labels)
    for name, place in {"w1": (5, 17), "b1": (17,), "w2": (17, 3), "b2": (3,)}.items():
        analytic = start[name][place] - stepped[name][place]
        losses = []
        for nudge in (1e-4, -1e-4):
            moved = {key: value.copy() for key, value in start.items()}
            moved[name][place] += nudge
            losses.append(trainer.train_step(moved, x, labels))
        assert analytic == pytest.approx((losses[0] - losses[1]) / 2e-4, rel=2e-3, abs=1e-7), name


def test_a_resumed_training_goes_on_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    train("--steps", "24", "--events", str(tmp_path / "whole.jsonl"))
    for steps in ("11", "24"):
        train("--steps", steps, "--events", str(tmp_path / "parts.jsonl"), "--checkpoint", str(tmp_path / "c.npz"))
    assert losses_of(tmp_path / "parts.jsonl") == losses_of(tmp_path / "whole.jsonl")


def test_a_torn_last_line_does_not_swallow_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text('{"event": "step_done", "step": 9, "lo')
    train("--steps", "2", "--events", str(path))
    torn, *whole = path.read_text().splitlines()
    assert torn.endswith('"lo')
    assert [json.loads(line)["event"] for line in whole] == ["status", "step_done", "step_done", "status"]


def test_phases_are_written_and_no_step_falls_into_one(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    train("--steps", "6", "--phase-every", "3", "--phase-seconds", "0.3", "--events", str(path))
    events = events_of(path)
    phases = [event["state"]["phase"] for event in events if event["event"] == "status"]
    assert phases == ["training", "uploading", "training", "uploading", "training", "stopped"]
    for place, event in enumerate(events):
        if event["event"] == "status" and event["state"]["phase"] == "uploading":
            assert events[place + 1]["event"] == "status"
            assert events[place + 1]["t"] - event["t"] >= 0.25


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, str(TRAINER), *arguments])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def await_steps(path: Path, steps: int) -> None:
    until = time.monotonic() + LONG_S
    while not path.exists() or path.read_bytes().count(b"step_done") < steps:
        assert time.monotonic() < until, f"fewer than {steps} steps in {LONG_S:g} s"
        time.sleep(0.02)


def test_sigterm_ends_it_after_the_step_with_its_state_kept(tmp_path: Path) -> None:
    path, checkpoint = tmp_path / "e.jsonl", tmp_path / "c.npz"
    with running("--events", str(path), "--checkpoint", str(checkpoint)) as process:
        await_steps(path, 3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LONG_S) == 0
    events = events_of(path)
    assert events[-1]["state"] == {"phase": "stopped", "step": events[-2]["step"]}
    train("--steps", str(events[-2]["step"] + 1), "--events", str(path), "--checkpoint", str(checkpoint))
    assert events_of(path)[-2]["step"] == events[-2]["step"] + 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs processor affinity")
def test_its_speed_falls_when_its_core_is_shared(tmp_path: Path) -> None:
    """Alone and shared in turns within a minute, so that whatever else this machine does falls on both.

    Three spinners on its core leave it a quarter of an idle core, and at most 0.63 of what it had beside two others.
    """
    path, cpu = tmp_path / "e.jsonl", min(os.sched_getaffinity(0))
    spin = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
    steps = {"alone": 0, "shared": 0}
    spent_s = {"alone": 0.0, "shared": 0.0}
    with running("--events", str(path), "--pin", str(cpu)):
        await_steps(path, 5)
        for _ in range(3):
            for how in ("alone", "shared"):
                spinners = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(3 if how == "shared" else 0)]
                try:
                    time.sleep(0.5)
                    before, since = path.read_bytes().count(b"step_done"), time.monotonic()
                    time.sleep(3.0)
                    steps[how] += path.read_bytes().count(b"step_done") - before
                    spent_s[how] += time.monotonic() - since
                finally:
                    for spinner in spinners:
                        spinner.kill()
                        spinner.wait()
    alone, shared = steps["alone"] / spent_s["alone"], steps["shared"] / spent_s["shared"]
    assert shared < 0.8 * alone, f"{alone:.1f} steps/s alone, {shared:.1f} with its core shared"
