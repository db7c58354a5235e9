"""The agent's part in tests that kill it: adopts, starts what is waiting, ticks until it is killed.

``python agent_stand_in.py HOME [--adopt-only] [--silence S]``; prints one JSON line for each change of its attempts.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from nodes.jobs import JobManager
from nodes.modules import ModuleStore


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("home", type=Path)
    parser.add_argument("--silence", type=float, default=10.0)
    parser.add_argument("--adopt-s", type=float, default=600.0)
    parser.add_argument("--no-cgroup", action="store_true")
    args = parser.parse_args()
    modules = ModuleStore(args.home, args.home / "none")
    db = sqlite3.connect(args.home / "journal.sqlite")
    jobs = JobManager(
        args.home,
        db,
        modules,
        lambda code, data: None,
        places=[] if args.no_cgroup else None,
        silence_s=args.silence,
        adopt_s=args.adopt_s,
    )
    jobs.adopt()
    for job in jobs.waiting():
        jobs.start(job.job)
    before = None
    while True:
        jobs.tick(time.monotonic())
        now = [
            {
                "attempt": item.attempt_id,
                "state": item.state,
                "tree": [[who.pid, who.start_ticks] for who in jobs.tree(item.attempt_id)[1:]],
            }
            for item in jobs.attempts()
        ]
        if now != before:
            print(json.dumps(now), flush=True)
            before = now
        time.sleep(0.05)


if __name__ == "__main__":
    main()
