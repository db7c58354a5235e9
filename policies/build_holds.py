"""Whether builds and doctors of modules may run now: they are work on the protected machine, and nobody's job.

They run at the lowest priority and use no duty, so what holds device work for lack of a certificate does not hold them: a module
could else never be added beside the program that it is to be certified with. Everything that holds all work of a scope does.
"""

from __future__ import annotations

from dataclasses import replace

from policies.admission import admission
from policies.units import brakes
from policies.views import NodeView, Reason, Unit

__all__ = ["build_holds"]

# The doctor of a module that uses the GPU may look at it, so a pause of any scope is one for it.
_OFF_DEVICE = Unit("", 0, "", "", device=False)
_ON_DEVICE = Unit("", 0, "", "", device=True)


def build_holds(node: NodeView, *, gpu: bool) -> tuple[Reason, ...]:
    """Everything that holds builds and doctors now; empty: they may run. ``gpu``: of a module that uses the GPU by its manifest.

    A program that was not measured yet holds them only while it is being measured without any fleet work. A run holds them in
    both arms, whatever work it tests: they are no work under test, and what they cost the program must not follow the arm.
    """
    measured_alone = any(rule.measures for rule in node.rules)
    found = list(admission(_OFF_DEVICE, replace(node, run=None)))
    if node.run is not None:
        found.insert(
            0, Reason("RUN_HOLD", f"run {node.run.run} measures; builds and doctors wait until it ends", run=True)
        )
    found = [each for each in found if each.code != "PROTECTION_BASELINE" or measured_alone]
    if not gpu and node.duty_device != "cpu":  # else all work is device work
        return tuple(found)
    known = {each.why for each in found}
    return (*found, *(each for each in brakes(_ON_DEVICE, node) if each.why not in known))
