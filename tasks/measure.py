"""A harness run from its first block to its end, without Prefect: ask the agent, judge, go on.

What comes next is decided by ``policies.harness.schedule`` from the journaled rows alone, which are read anew before
each step: a run that goes on after a crash needs nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from policies.harness.rows import BlockRow
from policies.harness.schedule import End, Judge, NextBlock, coin, next_action, run_looks
from policies.harness.spec import RunSpec
from policies.harness.validity import decide_blocks
from policies.harness.verdict import PASS, Decision
from policies.refusal import Refused
from policies.statistics import decide
from tasks.agent_link import Link

__all__ = ["Outcome", "Steps", "begin", "decision_of", "finish", "measure", "measured_s"]

Record = Mapping[str, Any]
LOST_IN_A_ROW = 3
# A pass that could not be judged for a moment is offered again after so many seconds.
OFFER_AGAIN_AFTER_S = (30.0, 60.0, 120.0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended; ``verdict`` is ``Decision.as_dict()`` of what was measured, None where nothing was."""

    ending: str
    reason: str
    verdict: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Steps:
    """What the caller puts around the steps (a flow: a task each). ``seen`` gets the record between blocks only."""

    reference: Callable[[Link], Any] = Link.reference
    block: Callable[[Link, int, str], dict[str, Any] | None] = Link.block
    seen: Callable[[dict[str, Any]], None] = lambda record: None
    # From the seconds measured so far: no block may end after this many. None: the run's own limit.
    limit_s: Callable[[float], float | None] = lambda measured: None


def begin(link: Link) -> tuple[dict[str, Any], Outcome | None]:
    """Take the run lock for a new run, or go on with this one.

    Returns:
        The record, and how the run ended where there is nothing to go on with.

    Raises:
        Refused: the node does not start this run (another one measures, the plan does not hold).
    """
    try:
        return dict(link.begin()["run"]), None
    except Refused as refusal:
        if refusal.code == "RUN_ENDED":
            record = link.show()
            return record, _as_ended(record)
        if refusal.code == "RUN_CHANGED":
            record = link.show()
            return record, Outcome("interrupted", refusal.why, _verdict(record))
        raise


def measure(link: Link, steps: Steps | None = None) -> Outcome:
    """Blocks and looks until the run is decided. The run lock must be held (``begin``).

    Raises:
        AgentLost: the agent went away and did not come back; the run stays open.
        Refused: the agent refused in the middle, but not since the run ended or changed (these are outcomes).
    """
    steps = steps or Steps()
    lost = 0
    try:
        steps.reference(link)
        while True:
            record = link.show()
            if record["state"] == "ended":
                return _as_ended(record)
            steps.seen(record)
            rows = _rows(record)
            judged = {int(look["n"]): look["verdict"] for look in record["looks"]}
            elapsed_s = measured_s(link.spec, rows)
            action = next_action(link.spec, rows, judged, elapsed_s, steps.limit_s(elapsed_s))
            match action:
                case End(ending, reason):
                    return Outcome(ending, reason, _verdict(record))
                case Judge(n):
                    link.look(_look(link.spec, rows, n))
                case NextBlock(number, _):
                    number = max(number, link.lowest_number)
                    row = steps.block(link, number, coin(link.spec.seed, number))
                    lost = lost + 1 if row is None else 0
            if lost >= LOST_IN_A_ROW:
                return Outcome("interrupted", f"the agent went away in {lost} blocks in a row", _verdict(record))
    except Refused as refusal:
        if refusal.code == "RUN_CHANGED":
            return Outcome("interrupted", refusal.why, _verdict(link.show()))
        if refusal.code == "RUN_ENDED":
            return _as_ended(link.show())
        raise


def finish(link: Link, outcome: Outcome) -> tuple[dict[str, Any], Refused | None]:
    """End the run, and offer a pass to the agent for a certificate.

    Returns:
        The final record, and why no certificate was kept where one was to be had.
    """
    record = link.end(outcome.ending, outcome.reason, outcome.verdict)
    refused: Refused | None = None
    if record["ending"] == PASS and link.spec.kind == "ab" and not record.get("certificate"):
        # Also where it will be refused: the agent notes the reason, so that nobody has to offer it again.
        for wait_s in (*OFFER_AGAIN_AFTER_S, None):
            try:
                link.offer()
                refused = None
            except Refused as refusal:
                refused = refusal
            if refused is None or refused.data.get("for") != "later" or wait_s is None:
                break
            time.sleep(wait_s)
        record = link.show()
    return record, refused


def decision_of(record: Record) -> Decision | None:
    """The decision of all counted blocks of a record; None where none counts."""
    spec = RunSpec.model_validate(record["spec"])
    return _decide(spec, _rows(record), None)


def measured_s(spec: RunSpec, rows: list[BlockRow]) -> float:
    """Seconds this run has been measuring, from its rows; an interruption between blocks is no part of it."""
    total = spec.reference_s if rows else 0.0
    for row in rows:
        windows = [window for window in (row.on, row.off) if window is not None]
        if len(windows) == 2:
            start = min(window.started_mono_s for window in windows)
            end = max(window.started_mono_s + window.length_s for window in windows)
            total += max(end - start, 0.0) + spec.washout_s
        else:
            total += spec.block_s
    return total


def _rows(record: Record) -> list[BlockRow]:
    return [BlockRow.model_validate(row) for row in record["blocks"]]


def _decide(spec: RunSpec, rows: list[BlockRow], n: int | None) -> Decision | None:
    blocks = decide_blocks(rows, n)
    if not blocks:
        return None
    looks = run_looks(spec)
    return decide(blocks, spec.margin, looks[-1], looks[0])


def _look(spec: RunSpec, rows: list[BlockRow], n: int) -> dict[str, Any]:
    decision = _decide(spec, rows, n)
    if decision is None:
        raise RuntimeError(f"a look at {n} blocks was asked for, but none counts")
    found = decision.as_dict()
    return {"n": n, **{key: found[key] for key in ("verdict", "R", "lo", "hi", "more_blocks")}}


def _verdict(record: Record) -> dict[str, Any] | None:
    decision = decision_of(record)
    return None if decision is None else decision.as_dict()


def _as_ended(record: Record) -> Outcome:
    return Outcome(str(record["ending"]), str(record.get("reason") or ""), record.get("verdict"))
