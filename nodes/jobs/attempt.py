"""A live attempt and the ladder by which it is held, released and stopped.

Nothing here blocks: an act sends what must be sent at once, and ``step`` (called at each tick) carries it on: confirms a pause,
sends TERM and KILL when their time has come. Every signal goes to a process found below the attempt's own launcher.

When a pause counts as confirmed:

* by freezing: a walk of the tree finds every process in state T (or dead), and no new one; where the attempt has a cgroup, the
  freezer is closed over it and ``cgroup.events`` says that everything in it is frozen;
* by document: the whole tree used at most 10 % of one core over a stretch of at least half a second after the nudge.
  A runner that says nothing can be trusted no further than its CPU time shows. That says nothing of a GPU: of work on one, the
  runner also said the phase ``paused`` after the document, or the meter reads that it left the GPU.

Until then ``hold_confirmed`` is False; a pause that is not confirmed in ``HOLD_DEADLINE_S`` ends the attempt.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass, field
from typing import Any, Literal

from nodes.clock import utc_now
from nodes.jobs.lowering import Lowering
from nodes.jobs.proctree import CLOCK_TICKS
from nodes.jobs.runnerfiles import PAUSED, phase_of, read_document
from nodes.jobs.tree import UNKILLABLE_AFTER_S, ProcessTree
from nodes.jobs.workdir import limits
from policies.jobs import Stop

__all__ = ["Attempt", "HoldWay", "hold_way"]

HOLD_DEADLINE_S = 10.0
HOLD_CHECK_S = 0.5
SEAL_AFTER_S = 0.1
# of one core; a paused runner's idle threads and the launcher's own watch stay far below
HOLD_CPU_MAX = 0.1
PAUSE_LIMIT_S = 600.0
BEGIN_AT_LATEST_S = 300.0
# A runner that is stopped before its first instruction stops itself; when our own SIGSTOP came first, its own comes after the
# release. So a released tree is looked at for a while.
THAW_AGAIN_S = 10.0

HoldWay = Literal["document", "freeze", "stop"]
State = Literal["starting", "running", "held", "stopping"]


def hold_way(capabilities: frozenset[str]) -> HoldWay:
    """How an attempt with these capabilities is held (``protection.md``, "What the agent may touch").

    One that may be frozen is, at once; where it can also pause it gets the document beside it, so that it knows.
    """
    if "freeze_ok" in capabilities:
        return "freeze"
    if "cooperative_pause" in capabilities:
        return "document"
    return "stop"


@dataclass(kw_only=True)
class Attempt(ProcessTree):
    """One run of a job in a runner process. Times ending in ``_mono_s`` are monotonic seconds."""

    number: int
    job_id: int
    module: str
    short: str
    stage: str
    capabilities: frozenset[str]
    cores: float
    mem_gb: float
    stop_grace_s: float
    timeout_s: float | None
    feed_of: str | None
    gpu: bool
    """Whether its manifest said, when it was started, that it uses the GPU; True where that is not known."""
    spawned_mono_s: float
    duty: float | None = None
    threads: int | None = None
    lowered: bool = False
    lowering: Lowering = field(default_factory=Lowering)
    pipe: int = -1
    adopted: bool = False
    ran_before_s: float = 0.0

    first_phase_mono_s: float | None = None
    phase: str | None = None
    hold_reason: str | None = None
    hold_confirmed: bool = False
    not_held: str = "did not pause"
    """What keeps a hold from being confirmed."""
    held_since_mono_s: float | None = None
    hold_unlimited: bool = False
    stopping: Stop | None = None
    unkillable: bool = False
    ended_mono_s: float | None = None
    cpu_s: float | None = None
    """CPU seconds of the whole tree from start to end, once the attempt has ended; None before."""

    braked: bool = False
    """Stopped by signals alone, ahead of a judgement: it becomes a hold, or it is let go."""

    _frozen: bool = False
    _thaw_until: float = 0.0
    _pause_asked: bool = False
    _paused_ns: int = 0
    """When the document that began the pause was written, by the file system's clock; 0: none was."""
    _hold_began: float = 0.0
    _hold_deadline: float = 0.0
    _seal_at: float | None = None
    _hold_sample: tuple[float, int] | None = None
    _restless_s: float = 0.0
    _term_at: float | None = None
    _kill_at: float | None = None
    _lost_seen: int = 0
    _no_phase_at: float = float("-inf")
    _spans: list[tuple[float, float | None]] = field(default_factory=list)

    # -- what it is doing -----------------------------------------------------------------------------------------------

    @property
    def runner_pid(self) -> int | None:
        return self.runner.pid if self.runner is not None else None

    @property
    def state(self) -> State:
        if self.stopping is not None:
            return "stopping"
        if self.hold_reason is not None:
            return "held"
        return "running" if self.first_phase_mono_s is not None else "starting"

    @property
    def transitions(self) -> list[tuple[float, float | None]]:
        """Stretches ``(from, to)`` in which it was free to run; ``to`` is None for the open one."""
        return list(self._spans)

    def unheld_s(self, now: float) -> float:
        """Seconds that count against ``timeout_s``: all since the start but those held, earlier agents' watch included."""
        return self.ran_before_s + sum((now if end is None else end) - start for start, end in self._spans)

    # -- acts -----------------------------------------------------------------------------------------------------------

    def begin(self, now: float, *, held_reason: str | None, stopped_at_start: bool = False) -> None:
        """Set the state that the documents on disk already say."""
        if held_reason is None:
            self._spans.append((now, None))
            return
        self._enter_hold(now, held_reason, unlimited=False)
        self._pause_asked = "cooperative_pause" in self.capabilities
        self._paused_ns = self.folder.control_ns() if self._pause_asked else 0
        self._frozen = stopped_at_start

    def brake(self) -> None:
        """Stop at once what is known of a tree that may be frozen; ``hold`` then looks for what is new in it."""
        if hold_way(self.capabilities) != "freeze" or self.stopping is not None or self.hold_reason is not None:
            return
        if self.runner is None:
            self._meet_runner()
        self.braked = True
        self._signal_known(signal.SIGSTOP)

    def unbrake(self, now: float) -> None:
        """Let go on what a brake has stopped and no hold keeps."""
        if not self.braked:
            return
        self.braked = False
        if self.hold_reason is None or self.stopping is not None:
            self._thaw()
            self._thaw_until = now + THAW_AGAIN_S

    def within_reach(self) -> tuple[tuple[int, int], ...]:
        """Its processes as of the last look, (pid, start ticks), the runner first: what ``brake`` would stop. Empty where it would not."""
        if hold_way(self.capabilities) != "freeze" or self.state not in ("starting", "running") or self.runner is None:
            return ()
        runner = (self.runner.pid, self.runner.start_ticks)
        return (runner, *(who for who in self._known.items() if who != runner))

    def hold(self, reason: str, now: float, *, unlimited: bool = False) -> bool:
        """Keep it from running; False where it has no way to be held and must be stopped instead."""
        if self.stopping is not None:
            return True
        if self.hold_reason is not None:
            if self.hold_unlimited and not unlimited:
                self.held_since_mono_s = now  # a run's hold is no part of the ten minutes
            self.hold_reason = reason
            self.hold_unlimited = unlimited
            return True
        way = hold_way(self.capabilities)
        if way == "stop":
            return False
        if way == "freeze":
            self._frozen = True
            self.braked = False  # from here on a hold, which thaws what it releases
            self._freeze(passes=1)
        if "cooperative_pause" in self.capabilities:
            self._pause_asked = True
            try:
                self._paused_ns = self._document(reason=reason)
            except OSError:
                self._paused_ns = 0
                if way == "document":
                    return False  # no document, no pause
        self._enter_hold(now, reason, unlimited=unlimited)
        return True

    def _enter_hold(self, now: float, reason: str, *, unlimited: bool) -> None:
        self.hold_reason = reason
        self.hold_unlimited = unlimited
        self.hold_confirmed = False
        self.held_since_mono_s = self._hold_began = now
        self._hold_deadline = now + HOLD_DEADLINE_S
        self._hold_sample, self._restless_s = None, 0.0
        self._seal_at = None
        self.close_span(now)

    def close_span(self, now: float) -> None:
        """It does not run from here on."""
        if self._spans and self._spans[-1][1] is None:
            self._spans[-1] = (self._spans[-1][0], now)

    def release(self, now: float) -> None:
        """Let it go on."""
        if self.hold_reason is None or self.stopping is not None:
            return
        self.hold_reason = None
        self.hold_confirmed = False
        self.held_since_mono_s = None
        if self._pause_asked:
            self._pause_asked = False
            self._document()
        if self._frozen or self.braked:
            self._frozen = self.braked = False
            self._thaw()
            self._thaw_until = now + THAW_AGAIN_S
        self._spans.append((now, None))

    def set_limits(self, *, duty: float | None, threads: int | None) -> None:
        if duty == self.duty and threads == self.threads:
            return
        self.duty, self.threads = duty, threads
        if self.stopping is None:
            self._document()

    def stop(self, stop: Stop, now: float) -> None:
        """Thaw, stop document, nudge, TERM; KILL after the grace.

        A ``cancellable`` runner gets TERM only at half its grace: TERM's default action would end it before it could
        acknowledge at its next safe point.
        """
        if self.stopping is not None:
            return
        self.stopping = stop
        self.close_span(now)
        self._pause_asked = False
        with contextlib.suppress(OSError):
            self._document(stop=True, reason=stop.reason)
        self._kill_at = now + self.stop_grace_s
        self._term_at = now + self.stop_grace_s / 2.0 if "cancellable" in self.capabilities else now
        self._frozen = self.braked = False
        self._thaw()  # the document's nudge waited for it
        self._advance_stop(now)

    def begin_stopping(self, stop: Stop, now: float) -> None:
        """An earlier agent had begun to stop it: go on from the start of the grace."""
        self.stopping = None
        self.stop(stop, now)

    def lower(self, lowered: bool) -> bool:
        """Lowest scheduling class for the whole tree, or the normal one again; whether that was reached (what comes later: ``step``)."""
        self.lowered = lowered
        if not lowered:
            return self.lowering.undo(self.members(), self.group)
        return bool(self.lowering.apply(self.members(), self.group)) or self.runner is None

    # -- tick -----------------------------------------------------------------------------------------------------------

    def heartbeat(self) -> None:
        if self.pipe >= 0:
            with contextlib.suppress(BlockingIOError):
                os.write(self.pipe, b".")

    def held_for_s(self, mono_s: float) -> float:
        """How long at that moment the hold was in force, whoever asks for it by now."""
        return mono_s - self._hold_began if self.hold_reason is not None else 0.0

    def step(self, now: float, *, off_gpu: bool | None = None) -> list[str]:
        """Carry on what was begun. Answers what the manager must do: "hold_failed", "pause_limit", "timeout", "lost".

        Args:
            off_gpu: whether the meter reads that it left the GPU since it was held; False: it did not, or that cannot be read;
                None: its work is on none.
        """
        notes: list[str] = []
        if self.runner is None:
            self._meet_runner()
        if self._launcher_acted(now):
            notes.append("lost")
        self._look_for_phase(now)
        self.remember()
        if self.lowered:
            self.lowering.apply(self.members(), self.group)
        self.unkillable = self._left_behind(now)
        if self.stopping is not None:
            self._advance_stop(now)
        elif self.hold_reason is not None:
            if not self._confirm_hold(now, off_gpu):
                notes.append("hold_failed")
            assert self.held_since_mono_s is not None
            if not self.hold_unlimited and now - self.held_since_mono_s > PAUSE_LIMIT_S:
                notes.append("pause_limit")
        elif now < self._thaw_until:
            self._thaw()
        if self.state in ("starting", "running") and self.timeout_s is not None and self.unheld_s(now) > self.timeout_s:
            notes.append("timeout")
        return notes

    def next_due_s(self) -> float:
        """Seconds until ``step`` has something to do, at most 2."""
        due = [2.0]
        if self.runner is None or self.first_phase_mono_s is None:
            due.append(0.2)
        if self.stopping is not None:
            due.append(0.1)
        elif self.hold_reason is not None and not self.hold_confirmed:
            due.append(0.02 if self._frozen else HOLD_CHECK_S / 2.0)
        return min(due)

    def _launcher_acted(self, now: float) -> bool:
        """Whether the launcher took the agent for gone since the last look; its act becomes this attempt's state."""
        told = read_document(self.folder.root / "lost.json")
        if told is None or not isinstance(told.get("count"), int) or told["count"] <= self._lost_seen:
            return False
        self._lost_seen = told["count"]
        if self.stopping is not None:
            return True
        if told.get("how") == "ended":
            self.stopping = Stop(str(told.get("why")), requeue=True, fault=False, by="launcher")
            self.close_span(now)
            self._kill_at = now + 2.0 * self.stop_grace_s
            return True
        self._frozen = self._frozen or told.get("how") == "frozen"
        # one that can do both was asked to pause as well, whatever is named: thawed alone, it would stay paused
        self._pause_asked = self._pause_asked or "cooperative_pause" in self.capabilities
        if self.hold_reason is None:
            self._enter_hold(now, "the agent was silent", unlimited=False)
        if self._pause_asked:
            # The launcher's document may bear the same number as one that we wrote in the same moment: the runner took whichever
            # it saw first. Ours from here on is newer than both.
            self._paused_ns = 0
            with contextlib.suppress(OSError):
                self._paused_ns = self._document(reason=self.hold_reason)
        return True

    def _look_for_phase(self, now: float) -> None:
        found = phase_of(self.folder.work / "phase")
        if found is None or (found[0] == PAUSED and self.first_phase_mono_s is None):
            # a runner that confirms a pause from its start has not begun to work
            self._no_phase_at = now
            if self.first_phase_mono_s is None and now - self.spawned_mono_s > BEGIN_AT_LATEST_S:
                self.first_phase_mono_s = self.spawned_mono_s + BEGIN_AT_LATEST_S
            return
        if self.first_phase_mono_s is None:
            # how old the file is, is a matter of the wall clock, which may be set: no older than our last look without it
            age_s = max(0.0, utc_now().timestamp() - found[1] / 1e9)
            self.first_phase_mono_s = max(self.spawned_mono_s, self._no_phase_at, now - age_s)
        self.phase = found[0]

    def _document(self, **change: Any) -> int:
        """Write a newer control document and nudge. When it was written (ns, by the file system's clock)."""
        document: dict[str, Any] = {
            "seq": self.folder.last_seq() + 1,
            "stop": False,
            "pause": self._pause_asked,
            **limits(self.duty, self.threads),
            **change,
        }
        written_ns = self.folder.write_control(document)
        self._nudge(signal.SIGUSR1)
        return written_ns

    def _confirm_hold(self, now: float, off_gpu: bool | None) -> bool:
        if self._frozen:
            stopped = self._freeze()
            if self._seal_at is None and self.runner is not None:
                self._seal_at = now + SEAL_AFTER_S
            late = self._seal_at is not None and now >= self._seal_at
            self.hold_confirmed = self._seal(stopped, late) and self.runner is not None
        else:
            used = sum(proc.own_ticks + proc.reaped_ticks for proc in self.tree())
            if self._hold_sample is None:
                self._hold_sample = (now, used)
            elif now - self._hold_sample[0] >= HOLD_CHECK_S:
                since, before = self._hold_sample
                calm = (used - before) / CLOCK_TICKS <= HOLD_CPU_MAX * (now - since)
                left = off_gpu is not False or self._says_paused()
                rests = calm and left and self.runner is not None
                self.not_held = (
                    "paused, and nothing shows that it left the GPU" if calm and not left else "did not pause"
                )
                if self.hold_confirmed and not rests:
                    self._hold_deadline = now + HOLD_DEADLINE_S - self._restless_s
                # Bursts add up, and what is as calm as a sample may be makes up for them: else half a hold could be spent at work.
                spent = now - since
                self._restless_s = (
                    max(0.0, self._restless_s - HOLD_CPU_MAX * spent) if rests else self._restless_s + spent
                )
                self.hold_confirmed = rests
                self._hold_sample = (now, used)
        return self.hold_confirmed or now <= self._hold_deadline

    def _says_paused(self) -> bool:
        """Whether its phase is ``paused``, written after the document that began the pause."""
        found = phase_of(self.folder.work / "phase")
        return found is not None and found[0] == PAUSED and found[1] >= self._paused_ns > 0

    def _advance_stop(self, now: float) -> None:
        if self._term_at is not None and now >= self._term_at:
            self._term_at = None
            self._nudge(signal.SIGTERM)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill()
            self.unkillable = self.unkillable or now - self._kill_at > UNKILLABLE_AFTER_S

    def close(self) -> None:
        if self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1
