"""The session helper: ``python -m nodes.session_helper --socket PATH``, in the login of the account whose files it reads.

A system service's account cannot read a home. This process, which can, asks the agent which sources lie in this home,
follows them as the agent would, and passes on counts and phase states; what a line says never leaves it. When it ends, or
falls silent for five seconds, the agent takes such phases for on and such progress for unknown.
"""

from __future__ import annotations

import argparse
import logging
import os
import select
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodes.client import AgentClient, AgentUnreachable
from nodes.clock import monotonic_s
from nodes.sources.hub import SourceHub
from nodes.sources.views import PhaseUpdate
from policies.refusal import Refused
from policies.section.models import During, Protect, Rule, Section
from policies.section.sources import (
    ExecPhase,
    JsonlEventPhase,
    JsonlFieldPhase,
    JsonlProgress,
    LogProgress,
    OnExec,
)
from policies.section.values import Clean, Match

__all__ = ["Helper", "main"]

log = logging.getLogger("cotenant.session_helper")

DEFAULT_SOCKET = Path("/run/cotenant/local.owners.sock")
TICK_S = 2.0
RETRY_S = 5.0
CALL_S = 5.0
# Of one source in one report; what is more waits for the next.
POINTS_A_REPORT = 4000
_KINDS: dict[str, type[Clean]] = {
    "jsonl": JsonlProgress,
    "log": LogProgress,
    "events": JsonlEventPhase,
    "field": JsonlFieldPhase,
}
# Stands where a rule has phases that are not this helper's.
_NOWHERE = Match(path_prefix="/nonexistent/")
_NOT_OURS = During.model_construct(source=ExecPhase(on_exec=OnExec(match=_NOWHERE)))


@dataclass(slots=True)
class _Told:
    """Up to where a progress source was passed on."""

    when_s: float = float("-inf")
    counted: float = 0.0


@dataclass(slots=True)
class Helper:
    """One agent's helper. ``step`` is one turn: wait at most ``wait_s`` for a change, then report what there is."""

    client: AgentClient
    hub: SourceHub = field(default_factory=SourceHub)
    version: int | None = None
    sources: list[dict[str, Any]] = field(default_factory=list)
    beat_s: float = 1.0
    _told: dict[str, _Told] = field(default_factory=dict)
    _seen: dict[tuple[str, int], PhaseUpdate] = field(default_factory=dict)
    _beat_at_s: float = 0.0
    _tick_at_s: float = 0.0

    def ask(self) -> None:
        """Which sources are to be read. Raises ``AgentUnreachable`` or ``Refused``."""
        told = self.client.call("helper_sources", _timeout_s=CALL_S)
        if told["section_version"] == self.version and told["sources"] == self.sources:
            return
        self.version, self.sources, self.beat_s = told["section_version"], told["sources"], float(told["beat_s"])
        self.hub.configure(_section(self.sources), str(told["home"]))
        self._told = {row["rule"]: _Told() for row in self.sources if row["role"] == "progress"}
        self._seen.clear()
        log.info("section version %s: %d sources to read here", self.version, len(self.sources))

    def step(self) -> None:
        """Raises ``AgentUnreachable`` where nobody answers."""
        now_s = monotonic_s()
        wait_s = max(0.0, min(self._beat_at_s, self._tick_at_s) - now_s)
        woken = bool(select.select([self.hub.fileno()], [], [], wait_s)[0])
        now_s = monotonic_s()
        updates: list[PhaseUpdate] = []
        if woken:
            updates = self.hub.poll("event")
        if now_s >= self._tick_at_s:
            self._tick_at_s = now_s + TICK_S
            updates += self.hub.poll("tick")
        for update in updates:
            self._seen[(update.rule_id, update.index)] = update
        if updates or now_s >= self._beat_at_s:
            self._beat_at_s = now_s + self.beat_s
            self.report()

    def report(self) -> None:
        if self.version is None:
            self.ask()
        rows, told = [], dict(self._told)
        for each in self.sources:
            if each["role"] == "phase":
                rows.append(self._phase_row(each))
            else:
                row, told[each["rule"]] = self._progress_row(each, self._told[each["rule"]])
                rows.append(row)
        try:
            self.client.call("helper_report", _timeout_s=CALL_S, section_version=self.version, rows=rows)
        except Refused as refused:
            if refused.code != "HELPER_OTHER_SECTION":
                raise
            self.ask()
            return
        self._told = told
        if monotonic_s() >= self._tick_at_s - 0.5 * TICK_S:
            self.ask()  # a file may have become readable to the agent, or have ceased to be

    def _phase_row(self, each: Mapping[str, Any]) -> dict[str, Any]:
        view = self.hub.phase(each["rule"], each["index"])
        seen = self._seen.get((each["rule"], each["index"]))
        return _row(each, view.readable, view.why) | {
            "state": view.state,
            "mtime_s": None if seen is None else seen.source_mtime_s,
            "line_s": None if seen is None else seen.line_time_s,
        }

    def _progress_row(self, each: Mapping[str, Any], told: _Told) -> tuple[dict[str, Any], _Told]:
        view = self.hub.progress(each["rule"])
        points, when_s, counted = view.track.points_after(told.when_s, told.counted, POINTS_A_REPORT)
        row = _row(each, view.readable, "" if view.readable else view.why)
        return row | {"counts": view.counts, "points": points}, _Told(when_s, counted)


def _row(each: Mapping[str, Any], readable: bool, why: str) -> dict[str, Any]:
    return {**{key: each[key] for key in ("rule", "role", "index")}, "readable": readable, "why": why[:500]}


def _section(sources: list[dict[str, Any]]) -> Section:
    """A section of these sources alone: what the hub needs of one."""
    rules: dict[str, dict[str, Any]] = {}
    for each in sources:
        source: Any = _KINDS[each["kind"]].model_validate(each["source"])
        parts = rules.setdefault(each["rule"], {"protect": None, "during": []})
        if each["role"] == "progress":
            parts["protect"] = Protect.model_construct(
                metric="progress_rate", source=source, window_s=float(each["window_s"])
            )
        else:
            parts["during"] += [_NOT_OURS] * (each["index"] + 1 - len(parts["during"]))
            parts["during"][each["index"]] = During.model_construct(source=source)
    made = (
        Rule.model_construct(id=name, match=_NOWHERE, protect=parts["protect"], during=tuple(parts["during"]))
        for name, parts in rules.items()
    )
    return Section.model_construct(rules=tuple(made))


def run(client: AgentClient) -> None:
    """Until the process is told to end. An agent that is not there is waited for."""
    helper = Helper(client)
    said = ""
    while True:
        try:
            if helper.version is None:
                helper.ask()
            helper.step()
            said = ""
        except (AgentUnreachable, Refused) as error:
            if str(error) != said:
                said = str(error)
                log.warning("%s; trying again every %g s", error, RETRY_S)
            helper.version = None
            select.select([], [], [], RETRY_S)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="cotenant session-helper", description="Read progress and phase sources in this home for a system agent."
    )
    parser.add_argument("--socket", type=Path, default=DEFAULT_SOCKET, help=f"the agent's (default {DEFAULT_SOCKET})")
    asked = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    os.umask(0o077)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    from nodes import patience

    patience.install()
    try:
        run(AgentClient(asked.socket))
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
