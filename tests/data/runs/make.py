"""Writes the sample RunRecords beside this file: one for every ending and every kind of run.

``python tests/data/runs/make.py``. The windows come from a modelled program (fixed seeds); everything else has the shape
that an agent answers to ``run_show``. The verdict is never written by hand: reports compute it from the windows.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
START = datetime(2026, 11, 20, 22, 5, 11, tzinfo=UTC)
FINGERPRINT = {
    "cpu_model": "AMD Ryzen 9 7950X 16-Core Processor",
    "cores": 16,
    "memory_gib": 62.7,
    "gpus": [
        {
            "name": "NVIDIA GeForce RTX 4090",
            "uuid": "GPU-6c0f2c41-51a4-9c1c-2e1f-0a7d4a1be0f3",
            "memory_bytes": 25_757_220_864,
            "driver": "570.86.15",
        }
    ],
    "os_name": "Ubuntu",
    "os_major": "24",
    "kernel": "6.8.0-51-generic",
    "agent_version": "0.1.0",
    "program": [
        {
            "exe": "/usr/bin/python3.12",
            "exe_sha256": "5d4b9e9c4b0d41d6a2bd8a0a9e13d2f7bb3c2e4f4a1c68cf9a8c1c9c1b1f2d10",
            "script": "/home/ada/trainer/train.py",
            "script_sha256": "0b9a6f2e4ddc0a9b8d61d2e1c0f98a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f",
            "argv": ["/usr/bin/python3.12", "/home/ada/trainer/train.py", "--epochs", "40"],
        }
    ],
}
WORK = {
    "module": "dev.cotenant.llmserve",
    "short": "llmserve",
    "version": "0.1.0",
    "digest": "sha256:8c1f6d2a4b9e7f0035a1",
    "stage": "batch",
}


@dataclass
class Model:
    """A modelled program and what the work does to it. ``sd`` is the noise of ln(on/off) of a block."""

    seed: int
    R: float = 1.0
    sd: float = 0.01
    rate: float = 12.46
    duty: float | None = 0.35
    share: float = 0.34
    window_s: float = 300.0
    washout_s: float = 60.0
    drift_per_block: float = 0.0
    units: int = 2
    work: dict[str, str] = field(default_factory=lambda: dict(WORK))


class Run:
    """Collects blocks the way an agent would measure them."""

    def __init__(self, name: str, model: Model) -> None:
        self.name, self.model = f"run-{name}", model
        self.coin = random.Random(model.seed)
        self.noise = random.Random(model.seed * 7919 + 1)
        self.blocks: list[dict[str, Any]] = []
        self.clock_s = 65.0

    def window(
        self, number: int, arm: str, position: int, rate: float | None, *, share: float | None
    ) -> dict[str, Any]:
        m = self.model
        self.clock_s += m.washout_s + (4.2 if arm == "on" else 0.3)
        started = START + timedelta(seconds=self.clock_s)
        row: dict[str, Any] = {
            "run": self.name,
            "block": number,
            "arm": arm,
            "position": position,
            "started_at": started.isoformat(),
            "started_mono_s": 91_000.0 + self.clock_s,
            "length_s": m.window_s,
            "events": None if rate is None else rate * m.window_s,
            "rate": rate,
            "longest_step_s": None if not rate else 2.4 / rate,
            "work_ran_s": 0.0,
            "dose": 0.0,
            "dose_unknown_reason": None,
            "units": [],
        }
        if arm == "on":
            row["work_ran_s"] = 0.0 if share == 0.0 else round(m.window_s * 0.998, 3)
            row["dose"] = share
            if share is None:
                row["dose_unknown_reason"] = "NVML gave no per-process samples (NOT_SUPPORTED)"
            each = None if share is None else share / m.units
            row["units"] = [
                {
                    "attempt": str(811 + u),
                    "module": m.work["module"],
                    "stage": m.work["stage"],
                    "share": each,
                    "asked": None if m.duty is None else m.duty / m.units,
                    "unknown_reason": row["dose_unknown_reason"],
                }
                for u in range(m.units)
            ]
        self.clock_s += m.window_s
        return row

    def block(
        self,
        *,
        reason: str | None = None,
        arm: str | None = None,
        detail: str | None = None,
        share: float | None = -1.0,
        on_factor: float | None = 1.0,
        off_factor: float | None = 1.0,
        collapse: str | None = None,
        cut: bool = False,
        missing: Sequence[str] = (),
    ) -> Run:
        m, number = self.model, len(self.blocks) + 1
        order = "on_first" if self.coin.random() < 0.5 else "off_first"
        level = m.rate * math.exp(m.drift_per_block * number)
        half = m.sd / math.sqrt(2.0)
        rates = {
            "on": None if on_factor is None else level * m.R * on_factor * math.exp(self.noise.gauss(0.0, half)),
            "off": None if off_factor is None else level * off_factor * math.exp(self.noise.gauss(0.0, half)),
        }
        held = m.share + self.noise.gauss(0.0, 0.004) if share == -1.0 else share
        row: dict[str, Any] = {
            "run": self.name,
            "number": number,
            "order": order,
            "state": "cut" if cut else "left_out" if reason or collapse else "counted",
            "reason": "cut" if cut else reason,
            "reason_arm": arm,
            "reason_detail": detail,
            "collapse": collapse,
            "on": None,
            "off": None,
            "extra": {},
        }
        for position, which in enumerate(("on", "off") if order == "on_first" else ("off", "on"), start=1):
            if which not in missing:
                row[which] = self.window(number, which, position, rates[which], share=held)
        self.blocks.append(row)
        return self

    def many(self, n: int) -> Run:
        for _ in range(n):
            self.block()
        return self

    def record(self, ending: str | None, **more: Any) -> dict[str, Any]:
        m = self.model
        spec = {
            "node": "mac-01",
            "rule": "trainer",
            "work": "llmserve/batch",
            "duty": m.duty,
            "blocks": 12,
            "window_s": m.window_s,
            "washout_s": m.washout_s,
            "margin": 0.02,
            "off": "paused",
            "max_hours": 8.0,
            "first_look": 8,
            "feed": None,
            "kind": "ab",
            "accept_timed_source": False,
            "seed": m.seed,
        } | more.pop("spec", {})
        return {
            "run": self.name,
            "spec": spec,
            "flow_run_id": "0f0c9a52-7d4e-4f5b-9a6a-2f7b1c0d9e11",
            "state": "open" if ending is None else "ended",
            "ending": ending,
            "reason": None,
            "started_at": START.isoformat(),
            "ended_at": None if ending is None else (START + timedelta(seconds=self.clock_s + 2)).isoformat(),
            "reviewed_by": "ada",
            "section_version": 7,
            "section_digest": "sha256:41c5f0a29d",
            "agent_version": "0.1.0",
            "node": "mac-01",
            "fingerprint": FINGERPRINT,
            "work": [m.work],
            "program": {
                "processes": [
                    {
                        "pid": 4121,
                        "exe": "/usr/bin/python3.12",
                        "argv": FINGERPRINT["program"][0]["argv"],  # type: ignore[index]
                        "started_at": (START - timedelta(hours=3)).isoformat(),
                    }
                ]
            },
            "source": {"kind": "jsonl", "path": "/home/ada/trainer/events-7.jsonl", "unit": "steps", "timed": False},
            "reference": {"rate": m.rate * 1.001, "length_s": 60.0, "longest_step_s": 0.2},
            "blocks": self.blocks,
            "looks": [],
            "verdict": None,
            "attempts_before": [],
            "certificate": None,
            "newest_null": None,
            "newest_self": None,
        } | more


def certificate(run: Run, *, demonstration: bool = False, duty: float = 0.33) -> dict[str, Any]:
    issued = START + timedelta(seconds=run.clock_s + 3)
    return {
        "certificate": f"cert-{run.name}",
        "node": "mac-01",
        "rule": "trainer",
        "run": run.name,
        "certified_duty": duty,
        "issued_at": issued.isoformat(),
        "expires_at": (issued + timedelta(days=14)).isoformat(),
        "demonstration": demonstration,
    }


NEWEST_NULL = {
    "run": "run-null-3",
    "ended_at": "2026-11-18T04:12:00+00:00",
    "ending": "no slowdown shown",
    "verdict": {"verdict": "no slowdown shown", "n": 12, "R": 1.0011, "lo": 0.9952, "hi": 1.0070},
}
NEWEST_SELF = {
    "run": "run-self-2",
    "ended_at": "2026-11-19T04:44:00+00:00",
    "ending": "no slowdown shown",
    "verdict": {"verdict": "no slowdown shown", "n": 8, "R": 0.9991, "lo": 0.9921, "hi": 1.0062},
}
CPU_WORK = {
    "module": "dev.cotenant.examples.burn",
    "short": "burn",
    "version": "1.2.0",
    "digest": "sha256:77aa",
    "stage": "spin",
}


def passing() -> dict[str, Any]:
    run = Run("pass", Model(seed=2, R=0.995, sd=0.013))
    run.many(3).block(reason="phase", arm="on", detail="rule 'trainer', phase 'uploading' came on").many(5)
    run.block(reason="suspend", arm="off", detail="the machine slept for 41 s").many(4)
    previous = [
        {"run": "run-0417", "ending": "inconclusive", "ended_at": "2026-10-29T05:51:00+00:00", "duty": 0.35, "R": 0.988}
    ]
    return run.record(
        "no slowdown shown",
        certificate=certificate(run),
        attempts_before=previous,
        newest_null=NEWEST_NULL,
        newest_self=NEWEST_SELF,
    )


def demonstration() -> dict[str, Any]:
    model = Model(seed=5, R=0.999, sd=0.009, window_s=6.0, washout_s=2.0, rate=41.0, duty=0.3, share=0.29, units=1)
    model.work = dict(CPU_WORK)
    run = Run("demonstration", model).many(8)
    return run.record(
        "no slowdown shown",
        certificate=certificate(run, demonstration=True, duty=0.28),
        spec={"work": "burn/spin", "max_hours": 0.1, "node": "local"},
        node="local",
    )


def repeat() -> dict[str, Any]:
    run = Run("repeat", Model(seed=23, R=1.001, sd=0.008)).many(12)
    previous = [
        {"run": "run-0502", "ending": "slowdown", "ended_at": "2026-11-17T05:51:00+00:00", "duty": 0.35, "R": 0.961}
    ]
    refused = (
        "run-0502 ended slowdown on 2026-11-17; within 14 days of it this work at this duty needs two passes in a row, "
        "and this is the first"
    )
    return run.record(
        "no slowdown shown", spec={"first_look": 12}, attempts_before=previous, certificate_refused=refused
    )


def left_out_many() -> dict[str, Any]:
    run = Run("left-out-many", Model(seed=31, R=1.0, sd=0.006))
    for _ in range(4):
        run.block(reason="owner_pause", arm="off", detail="paused by ada").many(2)
    return run.many(4).record("no slowdown shown", spec={"first_look": 12})


def slowdown() -> dict[str, Any]:
    return Run("slowdown", Model(seed=3, R=0.958, sd=0.012)).many(8).record("slowdown", newest_null=NEWEST_NULL)


def collapse() -> dict[str, Any]:
    run = Run("collapse", Model(seed=8, R=0.99, sd=0.01)).many(4)
    run.block(
        on_factor=0.21, collapse="2.61/s in ON, under half of the median OFF rate 12.47/s for 60 s", missing=("off",)
    )
    return run.record("slowdown", reason="the program's rate collapsed while the work ran (block 5)")


def inconclusive() -> dict[str, Any]:
    run = Run("inconclusive", Model(seed=41, R=0.9865, sd=0.026))
    for _ in range(4):
        run.many(10)
    return run.record("inconclusive", newest_null=NEWEST_NULL, newest_self=NEWEST_SELF)


def refused() -> dict[str, Any]:
    return Run("refused", Model(seed=77, R=1.0, sd=0.12)).many(8).record("refused")


def no_dose() -> dict[str, Any]:
    run = Run("no-dose", Model(seed=13, R=1.0, sd=0.01)).many(2)
    for _ in range(3):
        run.block(reason="no_dose", arm="on", detail="metered 0.021 of the 0.35 asked (6 %)", share=0.021)
    return run.record("no_dose", reason="three blocks in a row without a dose")


def harm() -> dict[str, Any]:
    run = Run("harm", Model(seed=19, R=0.995, sd=0.01)).many(5)
    run.block(reason="program_died", arm="on", detail="pid 4121 ended with signal 9", on_factor=0.4, missing=("off",))
    return run.record("harm_suspected", reason="the protected program died in ON; it did not in OFF")


def aborted() -> dict[str, Any]:
    run = Run("aborted", Model(seed=29, R=1.0, sd=0.01)).many(5).block(cut=True, missing=("on", "off"))
    return run.record("aborted", reason="aborted by ada")


def interrupted() -> dict[str, Any]:
    run = Run("interrupted", Model(seed=37, R=0.99, sd=0.02)).many(10)
    run.block(cut=True, detail="the flow's process went away", missing=("off",))
    return run.record("interrupted", reason="the protection section changed: version 7 → 8")


def null() -> dict[str, Any]:
    model = Model(seed=53, R=1.0, sd=0.012, duty=None, share=0.0, units=0)
    run = Run("null", model)
    for _ in range(12):
        run.block(share=None)
        on = run.blocks[-1]["on"]
        on |= {"work_ran_s": 0.0, "dose": None, "dose_unknown_reason": "nothing ran: both windows are OFF", "units": []}
    return run.record("no slowdown shown", spec={"kind": "null"})


def self_cost() -> dict[str, Any]:
    model = Model(seed=61, R=0.9992, sd=0.008, duty=None, share=0.0, units=0)
    run = Run("self", model)
    for _ in range(8):
        run.block(share=None)
        on = run.blocks[-1]["on"]
        on |= {"work_ran_s": 0.0, "dose": None, "dose_unknown_reason": "no work is under test", "units": []}
    return run.record("no slowdown shown", spec={"kind": "self"})


def running() -> dict[str, Any]:
    return Run("running", Model(seed=67, R=0.992, sd=0.03)).many(9).record(None)


def unknowns() -> dict[str, Any]:
    """Old or partial records: no reference, no meter, no fingerprint, a window without a rate."""
    run = Run("unknowns", Model(seed=71, R=1.0, sd=0.05, duty=None))
    for _ in range(9):
        run.block(share=None)
    run.block(reason="source_unreadable", arm="on", detail="permission denied", on_factor=None, share=None)
    record = run.record("aborted", reason=None)
    for key in ("fingerprint", "program", "source", "reference", "section_version", "reviewed_by", "work"):
        record[key] = None
    return record


def hostile() -> dict[str, Any]:
    """Names that an owner, a program or a module chose, with markup, control characters and line breaks in them."""
    bad = "<script>alert('x')</script>\n# not a heading | pipe ]]> \x1b[31mred\x07 \u202egnp.exe `code` [link](http://evil.example/)"
    model = Model(seed=83, R=0.999, sd=0.008)
    model.work = {"module": bad, "short": bad, "version": bad, "digest": bad, "stage": bad}
    run = Run("hostile", model).many(4).block(reason="phase", arm="on", detail=bad).many(5)
    spec = {"rule": bad, "work": bad, "node": bad, "first_look": 12}
    record = run.record("aborted", reason=bad, spec=spec, node=bad, reviewed_by=bad)
    record["program"] = {"processes": [{"pid": 1, "exe": bad, "argv": [bad, "=cmd()"], "started_at": bad}]}
    record["source"] = {"kind": bad, "path": bad, "unit": bad, "timed": False}
    record["fingerprint"] = {
        "cpu_model": bad,
        "gpus": [{"name": bad}],
        "os_name": bad,
        "program": [{"exe_sha256": bad}],
    }
    record["attempts_before"] = [{"run": bad, "ending": bad, "ended_at": bad, "duty": None, "R": None}]
    return record


SAMPLES = {
    "pass": passing,
    "demonstration": demonstration,
    "repeat": repeat,
    "left_out_many": left_out_many,
    "slowdown": slowdown,
    "collapse": collapse,
    "inconclusive": inconclusive,
    "refused": refused,
    "no_dose": no_dose,
    "harm_suspected": harm,
    "aborted": aborted,
    "interrupted": interrupted,
    "null": null,
    "self": self_cost,
    "running": running,
    "unknowns": unknowns,
    "hostile": hostile,
}


def main() -> None:
    for name, make in SAMPLES.items():
        text = json.dumps(make(), indent=1, ensure_ascii=True, sort_keys=False)
        (HERE / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
