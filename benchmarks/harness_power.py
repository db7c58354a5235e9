"""Harness: false certificates, and hours to a certificate, by simulation on the product's own ``decide``.

Every model of ``benchmarks._noise_models`` at R = 0.98 (the margin), with two references on the same data: plain 90 % t
looked at after every block from the fourth, and a fixed 12 blocks. Then the power and hours of
``harness-statistics.md``, section 7, and the sweep over duty levels. Seeds are fixed, so the figures repeat.
"""

from __future__ import annotations

import json
import math
import sys
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import special

from benchmarks._figures import Figure, figure, run
from benchmarks._noise_models import BLOCK_S, DEFAULT_MODELS, HARD_MODELS, Array, Model, iid, simulate
from policies.statistics import analyse, decide

__all__ = ["Outcome", "fixed_t", "judge", "measure", "peeking_t", "seed_of"]

MARGIN = 0.02
N_MAX = 40
BLOCK_H = BLOCK_S / 3600.0
LIMIT_PCT = 5.0
VECTORS = Path(__file__).parents[1] / "tests" / "data" / "harness_vectors.json"
SWEEPS = {
    "1, 1, 1, .98 x4": (1.0, 1.0, 1.0, 0.98, 0.98, 0.98, 0.98),
    "all .98": (0.98,) * 7,
    "1, 1, .98, 1 x4": (1.0, 1.0, 0.98, 1.0, 1.0, 1.0, 1.0),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Verdicts and blocks used of many simulated runs; ``refused`` of them would have been refused at the first look."""

    verdicts: Counter[str]
    n: Array
    refused: int = 0

    def pct(self, verdict: str) -> float:
        return 100.0 * self.verdicts[verdict] / len(self.n)

    @property
    def passed_pct(self) -> float:
        return self.pct("no slowdown shown")

    def hours(self, quantile: float) -> float:
        return float(np.quantile(self.n, quantile, method="inverted_cdf")) * BLOCK_H

    @property
    def mean_h(self) -> float:
        return float(self.n.mean()) * BLOCK_H


def seed_of(*parts: object) -> int:
    """A seed of its own for each cell, the same on every machine."""
    return zlib.crc32("/".join(map(str, parts)).encode())


def judge(o: Array, d: Array, refuse: bool = True) -> Outcome:
    """The product's verdict on each simulated run. Without ``refuse``, a refused run goes on as if it had not been."""
    verdicts: Counter[str] = Counter()
    used, refused = [], 0
    rates = np.exp(d)
    for signs, on in zip(o.tolist(), rates.tolist(), strict=True):
        blocks = [("on_first" if s > 0 else "off_first", rate, 1.0) for s, rate in zip(signs, on, strict=True)]
        decision = decide(blocks, MARGIN, N_MAX)
        if decision.verdict == "refused":
            refused += 1
            # refusals come at the first look only, so moving that on passes over them one by one
            for first_look in range(decision.n + 4, N_MAX + 1, 4) if not refuse else ():
                decision = decide(blocks, MARGIN, N_MAX, first_look)
                if decision.verdict != "refused":
                    break
        verdicts[decision.verdict] += 1
        used.append(decision.n)
    return Outcome(verdicts, np.array(used, dtype=float), refused)


def fixed_t(d: Array, n: int = 12) -> float:
    """Percent of runs that a plain 90 % t interval over the first n blocks would pass."""
    return 100.0 * float(_t_passes(d, n).mean())


def peeking_t(d: Array, first: int = 4) -> float:
    """Percent of runs that plain 90 % t would pass when it is looked at after each block and the first verdict counts."""
    decided = np.zeros(len(d), dtype=bool)
    passed = np.zeros(len(d), dtype=bool)
    for n in range(first, d.shape[1] + 1):
        mean, half = _t(d, n)
        passes = mean - half >= math.log1p(-MARGIN)
        slower = (mean + half < 0.0) & (mean < math.log1p(-MARGIN)) & ~passes
        passed |= passes & ~decided
        decided |= passes | slower
    return 100.0 * float(passed.mean())


def _t(d: Array, n: int) -> tuple[Array, Array]:
    part = d[:, :n]
    return part.mean(axis=1), special.stdtrit(n - 1, 0.95) * part.std(axis=1, ddof=1) / math.sqrt(n)


def _t_passes(d: Array, n: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    mean, half = _t(d, n)
    return np.asarray(mean - half >= math.log1p(-MARGIN))


def _simulated(model: Model, ratio: float, runs: int) -> tuple[Array, Array]:
    return simulate(model, ratio, runs, N_MAX, np.random.default_rng(seed_of(model.name, ratio, runs)))


def _two_se(runs: int, pct: float = LIMIT_PCT) -> float:
    """Two Monte Carlo standard errors of a percentage."""
    return 2.0 * math.sqrt(pct * (100.0 - pct) / runs)


def _false_certificates(runs: int, slow_runs: int) -> list[Figure]:
    figures = []
    for model in (*DEFAULT_MODELS, *HARD_MODELS):
        count = slow_runs if model.windows is None else runs
        o, d = _simulated(model, 0.98, count)
        beside = f"plain t with peeking {peeking_t(d):.1f}, fixed 12 {fixed_t(d):.1f}"
        passed = judge(o, d).passed_pct
        figures.append(
            figure(f"false certificates, R .98, {model.name}", passed, "%", ("<=", LIMIT_PCT + _two_se(count)), beside)
        )
    return figures


def _beyond_margin(runs: int, slow_runs: int) -> list[Figure]:
    figures = []
    for ratio, limit in ((0.975, 2.0), (0.97, 1.0)):
        cells = []
        for model in DEFAULT_MODELS:
            count = slow_runs if model.windows is None else runs
            cells.append((judge(*_simulated(model, ratio, count)).passed_pct, model.name))
        worst, name = max(cells)
        what = f"false certificates, R {ratio:g}, worst of {len(cells)} models"
        figures.append(figure(what, worst, "%", ("<=", limit), name))
    return figures


def _power(runs: int, quick: bool) -> list[Figure]:
    """Passes before refusals, and hours to the verdict. The few runs of ``quick`` get two standard errors of room."""
    figures = []
    # R, sd, least pass %, mean hours at most, median hours, 90th percentile at most
    cells: tuple[tuple[float, float, float, float | None, float | None, float | None], ...] = (
        (1.0, 0.005, 99.9, 1.7, 1.6, 1.6),
        (1.0, 0.01, 99.9, 1.7, 1.6, 1.6),
        (1.0, 0.02, 99.5, 2.5, 2.4, None),
        (1.0, 0.03, 95.0, None, 3.2, None),
        (1.0, 0.05, 60.0, None, 5.6, None),
        (0.995, 0.01, 99.5, 1.9, None, None),
        (0.995, 0.02, 97.0, 3.2, None, None),
        (0.99, 0.01, 99.0, 2.5, None, None),
        (0.99, 0.02, 78.0, 4.6, None, None),
    )
    for ratio, sd, least, mean_h, median_h, p90_h in cells:
        o, d = _simulated(iid(sd), ratio, runs)
        outcome, where = judge(o, d, refuse=False), f"R {ratio:g}, sd {100 * sd:g} %"
        beside = f"fixed 12 {fixed_t(d):.1f}; refused at the first look {100 * outcome.refused / runs:.1f}"
        room = _two_se(runs, least) if quick else 0.0
        figures.append(figure(f"passes, {where}", outcome.passed_pct, "%", (">=", least - room), beside))
        fixed_h = f"fixed 12 {12 * BLOCK_H:.1f}"
        hours = (
            ("mean hours", outcome.mean_h, mean_h),
            ("median hours", outcome.hours(0.5), median_h),
            ("90th percentile of hours", outcome.hours(0.9), p90_h),
        )
        for what, value, most in hours:
            if most is not None:
                figures.append(figure(f"{what}, {where}", round(value, 6), "h", ("<=", most), fixed_h))
    return figures


def _slowdowns(runs: int) -> list[Figure]:
    figures = []
    for sd in (0.005, 0.01, 0.02):
        outcome = judge(*_simulated(iid(sd), 0.97, runs))
        where = f"R .97, sd {100 * sd:g} %"
        figures.append(figure(f"'slowdown', {where}", outcome.pct("slowdown"), "%", (">=", 99.5)))
        figures.append(figure(f"median hours, {where}", round(outcome.hours(0.5), 6), "h", ("<=", 1.6)))
    return figures


def _sweeps(runs: int) -> list[Figure]:
    """How often a sweep certifies the first harmful level or one beyond it: stopping at the first level that does not
    pass, and beside it running all levels and taking the highest that passed."""
    figures = []
    for name, ratios in SWEEPS.items():
        first_harmful = next(i for i, ratio in enumerate(ratios) if ratio < 1.0)
        passes = np.array([_passes(*_level(name, i, ratio, runs)) for i, ratio in enumerate(ratios)])
        wrong = 100.0 * float(passes[: first_harmful + 1].all(axis=0).mean())
        highest = 100.0 * float(passes[first_harmful:].any(axis=0).mean())
        what = f"sweep certifies a harmful level or beyond: {name}"
        beside = f"run all levels, take the highest {highest:.1f}"
        figures.append(figure(what, wrong, "%", ("<=", LIMIT_PCT + _two_se(runs)), beside))
    return figures


def _level(name: str, level: int, ratio: float, runs: int) -> tuple[Array, Array]:
    return simulate(iid(0.01), ratio, runs, N_MAX, np.random.default_rng(seed_of("sweep", name, level, runs)))


def _passes(o: Array, d: Array) -> list[bool]:
    return [judge(signs[None], run_d[None]).passed_pct > 0.0 for signs, run_d in zip(o, d, strict=True)]


def _vectors() -> Figure:
    """The largest deviation from the published vectors; a wrong verdict or count is infinitely far off, so unknown."""
    families = json.loads(VECTORS.read_text(encoding="utf-8"))
    worst = 0.0
    for family, function in (("vectors", analyse), ("final_vectors", decide)):
        for vector in families[family]:
            got = function(vector["blocks"], vector["margin"])
            for key, expected in vector["expect"].items():
                value = getattr(got, key)
                if isinstance(expected, float) and value is not None:
                    worst = max(worst, abs(value - expected))
                elif value != expected:
                    return figure(f"vectors: {vector['name']}: {key}", None, "", ("<=", 1e-6))
    return figure("vectors, largest deviation", worst, "", ("<=", 1e-6))


def measure(quick: bool) -> Sequence[Figure]:
    runs = 2_000 if quick else 20_000
    return [
        _vectors(),
        *_false_certificates(runs, 300 if quick else 6_000),
        *_beyond_margin(200 if quick else 4_000, 60 if quick else 1_000),
        *_power(2_000 if quick else 10_000, quick),
        *_slowdowns(500 if quick else 5_000),
        *_sweeps(300 if quick else 6_000),
    ]


if __name__ == "__main__":
    sys.exit(run("harness_power", __doc__, measure))
