"""A sample protected program: a small neural network that trains for real, and says so line by line.

A two-layer network learns to tell ten classes apart on data made from a fixed seed: real gradient steps, a loss that
falls. Each step appends one line to the events file, so that a protection rule can tell the program's speed:

    {"event": "step_done", "step": 41, "loss": 1.873, "t": 1796044800.25}

The work of a step is fixed (about 20 to 50 ms on one core). Nothing adapts while it runs, so whatever takes processor
time away shows as fewer steps a second.

    python examples/trainer.py --events /tmp/run/events.jsonl --seconds 600
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import IO, Any

# Before NumPy is imported: one thread, so that the program uses one core and its speed tells what happens to that core.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

FEATURES, HIDDEN, CLASSES = 256, 1024, 10
BATCH = 1024
LEARNING_RATE = 0.05

Weights = dict[str, NDArray[np.float32]]


class Teacher:
    """Makes the data: a fixed random network whose answers are to be learned.

    Each batch is new, so the loss never reaches zero, and a step costs the same after an hour as at the start.
    """

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._first = rng.standard_normal((FEATURES, 32), dtype=np.float32) / np.float32(np.sqrt(FEATURES))
        self._second = rng.standard_normal((32, CLASSES), dtype=np.float32)

    def batch(self, rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Samples (BATCH x FEATURES) and their classes (BATCH)."""
        x = rng.standard_normal((BATCH, FEATURES), dtype=np.float32)
        return x, np.argmax(np.tanh(x @ self._first) @ self._second, axis=1)


def new_weights(rng: np.random.Generator) -> Weights:
    return {
        "w1": (rng.standard_normal((FEATURES, HIDDEN)) * np.sqrt(2.0 / FEATURES)).astype(np.float32),
        "b1": np.zeros(HIDDEN, dtype=np.float32),
        "w2": (rng.standard_normal((HIDDEN, CLASSES)) * np.sqrt(1.0 / HIDDEN)).astype(np.float32),
        "b2": np.zeros(CLASSES, dtype=np.float32),
    }


def train_step(weights: Weights, x: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """One step of gradient descent on a batch, in place. Returns the batch's mean cross-entropy before the step."""
    hidden = np.maximum(x @ weights["w1"] + weights["b1"], 0.0)
    logits = hidden @ weights["w2"] + weights["b2"]
    logits -= logits.max(axis=1, keepdims=True)
    chances = np.exp(logits)
    chances /= chances.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = float(-np.log(chances[rows, labels] + 1e-12).mean())

    slope = chances
    slope[rows, labels] -= 1.0
    slope /= len(labels)
    back = slope @ weights["w2"].T
    back[hidden <= 0.0] = 0.0
    for name, gradient in {
        "w2": hidden.T @ slope,
        "b2": slope.sum(axis=0),
        "w1": x.T @ back,
        "b1": back.sum(axis=0),
    }.items():
        weights[name] -= LEARNING_RATE * gradient
    return loss


class Events:
    """JSON lines, one write and one flush each, so that a reader never waits for a full buffer."""

    def __init__(self, path: Path | None) -> None:
        self._file: IO[str]
        if path is None:
            self._file = sys.stdout
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        # A line that a killed run left half written must not swallow this run's first one.
        torn = path.exists() and path.stat().st_size > 0 and path.read_bytes()[-1:] != b"\n"
        self._file = path.open("a", encoding="utf-8")
        if torn:
            self._file.write("\n")

    def write(self, event: str, **fields: Any) -> None:
        self._file.write(json.dumps({"event": event, **fields, "t": time.time()}) + "\n")
        self._file.flush()


def save_checkpoint(path: Path, step: int, weights: Weights, rng: np.random.Generator) -> None:
    """Whole or not at all: written beside its place, then moved there."""
    unfinished = path.with_name(path.name + ".part")
    with unfinished.open("wb") as file:
        state: dict[str, Any] = {"step": step, "rng": json.dumps(rng.bit_generator.state), **weights}
        np.savez(file, **state)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def load_checkpoint(path: Path) -> tuple[int, Weights, np.random.Generator]:
    with np.load(path) as saved:
        rng = np.random.default_rng()
        rng.bit_generator.state = json.loads(str(saved["rng"]))
        return int(saved["step"]), {name: saved[name] for name in ("w1", "b1", "w2", "b2")}, rng


def options(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=Path, help="append the event lines to this file (default: standard output)")
    parser.add_argument("--steps", type=int, help="stop after this step (default: never)")
    parser.add_argument("--seconds", type=float, help="stop after this many seconds (default: never)")
    parser.add_argument("--pin", type=int, metavar="CPU", help="stay on this processor")
    parser.add_argument("--checkpoint", type=Path, help="go on from this file where it exists; keep the state in it")
    parser.add_argument("--checkpoint-every", type=int, default=200, metavar="STEPS")
    parser.add_argument("--phase-every", type=int, metavar="STEPS", help="every so many steps, an upload phase")
    parser.add_argument("--phase-seconds", type=float, default=1.0, help="length of the upload phase")
    parser.add_argument("--seed", type=int, default=7)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = options(argv)
    if args.pin is not None:
        os.sched_setaffinity(0, {args.pin})

    stopping = False

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)

    teacher = Teacher(args.seed)
    if args.checkpoint is not None and args.checkpoint.exists():
        step, weights, rng = load_checkpoint(args.checkpoint)
    else:
        step, rng = 0, np.random.default_rng(args.seed + 1)
        weights = new_weights(rng)
    events = Events(args.events)
    events.write("status", state={"phase": "training", "step": step})

    until = None if args.seconds is None else time.monotonic() + args.seconds
    while not stopping and (args.steps is None or step < args.steps) and (until is None or time.monotonic() < until):
        loss = train_step(weights, *teacher.batch(rng))
        step += 1
        events.write("step_done", step=step, loss=round(loss, 6))
        if args.checkpoint is not None and step % args.checkpoint_every == 0:
            save_checkpoint(args.checkpoint, step, weights, rng)
        if args.phase_every and step % args.phase_every == 0:
            events.write("status", state={"phase": "uploading", "step": step})
            phase_ends = time.monotonic() + args.phase_seconds
            while not stopping and (left := phase_ends - time.monotonic()) > 0:
                time.sleep(min(left, 0.1))
            events.write("status", state={"phase": "training", "step": step})

    if args.checkpoint is not None:
        save_checkpoint(args.checkpoint, step, weights, rng)
    events.write("status", state={"phase": "stopped", "step": step})
    return 0


if __name__ == "__main__":
    sys.exit(main())
