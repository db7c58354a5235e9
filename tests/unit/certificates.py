"""A run that passed, its fingerprint, and the certificate that follows: shared by the certificate tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from policies.certificate import Certificate, Fingerprint, Gpu, Program, Validity, issue, validity
from policies.section.models import Rule

KEY = b"k" * 32
ENDED_AT = "2026-03-20T06:30:00+00:00"
ISSUED = datetime.fromisoformat(ENDED_AT)
MODULE = "dev.cotenant.llmserve"
DIGEST = "b" * 64
GPU = "GPU-1"

RULE = Rule.model_validate(
    {
        "id": "trainer",
        "match": {"argv_regex": "train"},
        "protect": {"metric": "progress_rate", "max_slowdown": 0.05, "source": {"jsonl": "/e.jsonl", "event": "step"}},
        "tags": ["uplink"],
    }
)

PROGRAM = Program(
    exe="/usr/bin/python3",
    exe_sha256="e" * 64,
    script="/srv/train.py",
    script_sha256="5" * 64,
    argv=("python3", "train.py"),
)

PRINT = Fingerprint(
    cpu_model="EPYC 7003",
    cores=16,
    memory_gib=125.6,
    gpus=(Gpu(name="H200", uuid="GPU-1", memory_bytes=1 << 37, driver="575.1"),),
    os_name="debian",
    os_major="12",
    kernel="6.1.0-30",
    agent_version="0.1.0",
    program=(PROGRAM,),
)


def block(number: int, share: float | None = 0.34, stage: str = "batch") -> dict[str, Any]:
    unit = {"attempt": "1", "module": MODULE, "stage": stage, "share": share, "by_device": {GPU: share}}
    units = [] if share is None else [unit]
    on = {"dose": share, "units": units, "program_on": [GPU]}
    return {"number": number, "state": "counted", "on": on, "off": {"program_on": [GPU]}}


def record(run: str = "r1", **changes: Any) -> dict[str, Any]:
    """RunRecord of a run that passed at duty 0.35. ``changes`` go to its spec where that has such a key."""
    spec: dict[str, Any] = {"node": "mac-01", "rule": "trainer", "work": "gpu", "duty": 0.35}
    spec |= {key: changes.pop(key) for key in tuple(changes) if key in (*spec, "kind", "window_s", "feed", "margin")}
    found = {
        "run": run,
        "spec": spec,
        "node": "mac-01",
        "state": "ended",
        "ending": "no slowdown shown",
        "ended_at": ENDED_AT,
        "section_version": 3,
        "section_digest": "d" * 64,
        "work": [
            {"module": MODULE, "short": "llmserve", "version": "1.2.0", "digest": DIGEST, "stage": "batch"},
            {"module": "dev.cotenant.sweep", "short": "sweep", "version": "0.3.0", "digest": "c" * 64, "stage": "grid"},
        ],
        "blocks": [block(1), block(2)],
        "looks": [{"n": 8}],
        "source": {"timed": False},
        "attempts_before": [{"run": "r0", "ending": "inconclusive", "ended_at": ENDED_AT, "duty": 0.35, "R": 0.99, "n": 40}],
        "newest_null": {"run": "n1", "ended_at": ENDED_AT, "ending": "inconclusive", "verdict": {"R": 1.001, "lo": 0.99, "hi": 1.01}},
        "newest_self": None,
    }  # fmt: skip
    return found | changes


def certificate(run: dict[str, Any] | None = None, **changes: Any) -> Certificate:
    """The signed certificate of ``run``."""
    arguments: dict[str, Any] = {
        "decided": {"R": 0.994, "lo": 0.986, "hi": 1.003, "n": 12},
        "duty": 0.34,
        "fingerprint": PRINT,
        "rule": RULE,
        "duty_device": "gpu",
        "demonstration": False,
        "now": datetime(2026, 3, 20, 7, tzinfo=UTC),
        "key": KEY,
    }
    return issue(run or record(), **(arguments | changes))


def state_of(found: Certificate, now: datetime = ISSUED + timedelta(days=1), **changes: Any) -> Validity:
    """What it is worth a day after it was issued, where all but ``changes`` is as it was."""
    there: dict[str, Any] = {"fingerprint": PRINT, "rule": RULE, "duty_device": "gpu", "key": KEY}
    return validity(found, now=now, **(there | changes))
