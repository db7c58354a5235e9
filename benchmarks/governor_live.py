"""The duty governor live: the sample trainer beside certified units, on processors of their own and then on one.

The agent runs as an owner runs it, with ``duty_device = "cpu"``. Minutes with units and minutes without (the owner's pause)
take turns; the trainer's rate in each is counted from the times that its own event lines carry. Then the units move to the
trainer's processor: harm appears, and the budget falls. The stretch is drawn as a picture.

    python -m benchmarks.governor_live [--minutes N] [--picture FILE] [--json] [--quick]

``--quick`` runs the agent at four times its pace, with minutes of 15 s.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks._figures import Figure, figure, run
from tests.node.agent_rig import cpu_s, runners_of, wait_for
from tests.node.governor_rig import SELFTEST, GovernorRig, two_cores

MINUTE_S, QUICK_PACE = 60.0, 4.0
TARGET = 0.05
DUTY = 0.4
KEEPS = 0.95
FALL_WITHIN_S = 180.0
# After a switch the trainer's caches and the units settle; these seconds are in no minute.
SETTLE_S = 2.0


@dataclass
class Sample:
    """What the agent says at a moment (seconds since the start)."""

    at_s: float
    state: str
    budget: float
    measured: dict[str, float]


@dataclass
class Stretch:
    """Everything that is drawn. ``minutes``: (from, to, with units); ``moved_s``: when the units moved."""

    samples: list[Sample] = field(default_factory=list)
    steps_s: list[float] = field(default_factory=list)
    minutes: list[tuple[float, float, bool]] = field(default_factory=list)
    baseline: float | None = None
    moved_s: float = 0.0
    used_s: list[float] = field(default_factory=list)

    def rate(self, from_s: float, to_s: float) -> float:
        return (bisect_left(self.steps_s, to_s) - bisect_left(self.steps_s, from_s)) / (to_s - from_s)


class Live:
    def __init__(self, home: Path, pace: float) -> None:
        cores = two_cores()
        assert cores is not None
        self.rig = GovernorRig(home, *cores, pace=pace, target=TARGET)
        self.pace = pace
        self.stretch = Stretch()
        self.began_s = time.time()

    def now_s(self) -> float:
        return time.time() - self.began_s

    def run(self, minutes: int) -> Stretch:
        rig, stretch = self.rig, self.stretch
        try:
            rig.start_trainer()
            rig.certify(("llmserve", "selftest"), duty=DUTY)
            rig.start_agent()
            for _ in range(2):
                rig.submit(SELFTEST)
            wait_for("a budget runs", lambda: rig.duty()["state"] == "running", 600)
            self.began_s = time.time()
            wait_for("two units work", lambda: self._sample() and len(rig.duty()["units"]) == 2, 600)
            for number in range(minutes):
                self._minute(units=number % 2 == 0)
            self._one_core()
        finally:
            rig.stop()
        stamps = [json.loads(line) for line in rig.events.read_text().splitlines() if '"step_done"' in line]
        stretch.steps_s = [stamp["t"] - self.began_s for stamp in stamps]
        return stretch

    def _minute(self, *, units: bool) -> None:
        """A minute with the units, or one in which the owner's pause holds them."""
        extra = 'gpu_jobs = "certified"' + ("" if units else "\npause = true")
        self.rig.client.call("section_set", text=self.rig.section(extra), by="benchmark")
        self._watch(SETTLE_S)
        began, used = self.now_s(), cpu_s(runners_of(self.rig.home))
        self._watch(MINUTE_S / self.pace)
        self.stretch.minutes.append((began, self.now_s(), units))
        self.stretch.used_s.append(cpu_s(runners_of(self.rig.home)) - used)

    def _one_core(self) -> None:
        """The units get the trainer's processor alone, and all of it as far as the certificate goes."""
        self._minute(units=True)
        wait_for("a budget runs", lambda: self._sample().budget > 0.1, 1200)
        for pid in runners_of(self.rig.home):
            os.sched_setaffinity(pid, {self.rig.trainer_core})
        self.stretch.moved_s = self.now_s()
        self._watch(FALL_WITHIN_S / self.pace)

    def _watch(self, seconds: float) -> None:
        until = self.now_s() + seconds
        while (left := until - self.now_s()) > 0:
            self._sample()
            time.sleep(min(left, 1.0 / self.pace))

    def _sample(self) -> Sample:
        view = self.rig.duty()
        measured = {u["attempt"]: u["measured"] for u in view["units"] if u["measured"] is not None}
        found = Sample(self.now_s(), view["state"], view["budget"] or 0.0, measured)
        self.stretch.samples.append(found)
        self.stretch.baseline = next((r["baseline_rate"] for r in view["rules"]), None)
        return found


def figures_of(stretch: Stretch, pace: float) -> list[Figure]:
    with_units = [stretch.rate(a, b) for a, b, units in stretch.minutes[:-1] if units]
    without = [stretch.rate(a, b) for a, b, units in stretch.minutes[:-1] if not units]
    shares = [used / (b - a) for (a, b, units), used in zip(stretch.minutes, stretch.used_s, strict=True) if units]
    ceilings = max(sample.budget for sample in stretch.samples)
    kept = statistics.fmean(with_units) / statistics.fmean(without)
    spread = statistics.pstdev(without) / statistics.fmean(without) if len(without) > 1 else None
    moved = stretch.moved_s
    before = next((s.budget for s in reversed(stretch.samples) if s.at_s <= moved), 0.0)
    after = [sample for sample in stretch.samples if sample.at_s > moved]
    fell = next((sample.at_s - moved for sample in after if sample.budget < before), None)
    window_s = 20.0 / pace
    slowed = 1.0 - stretch.rate(moved, moved + window_s) / stretch.rate(moved - window_s, moved)
    note = None if spread is None else f"minutes without units vary by {100 * spread:.1f} %"
    return [
        figure("trainer's rate with units over without, own processors", kept, "", (">=", KEEPS), note),
        figure("processor share of the units in their minutes", statistics.fmean(shares), "", ("<=", DUTY + 0.02),
               f"budget up to {ceilings:.3g}"),
        figure("trainer slowed in the first 20 s on one processor", 100 * slowed, "%", None),
        figure("from one processor to a smaller budget", fell, "s", ("<=", FALL_WITHIN_S / pace),
               f"the budget was {before:.3g}; times at pace {pace:g}"),
        figure("smallest budget on one processor", min((s.budget for s in after), default=None), "", ("<=", before / 2.0)),
    ]  # fmt: skip


def draw(stretch: Stretch, path: Path, pace: float) -> None:
    """Budget, each unit's measured duty, and the program's rate over the stretch, as a PNG."""
    from tasks.drawing import COLOURS, new_figure, style

    at = [sample.at_s for sample in stretch.samples]
    end_s = at[-1]
    with style():
        canvas = new_figure(narrow=False, height_in=5.4)
        top, middle, low = canvas.subplots(3, 1, sharex=True)
        for axes in (top, middle, low):
            for begin, to, units in stretch.minutes:
                if not units:
                    axes.axvspan(begin, to, color=COLOURS["left-out"], lw=0)
            axes.axvspan(stretch.moved_s, end_s, color=COLOURS["beyond"], lw=0)
            axes.grid(axis="y", color=COLOURS["grid"], lw=0.6)
            axes.spines[["top", "right"]].set_visible(False)
        top.step(at, [sample.budget for sample in stretch.samples], where="post", color=COLOURS["ink"])
        top.set_ylim(0.0, 1.15 * DUTY)
        top.set_ylabel("budget")
        top.set_title("grey: the owner's pause; red: units on the trainer's processor", fontsize=9, loc="left")
        names = sorted({name for sample in stretch.samples for name in sample.measured})
        for number, name in enumerate(names):
            shares = [sample.measured.get(name, float("nan")) for sample in stretch.samples]
            colour = COLOURS["on"] if number % 2 == 0 else COLOURS["off"]
            middle.plot(at, shares, lw=0.9, color=colour, label=f"unit {name.partition('-')[0]}")
        most = max((share for sample in stretch.samples for share in sample.measured.values()), default=DUTY)
        middle.set_ylim(0.0, 1.35 * most)  # room for the legend above the lines
        middle.set_ylabel("measured duty")
        middle.legend(frameon=False, fontsize=8, loc="upper right", ncols=4)
        bin_s = 5.0 / pace
        edges = [number * bin_s for number in range(1, int(end_s / bin_s))]
        low.plot(edges, [stretch.rate(edge - bin_s, edge) for edge in edges], lw=1.0, color=COLOURS["good"])
        if stretch.baseline is not None:
            low.axhline(stretch.baseline, color=COLOURS["soft"], lw=0.8, ls="--")
        low.set_ylim(bottom=0.0)
        low.set_ylabel("trainer's steps/s")
        low.set_xlabel("seconds" if pace == 1.0 else f"seconds, at {pace:g} times the pace")
        canvas.savefig(path, dpi=130)


def measure(quick: bool, minutes: int | None, picture: Path) -> Sequence[Figure]:
    if two_cores() is None:
        return [figure("processors to choose between", 1.0, "", (">=", 2.0))]
    pace = QUICK_PACE if quick else 1.0
    count = minutes if minutes is not None else 4 if quick else 10
    with tempfile.TemporaryDirectory() as folder:
        stretch = Live(Path(folder), pace).run(max(2, count + count % 2))
    draw(stretch, picture, pace)
    print(f"picture: {picture}")
    return figures_of(stretch, pace)


def main() -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--minutes", type=int)
    parser.add_argument("--picture", type=Path, default=Path("governor_live.png"))
    own, rest = parser.parse_known_args()
    sys.argv[1:] = rest

    def measured(quick: bool) -> Sequence[Figure]:
        return measure(quick, own.minutes, own.picture)

    return run("governor_live", __doc__, measured)


if __name__ == "__main__":
    sys.exit(main())
