"""Thirty nights of sweeps on a fake clock, with crashes, cancellations, expiries and changes of the program.

The runs are simulated records; what is exercised is the planning: which level comes next, of which sweep, for how long, and
what the daily check has renewed.
"""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from policies.harness.hours import parse_hours
from policies.harness.schedule import longest_s
from policies.harness.spec import RunSpec
from policies.harness.sweep import (
    Asked,
    Finished,
    Level,
    PastLevel,
    certified_level,
    level_hours,
    level_run,
    level_spec,
    next_step,
)

HOURS, ZONE = parse_hours("22:00-06:30"), ZoneInfo("Europe/Berlin")
SPEC = RunSpec(node="n", rule="trainer", work="cpu")
ASKED = Asked.of(SPEC, (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 1.0))
VALID_FOR = timedelta(days=14)


class Node:
    """What the agent would keep, and the one run lock."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.levels: dict[str, PastLevel] = {}
        self.specs: dict[str, RunSpec] = {}
        self.issued: dict[str, datetime] = {}
        self.program, self.earned_with = 1, {}
        self.blocks: dict[str, int] = {}
        self.held_by: str | None = None

    def standing(self, now: datetime) -> dict[str, str]:
        fallen = {}
        for run, at in self.issued.items():
            if now >= at + VALID_FOR:
                fallen[run] = "expired"
            elif self.earned_with[run] != self.program:
                fallen[run] = "stale: the program changed"
        return fallen


def night(node: Node, number: int, start: datetime) -> list[str]:
    """One scheduled flow run; a crash in it starts it again as a worker would. Gives what was begun, as ``sweep index``."""
    rng, now, me = node.rng, start, f"flow-{number}"
    span = HOURS.span(start, ZONE)
    assert span is not None
    begun: list[str] = []
    while True:
        found = next_step(ASKED, node.levels.values(), section_digest="d", standing=node.standing(now), flow_run_id=me)
        if isinstance(found, Finished):
            return begun
        assert isinstance(found, Level)
        sweep = found.sweep or f"sweep-{me}"
        run = found.run or level_run(sweep, found.index)
        if found.run is None:
            spec = level_spec(SPEC, found.level, level_hours(SPEC.max_hours, HOURS, now, ZONE), number)
            if spec.n_max < spec.first_look:
                return begun
            assert run not in node.levels, "no level is run twice"
            node.specs[run], node.blocks[run] = spec, 0
            begun.append(f"{sweep} {found.index}")
        else:
            spec = node.specs[run]
            if HOURS.left_s(now, ZONE) < spec.block_s:
                return begun
        assert node.held_by is None, "one run at a time"
        node.held_by = run
        level = node.levels.get(run) or PastLevel(
            run=run, sweep=sweep, index=found.index, level=found.level, asked=ASKED.digest, rule="trainer", work="cpu",
            state="open", ending=None, certificate=None, refused_for=None, section_digest="d",
            started_at=now.isoformat(), flow_run_id=me,
        )  # fmt: skip
        node.levels[run] = replace(level, driven_by=(*level.driven_by, me))
        want = rng.choice([8, 8, 8, 12, 20])
        what = rng.random()
        while node.blocks[run] < min(want, spec.n_max):
            now += timedelta(seconds=spec.block_s + 4.0)
            if now > span.end + timedelta(seconds=longest_s(spec) - 3600.0 * spec.max_hours):
                break
            node.blocks[run] += 1
            if what < 0.15 and rng.random() < 0.2:
                break
        node.held_by = None  # with the process, whatever ended it
        if what < 0.10:  # the process is killed; the worker starts the same flow run again
            now += timedelta(minutes=2)
            if now >= span.end:
                return begun
            continue
        if what < 0.15:  # the machine goes down for the night
            return begun
        ending = "aborted" if what < 0.18 else "slowdown" if found.level >= 0.65 and what < 0.6 else "no slowdown shown"
        if node.blocks[run] < 8:
            ending = "inconclusive"
        kept = f"cert-{run}" if ending == "no slowdown shown" else None
        node.levels[run] = replace(node.levels[run], state="ended", ending=ending, certificate=kept)
        if kept is not None:
            node.issued[run], node.earned_with[run] = now, node.program
        if ending == "aborted":
            return begun


@pytest.mark.parametrize("seed", range(6))
def test_thirty_nights_lose_no_run_count_none_twice_and_leave_nothing_held(seed: int) -> None:
    rng = random.Random(seed)
    node = Node(rng)
    first = datetime(2026, 10, 10, 22, 0, tzinfo=ZONE)
    begun: list[str] = []
    for number in range(30):
        local = datetime.combine(first.date() + timedelta(days=number), first.time(), tzinfo=ZONE)
        if rng.random() < 0.05:
            node.program += 1
        begun += night(node, number, local.astimezone(UTC) + timedelta(seconds=rng.random() * 60.0))
        assert node.held_by is None
        certified_level(node.levels.values())
    assert len(begun) == len(set(begun)) == len(node.levels), "every run that was begun is kept once"
    sweeps: dict[str, list[PastLevel]] = {}
    for level in node.levels.values():
        sweeps.setdefault(level.sweep, []).append(level)
    for levels in sweeps.values():
        levels.sort(key=lambda each: each.index)
        assert [each.index for each in levels] == list(range(len(levels))), "no level is left out"
        assert all(each.passed for each in levels[:-1]), "nothing is run after a level that did not pass"
        assert all(node.specs[each.run].n_max >= 8 for each in levels)
    still_open = [level for level in node.levels.values() if level.state == "open"]
    assert len(still_open) <= 1, "what a crash left open goes on before anything else"
    assert len(sweeps) >= 2
