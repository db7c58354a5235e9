"""The duty governor over simulated days: harm above target, duty harvested, false halvings, time to 0.

The real governor and the real compliance check run on a fake clock beside modelled programs whose true harm is known. Figures are
the governor's under the reference's rules; beside each stands what the same node would see with the certified ceiling held
constantly, without a governor. Noise is the standard deviation of a minute's rate, white within it: the hardest case for
the 20 s window. Seeds are fixed, so a figure changes only with the code.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Sequence

from benchmarks._figures import Figure, figure, run
from policies.simulation import Figures, Phase, Program, Setup, linear, measure, simulate, threshold, time_to_zero_s

CEILING = 0.35
TARGET = 0.05
SEED = 20261129


def at_ceiling(harm: float) -> float:
    """The gain of a linear response that harms so much at the ceiling."""
    return harm / CEILING


def scenarios() -> dict[str, Setup]:
    """Programs that a certificate holds for (harm of 1 % at the ceiling), then ones that have changed since."""
    kept = linear(at_ceiling(0.01))
    worse = linear(at_ceiling(0.10))
    found = {
        f"harm 1 % at the ceiling, noise {noise} %": Setup(Program(kept, noise_pct=noise))
        for noise in (0.5, 1, 2, 3, 5)
    }
    found["harm 1 %, drifts 2 %/h"] = Setup(Program(kept, noise_pct=0.5, drift_pct_h=2.0))
    phases = (Phase(1200.0), Phase(600.0, speed=0.97, sensitivity=2.0))
    found["harm 1 %, phases of 20 and 10 min"] = Setup(Program(kept, noise_pct=0.5, phases=phases))
    found["harm 1 %, stands still 15 s every 10 min"] = Setup(
        Program(kept, noise_pct=0.5, stall_every_s=600.0, stall_s=15.0)
    )
    found["harm 1 %, a tenth of the ticks late"] = Setup(Program(kept, noise_pct=0.5), late_share=0.1)
    found |= {
        f"harm 10 % at the ceiling, noise {noise} %": Setup(Program(worse, noise_pct=noise)) for noise in (0.5, 1, 2)
    }
    found["harm 10 %, felt a minute late"] = Setup(Program(worse, noise_pct=0.5, delay_s=60.0))
    found["harm 40 % at the ceiling"] = Setup(Program(linear(at_ceiling(0.40)), noise_pct=0.5))
    found["no harm up to 0.2, then steep"] = Setup(Program(threshold(0.2, 1.0), noise_pct=0.5))
    found["harm 10 %, one of three units lies"] = Setup(
        Program(worse, noise_pct=0.5), fleet=("obeys", "vanishes", "lies")
    )
    found["harm 10 %, one of three units overshoots"] = Setup(
        Program(worse, noise_pct=0.5), fleet=("obeys", "obeys", "overshoots")
    )
    return found


def without_governor(setup: Setup) -> str:
    harm = setup.program.harm_at(setup.ceiling, 0.0)
    return f"ceiling held: harm {100.0 * harm:.3g} %, {'always' if harm > TARGET + 1e-9 else 'never'} above target"


def lines_of(name: str, setup: Setup, got: Figures) -> list[Figure]:
    program = setup.program
    certified = name.startswith("harm 1 %")
    steady = certified and program.noise_pct <= 1.0 and not program.phases and not program.stall_every_s
    bound = 0.1 if certified else 5.0
    return [
        figure(
            f"{name}: mean harm", got.mean_harm_pct, "%", ("<=", 100.0 * setup.max_slowdown), without_governor(setup)
        ),
        figure(
            f"{name}: minutes with harm above target",
            got.harm_above_target_pct,
            "%",
            # Felt late, a minute is judged by the duty of the one before: harm then swings around the target.
            None if program.delay_s else ("<=", bound),
        ),
        figure(
            f"{name}: duty harvested",
            got.harvest_pct,
            "% of the best constant duty",
            (">=", 90.0) if steady else None,
            f"best constant duty {got.best_constant_duty:.3g}",
        ),
        figure(f"{name}: false halvings", got.false_halvings_day, "a day", None, f"true: {got.true_halvings_day:.3g}"),
        figure(
            f"{name}: false take-backs", got.false_take_backs_day, "a day", None, f"true: {got.true_take_backs_day:.3g}"
        ),
    ]


def steps(quick: bool) -> list[Figure]:
    """From a sudden harm to a budget of 0, over several moments of the minute and seeds."""
    found = []
    for harm, limit_s in ((0.12, 40.0), (0.2, 20.0), (0.6, 20.0)):
        seconds: list[float] = []
        missing = 0
        for number in range(8 if quick else 40):
            step_at_s = 400.0 + 2.0 * number
            program = Program(linear(at_ceiling(0.01)), noise_pct=0.5, sensitivity_step=(step_at_s, harm / 0.01))
            took_s = time_to_zero_s(Setup(program, CEILING), step_at_s, random.Random(SEED + number))
            if took_s is None:
                missing += 1
            else:
                seconds.append(took_s)
        name = f"from a step to {100 * harm:.0f} % harm to a budget of 0"
        worst = max(seconds) if seconds and not missing else None
        found.append(
            figure(f"{name}, longest", worst, "s", ("<=", limit_s), f"median {statistics.median(seconds):.3g}")
        )
    blind_s = 600.0
    took_s = time_to_zero_s(
        Setup(Program(linear(0.0), noise_pct=0.5), CEILING, blind=((blind_s, 1e9),)), blind_s, random.Random(SEED)
    )
    found.append(figure("from a source that stops reading to a budget of 0", took_s, "s", ("<=", 2.0), "one tick"))
    return found


def limit_cycle(gain: float) -> tuple[float, float]:
    """``(mean harm over the target, largest duty)`` of the second ten hours, without noise, felt a minute late."""
    best = 0.0875
    setup = Setup(Program(linear(gain * TARGET / best), noise_pct=0.0, delay_s=60.0), CEILING)
    ticks = list(simulate(setup, 20.0, random.Random(SEED)))[18_000:]
    duty = [tick.used for tick in ticks]
    return statistics.fmean(tick.harm for tick in ticks) / TARGET, max(duty)


def measure_all(quick: bool) -> Sequence[Figure]:
    hours = 12.0 if quick else 100.0
    found: list[Figure] = []
    began_s, ticks = time.process_time(), 0.0
    for name, setup in scenarios().items():
        found += lines_of(name, setup, measure(setup, hours, random.Random(SEED)))
        ticks += hours * 1800.0
    spent_s = time.process_time() - began_s
    found += steps(quick)
    for gain in (0.25, 0.5, 1.0, 2.0, 4.0):
        mean_harm, largest = limit_cycle(gain)
        found.append(
            figure(
                f"gain {gain:g}, felt a minute late: mean harm",
                mean_harm,
                "of target",
                ("<=", 1.0),
                f"duty up to {largest:.3g}",
            )
        )
    spent_for_1000_h_s = 1.8e6 * spent_s / ticks
    found.append(figure("processor time for 1,000 simulated hours", spent_for_1000_h_s, "s", ("<=", 60.0), "one core"))
    return found


if __name__ == "__main__":
    sys.exit(run("governor_days", __doc__, measure_all))
