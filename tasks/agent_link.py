"""A harness run's line to its node's agent. It survives a restart of the agent and what passes; everything else it reports at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from nodes.client import PASSING, AgentClient, AgentUnreachable, socket_path
from nodes.identity import ProcessId
from policies.harness.spec import RunSpec
from policies.refusal import Refused

__all__ = ["Agent", "AgentLost", "Link", "Patience", "ask_patiently", "connect"]

# Beyond the nominal length of a block: ON's washout may begin 5 minutes after the switch, and a window waits for the
# event that closes its last step.
BLOCK_SLACK_S = 900.0
# Beyond that, until a block is waited for no longer: its work may start late twice, its steps may be long, and a full disk may
# keep its row from being kept for a while.
BLOCK_WITHIN_S = 3600.0
TRIES = 3


class Agent(Protocol):
    def call(self, method: str, /, _timeout_s: float = ..., **params: Any) -> Any: ...


class AgentLost(Exception):
    """The agent did not come back in time. The run stays open in its journal; a retry of the flow run goes on with it."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an agent that went away is waited for, in seconds."""

    total_s: float = 180.0
    first_s: float = 0.5
    longest_s: float = 5.0


def ask_patiently(
    agent: Agent,
    verb: str,
    params: Mapping[str, Any],
    *,
    timeout_s: float = 30.0,
    patience: Patience,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Any:
    """Ask until the agent answers, with growing pauses, for as long as patience lasts.

    Args:
        timeout_s: longest wait for one answer, in seconds.

    Raises:
        Refused: it says no to what was asked.
        AgentLost: nobody answered in time, or only with what passes (``nodes.client.PASSING``).
    """
    since, pause_s = clock(), patience.first_s
    while True:
        try:
            return agent.call(verb, _timeout_s=timeout_s, **params)
        except AgentUnreachable as error:
            gone: Exception = error
        except Refused as refusal:
            if refusal.code not in PASSING:
                raise
            gone = refusal
        waited_s = clock() - since
        if waited_s + pause_s > patience.total_s:
            raise AgentLost(f"{gone}; waited {waited_s:.0f} s for it") from gone
        sleep(pause_s)
        pause_s = min(2.0 * pause_s, patience.longest_s)


def connect(node: str) -> AgentClient:
    """The agent of this machine's node, by ``COTENANT_HOME``."""
    from cotenant.settings import Settings

    return AgentClient(socket_path(Settings.from_env().home, node))


@dataclass
class Link:
    """One run's line to the agent.

    The agent's journal is the truth about what was measured: the link keeps nothing itself but the lowest number that
    the next block may have.
    """

    agent: Agent
    run: str
    spec: RunSpec
    holder: ProcessId
    flow_run_id: str | None = None
    reviewed_by: str = ""
    sweep: dict[str, Any] | None = None
    patience: Patience = field(default_factory=Patience)
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    lowest_number: int = 1

    def plan(self) -> dict[str, Any]:
        """What the agent would do.

        Raises:
            Refused: what could only fail later is refused here.
        """
        return dict(self._patiently("run_plan", spec=self.spec.model_dump()))

    def known(self) -> dict[str, Any] | None:
        """The run's record, or None where the agent has none yet."""
        try:
            return self.show()
        except Refused as refusal:
            if refusal.code == "RUN_UNKNOWN":
                return None
            raise

    def begin(self) -> dict[str, Any]:
        """Take the node's run lock for this process, or go on with the open run: ``{resumed, run}``.

        Raises:
            Refused: RUN_LOCKED, RUN_CHANGED, RUN_ENDED and what a plan is refused for.
            AgentLost: nobody answered for ``patience.total_s``.
        """
        asked: dict[str, Any] = {
            "run": self.run,
            "spec": self.spec.model_dump(),
            "holder": self.holder.as_dict(),
            "flow_run_id": self.flow_run_id,
            "reviewed_by": self.reviewed_by,
        }
        if self.sweep is not None:
            asked["sweep"] = self.sweep
            # An agent that restarted has forgotten for whom it kept the node.
            self._patiently("sweep_begin", sweep=self.sweep["sweep"], holder=self.holder.as_dict())
        return dict(self._patiently("run_begin", **asked))

    def show(self) -> dict[str, Any]:
        return dict(self._patiently("run_show", run=self.run))

    def reference(self) -> dict[str, Any]:
        """Rate with the work held, measured once in a run: ``{rate, length_s, longest_step_s}``."""
        return dict(self._held("run_reference", self.spec.reference_s + BLOCK_SLACK_S, run=self.run))

    def look(self, look: dict[str, Any]) -> None:
        self._held("run_look", 30.0, run=self.run, look=look)

    def offer(self) -> dict[str, Any]:
        """Offer the ended run for a certificate. The agent checks it against its own journal, which takes a while.

        Raises:
            Refused: CERT_REFUSED, with why.
        """
        return dict(self._patiently("certificate_offer", _timeout_s=120.0, run=self.run))

    def end(self, ending: str, reason: str | None, verdict: dict[str, Any] | None) -> dict[str, Any]:
        """Ending a run twice keeps its first ending. Gives the record."""
        return dict(self._patiently("run_end", run=self.run, ending=ending, reason=reason, verdict=verdict))

    def block(self, number: int, order: str) -> dict[str, Any] | None:
        """Let the agent measure one block, and wait for it on the socket.

        Returns:
            The row; None where the agent went away in the middle, or failed, and kept nothing of this number, which is then
            never used again (the repeat gets another number, so another coin).

        Raises:
            AgentLost: the agent is at it still ``BLOCK_WITHIN_S`` after its nominal length; the run stays open.
        """
        self.lowest_number = max(self.lowest_number, number + 1)
        timeout_s, since_s = self.spec.block_s + BLOCK_SLACK_S, self.clock()
        until_s = since_s + self.spec.block_s + BLOCK_WITHIN_S
        while True:
            left_s = max(until_s - self.clock(), 1.0)
            try:
                return dict(
                    self.agent.call(
                        "run_block", _timeout_s=min(timeout_s, left_s), run=self.run, number=number, order=order
                    )
                )
            except AgentUnreachable:
                pass
            except Refused as refusal:
                if refusal.code != "RUN_NOT_HELD" and refusal.code not in PASSING:
                    raise
            try:
                rows: list[dict[str, Any]] = self.begin()["run"]["blocks"]
            except Refused as refusal:
                if refusal.data.get("block") != number:
                    raise
                if self.clock() >= until_s:
                    raise AgentLost(
                        f"block {number} has not ended {self.clock() - since_s:.0f} s after it was asked for: it is measured "
                        "still, or its node's disk is full and cannot keep it (cotenant status)"
                    ) from refusal
                # the agent lives and is at it still, as where steps are long or its disk is full: the block is joined
                self.sleep(self.patience.first_s)
            else:
                return next((row for row in rows if row["number"] == number), None)

    def _held(self, verb: str, timeout_s: float, **params: Any) -> Any:
        """A verb that needs the run lock and may be asked again: an agent that restarted gets the run back first."""
        for _ in range(TRIES):
            try:
                return self.agent.call(verb, _timeout_s=timeout_s, **params)
            except AgentUnreachable as gone:
                last = str(gone)
            except Refused as refusal:
                if refusal.code != "RUN_NOT_HELD" and refusal.code not in PASSING:
                    raise
                last = str(refusal)
            self.begin()
        raise AgentLost(f"{verb} was not answered in {TRIES} tries: {last}")

    def _patiently(self, verb: str, *, _timeout_s: float = 30.0, **params: Any) -> Any:
        timing: dict[str, Any] = {"patience": self.patience, "sleep": self.sleep, "clock": self.clock}
        return ask_patiently(self.agent, verb, params, timeout_s=_timeout_s, **timing)
