"""Recomputing a run from its raw windows: the same pure functions, fed with what was counted, compared with what was said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from policies.harness.rows import BlockRow
from policies.harness.schedule import End, Judge, next_action
from policies.harness.spec import RunSpec
from policies.harness.validity import counted, decide_blocks
from policies.harness.verdict import Decision, Verdict

__all__ = ["replay", "verify"]

# The recorded figures are the same floating point sums; JSON keeps all their digits.
SAME = 1e-9
# How many looks a run can have, with room: a replay that does not end by then is a fault, not a long run.
MOST_STEPS = 200
# Endings that come from outside the windows: for these the looks are compared, not the ending.
FROM_OUTSIDE = ("aborted", "interrupted")


def replay(spec: RunSpec, rows: Sequence[BlockRow]) -> tuple[End | None, dict[int, Decision]]:
    """What the windows say: the ending (None: they leave it open), and the decision at each look on the way there."""
    from policies.statistics import decide

    blocks = decide_blocks(rows)
    looks: dict[int, Decision] = {}
    judged: dict[int, Verdict] = {}
    for _ in range(MOST_STEPS):
        action = next_action(spec, rows, judged)
        if isinstance(action, End):
            return action, looks
        if not isinstance(action, Judge):
            return None, looks
        looks[action.n] = decide(blocks[: action.n], spec.margin, action.n_max, action.first_look)
        judged[action.n] = looks[action.n].verdict
    raise RuntimeError(f"a run has at most {MOST_STEPS} looks")


def verify(record: Mapping[str, Any]) -> dict[str, Any]:
    """Compare a RunRecord with what its raw windows say.

    Returns:
        ``{run, agrees, recorded, recomputed, differences}``; each difference in words.

    Raises:
        Refused: the record cannot be read.
    """
    from policies.report import read_record

    spec, rows = read_record(record)
    end, looks = replay(spec, rows)
    differences = _rate_differences(rows)
    ending = record.get("ending")
    if ending is not None and ending not in FROM_OUTSIDE:
        said = end.ending if end is not None else "undecided"
        if said != ending:
            differences.append(f"ending: recorded {ending!r}, the windows say {said!r}")
    for kept in record.get("looks") or []:
        found = looks.get(int(kept["n"]))
        if found is None:
            differences.append(f"look at {kept['n']} blocks: recorded, but the windows have no such look")
        else:
            differences += [
                f"look at {kept['n']} blocks: {words}" for words in _figure_differences(kept, found.as_dict())
            ]
    last = looks[max(looks)] if looks else None
    verdict = record.get("verdict")
    if isinstance(verdict, Mapping) and last is not None:
        differences += [f"verdict: {words}" for words in _figure_differences(verdict, last.as_dict())]
    return {
        "run": record.get("run"),
        "agrees": not differences,
        "recorded": {"ending": ending, "verdict": verdict},
        "recomputed": {
            "ending": end.ending if end else None,
            "reason": end.reason if end else None,
            "verdict": last.as_dict() if last else None,
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
        f"{key}: recorded {kept[key]!r}, the windows say {found[key]!r}"
        for key in ("verdict", "n", "R", "lo", "hi")
        if key in kept and not _same(kept[key], found[key])
    ]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return abs(one - other) <= SAME * max(1.0, abs(one), abs(other))
    return bool(one == other)
