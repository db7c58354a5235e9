"""Writes the sample RunRecords beside this file: one for every ending and every kind of run.

``python -m tests.data.runs.make``. The windows come from a modelled program (``modelled``, fixed seeds). The verdict is never
written by hand: reports compute it from the windows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.data.runs.modelled import Model, Run, certificate

HERE = Path(__file__).parent

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


def without_work(run: Run, blocks: int, why: str) -> Run:
    for _ in range(blocks):
        run.block(share=None)
        run.blocks[-1]["on"] |= {"work_ran_s": 0.0, "dose": None, "dose_unknown_reason": why, "units": []}
    return run


def null() -> dict[str, Any]:
    run = Run("null", Model(seed=53, R=1.0, sd=0.012, duty=None, share=0.0, units=0))
    without_work(run, 12, "nothing ran: both windows are OFF")
    return run.record("no slowdown shown", spec={"kind": "null"})


def self_cost() -> dict[str, Any]:
    run = Run("self", Model(seed=61, R=0.9992, sd=0.008, duty=None, share=0.0, units=0))
    without_work(run, 8, "no work is under test")
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
