"""What a certificate covers, and whether it may admit work."""

from __future__ import annotations

from dataclasses import dataclass

from policies.certificate.model import FILE_UNKNOWN, Certificate
from policies.certificate.validity import Validity

__all__ = ["Coverage", "admits", "covers", "elsewhere"]

_SAME_DUTY = 1e-9


@dataclass(frozen=True, slots=True)
class Coverage:
    """Whether something is covered, and if not why."""

    holds: bool
    why: str = ""


def covers(
    certificate: Certificate,
    *,
    module: str,
    stage: str,
    bundle_digest: str | None,
    duty: float | None,
    model: str | None = None,
    model_file: str | None = None,
    beside: frozenset[str] | None = None,
) -> Coverage:
    """Whether ``certificate`` (its validity aside) covers a module's stage at ``duty``, the sum over units that run.

    ``bundle_digest`` None is unknown and not the same; ``model`` None is work that names none, and another model than any; ``duty``
    None is uncapped, so 1. ``model_file`` identifies the model's file: another one under the same name is another model, and so
    is one that was measured before files were kept. Where it is ``FILE_UNKNOWN`` nothing is covered.
    ``beside``: the devices on which the work and the program may meet; None: it cannot be told.
    """
    of_stage = [each for each in certificate.work if (each.module, each.stage) == (module, stage)]
    if not of_stage:
        had = ", ".join(sorted({f"{each.short}/{each.stage}" for each in certificate.work}))
        return Coverage(False, f"{module}/{stage} was no part of what was measured ({had})")
    item = next((each for each in of_stage if each.model == model), None)
    if item is None:
        had = ", ".join(each.model or "none" for each in of_stage)
        return Coverage(False, f"{module}/{stage}: model {had} → {model or 'none'}")
    if FILE_UNKNOWN in (model_file, item.model_file):
        return Coverage(False, f"{module}/{stage}: model {model}: which file it was loaded from is not known")
    if model_file != item.model_file:
        old, new = (f"its file {each}" if each else "no file known" for each in (item.model_file, model_file))
        return Coverage(False, f"{module}/{stage}: model {model}: {old} → {new}")
    if bundle_digest != item.digest:
        return Coverage(False, f"{module}: bundle {item.digest[:12]} → {(bundle_digest or 'unknown')[:12]}")
    if beside is None or not beside <= set(certificate.devices or ()):
        return Coverage(False, elsewhere(certificate, beside))
    asked = 1.0 if duty is None else duty
    if not 0.0 <= asked <= certificate.certified_duty + _SAME_DUTY:
        return Coverage(False, f"duty {asked:g} is above the certified {certificate.certified_duty:g}")
    return Coverage(True)


def elsewhere(certificate: Certificate, beside: frozenset[str] | None) -> str:
    """Why it says nothing about devices ``beside`` the program, in words."""
    if certificate.devices is None:
        return "it does not say on which devices the program was measured"
    seen = ", ".join(certificate.devices) or "no device"
    if beside is None:
        return f"it was measured beside the program on {seen}, and which devices the program uses now cannot be told"
    return f"it was measured beside the program on {seen}, and they meet on {', '.join(sorted(beside))} now"


def admits(certificate: Certificate, state: Validity, *, accept_demonstration: bool) -> Coverage:
    """Whether a certificate in that state may admit work at all: valid, and no demonstration unless those are accepted."""
    if state.state != "valid":
        return Coverage(False, f"its certificate is {state.state}: {state.why}")
    if certificate.demonstration and not accept_demonstration:
        return Coverage(
            False, "its certificate is a demonstration, and the section does not say accept_demonstration = true"
        )
    return Coverage(True)
