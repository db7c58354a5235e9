"""How a run ends, and what the agent keeps of it: the certificate, or the reason why there is none.

The agent believes no flow: the windows are its own journaled ones, and the verdict is recomputed from them in a child
process (the statistics need SciPy, which has no place in this process). Source: ``harness.md``, "Certificates".
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sqlite3
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodes.agent.left import Left
from nodes.agent.revoking import settle
from nodes.clock import monotonic_s, utc_now
from policies.certificate import (
    Certificate,
    Fingerprint,
    comes_after,
    differences,
    issue,
    revocations,
    standing,
    unreadable_runs,
    validity,
)
from policies.harness.dose import certified_duty
from policies.harness.spec import RunSpec
from policies.harness.validity import counted, no_certificate
from policies.harness.verdict import PASS
from policies.refusal import Refused
from policies.section import digest as section_digest

if TYPE_CHECKING:
    from nodes.agent.core import Agent
    from nodes.agent.subject import Subject

__all__ = ["Certifier"]

log = logging.getLogger(__name__)

RECOMPUTE_WITHIN_S = 120.0
# What is longer is offered again by the flow.
WASHOUT_WITHIN_S = 45.0
WASHOUT_LOOK_S = 0.5


def _refused(run: str, why: str, remedy: str | None = None, about: str = "other") -> Refused:
    """``about``: "repetition" (a further pass certifies), "verdict" (it was no pass), "later" (it may be offered again), or "other"."""
    remedy = remedy or f"the report says more: cotenant protection ab show {run}"
    return Refused("CERT_REFUSED", f"a certificate for run {run}", why, remedy, {"for": about})


class Certifier:
    def __init__(self, agent: Agent, subject: Subject) -> None:
        self.agent = agent
        self.subject = subject
        self.key = agent.certificates.key
        # An agent that died between a run's end and its revocations does them now: no flow may ever ask again.
        for record in agent.journal.runs():
            if record["state"] == "ended":
                settle(agent, record["run"])

    # -- endings ----------------------------------------------------------------------------------------------------

    def end(self, run: str, ending: str, reason: str | None, verdict: dict[str, Any] | None) -> dict[str, Any]:
        """Close the run. Harm that it showed revokes what was certified for the same work at that duty or more."""
        agent = self.agent
        rested = agent.runs.active is not None and agent.runs.active.resting
        record = agent.runs.end(run, ending, reason, verdict)
        with contextlib.suppress(sqlite3.Error):  # asked again by ``settle``
            agent.under_test.end_feed(run)
        if rested:
            agent.tick()  # nothing was looked at while it rested: a program may have come meanwhile
        else:
            agent.evaluate("tick")
        agent.pulse()
        settle(agent, run)
        return record

    # -- certificates -----------------------------------------------------------------------------------------------

    async def offer(self, run: str) -> dict[str, Any]:
        """Keep a certificate for a run that ended with a pass, or refuse with the reason (journaled either way)."""
        agent = self.agent
        record = agent.runs.record(run)
        if record["certificate"] is not None:
            return dict(record["certificate"])
        kept = next((each for each, _ in self.agent.certificates.all() if each.run == run), None)
        if kept is not None:  # the agent died between keeping it and saying so in the record
            return dict(agent.runs.change(run, certificate=kept.model_dump(mode="json"))["certificate"])
        try:
            certificate = await self._issue(record)
        except Refused as refused:
            agent.journal.write("CERT_REFUSED", {"run": run, "why": refused.why})
            agent.runs.change(
                run, certificate_refused=refused.why, certificate_refused_for=refused.data.get("for", "other")
            )
            raise
        row = certificate.model_dump(mode="json")
        agent.journal.put_certificate(certificate.certificate, run, row)
        agent.runs.change(run, certificate=row, certificate_refused=None, certificate_refused_for=None)
        agent.journal.write("CERT_ISSUED", {"certificate": certificate.certificate, "run": run, "duty": certificate.certified_duty,
                                            "demonstration": certificate.demonstration})  # fmt: skip
        if certificate.unbound:
            agent.journal.write(
                "CERT_NOT_BOUND", {"certificate": certificate.certificate, "unbound": list(certificate.unbound)}
            )
        return row

    async def _issue(self, record: dict[str, Any]) -> Certificate:
        run, spec = record["run"], RunSpec.model_validate(record["spec"])
        if record["state"] != "ended" or record["ending"] != PASS:
            raise _refused(run, f"it ended {record['ending'] or 'not yet'}; only '{PASS}' earns one")
        try:
            rows = self.agent.runs.blocks(run)
        except ValueError as error:
            raise _refused(run, f"a block of its cannot be understood: {error}", "measure it anew") from None
        await self._washout_is_over(run)
        await self.subject.look_at_copies()
        against = no_certificate(spec, rows)
        if against:
            raise _refused(run, "; ".join(against))
        decided = await self._recompute(run, spec)
        if decided["zero_variance"]:
            raise _refused(run, "its blocks do not vary at all: quantised counts, which are no evidence")
        if decided["verdict"] != PASS:
            raise _refused(
                run, f"recomputed from the node's own journal its verdict is '{decided['verdict']}'", about="verdict"
            )
        now_print = await self.subject.fingerprint(spec.rule)
        # Nothing is awaited from here on: what is looked at is what is signed.
        then_print = Fingerprint.model_validate(record["fingerprint"])
        changed = differences(then_print, now_print)
        if changed:
            raise _refused(run, "what it was measured under changed meanwhile: " + "; ".join(changed))
        then, now = record.get("section_digest"), section_digest(self.agent.section_text)
        version, now_version = record["section_version"], self.agent.section_version
        # the same text set again is another version and no other section; of an old record only the version is known
        if then != now if then is not None else version != now_version:
            raise _refused(run, f"the protection section changed meanwhile (version {version} → {now_version})")
        digests = {item["module"]: item["digest"] for item in record["work"]}
        for module in digests:
            found = self.agent.modules.get(module)
            if found is not None and found.being_read:
                raise _refused(run, f"module {found.short}: {found.why}", "offer it again in a minute", about="later")
            if found is not None and found.changed:
                raise _refused(run, f"what it ran may not be what it names: module {found.short}: {found.why}")
        for row in counted(rows):
            for unit in row.on.units if row.on is not None else ():
                if unit.digest is None or digests.get(unit.module) != unit.digest:
                    raise _refused(
                        run, f"in block {row.number} {unit.module} ran from another bundle than the run names"
                    )
        timed = self.subject.timed(spec)
        if timed.looks_timed is None and not spec.accept_timed_source:
            raise _refused(
                run,
                f"whether its source is a timer is not known ({timed.words})",
                "offer it again in a minute",
                about="later",
            )
        if timed.looks_timed and not spec.accept_timed_source:
            raise _refused(run, f"its source looks timed now: {timed.words}")
        duty = certified_duty(counted(rows), spec.duty)
        if duty is None or duty <= 0:
            raise _refused(run, "no duty was metered, so there is nothing to certify")
        others = [
            other if other["state"] == "ended" else other | {"reached_look": self.agent.runs.reached_look(other)}
            for other in self.agent.journal.runs()
            if other["run"] != run
        ]
        for unread in unreadable_runs(others):
            log.warning(
                "the record of run %s cannot be understood, not even its rule: it stands against no certificate", unread
            )
        # what an earlier offer of this same pass came to is not held against it
        stand = standing({**record, "certificate_refused_for": None}, others, self.agent.certificates.forgotten)
        if not stand.may_certify:
            raise _refused(run, stand.why, stand.remedy, about="repetition")
        certificate = issue(
            record,
            decided=decided,
            duty=duty,
            fingerprint=then_print,
            rule=self.subject.rule_of(spec),
            duty_device=self.agent.section.node.duty_device,
            demonstration=spec.demonstration or bool(record["source"]["timed"]),
            meter=self.agent.units.meter_words([(str(work["module"]), str(work["stage"])) for work in record["work"]]),
            now=utc_now(),
            key=self.key,
        )
        self._nothing_since(record, certificate, others)
        return certificate

    async def _washout_is_over(self, run: str) -> None:
        """Where the last window was ON a death in the washout after it speaks against the work, so nothing is certified before."""
        runs = self.agent.runs
        until_s = monotonic_s() + WASHOUT_WITHIN_S
        while (watched := runs.lefts.get(run)) is not None and watched.arm == "on" and monotonic_s() < until_s:
            await asyncio.sleep(WASHOUT_LOOK_S)
        left = Left.of(runs.record(run).get("left"))
        if left is None or left.arm == "off":
            return
        if ended := left.ended():
            raise _refused(run, f"{left.words(ended)}, before it was certified", "measure it anew")
        if run in runs.lefts:
            why = "the washout after its last window is not over, and a death of the program in it would speak against the work"
            raise _refused(run, why, "offer it again in a while", about="later")

    def _nothing_since(self, record: dict[str, Any], certificate: Certificate, others: list[dict[str, Any]]) -> None:
        """Refused where a later run showed the harm that would have revoked it, had it been offered in time."""
        for other in others:
            try:
                if other["state"] != "ended" or not comes_after(other, record):
                    continue
            except ValueError:
                continue  # when it ended cannot be told: ``standing`` asks for two passes then
            if revocations(self.agent.runs.record(other["run"]), [certificate]):
                why = f"run {other['run']}, which came after it, ended {other['ending']} for the same work"
                raise _refused(record["run"], why, "measure it anew")

    async def _recompute(self, run: str, spec: RunSpec) -> dict[str, Any]:
        """The verdict over the journaled windows, from a child process."""
        blocks = [
            [row.order, row.on.rate, row.off.rate] for row in counted(self.agent.runs.blocks(run)) if row.on and row.off
        ]
        question = {"blocks": blocks, "margin": spec.margin, "n_max": spec.n_max, "first_look": spec.first_look}
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "policies.statistics",
            cwd=Path(__file__).resolve().parents[2],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await asyncio.wait_for(child.communicate(json.dumps(question).encode()), RECOMPUTE_WITHIN_S)
        except TimeoutError:
            child.kill()
            raise _refused(
                run,
                f"its verdict could not be recomputed within {RECOMPUTE_WITHIN_S:.0f} s",
                "offer it again",
                about="later",
            ) from None
        if child.returncode != 0:
            why = f"its verdict could not be recomputed: {err.decode(errors='replace').strip()[-300:]}"
            raise _refused(run, why, "offer it again", about="later")
        answer: dict[str, Any] = json.loads(out)
        return answer

    async def listed(self) -> list[dict[str, Any]]:
        """Every certificate with its validity now."""
        found = []
        prints: dict[str, Fingerprint] = {}
        for certificate, revoked in self.agent.certificates.all():
            if certificate.rule not in prints:
                prints[certificate.rule] = await self.subject.fingerprint(certificate.rule)
            state = validity(
                certificate,
                now=utc_now(),
                fingerprint=prints[certificate.rule],
                rule=self.agent.section.rule(certificate.rule),
                duty_device=self.agent.section.node.duty_device,
                bundles=self.agent.modules.bundles(),
                revoked=revoked,
                key=self.key,
                node=self.agent.node,
                seen=self.agent.certificates.ages.seen(certificate),
                forgotten=self.agent.certificates.why_forgotten(certificate),
            )
            found.append(certificate.model_dump(mode="json") | {"validity": state.as_dict()})
        return found
