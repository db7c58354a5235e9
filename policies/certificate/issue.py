"""From a run that passed to its certificate."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from policies.certificate.beside import measured_devices
from policies.certificate.fingerprint import Fingerprint
from policies.certificate.model import (
    FILE_UNKNOWN,
    VALID_FOR,
    Certificate,
    CertifiedWork,
    Companion,
    Earlier,
    rule_digest,
    sign,
)
from policies.harness.dose import LEAST_OF_DOSE
from policies.harness.spec import RunSpec
from policies.instants import aware_utc
from policies.refusal import Refused
from policies.section.models import Rule

__all__ = ["issue"]


def issue(
    record: Mapping[str, Any],
    *,
    decided: Mapping[str, Any],
    duty: float,
    fingerprint: Fingerprint,
    rule: Rule,
    duty_device: Literal["gpu", "cpu"],
    demonstration: bool,
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
        Refused: no stage of the work was part of the dose, no program was fingerprinted, or program and device work were not
            both on one device in every block.
        ValueError: a naive date.
    """
    spec = RunSpec.model_validate(record["spec"])
    work = _dosed_work(record)
    if not work:
        raise _refused(record, "no stage of the work under test was metered in a counted ON window")
    devices = measured_devices(record.get("blocks") or ())
    if not devices and _is_device_work(record):
        raise Refused(
            "CERT_REFUSED",
            f"a certificate for run {record['run']}",
            "on no device were the program (in OFF) and the work (in ON) both seen in every counted block, so nothing is "
            "shown about this work beside a program that uses the device",
            "measure it while the program uses the device; which it uses: cotenant status",
        )
    if not fingerprint.program:
        raise _refused(record, "the protected program could not be fingerprinted")
    issued_at = aware_utc(datetime.fromisoformat(record["ended_at"]) if record.get("ended_at") else now)
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
        max_hours=spec.max_hours,
        first_look=spec.first_look,
        accept_timed_source=spec.accept_timed_source,
        meter=meter,
        demonstration=demonstration,
        attempts_before=tuple(
            Earlier(**{name: attempt.get(name) for name in Earlier.model_fields})
            for attempt in record.get("attempts_before") or ()
        ),
        newest_null=_companion(record.get("newest_null")),
        newest_self=_companion(record.get("newest_self")),
        fingerprint=fingerprint,
        devices=devices,
        unbound=_unbound(record),
        issued_at=issued_at,
        expires_at=issued_at + VALID_FOR,
    )
    return sign(unsigned, key)


def _refused(record: Mapping[str, Any], why: str) -> Refused:
    run = record["run"]
    return Refused("CERT_REFUSED", f"a certificate for run {run}", why, f"cotenant protection ab show {run}")


def _dosed_work(record: Mapping[str, Any]) -> tuple[CertifiedWork, ...]:
    """Each stage that was part of the dose, once with each model that it was measured with."""
    windows = [block.get("on") or {} for block in record.get("blocks") or () if block.get("state") == "counted"]
    shares: dict[tuple[str, str, str | None], float] = {}
    files: dict[tuple[str, str, str | None], set[str | None]] = {}
    for window in windows:
        for unit in window.get("units") or ():
            key = (unit["module"], unit["stage"], unit.get("model"))
            files.setdefault(key, set()).add(unit.get("model_file"))
            shares[key] = shares.get(key, 0.0) + (unit.get("share") or 0.0)
    least = LEAST_OF_DOSE * sum(shares.values())
    dosed = [key for key, share in shares.items() if share > 0.0 and share >= least]
    for module, stage, model in dosed:
        if FILE_UNKNOWN in files[module, stage, model]:
            why = f"which file model {model} of {module}/{stage} was loaded from is not known in some of its blocks"
            raise _refused(record, why)
        if len(files[module, stage, model]) > 1:
            why = f"the file of model {model} of {module}/{stage} was another one in some of its blocks"
            raise _refused(record, why)
    found = []
    for item in record.get("work") or ():
        kinds = {(item["module"], item["stage"]), (item["short"], item["stage"])}
        models = {key[2]: next(iter(files[key])) for key in dosed if key[:2] in kinds}
        found += [
            CertifiedWork(
                **{name: item[name] for name in ("module", "short", "version", "digest", "stage")},
                model=model,
                model_file=file,
            )
            for model, file in sorted(models.items(), key=lambda each: each[0] or "")
        ]
    return tuple(found)


def _is_device_work(record: Mapping[str, Any]) -> bool:
    windows = [block.get("on") or {} for block in record.get("blocks") or () if block.get("state") == "counted"]
    return any(unit.get("by_device") for window in windows for unit in window.get("units") or ())


def _unbound(record: Mapping[str, Any]) -> tuple[str, ...] | None:
    found = (record.get("program") or {}).get("unbound")
    return None if found is None else tuple(str(each) for each in found)


def _companion(raw: Mapping[str, Any] | None) -> Companion | None:
    if not raw:
        return None
    figures = {**(raw.get("verdict") or {}), **raw}
    return Companion(**{name: figures.get(name) for name in Companion.model_fields})
