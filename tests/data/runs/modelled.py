"""Blocks, records and certificates of a modelled program, in the shape that an agent answers to ``run_show``."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

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
