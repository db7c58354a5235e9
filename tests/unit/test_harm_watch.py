"""How each ``protect`` is looked at: rarely while no fleet work runs or wants to, at once where something changes."""

from __future__ import annotations

from typing import Any

from nodes.agent.harm import FleetNow, HarmWatch
from policies.rules import Group, ProcInfo
from policies.section import parse_section, timing
from policies.section.models import Defaults

RULE = parse_section(
    '[[rule]]\nid = "render"\nmatch = { name = "r" }\nprotect = { metric = "gpu_share", max = 0.5 }\n'
).rules[0]
IDLE = FleetNow(ran=False, other_wanted=False)
BUSY = FleetNow(ran=True, other_wanted=True)


class Written:
    def __init__(self) -> None:
        self.codes: list[str] = []

    def write(self, code: str, data: dict[str, Any]) -> None:
        self.codes.append(code)


class Watch:
    """One rule, its device share set by hand, and how often that was asked for."""

    def __init__(self) -> None:
        self.share: float | None = 0.1
        self.asked = 0
        self.journal = Written()
        self.harm = HarmWatch(self.journal, None, self._share)  # type: ignore[arg-type]
        self.now_s = 0.0

    def _share(self, _rule: object, _group: object) -> float | None:
        self.asked += 1
        return self.share

    def tick(self, fleet: FleetNow, pid: int = 5, for_s: float = 2.0, *, active: bool = True) -> str:
        proc = ProcInfo(pid, 100, 1)
        found = Group((proc,), (proc,), (), (proc,))
        until_s = self.now_s + for_s
        while self.now_s < until_s:
            self.now_s += 2.0
            self.harm.step(RULE, found, active, set(), fleet, timing(RULE, Defaults()), self.now_s)
        reaction = self.harm.reaction(RULE)
        return "none" if reaction is None else reaction.level


def test_an_idle_node_looks_rarely_and_a_busy_one_at_each_tick() -> None:
    watch = Watch()
    watch.tick(IDLE, for_s=100.0)
    idle = watch.asked
    assert idle <= 11
    watch.tick(BUSY, for_s=100.0)
    assert watch.asked - idle == 50


def test_work_that_arrives_and_another_program_are_looked_at_at_once() -> None:
    watch = Watch()
    watch.tick(IDLE, for_s=60.0)
    before = watch.asked
    watch.tick(IDLE, pid=6)
    assert watch.asked == before + 1
    watch.tick(FleetNow(ran=False, other_wanted=True), pid=6)
    assert watch.asked == before + 2


def test_a_share_over_the_limit_lowers_and_an_unknown_one_holds() -> None:
    watch = Watch()
    assert watch.harm.reaction(RULE) is None
    assert watch.tick(BUSY, for_s=40.0) == "free"
    watch.share = 0.9
    assert watch.tick(BUSY, for_s=30.0) == "lowered"
    watch.share = None
    assert watch.tick(BUSY, for_s=6.0) == "paused"
    assert "PROTECTION_HARM" in watch.journal.codes
    told = watch.harm.describe(RULE)
    assert told["level"] == "paused"
    assert "cannot be told" in told["why"]


def test_a_rule_that_changed_is_judged_anew() -> None:
    watch = Watch()
    watch.tick(BUSY, for_s=40.0)
    watch.harm.forget_but(set())
    assert watch.harm.reaction(RULE) is None
    watch.tick(BUSY, for_s=4.0)
    watch.harm.rest()
    assert watch.harm.describe(RULE) == {}
