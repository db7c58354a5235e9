"""Co-tenancy certificates: what one names, whether it still holds, and what it covers (harness.md, "Certificates").

A certificate is bound to what it was measured under. It holds only while all of that is the same, for 14 days, and on a
clock that has not gone back. Of the protection section the rule itself and ``duty_device`` bind, by content: the version
is named, but an edit elsewhere in the section changes nothing that was measured and makes no certificate stale.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from policies.fingerprint import Fingerprint, Gpu, Program, differences
from policies.harness.spec import RunSpec
from policies.refusal import Refused
from policies.repetition import PastRun, Standing, revocations, standing
from policies.section.models import Rule

__all__ = [
    "VALID_FOR",
    "Certificate",
    "CertifiedWork",
    "Companion",
    "Coverage",
    "Earlier",
    "Fingerprint",
    "Gpu",
    "PastRun",
    "Program",
    "Standing",
    "Validity",
    "admits",
    "check_digest",
    "covers",
    "differences",
    "issue",
    "revocations",
    "rule_digest",
    "sign",
    "standing",
    "validity",
]

VALID_FOR = timedelta(days=14)
MIN_KEY_BYTES = 16
# A unit that much longer than any seen while measuring holds the device longer than was certified. The longest of
# many units grows a little with their number, so a little longer is no difference.
LONGEST_UNIT_SLACK = 1.5
_SAME_DUTY = 1e-9

Utc = Annotated[AwareDatetime, AfterValidator(lambda when: when.astimezone(UTC))]
Share = Annotated[float, Field(gt=0.0, le=1.0)]


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class CertifiedWork(_Stored):
    """One stage that was part of the dose. ``longest_unit_s``: the longest it held the device in one go; None unknown."""

    module: str
    short: str
    version: str
    digest: str = Field(description="of the module's bundle")
    stage: str
    model: str | None = None
    longest_unit_s: float | None = None


class Earlier(_Stored):
    """An earlier run of the same thing."""

    run: str
    ending: str
    ended_at: str | None = None
    duty: float | None = None
    R: float | None = None


class Companion(_Stored):
    """The node's newest A/A or self-cost run: what such a measurement shows when there is nothing to see."""

    run: str
    ended_at: str | None = None
    R: float | None = None
    lo: float | None = None
    hi: float | None = None


class Certificate(_Stored):
    """A passing run, with everything it was earned under. Dates are aware UTC; ``certificate`` is its name.

    ``issued_at`` is the time of the verdict. ``certified_duty`` is a share 0..1 of the duty device.
    """

    format: Literal[1] = 1
    certificate: str
    run: str
    node: str
    rule: str
    rule_digest: str
    section_version: int
    section_digest: str | None = None
    duty_device: Literal["gpu", "cpu"]
    work_asked: str
    work: tuple[CertifiedWork, ...] = Field(min_length=1)
    feed: str | None = None
    duty_asked: Share | None = None
    certified_duty: Share
    R: float
    lo: float
    hi: float
    margin: float
    blocks: int
    window_s: float
    washout_s: float
    off: Literal["paused", "evicted"]
    meter: str | None = Field(default=None, description="what the dose was metered with")
    demonstration: bool
    attempts_before: tuple[Earlier, ...] = ()
    newest_null: Companion | None = None
    newest_self: Companion | None = None
    fingerprint: Fingerprint
    issued_at: Utc
    expires_at: Utc
    digest: str = ""

    @model_validator(mode="after")
    def _expires_in_time(self) -> Self:
        if self.expires_at - self.issued_at != VALID_FOR:
            raise ValueError(f"expires_at must lie {VALID_FOR.days} days after issued_at")
        return self


@dataclass(frozen=True, slots=True)
class Validity:
    """``why`` in words; ``renew`` is the command that earns a new one."""

    state: Literal["valid", "expired", "stale", "revoked", "invalid"]
    why: str
    renew: str
    differences: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "differences": list(self.differences)}


@dataclass(frozen=True, slots=True)
class Coverage:
    """Whether something is covered, and if not why."""

    holds: bool
    why: str = ""


# -- digests ----------------------------------------------------------------------------------------------------------


def rule_digest(rule: Rule) -> str:
    """sha256 over what the rule does. Its tags are words for people and do not count."""
    return hashlib.sha256(_canonical(rule.model_dump(mode="json", exclude={"tags"}))).hexdigest()


def sign(certificate: Certificate, key: bytes) -> Certificate:
    """With its digest: HMAC-SHA256 over the canonical JSON of all its fields. ``key``: at least 16 bytes."""
    return certificate.model_copy(update={"digest": _mac(certificate.model_dump(mode="json"), key)})


def check_digest(certificate: Certificate | Mapping[str, Any], key: bytes) -> bool:
    """Whether the digest fits the fields. A stored row is best checked as it is, before a model reads it."""
    fields = certificate.model_dump(mode="json") if isinstance(certificate, Certificate) else dict(certificate)
    digest = fields.get("digest")
    try:
        expected = _mac(fields, key)
    except (TypeError, ValueError) as error:
        if len(key) < MIN_KEY_BYTES:
            raise error
        return False
    return isinstance(digest, str) and hmac.compare_digest(digest.encode(), expected.encode())


def _mac(fields: Mapping[str, Any], key: bytes) -> str:
    if len(key) < MIN_KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes signs nothing: at least {MIN_KEY_BYTES} are needed")
    return hmac.new(key, _canonical({k: v for k, v in fields.items() if k != "digest"}), hashlib.sha256).hexdigest()


def _canonical(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


# -- issuing ----------------------------------------------------------------------------------------------------------


def issue(
    record: Mapping[str, Any],
    *,
    decided: Mapping[str, Any],
    duty: float,
    fingerprint: Fingerprint,
    rule: Rule,
    duty_device: Literal["gpu", "cpu"],
    demonstration: bool,
    longest_unit_s: float | None,
    now: datetime,
    key: bytes,
    meter: str | None = None,
) -> Certificate:
    """The signed certificate of a run that passed.

    Args:
        record: RunRecord with its blocks; of its work only the stages that were metered in an ON window are covered.
        decided: the recomputed verdict (R, lo, hi, n).
        duty: the certified duty (``policies.harness.dose.certified_duty``).
        now: aware; used where the record does not say when it ended.

    Raises:
        Refused: no stage of the work was part of the dose, or no program was fingerprinted.
        ValueError: a naive date.
    """
    spec = RunSpec.model_validate(record["spec"])
    work = _dosed_work(record, longest_unit_s)
    if not work:
        raise _refused(record, "no stage of the work under test was metered in a counted ON window")
    if not fingerprint.program:
        raise _refused(record, "the protected program could not be fingerprinted")
    issued_at = _aware(datetime.fromisoformat(record["ended_at"]) if record.get("ended_at") else now)
    unsigned = Certificate(
        certificate=f"cert-{record['run']}",
        run=record["run"],
        node=record["node"],
        rule=spec.rule,
        rule_digest=rule_digest(rule),
        section_version=record["section_version"],
        section_digest=record.get("section_digest"),
        duty_device=duty_device,
        work_asked=spec.work,
        work=work,
        feed=spec.feed,
        duty_asked=spec.duty,
        certified_duty=duty,
        R=decided["R"],
        lo=decided["lo"],
        hi=decided["hi"],
        margin=spec.margin,
        blocks=decided["n"],
        window_s=spec.window_s,
        washout_s=spec.washout_s,
        off=spec.off,
        meter=meter,
        demonstration=demonstration,
        attempts_before=tuple(
            Earlier(**{name: attempt.get(name) for name in Earlier.model_fields})
            for attempt in record.get("attempts_before") or ()
        ),
        newest_null=_companion(record.get("newest_null")),
        newest_self=_companion(record.get("newest_self")),
        fingerprint=fingerprint,
        issued_at=issued_at,
        expires_at=issued_at + VALID_FOR,
    )
    return sign(unsigned, key)


def _refused(record: Mapping[str, Any], why: str) -> Refused:
    run = record["run"]
    return Refused("CERT_REFUSED", f"a certificate for run {run}", why, f"cotenant protection ab show {run}")


def _dosed_work(record: Mapping[str, Any], longest_unit_s: float | None) -> tuple[CertifiedWork, ...]:
    items = [
        CertifiedWork(
            **{name: item[name] for name in ("module", "short", "version", "digest", "stage")},
            model=item.get("model"),
            longest_unit_s=item.get("longest_unit_s", longest_unit_s),
        )
        for item in record.get("work") or ()
    ]
    windows = [block.get("on") or {} for block in record.get("blocks") or () if block.get("state") == "counted"]
    dosed = {
        (unit["module"], unit["stage"]) for window in windows for unit in window.get("units") or () if unit.get("share")
    }
    return tuple(item for item in items if {(item.module, item.stage), (item.short, item.stage)} & dosed)


def _companion(raw: Mapping[str, Any] | None) -> Companion | None:
    if not raw:
        return None
    figures = {**(raw.get("verdict") or {}), **raw}
    return Companion(**{name: figures.get(name) for name in Companion.model_fields})


# -- validity ---------------------------------------------------------------------------------------------------------


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
) -> Validity:
    """Whether ``certificate`` holds at ``now`` (aware; the wall clock).

    Args:
        fingerprint: what is there now; None: it could not be taken, which is not "the same".
        rule: the rule of that id in force now; None: there is none.
        revoked: why it was revoked, where it was.
        bundles: module -> digest of the bundle that is ready now; None: not asked (``covers`` asks again).
    """
    now = _aware(now)
    renew = _renew(certificate)
    if not check_digest(certificate, key):
        return Validity("invalid", "its digest does not fit its fields: it was changed after it was issued", renew)
    if revoked is not None:
        return Validity("revoked", revoked, renew)
    if now < certificate.issued_at:
        why = f"this machine's clock says {_minute(now)}, before it was issued ({_minute(certificate.issued_at)})"
        return Validity("invalid", why, renew)
    if now >= certificate.expires_at:
        return Validity("expired", f"expired on {_minute(certificate.expires_at)}", renew)
    changed = _changed(certificate, fingerprint, rule, duty_device, bundles)
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
    ):
        if value is not None and value != default:
            words += [option, f"{value:g}" if isinstance(value, float) else value]
    return shlex.join(words)


# -- coverage ---------------------------------------------------------------------------------------------------------


def covers(
    certificate: Certificate,
    *,
    module: str,
    stage: str,
    bundle_digest: str | None,
    duty: float | None,
    model: str | None = None,
    longest_unit_s: float | None = None,
) -> Coverage:
    """Whether ``certificate`` (its validity aside) covers a module's stage at ``duty``, the sum over units that run.

    None of ``bundle_digest`` or ``model`` is unknown and not the same; ``duty`` None is uncapped, so 1.
    ``longest_unit_s`` is the longest seen lately, where it is known.
    """
    item = next((each for each in certificate.work if (each.module, each.stage) == (module, stage)), None)
    if item is None:
        had = ", ".join(f"{each.short}/{each.stage}" for each in certificate.work)
        return Coverage(False, f"{module}/{stage} was no part of what was measured ({had})")
    if bundle_digest != item.digest:
        return Coverage(False, f"{module}: bundle {item.digest[:12]} → {(bundle_digest or 'unknown')[:12]}")
    if item.model is not None and model != item.model:
        return Coverage(False, f"{module}/{stage}: model {item.model} → {model or 'unknown'}")
    asked = 1.0 if duty is None else duty
    if not 0.0 <= asked <= certificate.certified_duty + _SAME_DUTY:
        return Coverage(False, f"duty {asked:g} is above the certified {certificate.certified_duty:g}")
    if longest_unit_s is not None and item.longest_unit_s is not None:
        most_s = LONGEST_UNIT_SLACK * item.longest_unit_s
        if longest_unit_s > most_s:
            return Coverage(
                False,
                f"{module}/{stage}: a unit held the device {longest_unit_s:.3g} s, the longest measured beside the "
                f"program {item.longest_unit_s:.3g} s",
            )
    return Coverage(True)


def admits(certificate: Certificate, state: Validity, *, accept_demonstration: bool) -> Coverage:
    """Whether a certificate in that state may admit work at all: valid, and no demonstration unless those are accepted."""
    if state.state != "valid":
        return Coverage(False, f"its certificate is {state.state}: {state.why}")
    if certificate.demonstration and not accept_demonstration:
        return Coverage(
            False, "its certificate is a demonstration, and the section does not say accept_demonstration = true"
        )
    return Coverage(True)


def _aware(when: datetime) -> datetime:
    """In UTC. Arithmetic between two times of one zone ignores its clock changes, so nothing is compared elsewhere."""
    if when.tzinfo is None or when.utcoffset() is None:
        raise ValueError(f"a date without an offset is no instant: {when.isoformat()}")
    return when.astimezone(UTC)


def _minute(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
