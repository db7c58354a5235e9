"""Whether a certificate still holds: for 14 days, on a clock that has not gone back, while all it names is the same."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from policies.certificate.fingerprint import Fingerprint, differences
from policies.certificate.model import VALID_FOR, Certificate, check_digest, rule_digest
from policies.harness.spec import RunSpec
from policies.instants import aware_utc
from policies.section.models import Rule

__all__ = ["Validity", "validity"]


@dataclass(frozen=True, slots=True)
class Validity:
    """``why`` in words; ``renew`` is the command that earns a new one."""

    state: Literal["valid", "expired", "stale", "revoked", "invalid"]
    why: str
    renew: str
    differences: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "differences": list(self.differences)}


def validity(
    certificate: Certificate,
    *,
    now: datetime,
    fingerprint: Fingerprint | None,
    rule: Rule | None,
    duty_device: Literal["gpu", "cpu"],
    key: bytes,
    revoked: str | None = None,
    bundles: Mapping[str, str | None] | None = None,
    node: str | None = None,
    seen: datetime | None = None,
    forgotten: str | None = None,
) -> Validity:
    """Whether ``certificate`` holds at ``now`` (aware; the wall clock).

    Args:
        fingerprint: what is there now; None: it could not be taken, which is not "the same".
        rule: the rule of that id in force now; None: there is none.
        revoked: why it was revoked, where it was.
        bundles: module -> digest of the bundle that is ready now; None: not asked (``covers`` asks again).
        node: whose agent asks; None: not asked.
        seen: the latest time at which it is known to have been there already, which a clock that is set back does not undo.
        forgotten: why it is not known any more what spoke against it after it was earned, where that is so.
    """
    now = aware_utc(now)
    renew = _renew(certificate)
    if not check_digest(certificate, key):
        return Validity("invalid", "its digest does not fit its fields: it was changed after it was issued", renew)
    if node is not None and certificate.node != node:
        return Validity("invalid", f"it was issued for node {certificate.node}, not {node}", renew)
    if revoked is not None:
        return Validity("revoked", revoked, renew)
    if now < certificate.issued_at:
        why = f"this machine's clock says {_minute(now)}, before it was issued ({_minute(certificate.issued_at)})"
        return Validity("invalid", why, renew)
    if now >= certificate.expires_at:
        return Validity("expired", f"expired on {_minute(certificate.expires_at)}", renew)
    if seen is not None and seen >= certificate.expires_at:
        why = f"it is {VALID_FOR.days} days old; this machine's clock, which says {_minute(now)}, was set back since"
        return Validity("expired", why, renew)
    changed = [] if forgotten is None else [forgotten]
    changed += _changed(certificate, fingerprint, rule, duty_device, bundles)
    if changed:
        return Validity("stale", "; ".join(changed), renew, tuple(changed))
    return Validity("valid", f"until {_minute(certificate.expires_at)}", renew)


def _changed(
    certificate: Certificate,
    fingerprint: Fingerprint | None,
    rule: Rule | None,
    duty_device: str,
    bundles: Mapping[str, str | None] | None,
) -> list[str]:
    found = []
    if fingerprint is None:
        found.append("node and program: as fingerprinted → unknown")
    else:
        found += differences(certificate.fingerprint, fingerprint)
    if rule is None:
        found.append(f"rule {certificate.rule}: in force → gone")
    elif rule_digest(rule) != certificate.rule_digest:
        found.append(f"rule {certificate.rule}: as in section version {certificate.section_version} → changed")
    if duty_device != certificate.duty_device:
        found.append(f"duty_device: {certificate.duty_device} → {duty_device}")
    if bundles is not None:
        for item in {each.module: each for each in certificate.work}.values():
            ready = bundles.get(item.module)
            if ready != item.digest:
                found.append(
                    f"module {item.module}: {item.version} ({item.digest[:12]}) → {(ready or 'not ready')[:12]}"
                )
    return found


def _renew(certificate: Certificate) -> str:
    words = ["cotenant", "protection", "ab", "start", certificate.node, "--rule", certificate.rule]
    words += ["--work", certificate.work_asked]
    usual = RunSpec(node=certificate.node, rule=certificate.rule)
    for option, value, default in (
        ("--duty", certificate.duty_asked, usual.duty),
        ("--window", certificate.window_s, usual.window_s),
        ("--washout", certificate.washout_s, usual.washout_s),
        ("--margin", certificate.margin, usual.margin),
        ("--off", certificate.off, usual.off),
        ("--feed", certificate.feed, usual.feed),
        ("--first-look", certificate.first_look, usual.first_look),
        # Always said: it is how long the owner let the program be measured beside fleet work.
        ("--max-hours", certificate.max_hours, None),
    ):
        if value is not None and value != default:
            words += [option, value if isinstance(value, str) else f"{value:g}"]
    if certificate.accept_timed_source:
        words.append("--accept-timed-source")
    return shlex.join(words)


def _minute(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
