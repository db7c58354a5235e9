"""``protection ab show`` and ``verify``: the report of a run, and whether its windows say what it says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from cotenant.cli.command import command
from cotenant.cli.options import RunArg, settings
from cotenant.cli.result import Exit, OperationResult

__all__ = ["register"]


def register(ab: typer.Typer) -> None:
    @command(
        ab,
        "show",
        example="cotenant protection ab show run-3f2c9b1e04\ncotenant protection ab show run-3f2c9b1e04 --html report.html",
    )
    def show(
        run: RunArg,
        html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write the page.")] = None,
        csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Also write the raw windows.")] = None,
    ) -> OperationResult:
        """The report of a run or sweep. Exit code 0 for "no slowdown shown" (or a run that goes on), 1 for every other ending.

        A sweep's is 0 where at least one duty is certified.
        """
        from cotenant.cli.ab_sweep import SWEEP_PREFIX, show_sweep
        from cotenant.cli.report_view import report_result
        from cotenant.cli.runs import find_run

        if run.startswith(SWEEP_PREFIX):
            return show_sweep(settings(), run)
        found = find_run(settings(), run)
        return report_result(found.record, html=html, csv=csv, told_by=found.told_by)

    @command(ab, "verify", example="cotenant protection ab verify run-3f2c9b1e04")
    def verify(run: RunArg) -> OperationResult:
        """Recompute the verdict from the raw windows and compare. Exit code 1 where they differ."""
        from cotenant.cli.replay import verify as compare
        from cotenant.cli.runs import find_run

        found = find_run(settings(), run)
        answer = compare(found.record) | {"told_by": found.told_by}
        return OperationResult(answer, exit_code=Exit.DONE if answer["agrees"] else Exit.OTHER_ANSWER, view=_verified)


def _verified(answer: dict[str, Any]) -> Iterator[str]:
    counts = answer["blocks"]
    source = "the agent's journal" if answer["told_by"] == "agent" else "the store"
    yield f"run {answer['run']}: {counts['counted']} blocks counted, {counts['all'] - counts['counted']} left out, from {source}"
    yield f"  recorded:   {answer['recorded']['ending'] or 'goes on'}"
    yield f"  recomputed: {answer['recomputed']['ending'] or 'undecided by its windows'}"
    yield "agrees" if answer["agrees"] else "DIFFERS:"
    yield from (f"  {words}" for words in answer["differences"])
