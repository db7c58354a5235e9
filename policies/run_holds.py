"""What a harness run holds: the work under test in OFF, and of the other work all that could make the two arms differ.

Other device work waits in both arms. Work off the device may go on, but what it does must not follow the arm: it would run
where the work under test does not, slow the program there, and make harm look like none. So nothing of it starts, and what
was held or lowered because of the work under test stays so until the run ends. Source: ``harness.md`` ("A run", step 3).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from policies.views import Desired, Reason, RuleView, RunView, Unit

__all__ = ["follows_the_arm", "nothing_starts", "run_reasons"]

# What the work under test can bring about: harm to a program, and a ceiling that it fills.
_BROUGHT_ABOUT = ("PROTECTION_HARM", "PROTECTION_CAP")


def nothing_starts(unit: Unit, run: RunView | None) -> list[Reason]:
    """Why a job that waits does not start: cores and places that OFF leaves empty are not for others."""
    if run is None or run.tests(unit):
        return []
    return [Reason("RUN_HOLD", f"run {run.run} measures; other work starts when it has ended", run=True)]


def follows_the_arm(
    units: Iterable[Unit], wanted: Iterable[Desired], run: RunView
) -> tuple[frozenset[str], frozenset[str]]:
    """(attempts, of other work, held now because of what the work under test can bring about; lowered ones)."""
    other = {unit.attempt for unit in units if not run.tests(unit)}
    held = {
        each.attempt
        for each in wanted
        if each.attempt in other and any(reason.code in _BROUGHT_ABOUT for reason in each.reasons)
    }
    return frozenset(held), frozenset(each.attempt for each in wanted if each.attempt in other and each.lowered)


def run_reasons(unit: Unit, run: RunView, rules: Iterable[RuleView]) -> list[Reason]:
    """Why the run holds this unit now; empty: as far as it goes, the unit may run."""
    return _reasons(unit, run) or _elsewhere(unit, run, rules)


def _reasons(unit: Unit, run: RunView) -> list[Reason]:
    if run.tests(unit):
        if run.part == "grant":
            if run.duty is not None and not unit.cooperative:
                return [Reason("RUN_HOLD", f"run {run.run} asks for a duty, which it cannot hold", run=True)]
            return []
        action: Literal["pause", "evict"] = "evict" if run.off == "evicted" else "pause"
        return [Reason("RUN_HOLD", f"run {run.run} holds the work under test (OFF)", action=action, run=True)]
    if unit.feed_of is not None:
        return [Reason("RUN_HOLD", f"it feeds run {unit.feed_of}, which does not run now", action="evict")]
    named = run.tests_work and run.work.selects(unit.module, unit.stage, device=unit.device)
    if unit.device or named or not run.tests_work:
        # work of the name under test that is not the feed would blur both arms; a null or self run has no work at all
        return [Reason("RUN_HOLD", f"run {run.run} measures; other work is held", run=True)]
    if unit.attempt in run.stays_held:
        why = f"run {run.run} measures; it was held while the work under test ran, so it waits in both arms"
        return [Reason("RUN_HOLD", why, run=True)]
    return []


def _elsewhere(unit: Unit, run: RunView, rules: Iterable[RuleView]) -> list[Reason]:
    """Work under test that was put on a device which the program of the run's rule does not use would prove nothing."""
    if not unit.device or unit.devices is None or not run.tests(unit):
        return []
    rule = next((rule for rule in rules if rule.id == run.rule), None)
    if rule is None or not rule.devices or unit.devices & rule.devices:
        return []
    return [Reason("RUN_HOLD", f"run {run.run} measures it beside the program, which uses another device", run=True)]
