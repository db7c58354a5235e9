"""A journal that was put back from a backup, or lost: what the node had seen since is known to nobody any more.

What was forgotten may have been a revoked certificate or a failed run. So of what the journal knows from before nothing
certifies, and what is measured afterwards counts as after a run that failed (``harness.md``, "Certificates").
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nodes.clock import utc_iso
from nodes.journal import Journal
from policies.certificate import Forgotten

__all__ = ["forgotten", "mark_restored"]

FACT = "restored"


def mark_restored(path: Path, made_at: str) -> None:
    """Write into the journal at ``path`` that it is a copy of ``made_at``. No agent has it open.

    Raises:
        sqlite3.Error: it cannot be written.
    """
    journal = Journal(path)
    try:
        names = [str(row["run"]) for row in journal.db.execute("SELECT run FROM runs")]
        fact = {"at": utc_iso(), "made_at": made_at, "runs": names}
        journal.set_fact(FACT, fact, durably=True)
        journal.number_anew("restored")
        journal.write("JOURNAL_RESTORED", {"made_at": made_at, "runs": len(names)})
    finally:
        journal.close()


def forgotten(journal: Journal) -> Forgotten | None:
    """What this journal does not know; None: it has been there from the node's first start on."""
    fact: Any = journal.fact(FACT)
    if isinstance(fact, dict):
        why = (
            f"restored: the node's home was put back on {_minute(fact.get('at'))} UTC from a backup of "
            f"{_minute(fact.get('made_at'))} UTC, and what its runs showed in between is not known any more"
        )
        runs = fact.get("runs")
        return Forgotten(why, frozenset(runs if isinstance(runs, list) else ()))
    if journal.was_lost:
        return Forgotten("the node's journal was lost, and what its runs showed before is not known any more")
    return None


def _minute(when: object) -> str:
    return str(when)[:16].replace("T", " ")
