"""A simulated node: the real decisions on a fake clock, beside a modelled program and modelled units."""

from __future__ import annotations

from policies.simulation.figures import Figures, measure, time_to_zero_s
from policies.simulation.fleet import Behaviour
from policies.simulation.node import Setup, Tick, simulate
from policies.simulation.program import Phase, Program, best_constant_duty, linear, threshold

__all__ = [
    "Behaviour",
    "Figures",
    "Phase",
    "Program",
    "Setup",
    "Tick",
    "best_constant_duty",
    "linear",
    "measure",
    "simulate",
    "threshold",
    "time_to_zero_s",
]
