"""What a launcher does while nobody watches its attempt: holds it, sees that it holds, and says when it has to end.

Standard library only, loaded by its path (``launcher.py``, whose docstring has the rules).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodes.jobs import below, proctree, runnerfiles
else:
    import proctree
    import runnerfiles

__all__ = ["Unwatched"]

# a tree at rest is looked at again after this, or later, so that looking takes no more than the share of a core; never later than
# the second within which a launcher acts
POLL_S, POLL_LONGEST_S = 0.2, 1.0
LOOK_SHARE = 0.01
FREEZE_POLL_S = 0.02
FREEZE_DEADLINE_S = 10.0
PAUSE_GRACE_S = 2.0
PAUSE_CHECK_S = 0.5
# more than this share of a core, measured over PAUSE_CHECK_S, is not a pause
PAUSE_CPU_MAX = 0.1


class Unwatched:
    """The brake of one attempt.

    Args:
        phase: path of the file in which its runner says its phase.
        gpu: it works on a GPU: CPU time says nothing of what it does there.
        ask_to_pause: writes the document that asks for it, with the reason; when it was written (ns, by the file system's clock), 0
            where it could not be.

    Attributes:
        since_s: since when nobody watches, monotonic; None: somebody does.
        count: how often nobody did.
    """

    def __init__(
        self,
        processes: below.Below,
        capabilities: Collection[str],
        *,
        gpu: bool,
        adopt_s: float,
        phase: str,
        ask_to_pause: Callable[[str], int],
    ) -> None:
        self.since_s: float | None = None
        self.count = 0
        self._below = processes
        self._capabilities = capabilities
        self._gpu = gpu
        self._adopt_s = adopt_s
        self._phase = phase
        self._ask_to_pause = ask_to_pause
        self._freezes = False
        self._freeze_until: float | None = None
        self._look_s = 0.0
        self._pause_sample: tuple[float, int] | None = None
        self._pause_check_at = 0.0
        self._paused_ns = 0

    def begin(self) -> float:
        """Nobody watches from now on; nothing is done yet. Now, monotonic."""
        self.since_s = time.monotonic()
        self.count += 1
        return self.since_s

    def brake(self, why: str, now: float) -> str:
        """Hold it: ``frozen`` or ``paused``, which is under way, or ``ended``, which is left to the caller."""
        if freezes := "freeze_ok" in self._capabilities:
            self._freezes = True
            self._freeze_until = now + FREEZE_DEADLINE_S
            self._below.stop()
        if pauses := "cooperative_pause" in self._capabilities:
            self._paused_ns = self._ask_to_pause(why)
            self._pause_check_at = now + PAUSE_GRACE_S
            self._pause_sample = None
        return "frozen" if freezes else "paused" if pauses else "ended"

    def over(self) -> None:
        """Somebody watches again, and decides what happens next."""
        self.since_s = None
        self.let_be()

    def let_be(self) -> None:
        """It is not stopped any further."""
        self._freezes = False
        self._freeze_until = None
        self._pause_sample = None

    @property
    def poll_s(self) -> float:
        """In how long to look again."""
        if self._freeze_until is not None:
            return FREEZE_POLL_S
        return max(POLL_S, min(POLL_LONGEST_S, self._look_s / LOOK_SHARE))

    def step(self, now: float) -> str | None:
        """Carry on with what is under way. Why the attempt has to end, or None."""
        if self.since_s is None:
            return None
        if now - self.since_s > self._adopt_s:
            return f"no agent took the attempt over in {self._adopt_s:g} s"
        if self._freezes:
            return self._keep_frozen(now, since_s=now - self.since_s)
        if "freeze_ok" not in self._capabilities and now >= self._pause_check_at:
            return self._check_pause(now)
        return None

    def _keep_frozen(self, now: float, since_s: float) -> str | None:
        """Stop it until it is at rest, and look again for as long as nobody watches: a stranger may let some of it go on."""
        if self._freeze_until is not None:
            self._below.stop()
        began_s = time.thread_time()
        rests = self._below.at_rest(since_s=since_s)
        self._look_s = time.thread_time() - began_s
        if rests:
            self._freeze_until = None
        elif self._freeze_until is None:
            self._freeze_until = now + FREEZE_DEADLINE_S
            self._below.stop()
        elif now > self._freeze_until:
            return "the tree could not be stopped"
        return None

    def _check_pause(self, now: float) -> str | None:
        if self._gpu and not self._confirms_pause():
            # CPU time says nothing of what a GPU still does: unknown is not at rest
            return "paused by document, and it did not confirm that it left the GPU"
        found = self._below.processes()
        if not found:
            self._pause_check_at = (
                now + PAUSE_CHECK_S
            )  # of what was not found nothing is known: the next look is held against the last
            return None
        used = sum(proc.own_ticks + proc.reaped_ticks for proc in found)
        if self._pause_sample is not None:
            since, before = self._pause_sample
            if (used - before) / proctree.CLOCK_TICKS > PAUSE_CPU_MAX * (now - since):
                return "paused by document and still using CPU"
        self._pause_sample = (now, used)
        self._pause_check_at = now + PAUSE_CHECK_S
        return None

    def _confirms_pause(self) -> bool:
        """Whether the runner's phase is ``paused``, written after the document that asks for it."""
        found = runnerfiles.phase_of(self._phase)
        return found is not None and found[0] == runnerfiles.PAUSED and found[1] >= self._paused_ns > 0
