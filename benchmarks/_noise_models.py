"""Noise models for the harness's simulations: what a program's rate does by itself, window by window.

Source: ``harness-statistics.md``, section 1. The page names the models; what it leaves open is settled here and written
beside each. A block is 720 s: washout 60 s, window 300 s, washout 60 s, window 300 s. ``sd`` is that of d = ln(on / off);
each window's own noise has sd / sqrt(2). All effects are on ln(rate) and hit both arms alike; the true effect is ln R,
added to each ON window. Orders come from a fair coin per block. Periodic effects have a random phase per run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["DEFAULT_MODELS", "HARD_MODELS", "Model", "drift", "iid", "simulate"]

Array = npt.NDArray[np.floating[Any]]

WINDOW_S, WASHOUT_S = 300.0, 60.0
BLOCK_S = 2.0 * (WINDOW_S + WASHOUT_S)


@dataclass(frozen=True, slots=True)
class Model:
    """``windows(rng, runs, blocks)``: ln(rate) of each window in the order of time, shape (runs, 2 * blocks)."""

    name: str
    windows: Callable[[np.random.Generator, int, int], Array] | None
    slow_step_s: float = 0.0  # a program so slow that its steps are simulated one by one
    slow_jitter: float = 0.0


def simulate(model: Model, ratio: float, runs: int, blocks: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """``(o, d)``: order signs (+1 ON first) and ln(on / off), each of shape (runs, blocks)."""
    o = np.where(rng.random((runs, blocks)) < 0.5, 1.0, -1.0)
    if model.windows is None:
        return o, _slow(model, ratio, o, rng)
    level = model.windows(rng, runs, blocks).reshape(runs, blocks, 2)
    return o, np.log(ratio) + o * (level[:, :, 0] - level[:, :, 1])


def _starts(blocks: int) -> Array:
    """When each window begins, in seconds from the run's start; shape (2 * blocks,)."""
    return np.arange(2 * blocks) * (WINDOW_S + WASHOUT_S) + WASHOUT_S


def _white(sd: float, rng: np.random.Generator, runs: int, blocks: int) -> Array:
    return np.asarray(rng.standard_normal((runs, 2 * blocks)) * (sd / np.sqrt(2.0)))


def iid(sd: float) -> Model:
    return Model(f"iid sd {100 * sd:g} %", lambda rng, runs, blocks: _white(sd, rng, runs, blocks))


def _ar(phi: float) -> Model:
    """Window noise with memory: AR(1) from window to window, scaled so that d of neighbours has sd 1 %."""

    def windows(rng: np.random.Generator, runs: int, blocks: int) -> Array:
        shocks = rng.standard_normal((runs, 2 * blocks))
        level = np.empty_like(shocks)
        level[:, 0] = shocks[:, 0]
        for i in range(1, 2 * blocks):
            level[:, i] = phi * level[:, i - 1] + np.sqrt(1.0 - phi * phi) * shocks[:, i]
        return np.asarray(level * (0.01 / np.sqrt(2.0 * (1.0 - phi))))

    return Model(f"AR(1) {phi:g}", windows)


def drift(per_hour: float) -> Model:
    def windows(rng: np.random.Generator, runs: int, blocks: int) -> Array:
        return _white(0.01, rng, runs, blocks) + per_hour * (_starts(blocks) + WINDOW_S / 2.0) / 3600.0

    return Model(f"drift {100 * per_hour:g} %/h", windows)


def _warm_up(rng: np.random.Generator, runs: int, blocks: int) -> Array:
    """The program starts 10 % slow and comes up with a time constant of 20 minutes."""
    cold = np.exp(-(_starts(blocks) + WINDOW_S / 2.0) / 1200.0)
    return np.asarray(_white(0.01, rng, runs, blocks) - 0.10 * cold)


def _t3(rng: np.random.Generator, runs: int, blocks: int) -> Array:
    """Student's t with 3 df, scaled to the same sd as the white noise (its own is sqrt 3)."""
    return np.asarray(rng.standard_t(3, (runs, 2 * blocks)) / np.sqrt(3.0) * (0.01 / np.sqrt(2.0)))


def _outliers(rng: np.random.Generator, runs: int, blocks: int) -> Array:
    """One window in twenty runs 10 % slow."""
    return _white(0.01, rng, runs, blocks) - 0.10 * (rng.random((runs, 2 * blocks)) < 0.05)


def _periodic(minutes: float, amplitude: float = 0.02, sd: float = 0.01) -> Model:
    """A sine on ln(rate), averaged over each window."""
    omega = 2.0 * np.pi / (60.0 * minutes)

    def windows(rng: np.random.Generator, runs: int, blocks: int) -> Array:
        phase = rng.random((runs, 1)) * 2.0 * np.pi
        begin, end = _starts(blocks), _starts(blocks) + WINDOW_S
        mean = (np.cos(omega * begin + phase) - np.cos(omega * end + phase)) / (omega * WINDOW_S)
        return _white(sd, rng, runs, blocks) + amplitude * mean

    return Model(f"periodic {100 * amplitude:g} %, {minutes:g} min, sd {100 * sd:g} %", windows)


def _cron(rng: np.random.Generator, runs: int, blocks: int) -> Array:
    """Every 24 minutes something takes 30 % of the program's speed for a minute."""
    period, lasts = 1440.0, 60.0
    offset = rng.random((runs, 1)) * period
    begin = _starts(blocks)
    overlap = np.zeros((runs, 2 * blocks))
    for k in range(-1, int(blocks * BLOCK_S / period) + 2):
        dip = offset + k * period
        overlap += np.clip(np.minimum(begin + WINDOW_S, dip + lasts) - np.maximum(begin, dip), 0.0, None)
    return _white(0.01, rng, runs, blocks) + np.log1p(-0.30 * overlap / WINDOW_S)


def _slow(model: Model, ratio: float, o: Array, rng: np.random.Generator) -> Array:
    """A slow program step by step: fractional events of each window, each step spread evenly over its duration.

    The agent waits for the event that closes the step across a window's end and switches then, so each stretch begins
    with a step and runs at one speed.
    """
    return np.concatenate([_slow_runs(model, ratio, part, rng) for part in np.array_split(o, max(1, len(o) // 500))])


def _slow_runs(model: Model, ratio: float, o: Array, rng: np.random.Generator) -> Array:
    steps = int(2.0 * (WASHOUT_S + WINDOW_S) / model.slow_step_s) + 2
    counts = []
    for speed in (ratio, 1.0):
        jitter = 1.0 + model.slow_jitter * rng.standard_normal((*o.shape, steps))
        ends = np.cumsum(model.slow_step_s / speed * np.maximum(0.05, jitter), axis=-1)
        counts.append(_count(ends, WASHOUT_S + WINDOW_S) - _count(ends, WASHOUT_S))
    return np.asarray(np.log(counts[0] / counts[1]))


def _count(ends: Array, at_s: float) -> Array:
    """Fractional steps done by ``at_s``; ``ends``: when each step ended, along the last axis."""
    whole = (ends <= at_s).sum(axis=-1, keepdims=True)
    closes = np.take_along_axis(ends, whole, axis=-1)
    begins = np.where(whole > 0, np.take_along_axis(ends, np.maximum(whole - 1, 0), axis=-1), 0.0)
    return np.asarray((whole + (at_s - begins) / (closes - begins))[..., 0])


DEFAULT_MODELS: tuple[Model, ...] = (
    *(iid(sd) for sd in (0.005, 0.01, 0.02, 0.05)),
    _ar(0.5),
    _ar(0.9),
    *(drift(per_hour) for per_hour in (0.01, 0.05, -0.05, 0.20)),
    Model("warm-up", _warm_up),
    Model("t3", _t3),
    Model("outliers", _outliers),
    _periodic(18),
    _periodic(24),
    Model("slow program, 20 s steps, jitter 5 %", None, slow_step_s=20.0, slow_jitter=0.05),
)
# The page measures these too, at up to 5.0 %: as hard on the design as anything it names.
HARD_MODELS: tuple[Model, ...] = (
    _periodic(12),
    _periodic(18, 0.05, 0.005),
    _periodic(24, 0.05, 0.005),
    Model("cron dip every 24 min", _cron),
)
