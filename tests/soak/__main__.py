"""A node lives through an hour as bad as any: batches of prompts, phases that flip, and something killed every little while.

    python -m tests.soak [--minutes 60] [--seed N] [--model FILE]

``cotenant up`` runs agent, worker and server; the sample trainer is protected, and pauses the fleet in its phases. At the end
everything must add up (``balance``): prompts in and out, nothing held or left, memory flat, journal and store entry by entry.
Without ``--model`` the batches run on the module's stand-in model. Exit 1 where something does not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from cotenant import store
from nodes.client import AgentUnreachable
from policies.refusal import Refused
from tests.faults.test_whole_node import Owner
from tests.node.agent_rig import ROOT, cpu_s, runners_of, wait_for
from tests.soak.balance import Life, Seen, unbalanced

KILLED = ("runner", "prefect.engine", "nodes.agent", "prefect worker start", "prefect server start")
PROMPTS = 40
BATCHES_AT_ONCE = 2
# starting Prefect takes minutes on a busy machine
START_S, DRAIN_S = 600.0, 2400.0
# A pause is an event away; what a runner still does is its last unit.
STOPS_WITHIN_S = 5.0
SETTLED_S = 30.0
DOWN_WITHIN_S = 120.0
LOOK_S = 0.5


class Soak:
    def __init__(self, home: Path, seed: int, model: str | None) -> None:
        self.owner = Owner(home)
        self.owner.env["COTENANT_FLOW_PRIORITY"] = "normal"
        self.home, self.dice, self.model = home, random.Random(seed), model
        self.phase = home / "phase.jsonl"
        self.events = home / "trainer.jsonl"
        self.kills: Counter[str] = Counter()
        self.batches: list[str] = []
        self.lives: dict[int, tuple[float, Life | None]] = {}
        self.paused_since_s: float | None = None
        self.paused_s = self.ran_paused_s = 0.0
        self._ticks: dict[int, float] = {}
        self._looked_s = 0.0
        self.trainer: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.trainer = subprocess.Popen(
            [sys.executable, str(ROOT / "examples/trainer.py"), "--events", str(self.events), "--seconds", "86400"],
            cwd=ROOT,
        )
        self.owner.rig.started.append(self.trainer)
        self.phase.write_text("")
        up = self.owner.types("up", "--detach", limit_s=START_S)
        assert up.returncode == 0, up.stderr
        (self.home / "section.toml").write_text(self.section())
        done = self.owner.types("protection", "set", "local", str(self.home / "section.toml"), "--yes", limit_s=START_S)
        assert done.returncode == 0, done.stderr
        wait_for("llmserve is ready", lambda: self.owner.rig.client.call("modules")[0]["state"] == "ready", START_S)

    def section(self) -> str:
        return f"""
[node]
duty_device = "cpu"
gpu_jobs = "always"
[node.defaults]
enter_for_s = 0
exit_after_s = 1
cooldown = {{ base_s = 1, backoff = 1.0, max_s = 1 }}
[[rule]]
id = "trainer"
immediate = true
match = {{ argv_regex = "examples/trainer.py .*{self.events}" }}
protect = {{ metric = "progress_rate", max_slowdown = 0.05, source = {{ jsonl = "{self.events}", event = "step_done" }} }}
[[rule.during]]
source = {{ jsonl = "{self.phase}", enter = "begin", exit = "end" }}
pause_fleet = {{ scope = "all" }}
"""

    # -- what happens -------------------------------------------------------------------------------------------------

    def flip(self) -> None:
        on = self.paused_since_s is None
        with open(self.phase, "a", encoding="utf-8") as file:
            print(json.dumps({"event": "begin" if on else "end"}), file=file, flush=True)
        self.paused_since_s = time.monotonic() if on else None
        self._ticks = {}

    def look(self) -> None:
        """What fleet work uses while it is paused, and what the agent holds of memory; both read from /proc here."""
        now = time.monotonic()
        if self.paused_since_s is not None and now - self.paused_since_s > STOPS_WITHIN_S:
            ticks = {pid: cpu_s([pid]) for pid in runners_of(self.home)}
            if self._ticks:
                self.paused_s += now - self._looked_s
            # a runner that appeared meanwhile began with nothing
            self.ran_paused_s += (
                sum(used - self._ticks.get(pid, 0.0) for pid, used in ticks.items()) if self._ticks else 0.0
            )
            self._ticks, self._looked_s = ticks, now
        for pid in self.owner.pids("nodes.agent"):
            born, life = self.lives.setdefault(pid, (now, None))
            held = resident(pid)
            if held is None or now - born < SETTLED_S:
                continue
            self.lives[pid] = (born, Life(life.settled_bytes if life else held, held, now - born))

    def queue(self) -> None:
        file = self.home / f"prompts-{len(self.batches)}.jsonl"
        rows = ({"id": f"p{n}", "prompt": f"Tell me about {len(self.batches)} and {n}."} for n in range(PROMPTS))
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        how = ("--model", self.model) if self.model else ("--backend", "stub")
        asked = f"llmserve queue {file} --max-tokens 16 --width 4 --per-job 20 --json"
        done = self.owner.types(*asked.split(), *how, limit_s=START_S)
        if done.returncode == 0:  # else the server is down just now
            self.batches.append(json.loads(done.stdout)["data"]["batch"])

    def strike(self) -> None:
        what = self.dice.choice(KILLED)
        pids = runners_of(self.home) if what == "runner" else self.owner.pids(what)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.kills[what] += bool(pids)

    def open_batches(self, engine: Any) -> list[str]:
        found = [(batch, store.batch_status(engine, batch)) for batch in self.batches]
        return [batch for batch, status in found if status is not None and status["state"] != "done"]

    def left(self) -> list[int]:
        """Processes of this home, but the owner's own program and us."""
        return [pid for pid in self.owner.pids() if pid not in (os.getpid(), self.trainer.pid if self.trainer else 0)]

    # -- the hour -----------------------------------------------------------------------------------------------------

    def live(self, seconds: float) -> None:
        engine = store.open(store.default_url(self.home))
        began = time.monotonic()
        flip_s = began + 20.0
        strike_s = began + 40.0
        told_s = began
        while (now := time.monotonic()) < began + seconds:
            self.look()
            if now >= flip_s:
                self.flip()
                flip_s = now + self.dice.uniform(8.0, 30.0)
            if now >= strike_s:
                self.strike()
                strike_s = time.monotonic() + self.dice.uniform(20.0, 60.0)
            waiting = self.open_batches(engine)
            if len(waiting) < BATCHES_AT_ONCE:
                self.queue()
            self.retry(waiting)
            if now - told_s >= 60.0:
                told_s = now
                print(
                    f"{(now - began) / 60:.0f} min: {len(self.batches)} batches, {len(waiting)} open, killed {dict(self.kills)}",
                    flush=True,
                )
            time.sleep(LOOK_S)

    def retry(self, waiting: list[str]) -> None:
        """An owner's part: a flow run that gave up is started again (refused while it has not ended)."""
        if waiting and not self.owner.pids("prefect.engine"):
            self.owner.types("llmserve", "retry", self.dice.choice(waiting), limit_s=START_S)

    def end(self) -> Seen:
        """No more kills: everything comes to its end, and is counted."""
        engine = store.open(store.default_url(self.home))
        if self.paused_since_s is not None:
            self.flip()
        until = time.monotonic() + DRAIN_S
        while (waiting := self.open_batches(engine)) and time.monotonic() < until:
            self.retry(waiting)
            self.look()
            time.sleep(5.0)
        seen = Seen(kills=dict(self.kills), paused_s=self.paused_s, ran_paused_s=self.ran_paused_s)
        seen.batches = [(PROMPTS, store.batch_status(engine, batch) or {}) for batch in self.batches]
        seen.lives = [life for _, life in self.lives.values() if life is not None]
        client = self.owner.rig.client
        wait_for("no attempt is left", lambda: not runners_of(self.home), START_S)
        try:
            seen.attempts = [f"job {row['job']}" for row in client.call("status")["jobs"]]
            status = client.call("run_status")
            seen.run_lock = status["run"] if status else None
        except (AgentUnreachable, Refused) as error:
            seen.attempts = [f"unknown: {error}"]
        newest = client.call("timeline", limit=1)["last_seq"]
        wait_for("the mirror has all", lambda: store.last_seq(engine, "local") >= newest, START_S)
        self.owner.types("down", limit_s=START_S)
        with contextlib.suppress(AssertionError):  # what is left is told by its pid
            wait_for("all is down", lambda: not self.left(), DOWN_WITHIN_S)
        seen.left = self.left()
        seen.store = every(lambda after: store.timeline_entries(engine, "local", after_seq=after))
        last = seen.store[-1]["seq"] if seen.store else 0
        seen.journal = [each for each in journal_of(self.home) if each["seq"] <= last]
        return seen


def resident(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return None


def every(page: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while more := page(found[-1]["seq"] if found else 0):
        found += more
    return found


def journal_of(home: Path) -> list[dict[str, Any]]:
    """The timeline as it lies on the disk, read without the product."""
    with sqlite3.connect(f"file:{home}/nodes/local/journal.sqlite?mode=ro", uri=True) as db:
        rows = db.execute("SELECT seq, code, data FROM timeline ORDER BY seq").fetchall()
    return [{"seq": seq, "code": code, "data": json.loads(data)} for seq, code, data in rows]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="A node under batches, phases and kills.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument(
        "--seed", type=int, default=None, help="of the kills and phases; a random one by default, which is printed"
    )
    parser.add_argument("--model", help="a model that llmserve knows; without it the stand-in model answers")
    asked = parser.parse_args()
    seed = random.randrange(1 << 30) if asked.seed is None else asked.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="cotenant-soak-") as place:
        soak = Soak(Path(place), seed, asked.model)
        try:
            soak.start()
            soak.live(asked.minutes * 60.0)
            seen = soak.end()
        finally:
            soak.owner.types("down", limit_s=START_S)
            soak.owner.rig.stop()
    prompts = sum(asked for asked, _ in seen.batches)
    most = max((life.last_bytes for life in seen.lives), default=0) / (1 << 20)
    print(f"{prompts} prompts in {len(seen.batches)} batches; killed {dict(seen.kills)}; agents up to {most:.1f} MiB")
    print(
        f"{seen.paused_s:.0f} s paused, fleet work used {seen.ran_paused_s:.2f} CPU s in them; {len(seen.journal)} journal entries"
    )
    wrong = unbalanced(seen)
    for each in wrong:
        print(f"NOT BALANCED: {each}")
    print("FAILED" if wrong else "everything adds up")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
