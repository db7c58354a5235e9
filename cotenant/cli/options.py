"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cotenant.cli.agents import Agent
    from cotenant.settings import Settings

__all__ = ["NodeArg", "NodeOption", "OptionalNodeArg", "RunArg", "YesFlag", "agent_of", "settings"]

NodeArg = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node.")]
OptionalNodeArg = Annotated[
    str | None, typer.Argument(metavar="[NODE]", help="Name of the node; this machine's by default.")
]
NodeOption = Annotated[str | None, typer.Option("--node", metavar="NODE", help="The node; this machine's by default.")]
RunArg = Annotated[str, typer.Argument(metavar="RUN", help="A run, as `ab list` and `ab start` name it.")]
YesFlag = Annotated[bool, typer.Option("--yes", "-y", help="Agree to what is shown, without being asked.")]


def settings() -> Settings:
    """Settings in force for this command (imported here: `--help` needs none)."""
    from cotenant.settings import Settings

    return Settings.from_env()


def agent_of(node: str | None) -> Agent:
    """The agent of the node, or of this machine's node where none is named."""
    from cotenant.cli.agents import Agent

    in_force = settings()
    return Agent(in_force, node or in_force.node)
