"""What a run measures on this node: its rule, its work, its program's fingerprint; and the facts that its record starts with."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from nodes.agent.candidates import candidates
from nodes.feeds import check_feed
from nodes.fingerprint import read_fingerprint
from nodes.modules import READ_WITHIN_S
from nodes.unbound_code import unbound_code
from policies.certificate import Fingerprint, differences
from policies.harness.attempts import attempts_before
from policies.harness.kept import asked_of
from policies.harness.spec import RunSpec
from policies.refusal import Refused
from policies.section import Rule, digest
from policies.sources.timed import TimedCheck, check_timed
from policies.version import VERSION
from policies.work import WorkSelector, feed_parts
from policies.workloads import is_workload, workload_name

if TYPE_CHECKING:
    from nodes.agent.core import Agent

__all__ = ["Subject"]


class Subject:
    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def rule_of(self, spec: RunSpec) -> Rule:
        """The rule in force, which can be measured. Refused otherwise."""
        rule = self.agent.section.rule(spec.rule)
        if rule is None:
            node, known = self.agent.node, [r.id for r in self.agent.section.rules]
            why = f"node {node} has no such rule; " + (f"its rules: {', '.join(known)}" if known else "it has none")
            remedy = f"cotenant protection show {node}" if known else f"cotenant protection set {node} FILE"
            raise Refused("RUN_NO_RULE", f"rule {spec.rule!r}", why, remedy)
        if rule.protect is None or rule.protect.metric != "progress_rate" or rule.protect.source is None:
            raise Refused(
                "RUN_NO_SOURCE",
                f"rule {spec.rule!r}",
                "it protects no progress_rate, so there is no progress to measure",
                'give it protect = { metric = "progress_rate", source = { jsonl = "FILE", event = "NAME" } }',
            )
        if rule.protect.source.kind == "exec":
            raise Refused(
                "RUN_NO_SOURCE",
                f"rule {spec.rule!r}",
                "an exec probe is no event or counter source",
                "use jsonl or log_regex",
            )
        return rule

    async def look_at_copies(self) -> None:
        """Whether the modules' copies are what was added; for a moment waited for where one has to be read again."""
        await asyncio.to_thread(self.agent.modules.check, within_s=READ_WITHIN_S)

    def timed(self, spec: RunSpec) -> TimedCheck:
        return check_timed(self.agent.progress(spec.rule).track.recent_reads())

    def work(self, spec: RunSpec) -> list[dict[str, Any]]:
        """The stages and workloads under test on this node, with the bundle they would run from (as of the last ``look_at_copies``)."""
        if spec.kind != "ab":
            return []
        agent = self.agent
        if spec.feed is not None:
            check_feed(agent.modules, spec.feed)
        fed = None if spec.feed is None else feed_parts(spec.feed)[0]
        found = candidates(agent, WorkSelector(fed if fed is not None else spec.work))
        if fed is not None and not WorkSelector(spec.work).is_class and spec.work not in (
            fed, fed.partition("/")[0], *(f["module"] for f in found), *(f"{f['module']}/{f['stage']}" for f in found)
        ):  # fmt: skip
            raise Refused(
                "RUN_BAD_PARAMETER",
                f"--feed {spec.feed}",
                f"it is no part of --work {spec.work}",
                f"try --work {fed}",
            )
        if not found:
            not_ready = [f"{m.short} ({m.why})" for m in agent.modules.list() if m.state != "ready"]
            raise Refused(
                "RUN_NO_WORK",
                f"--work {spec.work}",
                "no ready module of this node has such work"
                + (f"; not ready: {', '.join(not_ready)}" if not_ready else ""),
                "cotenant module list",
            )
        unmetered = [f["short"] for f in found if agent.units.on_gpu(f["module"], f["stage"])]
        why = agent.gpus.meters.cannot_meter() if unmetered else None
        if why is not None:
            raise Refused(
                "RUN_NO_METER",
                f"work of {', '.join(unmetered)}",
                f"it uses the GPU, whose time cannot be read by process, so its dose would be unknown: {why}",
                f'cotenant doctor {agent.node}; or, where the accelerator is the CPU, set duty_device = "cpu"',
            )
        if spec.feed is None and not any(f["queued"] + f["running"] for f in found):
            raise Refused(
                "RUN_NO_WORK",
                f"--work {spec.work}",
                "none of it is queued or running, so the ON windows would measure nothing",
                _how_to_have(found[0]),
            )
        if spec.duty is not None:
            throttled = [f for f in found if "cooperative_throttle" in f["capabilities"]]
            if not throttled:
                raise Refused(
                    "RUN_BAD_PARAMETER",
                    f"--duty {spec.duty:g}",
                    "none of the work under test can hold a duty",
                    "leave --duty out",
                )
            return throttled
        return found

    async def facts(self, spec: RunSpec, old: dict[str, Any] | None) -> dict[str, Any]:
        """What the run's record starts with; of one that goes on (``old``) also how its fingerprint differs from now."""
        agent = self.agent
        rule = self.rule_of(spec)
        if spec.kind == "ab":
            await self.look_at_copies()
        agent.observer.refresh(agent.now_s(), agent.trees())
        fingerprint = await self.fingerprint(spec.rule)
        view = agent.progress(spec.rule)
        timed = self.timed(spec)
        runs = agent.journal.runs()
        found: dict[str, Any] = {
            "node": agent.node,
            "section_version": agent.section_version,
            "section_digest": digest(agent.section_text),
            "agent_version": VERSION,
            "fingerprint": fingerprint.model_dump(mode="json"),
            "work": [{k: w[k] for k in ("module", "short", "version", "digest", "stage")} for w in self._work_or_old(spec, old)],
            "program": self._program(spec.rule),
            "source": {"kind": view.kind, "path": view.path, "unit": view.counts, "timed": timed.looks_timed, "timed_why": timed.words},
            "max_slowdown": rule.protect.max_slowdown if rule.protect else None,
            "attempts_before": attempts_before(runs, spec),
            "newest_null": _newest(runs, spec, "null"),
            "newest_self": _newest(runs, spec, "self"),
        }  # fmt: skip
        if old is not None:
            found["fingerprint_differences"] = differences(Fingerprint.model_validate(old["fingerprint"]), fingerprint)
        return found

    def _program(self, rule: str) -> dict[str, Any]:
        processes = self.agent.observer.processes(rule)
        return {"processes": processes, "unbound": [each.kept for each in unbound_code(processes)]}

    def _work_or_old(self, spec: RunSpec, old: dict[str, Any] | None) -> list[dict[str, Any]]:
        """On a resume queued work may have run out; what counts is that the bundles are the same."""
        if old is None:
            return self.work(spec)
        # one whose copy is being read stands: nothing starts from it before that, and nothing is certified
        now = {m.module: m for m in self.agent.modules.list() if m.stands}
        return [
            {**item, "version": now[item["module"]].version, "digest": now[item["module"]].digest}
            if item["module"] in now
            else {**item, "digest": "not ready"}
            for item in old["work"]
        ]

    async def fingerprint(self, rule: str) -> Fingerprint:
        """Hashing a large executable takes a while, and so may asking for the GPUs, so it is done in a thread."""
        observer = self.agent.observer
        processes = None if observer.program_unknown(rule) else observer.processes(rule)
        return await asyncio.to_thread(read_fingerprint, processes, wait=True)


def _how_to_have(item: dict[str, Any]) -> str:
    if is_workload(item["stage"]):
        return f"cotenant workload start {item['short']}/{workload_name(item['stage'])}"
    return f"queue some, or give --feed {item['short']}/{item['stage']}"


def _newest(runs: list[dict[str, Any]], spec: RunSpec, kind: str) -> dict[str, Any] | None:
    for run in runs:
        asked, verdict = asked_of(run), run.get("verdict")
        ended_at, ending = run.get("ended_at"), run.get("ending")
        if (asked.get("kind"), asked.get("rule")) != (kind, spec.rule) or run.get("state") != "ended":
            continue
        if verdict and isinstance(verdict, dict) and isinstance(ended_at, str) and isinstance(ending, str):
            return {"run": run["run"], "ended_at": ended_at, "ending": ending, "verdict": verdict}
        # a damaged record hides no other
    return None
