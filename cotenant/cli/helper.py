"""``session-helper``: reads sources in this login's home for an agent that runs as a system service."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from cotenant.cli.command import command
from cotenant.cli.result import OperationResult

__all__ = ["register"]

SocketOption = Annotated[Path | None, typer.Option("--socket", help="The agent's socket for owners.")]


def register(root: typer.Typer) -> None:
    command(
        root,
        "session-helper",
        example="cotenant session-helper\ncotenant session-helper --socket /run/cotenant/mac-01.owners.sock",
    )(session_helper)


def session_helper(socket: SocketOption = None) -> OperationResult:
    """Read progress and phase sources in this home for a system agent, until ended.

    Passes on counts and phase states, never what a line says. Run it in the login of the account that the sources are of.
    """
    more = [] if socket is None else ["--socket", str(socket)]
    # in its own process image: what the command line needs is not kept for as long as the login lasts
    os.execv(sys.executable, [sys.executable, "-m", "nodes.session_helper", *more])
