"""Asking a person before a reviewed change."""

from __future__ import annotations

import sys

from cotenant.cli.failures import ReviewDeclined

__all__ = ["ask"]


def ask(question: str, *, yes: bool, what: str, again: str) -> None:
    """Return when someone agreed.

    Args:
        question: asked on the terminal, answered by y or n; there is no default.
        yes: already agreed to (``--yes``).
        what: the change, for the refusal.
        again: the command that agrees without being asked.

    Raises:
        ReviewDeclined: the answer was no, or there is nobody to ask.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ReviewDeclined(what, "it is a reviewed change, and there is no terminal to ask on", f"agree by {again}")
    while True:
        sys.stderr.write(f"{question} [y/n] ")
        sys.stderr.flush()
        answer = sys.stdin.readline()
        if answer == "":
            raise ReviewDeclined(what, "nobody answered", f"agree by {again}")
        if answer.strip().lower() in ("y", "yes"):
            return
        if answer.strip().lower() in ("n", "no"):
            raise ReviewDeclined(what, "it was declined; nothing was changed", f"agree by {again}")
