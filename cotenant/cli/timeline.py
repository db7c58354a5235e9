"""``timeline``: the node's journal of coded events."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cotenant.cli.command import command
from cotenant.cli.options import OptionalNodeArg, agent_of
from cotenant.cli.result import OperationResult

if TYPE_CHECKING:
    from cotenant.cli.agents import Agent

__all__ = ["register"]

PAGE = 500
FOLLOW_EVERY_S = 1.0


def register(app: typer.Typer) -> None:
    @command(
        app,
        "timeline",
        example="cotenant timeline local --follow\ncotenant timeline --code RUN_BLOCK --limit 20",
        lines_with="follow",
    )
    def timeline(
        node: OptionalNodeArg = None,
        follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
        code: Annotated[str | None, typer.Option("--code", metavar="CODE", help="Only this code.")] = None,
        limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The newest so many entries.")] = 50,
        as_json: bool = False,
    ) -> OperationResult:
        """The node's timeline: what its agent saw and did, oldest first.

        With --follow and --json, one entry a line; the last line is the envelope that other commands answer with.
        """
        if code is not None:
            _check_code(code)
        agent = agent_of(node)
        newest, last_seq = _newest(agent, code, limit)
        if not follow:
            return OperationResult({"node": agent.node, "entries": newest, "last_seq": last_seq}, view=_view)
        try:
            for entry in newest:
                _say(entry, as_json)
            while True:
                for entry in _after(agent, last_seq, code):
                    _say(entry, as_json)
                    last_seq = entry["seq"]
                time.sleep(FOLLOW_EVERY_S)
        except KeyboardInterrupt:
            return OperationResult()


def _check_code(code: str) -> None:
    """Refused where no code is called so and it is no pattern: an empty answer would read as "it never happened"."""
    import difflib

    from policies.codes import CODES
    from policies.refusal import Refused

    if code in CODES or any(character in code for character in "*?["):
        return
    near = difflib.get_close_matches(code.upper(), CODES, 3, cutoff=0.5)
    hint = f"close ones: {', '.join(near)}" if near else "docs/codes.md has them all"
    raise Refused("CODE_UNKNOWN", f"--code {code}", "there is no such code", hint)


def _after(agent: Agent, seq: int, code: str | None) -> Iterator[dict[str, Any]]:
    wanted: dict[str, Any] = {} if code is None else {"code": code}
    while entries := agent.ask("timeline", after_seq=seq, limit=PAGE, **wanted)["entries"]:
        yield from entries
        seq = entries[-1]["seq"]


def _newest(agent: Agent, code: str | None, limit: int) -> tuple[list[dict[str, Any]], int]:
    last_seq = int(agent.ask("timeline", after_seq=0, limit=1)["last_seq"])
    wanted: dict[str, Any] = {} if code is None else {"code": code}
    found: deque[dict[str, Any]] = deque()
    before = last_seq + 1
    while len(found) < limit:
        page = agent.ask("timeline", before_seq=before, limit=min(PAGE, limit - len(found)), **wanted)["entries"]
        if not page:
            break
        found.extendleft(reversed(page))
        before = page[0]["seq"]
    return list(found), last_seq


def entry_line(entry: dict[str, Any]) -> str:
    from cotenant.cli.render import when

    return f"{when(entry['at'])}  {entry['severity']:<7}  {entry['code']:<28}  {entry['message']}{_facts(entry)}"


def _facts(entry: dict[str, Any]) -> str:
    """The short facts of an entry; long ones are in --json."""
    data = entry.get("data") or {}
    short = {k: v for k, v in data.items() if isinstance(v, (str, int, float, bool)) and v != ""}
    return "  " + " ".join(f"{key}={_fact(value)}" for key, value in short.items()) if short else ""


def _fact(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _view(data: dict[str, Any]) -> Iterator[str]:
    if not data["entries"]:
        yield "no entries"
    for entry in data["entries"]:
        yield entry_line(entry)


def _say(entry: dict[str, Any], as_json: bool) -> None:
    sys.stdout.write((json.dumps(entry, ensure_ascii=False) if as_json else entry_line(entry)) + "\n")
    sys.stdout.flush()
