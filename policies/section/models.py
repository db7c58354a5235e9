"""The protection section, schema 1: what an owner may write, with units and bounds (protection.md).

These models hold the whole schema, and all of it is acted on: a key that nothing acted on would be believed in. Units stand in
the key names (``_s``, ``_pct``, ``_gb``, ``_mb_min``); shares and slowdowns are fractions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from policies.section import conditions
from policies.section.conditions import Fault, Table
from policies.section.sources import (
    ExecPhase,
    ExecProgress,
    JsonlEventPhase,
    JsonlFieldPhase,
    JsonlProgress,
    LogProgress,
    OnExec,
    PhaseSource,
    ProgressSource,
)
from policies.section.values import Clean, Match, Tags, Tree

__all__ = [
    "ActiveWhen",
    "CapFleet",
    "Cooldown",
    "CooldownOverride",
    "Defaults",
    "During",
    "DutyDevice",
    "ExecPhase",
    "ExecProgress",
    "GpuActive",
    "GpuJobs",
    "JsonlEventPhase",
    "JsonlFieldPhase",
    "JsonlProgress",
    "LogProgress",
    "Match",
    "Memory",
    "Metric",
    "Mode",
    "Node",
    "OnExec",
    "PhaseSource",
    "ProgressSource",
    "Protect",
    "Reserve",
    "Rule",
    "Scope",
    "Scoped",
    "Section",
    "Timing",
    "Tree",
    "timing",
]

Mode = Literal["fleet_first", "moderate", "strict_yield"]
GpuJobs = Literal["never", "when_no_gpu_protected", "certified", "always"]
DutyDevice = Literal["gpu", "cpu"]
Metric = Literal["progress_rate", "gpu_share", "cpu_stall"]
Scope = Literal["all", "cpu", "gpu", "io"]

Seconds = Annotated[float, Field(ge=0.0, le=86_400.0)]
LongSeconds = Annotated[float, Field(ge=0.0, le=604_800.0)]
Percent = Annotated[float, Field(ge=0.0, le=100.0)]
Factor = Annotated[float, Field(ge=1.0, le=100.0)]
GrowthMbMin = Annotated[float, Field(gt=0.0, le=1e9)]


class Memory(Clean):
    """The memory guard's levels. Percentages are of the smaller of host and cgroup memory."""

    soft_free_pct: Percent = Field(default=12.0, description="free memory below this: no fleet work is admitted")
    hard_free_pct: Percent = Field(default=8.0, description="free memory below this: the largest fleet job is evicted")
    swap_growth_soft_mb_min: GrowthMbMin = Field(default=256.0, description="MB a minute at which nothing is admitted")
    swap_growth_hard_mb_min: GrowthMbMin = Field(default=1024.0, description="MB a minute at which a job is evicted")
    min_reclaim_gb: float = Field(default=2.0, gt=0, le=65_536, description="evict until this many GB came back")

    @classmethod
    def faults(cls, table: Table) -> list[Fault]:
        return conditions.memory(table)


class Cooldown(Clean):
    """The wait before held work resumes: ``base_s``, doubled by ``backoff`` for each activation within ``window_s``."""

    base_s: Seconds = Field(default=120.0, description="first wait")
    backoff: Factor = Field(default=2.0, description="factor for each further activation")
    max_s: Seconds = Field(default=3840.0, description="longest wait")
    window_s: LongSeconds = Field(default=3600.0, description="how far back activations count")

    @classmethod
    def faults(cls, table: Table) -> list[Fault]:
        return conditions.cooldown(table)


class CooldownOverride(Clean):
    """A rule's own cooldown; what is left out comes from ``[node.defaults]``."""

    base_s: Seconds | None = Field(default=None, description="first wait")
    backoff: Factor | None = Field(default=None, description="factor for each further activation")
    max_s: Seconds | None = Field(default=None, description="longest wait")
    window_s: LongSeconds | None = Field(default=None, description="how far back activations count")


class Defaults(Clean):
    """Timing of rules that do not state their own."""

    enter_for_s: Seconds = Field(default=4.0, description="a rule is active once its condition held this long")
    exit_after_s: Seconds = Field(default=60.0, description="a rule is inactive once its condition was away this long")
    cooldown: Cooldown = Field(default=Cooldown(), description="{ base_s, backoff, max_s, window_s }")


class Node(Clean):
    """``[node]``: what holds for the whole machine."""

    mode: Mode = Field(default="moderate", description="how far fleet work yields")
    pause: bool = Field(default=False, description="true: no fleet work at all (the owner's brake)")
    gpu_jobs: GpuJobs = Field(default="when_no_gpu_protected", description="when device work may run")
    duty_device: DutyDevice = Field(default="gpu", description="what a duty is counted on")
    accept_demonstration: bool = Field(default=False, description="true: demonstration certificates admit work here")
    memory: Memory = Field(default=Memory(), description="the memory guard's levels")
    defaults: Defaults = Field(default=Defaults(), description="timing of rules that do not state their own")


class Scoped(Clean):
    """An action on the fleet work of a scope. ``true`` in its place means scope ``all``."""

    scope: Scope = Field(description="the fleet work concerned")

    @model_validator(mode="before")
    @classmethod
    def _true_is_all(cls, raw: Any) -> Any:
        if raw is True:
            return {"scope": "all"}
        if raw is False:
            raise PydanticCustomError(
                "false_action", "means nothing here", {"allowed": 'leave the key out, or { scope = "all" }'}
            )
        return raw


class CapFleet(Clean):
    """Ceilings on fleet work while the rule is active."""

    slots: int | None = Field(default=None, ge=0, description="jobs at once")
    cpu_cores: float | None = Field(default=None, ge=0, description="cores for all fleet work together")
    threads: int | None = Field(default=None, ge=1, description="threads a job")
    gpu_jobs: int | None = Field(default=None, ge=0, description="GPU jobs at once")

    @classmethod
    def faults(cls, table: Table) -> list[Fault]:
        return conditions.at_least_one(table, conditions.CAPS, "cap_fleet caps nothing")


class Reserve(Clean):
    """Set aside for the program before fleet work is admitted."""

    cpu: float | None = Field(default=None, ge=0, description="cores")
    mem_gb: float | None = Field(default=None, ge=0, description="GB of memory")

    @classmethod
    def faults(cls, table: Table) -> list[Fault]:
        return conditions.at_least_one(table, conditions.RESERVES, "reserve sets nothing aside")


class Protect(Clean):
    """A limit on harm to the program: ``max`` for gpu_share and cpu_stall, ``max_slowdown`` for progress_rate."""

    metric: Metric = Field(description="what is watched")
    max: float | None = Field(default=None, gt=0, le=1, description="highest gpu_share or cpu_stall, 0..1")
    max_slowdown: float | None = Field(
        default=None, gt=0, lt=1, description="largest slowdown, a fraction such as 0.05"
    )
    window_s: Annotated[float, Field(ge=2.0, le=3600.0)] = Field(default=20.0, description="window it is judged over")
    source: ProgressSource | None = Field(default=None, description="where the program's progress is read")

    @classmethod
    def faults(cls, table: Table) -> list[Fault]:
        return conditions.protect(table)


class GpuActive(Clean):
    """The program uses the GPU for more than this share of its time."""

    min_busy: float = Field(default=0.05, ge=0, le=1, description="share of device time, 0..1")


class ActiveWhen(Clean):
    """The rule's condition: any one that holds, for ``for_s``."""

    cpu_cores_gt: float | None = Field(default=None, ge=0, description="cores that the program uses")
    footprint_gb_gt: float | None = Field(default=None, ge=0, description="GB of memory that the program holds")
    gpu_active: GpuActive | None = Field(default=None, description="{ min_busy }: the program uses the GPU")
    for_s: Seconds | None = Field(default=None, description="seconds that it must hold")

    @classmethod
    def faults(cls, table: Table) -> list[Fault]:
        return conditions.at_least_one(table, conditions.ACTIVE_WHEN, "active_when asks nothing")


def _active_when_tag(raw: Any) -> str | None:
    if isinstance(raw, str):
        return "<present>"
    return "<conditions>" if isinstance(raw, Mapping | ActiveWhen) else None


class _Actions(Clean):
    """What a rule, or a phase of it, does to fleet work."""

    protect: Protect | None = Field(default=None, description="keep harm to the program under a limit")
    pause_fleet: Scoped | None = Field(default=None, description="hold the fleet work of a scope")
    cap_fleet: CapFleet | None = Field(default=None, description="ceilings on fleet work")
    lower_fleet: Scoped | None = Field(default=None, description="lowest scheduling class for fleet work")
    reserve: Reserve | None = Field(default=None, description="cores and memory set aside")
    evict: Scoped | None = Field(default=None, description="stop and requeue the fleet work of a scope")


class During(_Actions):
    """``[[rule.during]]``: actions while a phase of the program lasts."""

    source: PhaseSource = Field(description="where the phase is read")
    tags: Tags = ()

    @classmethod
    def faults(cls, table: Table) -> list[Fault]:
        return conditions.at_least_one(table, conditions.ACTIONS, "a phase without an action does nothing")


class Rule(_Actions):
    """``[[rule]]``: a protected program and what is done for it.

    ``tree`` is ``descendants`` unless given (a program's helpers are the program); a rule with ``ignore = true`` takes
    ``self`` unless given, so that it never hides more processes than it names.
    """

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=64)] = Field(
        description="lower-case letters, digits, _ and -, at most 64, beginning with a letter or digit"
    )
    match: Match = Field(description="which processes are the program; all given keys must hold")
    tree: Tree = Field(default="descendants", description="whether the program's children belong to it")
    active_when: Annotated[
        Annotated[Literal["present"], Tag("<present>")] | Annotated[ActiveWhen, Tag("<conditions>")],
        Discriminator(
            _active_when_tag,
            custom_error_type="no_condition",
            custom_error_message='is neither "present" nor a table of conditions',
        ),
    ] = Field(default="present", description='"present", or { cpu_cores_gt, footprint_gb_gt, gpu_active, for_s }')
    immediate: bool = Field(default=False, description="true: a phase's pause is carried out when its line is seen")
    ignore: bool = Field(default=False, description="true, alone: other rules do not see these processes")
    during: tuple[During, ...] = Field(default=(), strict=False, description="phases with actions of their own")
    tags: Tags = ()
    enter_for_s: Seconds | None = Field(default=None, description="as in [node.defaults]")
    exit_after_s: Seconds | None = Field(default=None, description="as in [node.defaults]")
    cooldown: CooldownOverride | None = Field(
        default=None, description="as in [node.defaults], which fills the rest in"
    )

    @classmethod
    def faults(cls, table: Table) -> list[Fault]:
        return conditions.rule(table)

    @model_validator(mode="before")
    @classmethod
    def _ignore_hides_no_children(cls, raw: Any) -> Any:
        if isinstance(raw, Mapping) and raw.get("ignore") is True and "tree" not in raw:
            return {**raw, "tree": "self"}
        return raw


class Section(Clean):
    """A protection section. ``Section()`` is the empty one: no rules, every default."""

    schema_: Literal[1] = Field(default=1, alias="schema", description="version of the schema; 1 may be left out")
    node: Node = Field(default=Node(), description="what holds for the whole machine")
    rules: tuple[Rule, ...] = Field(default=(), alias="rule", strict=False, description="the protected programs")

    @classmethod
    def faults(cls, table: Table) -> list[Fault]:
        return conditions.section(table)

    def rule(self, rule_id: str) -> Rule | None:
        """The rule of that id, or None."""
        return next((rule for rule in self.rules if rule.id == rule_id), None)

    def timing(self, rule: Rule) -> Timing:
        """``rule``'s timing, with this section's defaults."""
        return timing(rule, self.node.defaults)


class Timing(Clean):
    """A rule's timing with the defaults filled in."""

    enter_for_s: float
    exit_after_s: float
    cooldown: Cooldown


def timing(rule: Rule, defaults: Defaults) -> Timing:
    """``rule``'s own timing keys, the rest from ``defaults``; a cooldown is filled in key by key.

    Within one section the parser refuses a first wait above the longest; where ``defaults`` come from another scope,
    the longer wait is kept.
    """
    cooldown = defaults.cooldown
    if rule.cooldown is not None:
        merged = {**cooldown.model_dump(), **rule.cooldown.model_dump(exclude_none=True)}
        merged["max_s"] = max(merged["max_s"], merged["base_s"])
        cooldown = Cooldown(**merged)
    return Timing(
        enter_for_s=defaults.enter_for_s if rule.enter_for_s is None else rule.enter_for_s,
        exit_after_s=defaults.exit_after_s if rule.exit_after_s is None else rule.exit_after_s,
        cooldown=cooldown,
    )
