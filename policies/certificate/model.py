"""What a certificate names, and its digest (harness.md, "Certificates").

A certificate is bound to what it was measured under. Of the protection section the rule itself and ``duty_device``
bind, by content: the version is named, but an edit elsewhere in the section changes nothing that was measured.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from datetime import UTC, timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from policies.certificate.fingerprint import Fingerprint
from policies.section.models import Rule

__all__ = [
    "FILE_UNKNOWN",
    "VALID_FOR",
    "Certificate",
    "CertifiedWork",
    "Companion",
    "Earlier",
    "check_digest",
    "rule_digest",
    "sign",
]

VALID_FOR = timedelta(days=14)
MIN_KEY_BYTES = 16
# Fields that certificates got later: one from before was signed without them.
_LATER = ("devices", "unbound")
_LATER_OF_WORK = ("model_file",)
FILE_UNKNOWN = "not known"
"""As a ``model_file``: which file the model is cannot be told, so it is the same as nothing, not even as another like it."""

Utc = Annotated[AwareDatetime, AfterValidator(lambda when: when.astimezone(UTC))]
Share = Annotated[float, Field(gt=0.0, le=1.0)]


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class CertifiedWork(_Stored):
    """One stage that was part of the dose, with the model that it was measured with (None: its payload named none).
    ``longest_unit_s`` is signed with the rest and always None: the agent times no units, and a runner's own word is not enough."""

    module: str
    short: str
    version: str
    digest: str = Field(description="of the module's bundle")
    stage: str
    model: str | None = None
    longest_unit_s: float | None = None
    model_file: str | None = Field(
        default=None,
        description="what identifies the model's file; None: it names no model, the agent found no file of it, or from before "
        "this was kept",
    )


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
    # What else the run was asked, so that it can be asked again; None and False: from before these were kept.
    max_hours: float | None = None
    first_look: int | None = None
    accept_timed_source: bool = False
    meter: str | None = Field(default=None, description="what the dose was metered with")
    demonstration: bool
    attempts_before: tuple[Earlier, ...] = ()
    newest_null: Companion | None = None
    newest_self: Companion | None = None
    fingerprint: Fingerprint
    devices: tuple[str, ...] | None = Field(
        default=None,
        description='on which the program was seen in every counted block with the dose on them ("cpu": the CPU as duty '
        "device); None: from before this was kept, which covers no device work",
    )
    unbound: tuple[str, ...] | None = Field(
        default=None,
        description="code of the program that it cannot name by content, and what to do; None: not looked for",
    )
    issued_at: Utc
    expires_at: Utc
    digest: str = ""

    @model_validator(mode="after")
    def _expires_in_time(self) -> Self:
        if self.expires_at - self.issued_at != VALID_FOR:
            raise ValueError(f"expires_at must lie {VALID_FOR.days} days after issued_at")
        return self


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
    signed = {k: v for k, v in fields.items() if k != "digest" and not (k in _LATER and v is None)}
    if isinstance(signed.get("work"), list | tuple):
        signed["work"] = [_without_later(item) for item in signed["work"]]
    return hmac.new(key, _canonical(signed), hashlib.sha256).hexdigest()


def _without_later(item: Any) -> Any:
    if not isinstance(item, Mapping):
        return item
    return {k: v for k, v in item.items() if not (k in _LATER_OF_WORK and v is None)}


def _canonical(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
