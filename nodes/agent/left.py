"""The protected program as a run saw it last, and in which arm, so that no death falls between two looks at it.

Kept in the run's record at every switch and at a block's end: whoever goes on with the run, or ends it, compares. A death speaks
for as long as the spec says: in an arm, and in the washout after it. When that is over with the program alive nothing is kept any more
(``aftermath``), and what it does later speaks against nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nodes.identity import ProcessId, boot_id, liveness
from policies.harness.rows import Arm
from policies.rules import PidStart

__all__ = ["Left"]


@dataclass(frozen=True, slots=True)
class Left:
    """``program``: (pid, start ticks) of its roots. ``arm``: whom a death since then speaks against: the washout after ON is ON's."""

    program: frozenset[PidStart]
    arm: Arm
    boot: str
    washout_s: float

    @classmethod
    def now(cls, program: frozenset[PidStart], arm: Arm, washout_s: float) -> Left:
        return cls(program, arm, boot_id(), washout_s)

    @classmethod
    def of(cls, raw: Any) -> Left | None:
        """From a run's record; None where it has none, or of an earlier boot: with a reboot every process ended."""
        try:
            arm: Arm = "off" if raw["arm"] == "off" else "on"
            left = cls(
                frozenset((int(pid), None if ticks is None else int(ticks)) for pid, ticks in raw["program"]),
                arm,
                str(raw["boot_id"]),
                float(raw["washout_s"]),
            )
        except (KeyError, TypeError, ValueError):
            return None
        return left if left.boot == boot_id() else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "program": [list(root) for root in sorted(self.program, key=str)],
            "arm": self.arm,
            "boot_id": self.boot,
            "washout_s": self.washout_s,
        }

    def ended(self) -> frozenset[PidStart]:
        """The roots that certainly ended; one that cannot be looked at has not."""
        return frozenset(
            (pid, ticks)
            for pid, ticks in self.program
            if ticks is not None and liveness(ProcessId(pid, ticks, self.boot)) == "gone"
        )

    def words(self, ended: frozenset[PidStart]) -> str:
        where = "while the work ran or right after it" if self.arm == "on" else "with the work held"
        return f"process {', '.join(str(pid) for pid, _ in sorted(ended, key=str))} ended {where}"
