"""``doctor``: what this machine has and lacks for protecting a program, and what falls back to what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from cotenant.cli.command import command
from cotenant.cli.options import OptionalNodeArg, agent_of
from cotenant.cli.result import Exit, OperationResult

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["register"]

ANSWER_WITHIN_S = 60.0


def register(app: typer.Typer) -> None:
    @command(app, "doctor", example="cotenant doctor\ncotenant doctor local --json")
    def doctor(node: OptionalNodeArg = None) -> OperationResult:
        """What this machine has and lacks: control groups, meters, rights, limits, and what happens instead.

        The node's agent tries it with its own rights; where none runs, this command does with yours. Exit 1 where
        something that matters is missing.
        """
        from cotenant.cli.failures import Unreachable

        messages = []
        agent = agent_of(node)
        try:
            found = agent.ask("doctor", _timeout_s=ANSWER_WITHIN_S)
            found["tried_by"] = "agent"
        except Unreachable as error:
            messages.append(
                f"the agent of {agent.node} does not answer ({error.error.why}): tried with your own rights"
            )
            found = _here(agent.node)
        code = Exit.OTHER_ANSWER if found["lacking"] else Exit.DONE
        return OperationResult(found, exit_code=code, messages=messages, view=_view)


def _here(node: str) -> dict[str, Any]:
    from nodes.machine import read_machine
    from policies.doctor import judge_machine, lacking

    checks = judge_machine(read_machine())
    return {
        "node": node,
        "checks": [check.as_dict() for check in checks],
        "lacking": lacking(checks),
        "tried_by": "command",
    }


def _view(found: dict[str, Any]) -> Iterator[RenderableType]:
    from cotenant.cli.render import table

    words = {"ok": "ok", "falls_back": "falls back", "missing": "MISSING"}
    yield table(("check", "state", "found"), ((c["name"], words[c["state"]], c["what"]) for c in found["checks"]))
    lacks = [check for check in found["checks"] if check["state"] != "ok"]
    if lacks:
        yield ""
        yield table(
            ("check", "what happens instead", "remedy"),
            ((c["name"], c["fallback"], c["remedy"]) for c in lacks),
            keep=("remedy",),
        )
