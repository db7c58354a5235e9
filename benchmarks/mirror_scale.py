"""How many nodes one store carries: journals mirrored a second, and how long `node list --fleet` takes, by number of nodes.

Simulated are the nodes' journals (entries as an agent writes them, no runners and no network between); real are the mirror's
own code and the store. ``COTENANT_BENCH_STORE`` names a store (PostgreSQL); else it is SQLite in a temporary folder.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import text

from benchmarks._figures import Figure, figure, run
from cotenant import store
from nodes.clock import utc_iso
from nodes.identity import boot_id
from nodes.mirror import Mirror

NODES = (50, 200, 500)
ENTRIES_A_NODE = 40
# One process has so many mirrors at once; on real nodes each has its own machine.
WRITERS = 4
LISTINGS = 7
# A node that works writes about this many entries an hour (phases, jobs, a block each quarter of an hour).
QUIET_ENTRIES_AN_HOUR = 200.0


IDLE = {"state": "free", "budget": None, "ceiling": None, "rules": [], "units": []}


class Journal:
    """Answers as an agent's socket would, from memory."""

    def __init__(self, node: str, entries: int) -> None:
        at, boot = utc_iso(), boot_id()
        self.node = node
        self.entries = [
            {
                "seq": seq,
                "at": at,
                "mono_s": float(seq),
                "boot_id": boot,
                "code": "JOB_WAITING" if seq % 3 else "PROTECTION_PHASE_ON",
                "severity": "info",
                "message": "a job waits, with its reason",
                "data": {"job": seq, "module": "llmserve", "why": "the program of rule trainer is active"},
            }
            for seq in range(1, entries + 1)
        ]

    def call(self, method: str, /, _timeout_s: float = 0.0, **params: Any) -> Any:
        if method == "run_status":
            return None
        if method == "duty":
            return {"node": self.node, "gpu_jobs": "when_no_gpu_protected", "decides": "nobody"} | IDLE
        first = int(params["after_seq"])
        return {"entries": self.entries[first : first + int(params["limit"])]}


@contextmanager
def a_store() -> Iterator[str]:
    url = os.environ.get("COTENANT_BENCH_STORE")
    if url:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="cotenant-bench-") as folder:
        yield f"sqlite:///{Path(folder) / 'store.sqlite'}"


def mirror_all(url: str, nodes: Sequence[str], entries: int) -> float:
    """Copy every node's journal, a few at a time. Seconds it took."""
    left, lock = list(nodes), threading.Lock()
    failed: list[str] = []

    def work() -> None:
        while True:
            with lock:
                if not left:
                    return
                node = left.pop()
            mirror = Mirror(Journal(node, entries), url, node, send=lambda node, entries: None)
            try:
                while mirror.step():
                    pass
            except Exception as error:
                failed.append(f"{node}: {error}")
            finally:
                mirror.close()

    threads = [threading.Thread(target=work) for _ in range(WRITERS)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise RuntimeError(f"{len(failed)} nodes were not mirrored, the first: {failed[0]}")
    return time.monotonic() - begun


def measure(quick: bool) -> list[Figure]:
    figures = []
    counts = NODES[:1] if quick else NODES
    with a_store() as url:
        engine = store.open(url)
        with engine.begin() as connection:
            connection.execute(text("DELETE FROM timeline WHERE node LIKE 'bench-%'"))
            connection.execute(text("DELETE FROM nodes WHERE name LIKE 'bench-%'"))
        known = 0
        for count in counts:
            names = [f"bench-{number:04d}" for number in range(known, count)]
            took_s = mirror_all(url, names, ENTRIES_A_NODE)
            known = count
            rate = len(names) * ENTRIES_A_NODE / took_s
            listings = []
            for _ in range(LISTINGS):
                begun = time.monotonic()
                listed = store.list_nodes(engine)
                listings.append(1000.0 * (time.monotonic() - begun))
            mirrored = {row["node"]: row["last_seq"] for row in listed if row["node"].startswith("bench-")}
            whole = sum(1 for seq in mirrored.values() if seq == ENTRIES_A_NODE)
            figures += [
                figure(
                    f"{count} nodes: entries mirrored",
                    rate,
                    "1/s",
                    reference=f"{engine.dialect.name}, {WRITERS} writers",
                ),
                figure(f"{count} nodes: listed whole", float(whole), "nodes", ("=", float(count))),
                figure(f"{count} nodes: node list from the store, median", statistics.median(listings), "ms"),
                figure(
                    f"{count} nodes: share of that rate that they need at {QUIET_ENTRIES_AN_HOUR:g} entries an hour each",
                    100.0 * count * QUIET_ENTRIES_AN_HOUR / 3600.0 / rate,
                    "%",
                ),
            ]
        engine.dispose()
    return figures


if __name__ == "__main__":
    sys.exit(run("mirror_scale", __doc__, measure))
