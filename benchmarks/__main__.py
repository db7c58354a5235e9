"""Run benchmarks and draw ``benchmarks/RESULTS.md``: each figure beside its budget and its reference.

``python -m benchmarks [--busy] [--quick] [NAME…]``. Each benchmark runs in a process of its own, so that one cannot warm
another's caches. ``--busy`` pins a competitor to each core meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from benchmarks._results import HERE, keep, short

LIMIT_S = 3600.0


def names() -> list[str]:
    return sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_"))


def one(name: str, quick: bool) -> dict[str, Any]:
    """The benchmark's object with ``quick`` and ``load_before``, or ``{name, failed: why, at}``."""
    print(f"== {name}", flush=True)
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *(["--quick"] if quick else [])]
    before = [round(value, 2) for value in os.getloadavg()]
    failed = {"name": name, "quick": quick, "at": datetime.now(UTC).isoformat(timespec="seconds")}
    try:
        done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return failed | {"failed": f"it took longer than {LIMIT_S:.0f} s"}
    lines = done.stdout.strip().splitlines()
    print("\n".join(lines[:-1]), flush=True)
    try:
        found: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        return failed | {"failed": done.stderr.strip()[-500:] or f"exit status {done.returncode}"}
    return found | {"quick": quick, "load_before": before}


@contextlib.contextmanager
def competitors(wanted: bool) -> Iterator[None]:
    """One process that only counts, pinned to each core and in a session (a scheduling group) of its own."""
    started = [
        subprocess.Popen(["taskset", "-c", str(core), sys.executable, "-c", "while True: pass"], start_new_session=True)
        for core in (sorted(os.sched_getaffinity(0)) if wanted else [])
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Run the benchmarks.")
    parser.add_argument("names", nargs="*", help=f"which: {', '.join(names())}; all when none is named")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, wider bounds")
    parser.add_argument("--busy", action="store_true", help="with a competitor pinned to each core")
    asked = parser.parse_args()
    unknown = set(asked.names) - set(names())
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(names())}")
    over: list[str] = []
    for name in asked.names or names():
        with competitors(asked.busy):
            result = one(name, asked.quick)
        keep("busy" if asked.busy else "idle", result)
        if short(result):
            over.append(name)
    if over:
        print(f"short of a budget, or failed: {', '.join(over)}; see benchmarks/RESULTS.md", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
