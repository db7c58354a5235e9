"""Entries a second that the journal takes, beside bare SQLite inserts into the same table, and what a kill -9 loses.

``Journal.write`` one by one (each acknowledged, a transaction of its own), and in groups as the agent's loop writes them; the
reference is one autocommitted ``INSERT`` of the same row in the same mode. Then a process that writes and says each sequence
number is killed: every number it said must be there.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks._figures import Figure, figure, run
from nodes.clock import monotonic_s, utc_iso
from nodes.identity import boot_id
from nodes.journal import Journal

SECONDS, QUICK_SECONDS = 10.0, 2.0
BUDGET_PER_S = 10_000
GROUP = 16
KILLS, QUICK_KILLS = 10, 2
DATA = {"attempt": "811-1-90de20b7", "job": 811, "why": ["phase 1 of rule trainer is on"], "duty": 0.35}

_WRITER = """
import sys
from pathlib import Path
from nodes.journal import Journal
journal = Journal(Path(sys.argv[1]))
out = open(1, "wb", buffering=0)
while True:
    out.write(b"%d\\n" % journal.write("PROTECTION_PAUSE", {"x": "y" * 100}))
"""


class Rate(NamedTuple):
    """Entries a second, and entries a second of this process's own CPU time (what a core to itself would give at most)."""

    per_s: float
    per_cpu_s: float


def _rate(write: Callable[[], int], seconds: float) -> Rate:
    """``write`` says how many it wrote."""
    began, began_cpu, done = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(50):
            done += write()
    return Rate(done / (time.perf_counter() - began), done / (time.process_time() - began_cpu))


def _one_by_one(folder: Path, seconds: float) -> Rate:
    journal = Journal(folder / "one.sqlite")

    def write() -> int:
        assert journal.write("PROTECTION_PAUSE", DATA) is not None
        return 1

    try:
        return _rate(write, seconds)
    finally:
        assert journal.lost == 0
        journal.close()


def _grouped(folder: Path, seconds: float) -> Rate:
    journal = Journal(folder / "grouped.sqlite")

    def write() -> int:
        with journal.together():
            for _ in range(GROUP):
                journal.write("PROTECTION_PAUSE", DATA)
        return GROUP

    try:
        return _rate(write, seconds)
    finally:
        assert journal.lost == 0
        journal.close()


def _bare(folder: Path, seconds: float) -> Rate:
    Journal(folder / "bare.sqlite").close()  # the same table
    db = sqlite3.connect(folder / "bare.sqlite", isolation_level=None)
    db.execute("PRAGMA synchronous=NORMAL")
    insert = "INSERT INTO timeline (at, boot_id, mono_s, code, severity, message, data) VALUES (?,?,?,?,?,?,?)"

    def write() -> int:
        row = (utc_iso(), boot_id(), monotonic_s(), "PROTECTION_PAUSE", "info", "fleet work was held", json.dumps(DATA))
        db.execute(insert, row)
        return 1

    try:
        return _rate(write, seconds)
    finally:
        db.close()


def _lost_by_kill(folder: Path, kills: int) -> int:
    """Sequence numbers that were acknowledged and are not there afterwards, over several kills of one journal."""
    path, missing = folder / "killed.sqlite", 0
    for _ in range(kills):
        child = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        said = [child.stdout.readline() for _ in range(300)]
        os.kill(child.pid, signal.SIGKILL)
        said += child.stdout.readlines()
        child.wait(30)
        acknowledged = {int(line) for line in said if line.endswith(b"\n")}
        with sqlite3.connect(path) as db:
            kept = {seq for (seq,) in db.execute("SELECT seq FROM timeline")}
        missing += len(acknowledged - kept)
    return missing


def measure(quick: bool) -> Sequence[Figure]:
    seconds = QUICK_SECONDS if quick else SECONDS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = _bare(folder, seconds / 2)
        one, grouped = _one_by_one(folder, seconds), _grouped(folder, seconds)
        second = _bare(folder, seconds / 2)  # before and after, since a shared machine changes in between
        missing = _lost_by_kill(folder, QUICK_KILLS if quick else KILLS)
    bare = Rate((first.per_s + second.per_s) / 2, (first.per_cpu_s + second.per_cpu_s) / 2)
    beside = f"bare WAL insert: {bare.per_s:,.0f}/s"
    return [
        figure("entries one by one", one.per_s, "1/s", (">=", BUDGET_PER_S), beside),
        figure(f"entries in groups of {GROUP}", grouped.per_s, "1/s", (">=", BUDGET_PER_S), beside),
        figure("one by one over bare inserts", one.per_s / bare.per_s, "x"),
        figure("one by one, a second of CPU", one.per_cpu_s, "1/s", None, f"bare: {bare.per_cpu_s:,.0f}/s"),
        figure(f"groups of {GROUP}, a second of CPU", grouped.per_cpu_s, "1/s"),
        figure("acknowledged entries lost by kill -9", missing, "entries", ("=", 0.0)),
    ]


if __name__ == "__main__":
    sys.exit(run("journal", __doc__, measure))
