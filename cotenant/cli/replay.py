"""Recomputing a run from its raw windows: the same pure functions, fed with what was counted, compared with what was said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from policies.harness.rows import BlockRow
from policies.harness.schedule import End, Judge, next_action, run_looks
from policies.harness.spec import RunSpec
from policies.harness.validity import counted, decide_blocks
from policies.harness.verdict import INCONCLUSIVE, Decision, Verdict

__all__ = ["Replay", "replay", "verify"]

# The recorded figures are the same floating point sums; JSON keeps all their digits.
SAME = 1e-9
# Endings that come from outside the windows: for these the looks are compared, not the ending.
FROM_OUTSIDE = ("aborted", "interrupted")
UNDECIDED = "undecided"
# What a record may call an ending that its windows leave open: the owner's hours, or the run's own, were over.
TIME_WAS_UP = INCONCLUSIVE


@dataclass(frozen=True, slots=True)
class Replay:
    """What the windows say: the ending (None: they leave it open), the decision at each look on the way there, that of all
    counted blocks (None: there is none), and how many blocks lie beyond the one with which it ended.
    """

    end: End | None
    looks: dict[int, Decision]
    verdict: Decision | None
    beyond: int = 0


def replay(spec: RunSpec, rows: Sequence[BlockRow]) -> Replay:
    """Live the run again, block after block: a look was taken before the next block began, and what came later (a collapse,
    harm left out) takes none of them back.
    """
    from policies.statistics import decide

    ordered = sorted(rows, key=lambda row: row.number)
    stops, blocks = run_looks(spec), decide_blocks(ordered)
    verdict = decide(blocks, spec.margin, stops[-1], stops[0]) if blocks else None
    looks: dict[int, Decision] = {}
    judged: dict[int, Verdict] = {}
    for known in range(len(ordered) + 1):
        seen = ordered[:known]
        action = next_action(spec, seen, judged)
        while isinstance(action, Judge):
            looks[action.n] = decide(decide_blocks(seen, action.n), spec.margin, action.n_max, action.first_look)
            judged[action.n] = looks[action.n].verdict
            action = next_action(spec, seen, judged)
        if isinstance(action, End):
            return Replay(action, looks, verdict, len(ordered) - known)
    return Replay(None, looks, verdict)


def verify(record: Mapping[str, Any]) -> dict[str, Any]:
    """Compare a RunRecord with what its raw windows say.

    Returns:
        ``{run, agrees, recorded, recomputed, differences}``; each difference in words.

    Raises:
        Refused: the record cannot be read.
    """
    from policies.report import read_record

    spec, rows = read_record(record)
    lived = replay(spec, rows)
    end, found_verdict = lived.end, None if lived.verdict is None else lived.verdict.as_dict()
    differences = _rate_differences(rows)
    if lived.beyond:
        differences.append(f"{lived.beyond} blocks: recorded, but the windows before them had ended the run")
    ending = record.get("ending")
    if ending is not None and ending not in FROM_OUTSIDE:
        said = end.ending if end is not None else UNDECIDED
        if said != ending and not (end is None and ending == TIME_WAS_UP):
            differences.append(f"ending: recorded {ending!r}, the windows say {said!r}")
    for kept in record.get("looks") or []:
        found = lived.looks.get(int(kept["n"]))
        if found is None:
            differences.append(f"look at {kept['n']} blocks: recorded, but the windows have no such look")
        else:
            differences += [
                f"look at {kept['n']} blocks: {words}" for words in _figure_differences(kept, found.as_dict())
            ]
    verdict = record.get("verdict")
    if isinstance(verdict, Mapping):
        differences += [f"verdict: {words}" for words in _figure_differences(verdict, found_verdict or {})]
    return {
        "run": record.get("run"),
        "agrees": not differences,
        "recorded": {"ending": ending, "verdict": verdict},
        "recomputed": {
            "ending": end.ending if end else None,
            "reason": end.reason if end else None,
            "verdict": found_verdict,
        },
        "blocks": {"counted": len(counted(rows)), "all": len(rows)},
        "differences": differences,
    }


def _rate_differences(rows: Sequence[BlockRow]) -> list[str]:
    """A window's rate is its events over its length, nothing else."""
    found = []
    for row in rows:
        for window in (row.on, row.off):
            if window is None or window.events is None or window.rate is None or window.length_s <= 0:
                continue
            if not _same(window.rate, window.events / window.length_s):
                found.append(
                    f"block {row.number} {window.arm.upper()}: rate {window.rate!r} is not its events over its length"
                )
    return found


def _figure_differences(kept: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    return [
        f"{key}: recorded {kept[key]!r}, the windows say {found.get(key)!r}"
        for key in ("verdict", "n", "R", "lo", "hi")
        if key in kept and not _same(kept[key], found.get(key))
    ]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return abs(one - other) <= SAME * max(1.0, abs(one), abs(other))
    return bool(one == other)
