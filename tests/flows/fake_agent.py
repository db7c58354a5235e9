"""A small agent for the tests of flows: it speaks the socket's verbs and "measures" blocks from a script.

It keeps its records in memory (``FakeAgent.memory``), so that a second one can take over as a restarted agent would. A
block lasts ``block_s`` seconds of waiting; its rates come from ``rates(number)``. What a real agent promises it keeps
too: one run at a time, a block ends as soon as its holder is gone, a measured number is answered from memory.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nodes.client import socket_path
from nodes.clock import utc_iso
from nodes.identity import ProcessId, liveness, own_id
from policies.refusal import Refused
from tests.agent_socket import AgentSocket, refusal
from tests.flows.fake_records import RATE, Memory, Rates, block_row, new_record, steady


class FakeAgent:
    """``with FakeAgent(home, "local") as agent: …``; ``stop()`` and a new one with the same memory is a restart."""

    def __init__(
        self,
        home: Path,
        node: str,
        *,
        memory: Memory | None = None,
        rates: Rates | None = None,
        block_s: float = 0.05,
        version: str = "1",
    ) -> None:
        self.node = node
        self.path = socket_path(home, node)
        self.memory = memory or Memory()
        self.rates = rates or steady(1.0)
        self.block_s = block_s
        self.version = version
        self.section_digest = "d"
        self.stale: dict[str, str] = {}  # run -> why its certificate does not stand
        self.reserved: tuple[str, ProcessId] | None = None
        self.refuse: dict[str, Refused] = {}
        self.asked: list[str] = []
        self.on_asked: Callable[[str], object] = lambda method: None  # called before it answers
        self.active: tuple[str, ProcessId] | None = None
        self.now: dict[str, Any] | None = None
        self.stopping = threading.Event()
        self._lock = threading.RLock()
        self._socket = AgentSocket(self.path, self.answer)

    def __enter__(self) -> FakeAgent:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self.stopping.clear()
        self._socket.start()

    def stop(self) -> None:
        """As kill -9 would: a block that is being measured gets no answer and leaves no row."""
        self.stopping.set()
        self._socket.stop()

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        self.asked.append(method)
        self.on_asked(method)
        try:
            if method in self.refuse:
                raise self.refuse[method]
            result = getattr(self, f"do_{method}")(**params)
        except Refused as refused:
            return refusal(refused)
        except _Gone:
            return None  # the connection ends without a line
        return {"result": result}

    # -- verbs -------------------------------------------------------------------------------------------------------

    def do_hello(self) -> dict[str, Any]:
        me = own_id()
        return {"node": self.node, "version": self.version, "protocol": 1, **me.as_dict(), "section_version": 1}

    def do_admit_flow(self, flow: str, parameters: dict[str, Any]) -> dict[str, Any]:
        return {}

    def do_run_plan(self, spec: dict[str, Any]) -> dict[str, Any]:
        if spec["rule"] != "trainer":
            raise Refused("RULE_UNKNOWN", f"rule {spec['rule']!r}", "the section has no such rule", "use trainer")
        return {
            "spec": spec,
            "rule": {"id": spec["rule"]},
            "processes": [],
            "source": {"kind": "jsonl", "path": "events.jsonl", "state": "ok", "rate": RATE, "timed": False},
            "work": [],
            "feed": None,
            "planned_blocks": 12,
            "planned_hours": 0.1,
            "longest_hours": 0.2,
            "n_max": 40,
            "looks": [8, 12],
            "held": ["the work under test"],
            "allowed": ["the work under test beside trainer"],
            "warnings": [],
            "attempts_before": [],
            "certificate_kind": "demonstration",
        }

    def do_run_begin(
        self,
        run: str,
        spec: dict[str, Any],
        holder: dict[str, Any],
        reviewed_by: str,
        flow_run_id: str | None = None,
        sweep: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        with self._lock:
            self._free_if_gone()
            who = ProcessId.from_dict(holder)
            if self.active is not None and self.active != (run, who):
                raise Refused(
                    "RUN_LOCKED", "a run", f"run {self.active[0]} measures here", "wait", {"run": self.active[0]}
                )
            record = self.memory.runs.get(run)
            if record is not None and record["state"] == "ended":
                raise Refused("RUN_ENDED", f"run {run}", f"it ended: {record['ending']}", "start a new run")
            if record is not None and (record["spec"] != spec or record["agent_version"] != self.version):
                raise Refused("RUN_CHANGED", f"run {run}", "agent_version differs", "start a new run")
            resumed = record is not None
            if record is None:
                record = self.memory.runs[run] = new_record(
                    run, spec, node=self.node, flow_run_id=flow_run_id, reviewed_by=reviewed_by, sweep=sweep,
                    section_digest=self.section_digest, agent_version=self.version,
                )  # fmt: skip
                self.memory.blocks[run] = {}
            self.active = (run, who)
            self.memory.write("RUN_RESUMED" if resumed else "RUN_STARTED", run=run)
            return {"resumed": resumed, "run": self._record(run)}

    def do_run_reference(self, run: str) -> dict[str, Any]:
        self._need(run)
        record = self.memory.runs[run]
        if record["reference"] is None:
            self._wait(run, min(self.block_s, 0.2), None)
            record["reference"] = {"rate": RATE, "length_s": 10.0, "longest_step_s": 0.2}
        return dict(record["reference"])

    def do_run_block(self, run: str, number: int, order: str) -> dict[str, Any]:
        with self._lock:
            self._need(run)
            if (known := self.memory.blocks[run].get(number)) is not None:
                return known
            self.memory.started.append((run, number, order))
            self.now = {"block": number, "arm": "on", "part": "window", "left_s": self.block_s}
        try:
            cut = self._wait(run, self.block_s, number)
        finally:
            self.now = None
        row = block_row(run, number, order, cut, float(self.memory.runs[run]["spec"]["window_s"]), self.rates)
        with self._lock:
            self.memory.blocks[run][number] = row
            self.memory.write("RUN_BLOCK_CUT" if cut else "RUN_BLOCK", run=run, block=number)
        return row

    def do_run_look(self, run: str, look: dict[str, Any]) -> dict[str, Any]:
        self._need(run)
        self.memory.runs[run]["looks"].append(look)
        return look

    def do_duty(self) -> dict[str, Any]:
        idle = {"state": "free", "budget": None, "ceiling": None, "decides": "nobody", "rules": [], "units": []}
        return {"node": self.node, "gpu_jobs": "when_no_gpu_protected", **idle}

    def do_run_status(self, run: str | None = None) -> dict[str, Any] | None:
        if self.active is None:
            return None
        name = self.active[0]
        record = self.memory.runs[name]
        now = self.now or {"block": None, "arm": None, "part": "idle", "left_s": None}
        return {"run": name, "spec": record["spec"], "state": record["state"], "now": now, "looks": record["looks"]}

    def do_run_end(
        self, run: str, ending: str, reason: str | None = None, verdict: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        with self._lock:
            record = self.memory.runs[run]
            if record["state"] != "ended":
                record.update(state="ended", ending=ending, reason=reason, verdict=verdict, ended_at=utc_iso())
                self.memory.write("RUN_ENDED", run=run, ending=ending)
            if self.active is not None and self.active[0] == run:
                self.active = None
            return self._record(run)

    def do_run_abort(self, run: str) -> dict[str, Any]:
        return self.do_run_end(run, "aborted", "asked for on the node")

    def do_run_show(self, run: str) -> dict[str, Any]:
        if run not in self.memory.runs:
            raise Refused("RUN_UNKNOWN", f"run {run}", "this node knows no such run", "cotenant protection ab list")
        return self._record(run)

    def do_run_list(self, limit: int = 50) -> list[dict[str, Any]]:
        keys = (
            *("run", "state", "ending", "reason", "started_at", "ended_at", "certificate", "certificate_refused_for"),
            *("flow_run_id", "driven_by", "section_digest", "sweep"),
        )
        rows = list(self.memory.runs.values())[-limit:]
        return [
            {key: row.get(key) for key in keys} | {key: row["spec"][key] for key in ("rule", "work", "duty", "kind")}
            for row in reversed(rows)
        ]

    def do_sweep_begin(self, sweep: str, holder: dict[str, Any]) -> dict[str, Any]:
        who = ProcessId.from_dict(holder)
        if self.reserved is not None and self.reserved[1] != who and liveness(self.reserved[1]) != "gone":
            raise Refused("RUN_LOCKED", "the node", f"sweep {self.reserved[0]} has it", "wait")
        self.reserved = (sweep, who)
        return {}

    def do_sweep_end(self, holder: dict[str, Any]) -> dict[str, Any]:
        self.reserved = None
        return {}

    def do_section_show(self) -> dict[str, Any]:
        return {"version": 1, "text": "", "digest": "of one scope", "in_force_digest": self.section_digest}

    def do_certificates(self) -> list[dict[str, Any]]:
        found = []
        for name, record in self.memory.runs.items():
            if record["certificate"] is not None:
                why = self.stale.get(name)
                validity = {"state": "stale" if why else "valid", "why": why or "until 2099", "renew": "renew it"}
                found.append(record["certificate"] | {"validity": validity})
        return found

    def do_certificate_offer(self, run: str) -> dict[str, Any]:
        record = self.memory.runs[run]
        spec = record["spec"]
        record["certificate"] = {
            "certificate": f"cert-{run}",
            "certified_duty": spec["duty"],
            "run": run,
            "node": self.node,
            "rule": spec["rule"],
            "duty": spec["duty"],
            "kind": "demonstration",
            "issued_at": utc_iso(),
            "expires_at": "2099-01-01T00:00:00+00:00",
        }
        self.memory.write("CERT_ISSUED", run=run)
        return dict(record["certificate"])

    def do_timeline(
        self, after_seq: int = 0, limit: int = 500, code: str | None = None, before_seq: int | None = None
    ) -> dict[str, Any]:
        entries = [entry for entry in self.memory.timeline if entry["seq"] > after_seq]
        if before_seq is None:
            entries = entries[:limit]
        else:
            entries = [entry for entry in entries if entry["seq"] < before_seq][-limit:]
        return {"entries": entries, "last_seq": max((each["seq"] for each in self.memory.timeline), default=0)}

    # -- inside ------------------------------------------------------------------------------------------------------

    def _record(self, run: str) -> dict[str, Any]:
        rows = self.memory.blocks.get(run, {})
        return json.loads(json.dumps({**self.memory.runs[run], "blocks": [rows[number] for number in sorted(rows)]}))

    def _free_if_gone(self) -> None:
        if self.active is not None and liveness(self.active[1]) == "gone":
            self.memory.write("RUN_HOLDER_GONE", run=self.active[0])
            self.active = None

    def _need(self, run: str) -> None:
        if self.active is None or self.active[0] != run:
            record = self.memory.runs.get(run)
            if record is not None and record["state"] == "ended":
                raise Refused("RUN_ENDED", f"run {run}", f"it ended: {record['ending']}", "start a new run")
            raise Refused("RUN_NOT_HELD", f"run {run}", "no process holds it", "begin (resume) it first")

    def _wait(self, run: str, seconds: float, number: int | None) -> str | None:
        """Wait as a window would; why it was cut, or None."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.stopping.wait(0.02):
                raise _Gone
            if self.memory.runs[run]["state"] == "ended":
                return "the run was ended"
            if self.active is None or liveness(self.active[1]) == "gone":
                self._free_if_gone()
                return "the flow's process went away"
        return None


class _Gone(Exception):
    """The agent stopped in the middle of an answer."""
