"""The certificates that this node keeps, and which of them admit work at this moment."""

from __future__ import annotations

import os
import secrets
import statistics
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodes.agent.certificate_ages import CertificateAges
from nodes.clock import utc_now
from nodes.fingerprint import bytes_to_hash, read_fingerprint
from nodes.hardware import gpus_are_asked
from nodes.journal import Journal
from nodes.restored import forgotten
from policies.certificate import Certificate, Fingerprint, Validity, admits, check_digest, validity
from policies.governed import InForce

if TYPE_CHECKING:
    from nodes.agent.core import Agent

__all__ = ["InForceCertificates", "KeptCertificates"]

KEY_BYTES = 32
# A file larger than this is hashed in a thread, and until it is nothing is certified: the tick must not wait for it.
HASH_AT_ONCE_BYTES = 32 << 20


class KeptCertificates:
    """The node's certificates and the key that signs them."""

    def __init__(self, journal: Journal, key: Path) -> None:
        self.journal = journal
        self.key = _key(key)
        self._forged: set[str] = set()
        self.ages = CertificateAges(journal)
        self.forgotten = forgotten(journal)

    def why_forgotten(self, certificate: Certificate) -> str | None:
        """Why what spoke against it since is not known any more, where it was earned before that."""
        lost = self.forgotten
        return lost.why if lost is not None and certificate.run in lost.known else None

    def all(self) -> list[tuple[Certificate, str | None]]:
        """With why each was revoked. Only those whose digest fits their fields; an edited one is said once, never used."""
        found = []
        for row, revoked in self.journal.certificates():
            try:
                if not check_digest(row, self.key):
                    raise ValueError("its digest does not fit its fields")
                found.append((Certificate.model_validate(row), revoked))
            except ValueError as error:
                name = str(row.get("certificate"))
                if name not in self._forged:
                    self._forged.add(name)
                    self.journal.write("CERT_FORGED", {"certificate": name, "why": str(error)[:300]})
        return found


class InForceCertificates:
    """Asked on every tick: what is the same as at the last one is not worked out again."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._read_at: int | None = None
        self._kept: list[tuple[InForce, str | None]] = []
        self._judged: dict[str, tuple[Any, Validity]] = {}
        self._told: dict[str, str] = {}
        self._hashing: dict[str, threading.Thread] = {}

    def now(self, rules: Iterable[str]) -> tuple[tuple[InForce, ...], dict[str, str]]:
        """Those of these rules that admit work now; and of a rule that has some and none of them does, why.

        A certificate that was valid and no longer is is journaled.
        """
        wanted, now = set(rules), utc_now()
        self._read()
        self.agent.certificates.ages.take_over(each.certificate for each, _ in self._kept)
        if not wanted:
            return (), {}
        found: list[InForce] = []
        lapsed: dict[str, str] = {}
        prints: dict[str, Fingerprint | None] = {}
        asking: set[str] = set()
        section = self.agent.section
        unkept = [f"how run {run} ended" for run in self.agent.unsettled] + [
            f"what run {run} measured" for run in self.agent.runs.unkept
        ]
        for each, revoked in self._kept:
            rule = each.rule
            if rule not in wanted or revoked is not None:
                continue
            if unkept:
                lapsed[rule] = f"{unkept[0]} cannot be kept yet, and it may speak against it"
                continue
            # Most of the kept ones expired long ago: of those nothing needs to be looked at.
            seen = max(now, self.agent.certificates.ages.seen(each.certificate))
            dated = each.certificate.issued_at <= now and seen < each.certificate.expires_at
            if dated and rule not in prints:
                asked = gpus_are_asked()  # also before: the answer may come between the two
                prints[rule] = self._fingerprint(rule)
                if _lacks_gpus(prints[rule]) and (asked or gpus_are_asked()):
                    asking.add(rule)
            if dated and rule in asking:
                # a valid one is not stale for that, and none is in force until the same GPUs are seen
                lapsed[rule] = "the list of GPUs changed, and their driver is being asked which they are"
                continue
            state = self._validity(each, prints.get(rule), dated=dated)
            self._tell(each, state)
            admitted = admits(each.certificate, state, accept_demonstration=section.node.accept_demonstration)
            if admitted.holds:
                found.append(each)
            else:
                lapsed[rule] = admitted.why
        for each in found:
            lapsed.pop(each.rule, None)
        return tuple(found), lapsed

    def _read(self) -> None:
        journal = self.agent.journal
        if self._read_at == journal.certificates_changed:
            return
        kept = self.agent.certificates.all()
        self._kept = [(InForce(each, _off_rate(journal, each.run)), revoked) for each, revoked in kept]
        self._read_at = journal.certificates_changed
        self._judged = {}

    def _validity(self, each: InForce, fingerprint: Fingerprint | None, *, dated: bool) -> Validity:
        agent, certificate = self.agent, each.certificate
        rule = agent.section.rule(certificate.rule)
        bundles = agent.modules.bundles()
        key = (dated, fingerprint, rule, agent.section.node.duty_device, bundles)
        kept = self._judged.get(certificate.certificate)
        if kept is not None and kept[0] == key:
            return kept[1]
        state = validity(
            certificate,
            now=utc_now(),
            fingerprint=fingerprint,
            rule=rule,
            duty_device=agent.section.node.duty_device,
            bundles=bundles,
            key=agent.certificates.key,
            node=agent.node,
            seen=agent.certificates.ages.seen(certificate),
            forgotten=agent.certificates.why_forgotten(certificate),
        )
        self._judged[certificate.certificate] = (key, state)
        return state

    def _tell(self, each: InForce, state: Validity) -> None:
        name, before = each.certificate.certificate, self._told.get(each.certificate.certificate)
        self._told[name] = state.state
        if before == "valid" and state.state in ("stale", "expired"):
            code = "CERT_STALE" if state.state == "stale" else "CERT_EXPIRED"
            facts = {"certificate": name, "rule": each.rule, "why": state.why, "renew": state.renew}
            self.agent.journal.write(code, facts)

    def _fingerprint(self, rule: str) -> Fingerprint | None:
        """What is there now; None while it cannot be told or a large file is still being hashed."""
        observer = self.agent.observer
        if observer.program_unknown(rule):
            return None
        processes = observer.processes(rule)
        if bytes_to_hash(processes) <= HASH_AT_ONCE_BYTES:
            return read_fingerprint(processes)
        running = self._hashing.get(rule)
        if running is None or not running.is_alive():
            self._hashing[rule] = threading.Thread(target=read_fingerprint, args=(processes,), daemon=True)
            self._hashing[rule].start()
        return None


def _lacks_gpus(fingerprint: Fingerprint | None) -> bool:
    return fingerprint is not None and fingerprint.gpus is None


def _off_rate(journal: Journal, run: str) -> float | None:
    """Mean rate in the counted OFF windows of the run that earned it; None where a row has none."""
    rates = [_rate(block.get("off")) for block in journal.blocks(run) if block.get("state") == "counted"]
    known = [rate for rate in rates if rate is not None]
    return statistics.fmean(known) if known and len(known) == len(rates) else None


def _rate(window: Mapping[str, Any] | None) -> float | None:
    rate = (window or {}).get("rate")
    return float(rate) if isinstance(rate, int | float) else None


def _key(path: Path) -> bytes:
    """The node's signing key, made once, readable by the agent's account alone."""
    try:
        kept = path.read_bytes()
        if len(kept) == KEY_BYTES and any(kept):  # all NUL: the file was renamed before it was written
            return kept
        path.rename(path.with_suffix(".broken"))  # certificates signed with what it was are worth nothing now
        raise FileNotFoundError(path)
    except FileNotFoundError:
        fresh = secrets.token_bytes(KEY_BYTES)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(fresh)
            file.flush()
            os.fsync(file.fileno())
        return fresh
