"""What each unit holds of its own, against what its stage declares (``policies.overrun``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from policies.admission import memory_short
from policies.overrun import Claim, OverrunState, in_words, step_overrun

if TYPE_CHECKING:
    from nodes.agent.core import Agent
    from nodes.jobs import Attempt

__all__ = ["MemoryClaims", "own_bytes"]

# A unit whose pages are mostly files of others (a model) is looked at closely only so often: it costs a walk over its pages.
CLOSELY_EVERY_S = 10.0
_OWN = (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")


def own_bytes(pids: Iterable[int], proc: str = "/proc") -> int | None:
    """Memory that would come back if these processes ended: anonymous, shared and swapped, what several share counted once.

    File pages do not count: a model that is mapped takes nothing away. None: one of them cannot be read.
    """
    total_kb = 0
    for pid in pids:
        try:
            with open(f"{proc}/{pid}/smaps_rollup", "rb") as file:
                total_kb += sum(int(line.split()[1]) for line in file if line.startswith(_OWN))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended
        except (OSError, ValueError, IndexError):
            return None
    return total_kb * 1024


class MemoryClaims:
    """Stepped once a tick."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.state = OverrunState()
        self._closely: dict[str, tuple[float, Claim]] = {}

    def step(self, now_s: float) -> None:
        """Journal each unit that is over its claim, and stop the largest of them while memory is short."""
        agent = self._agent
        live = {each.attempt_id: each for each in agent.jobs.attempts()}
        self._closely = {name: looked for name, looked in self._closely.items() if name in live}
        claims = [self._claim(attempt, now_s) for attempt in live.values() if attempt.stopping is None]
        short = memory_short(agent.view, agent.admitting.room())
        going = any(attempt.stopping is not None for attempt in live.values())
        self.state, new, goes = step_overrun(self.state, claims, short=bool(short), going=going)
        for claim in new:
            attempt = live[claim.attempt]
            facts = {"job": attempt.job_id, "attempt": claim.attempt, "held_bytes": claim.held_bytes}
            agent.journal.write(
                "JOB_MEMORY_OVERRUN", facts | {"declared_bytes": claim.declared_bytes, "why": in_words(claim)}
            )
        if goes is None:
            return
        attempt = live[goes.attempt]
        why = f"{in_words(goes)}; {short[0].why}"
        agent.journal.write("PROTECTION_EVICT", {"attempt": goes.attempt, "job": attempt.job_id, "why": [why]})
        agent.jobs.stop(goes.attempt, why, requeue=attempt.feed_of is None, fault=False)

    def _claim(self, attempt: Attempt, now_s: float) -> Claim:
        """All its resident pages are at least what it holds: only where those are too many is it looked at closely."""
        name, declared = attempt.attempt_id, attempt.mem_gb * 1e9
        resident = self._agent.observer.memory.footprints.get(name)
        if declared <= 0.0 or (resident is not None and resident <= declared):
            self._closely.pop(name, None)
            return Claim(name, declared, resident)
        looked = self._closely.get(name)
        if looked is not None and not looked[1].over_bytes and now_s - looked[0] < CLOSELY_EVERY_S:
            return looked[1]
        claim = Claim(name, declared, own_bytes(proc.pid for proc in attempt.members() if not proc.dead))
        self._closely[name] = (now_s, claim)
        return claim

    def words(self, attempt: str) -> str | None:
        """Why a unit is the first to go; None: it holds no more than it declares."""
        claim = self.state.over.get(attempt)
        return None if claim is None else f"{in_words(claim)}: it is the first to go when memory is short"
