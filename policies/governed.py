"""What the duty governor and the compliance check mean for each unit of device work under ``gpu_jobs = "certified"``.

``policies.units`` asks here why a unit must wait beside the rules that hold device work back, and what each unit's
share is. A share is worked out for the units that are there now, so a newcomer's is right at its start and the others
give way at once. Source: ``governor.md``, and ``protection.md`` ("GPU work beside a protected program").
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from policies.certificate import Certificate, Coverage, covers
from policies.certificate.coverage import elsewhere
from policies.compliance import STATE_WORDS, Verdict
from policies.governor import StateName

if TYPE_CHECKING:
    from policies.views import Unit

__all__ = [
    "Governed",
    "InForce",
    "Meetings",
    "Refusal",
    "Work",
    "best",
    "bounding",
    "idle_code",
    "refusals",
    "shares",
    "sharing",
    "where_they_hold",
    "work_of",
]

Meetings = Mapping[str, frozenset[str] | None]
"""By rule: the devices on which a unit and the rule's program may meet; None: it cannot be told."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a certificate can cover. ``digest`` of the bundle None: unknown. ``model`` None: the payload names none.

    ``model_file`` identifies the model's file; None: none is known. ``beside``: the devices on which it may meet the program of
    the rule that is asked about; None: it cannot be told.
    """

    module: str
    stage: str
    digest: str | None = None
    model: str | None = None
    beside: frozenset[str] | None = None
    model_file: str | None = None


@dataclass(frozen=True, slots=True)
class InForce:
    """A certificate that admits work now. ``off_rate``: the program's rate in its run's OFF windows; None: unknown."""

    certificate: Certificate
    off_rate: float | None = None

    @property
    def rule(self) -> str:
        return self.certificate.rule

    @property
    def duty(self) -> float:
        return self.certificate.certified_duty

    def covers(self, work: Work) -> bool:
        return self.coverage(work).holds

    def coverage(self, work: Work) -> Coverage:
        return covers(
            self.certificate,
            module=work.module,
            stage=work.stage,
            bundle_digest=work.digest,
            duty=self.duty,
            model=work.model,
            model_file=work.model_file,
            beside=work.beside,
        )


@dataclass(frozen=True, slots=True)
class Governed:
    """The governor's answer of the last tick, and the compliance check's.

    Args:
        node: the node's name, for remedies.
        state: the governor's.
        decides: who decides what device work may do.
        budget: the node's duty; None: none is set.
        in_force: the certificates that admit work now.
        lapsed: rule -> why none of its certificates admits work, where it has some.
        verdicts: by attempt.
        distrusted: modules that get no duty now.
    """

    node: str
    state: StateName = "closed"
    decides: Literal["nobody", "governor", "run"] = "governor"
    budget: float | None = 0.0
    in_force: tuple[InForce, ...] = ()
    lapsed: Mapping[str, str] = field(default_factory=dict)
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    distrusted: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a unit may not run beside a rule. ``ends``: it is to be stopped, not held."""

    code: str
    why: str
    remedy: str = ""
    ends: bool = False


_IDLE: Final[Mapping[StateName, tuple[str, str]]] = {
    "baseline": ("GPU_DUTY_BASELINE", "device work is held to measure the program without it"),
    "taken_back": ("GPU_DUTY_TAKE_BACK", "the budget was taken back"),
    "unreadable": ("GPU_DUTY_TAKE_BACK", "the program's progress cannot be read"),
    "running": ("GPU_DUTY_HALVE", "harm halved the budget down to 0; it grows again after a clean minute"),
}


def where_they_hold(in_force: Iterable[InForce], places: Meetings) -> tuple[tuple[InForce, ...], dict[str, str]]:
    """Those that were earned beside a program on some device that their rule's program uses now, and of a rule that is left
    without any, why. ``places``: the devices that each rule's program (may) use; None: it may be any.
    """
    kept, lapsed = [], {}
    for each in in_force:
        place = places.get(each.rule)
        if place is None or place & set(each.certificate.devices or ()):
            kept.append(each)
        else:
            lapsed[each.rule] = elsewhere(each.certificate, place)
    return tuple(kept), {rule: why for rule, why in lapsed.items() if all(each.rule != rule for each in kept)}


def best(in_force: Iterable[InForce], rule: str, work: Work) -> InForce | None:
    """The certificate of the rule that allows this work the most; None: none covers it."""
    found = [each for each in in_force if each.rule == rule and each.covers(work)]
    return max(found, key=lambda each: each.duty, default=None)


def bounding(in_force: Sequence[InForce], rule: str, present: Iterable[Work]) -> InForce | None:
    """The certificate that bounds the rule's budget: of the work that is present the one that allows least.

    A certificate speaks of the sum over the units that run, so the least of theirs bounds all of them. With no covered
    work present it is the rule's largest.
    """
    needed = [found for work in present if (found := best(in_force, rule, work)) is not None]
    if needed:
        return min(needed, key=lambda each: each.duty)
    return max((each for each in in_force if each.rule == rule), key=lambda each: each.duty, default=None)


def work_of(unit: Unit, beside: frozenset[str] | None) -> Work:
    """A unit's work where it may meet a program on the devices ``beside``."""
    return Work(unit.module, unit.stage, unit.digest, unit.model, beside, unit.model_file)


def _ceiling(in_force: Sequence[InForce], rules: Meetings, unit: Unit) -> float | None:
    """The least duty that the rules' certificates allow this work; None: one of them covers it not at all."""
    duties = []
    for rule, beside in rules.items():
        found = best(in_force, rule, work_of(unit, beside))
        if found is None:
            return None
        duties.append(found.duty)
    return min(duties, default=None)


def refusals(
    unit: Unit,
    governed: Governed | None,
    rules: Meetings,
    *,
    run: bool = False,
    run_duty: float | None = None,
) -> list[Refusal]:
    """Why ``unit`` may not run beside ``rules``; empty: it may, at its share.

    Args:
        governed: None: nothing was judged yet.
        rules: the rules that hold device work back now, but for the one under test in a run, each with the devices on which
            the unit may meet its program.
        run_duty: what a harness run grants it (None: no limit) where ``run``; then no budget is in force.
    """
    if governed is None:
        governed = Governed(node="NODE")
    found = []
    for rule, beside in rules.items():
        work = work_of(unit, beside)
        certificate = best(governed.in_force, rule, work)
        asked = 1.0 if run_duty is None else run_duty
        if certificate is None:
            found.append(_not_certified(governed, rule, work))
        elif run and asked > certificate.duty + 1e-9:
            why = f"beside rule {rule} it is certified up to a duty of {certificate.duty:g}, and the run gives it {asked:g}"
            found.append(Refusal("GPU_NOT_CERTIFIED", why, f"--duty {certificate.duty:g}"))
        elif not unit.cooperative and not run:
            why = f"rule {rule} holds device work back, and its runner cannot throttle (no cooperative_throttle)"
            found.append(Refusal("PROTECTION_PAUSE", why, "it runs when the program does not use the device"))
    if found or not rules or run:
        return found
    return _untrusted(unit, governed)


def _not_certified(governed: Governed, rule: str, work: Work) -> Refusal:
    held = [each.coverage(work).why for each in governed.in_force if each.rule == rule]
    if held:
        why = (
            f"rule {rule} holds device work back, and no valid certificate of it covers {work.module}/{work.stage} as it is "
            f"({held[0]})"
        )
    else:
        lapsed = governed.lapsed.get(rule)
        why = f"rule {rule} holds device work back, and has no valid certificate" + (f" ({lapsed})" if lapsed else "")
    sweep = f"cotenant protection ab sweep {governed.node} --rule {rule}"
    return Refusal("GPU_NOT_CERTIFIED", why, sweep + (f" --work {work.module}/{work.stage}" if held else ""))


def _untrusted(unit: Unit, governed: Governed) -> list[Refusal]:
    verdict = governed.verdicts.get(unit.attempt)
    if verdict is not None and verdict.state == "stopped":
        return [Refusal("GPU_DUTY_EXCEEDED", f"stopped: {verdict.why}", ends=True)]
    if unit.module in governed.distrusted:
        why = f"units of {unit.module} overran their duty: it gets none for now, after the third time for an hour"
        return [Refusal("GPU_DUTY_EXCEEDED", why, "its runner must hold its gpu_duty: docs/modules.md")]
    if verdict is not None and verdict.state == "held":
        code = "GPU_DUTY_UNVERIFIED" if verdict.until_s is None else "GPU_DUTY_EXCEEDED"
        return [Refusal(code, f"{STATE_WORDS[verdict.state]}: {verdict.why}")]
    return []


def idle_code(governed: Governed) -> Refusal | None:
    """Why no job starts beside a holding rule while the budget is 0: its start alone would use the device. None: one may."""
    if governed.decides != "governor":
        return Refusal("GPU_DUTY_BASELINE", "the duty governor begins at the next tick")
    if governed.budget is None or governed.budget > 0.0:
        return None
    known = _IDLE.get(governed.state)
    return None if known is None else Refusal(known[0], f"the duty budget is 0 ({governed.state}): {known[1]}")


def sharing(
    units: Iterable[tuple[Unit, Meetings]],
    in_force: Sequence[InForce],
    verdicts: Mapping[str, Verdict],
    distrusted: Collection[str],
) -> list[tuple[Unit, float]]:
    """The units that take part in the shares, each with the duty that its certificates allow.

    ``units``: each with the rules that hold its work back (and where). Cooperative work that a certificate of every such rule covers.
    A unit that is held takes part, so that the others' duty does not jump for a minute; a stopped one and a module that
    is not trusted do not.
    """
    found = []
    for unit, rules in units:
        if not rules or not unit.device or not unit.cooperative or unit.module in distrusted:
            continue
        verdict = verdicts.get(unit.attempt)
        if verdict is not None and verdict.state == "stopped":
            continue
        ceiling = _ceiling(in_force, rules, unit)
        if ceiling is not None:
            found.append((unit, ceiling))
    return found


def shares(units: Iterable[tuple[Unit, Meetings]], governed: Governed | None) -> dict[str, float]:
    """Each unit's ``gpu_duty``: equal shares of the budget, by attempt ("" for a job that waits).

    ``units``: each with the rules that hold its work back; one that none holds back is not throttled. Never more together
    than the least that any of them is certified for.
    """
    if governed is None:
        return {}
    taking = sharing(units, governed.in_force, governed.verdicts, governed.distrusted)
    # Where a rule holds and the governor has not spoken yet (a run just ended) there is no budget.
    budget = (governed.budget or 0.0) if governed.decides == "governor" else 0.0
    total = min([budget, *(ceiling for _, ceiling in taking)])
    return {unit.attempt: total / len(taking) for unit, _ in taking}
