"""Whether a rule's ``active_when`` holds: any one of its conditions, and what is not known holds (protection.md)."""

from __future__ import annotations

from dataclasses import dataclass

from policies.section.models import ActiveWhen, Rule, Timing

__all__ = ["ProgramUse", "condition_holds", "enter_after_s", "needs"]

_GB = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ProgramUse:
    """What the processes that count for holding use now; None could not be read.

    ``device_share`` is their share of device time, or with ``duty_device = "cpu"`` the cores that they use.
    """

    cores: float | None = None
    footprint_bytes: int | None = None
    device_share: float | None = None


def needs(when: ActiveWhen | str) -> tuple[bool, bool, bool]:
    """Which figures a condition asks for: (cores, footprint, device share)."""
    if isinstance(when, str):
        return False, False, False
    return when.cpu_cores_gt is not None, when.footprint_gb_gt is not None, when.gpu_active is not None


def condition_holds(rule: Rule, present: bool, use: ProgramUse) -> bool:
    """Whether ``rule``'s condition holds at this instant. ``present``: a process is there that counts for holding."""
    when = rule.active_when
    if not present or isinstance(when, str):
        return present
    each: list[bool] = []
    if when.cpu_cores_gt is not None:
        each.append(use.cores is None or use.cores > when.cpu_cores_gt)
    if when.footprint_gb_gt is not None:
        each.append(use.footprint_bytes is None or use.footprint_bytes > when.footprint_gb_gt * _GB)
    if when.gpu_active is not None:
        each.append(use.device_share is None or use.device_share > when.gpu_active.min_busy)
    return any(each)


def enter_after_s(rule: Rule, timing: Timing) -> float:
    """Seconds that the condition must hold: ``for_s`` stands for the default ``enter_for_s``, and beside the rule's own
    the longer of the two counts.
    """
    when = rule.active_when
    if isinstance(when, str) or when.for_s is None:
        return timing.enter_for_s
    return when.for_s if rule.enter_for_s is None else max(when.for_s, rule.enter_for_s)
