"""``sdk``: for those who write modules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cotenant.cli.command import command, group
from cotenant.cli.result import Exit, OperationResult

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    sdk = group("Write a module of fleet work, and prove that it keeps its promises.")
    app.add_typer(sdk, name="sdk")

    @command(sdk, "conform", example="cotenant sdk conform modules/llmserve")
    def conform(
        directory: Annotated[Path, typer.Argument(metavar="MODULE_DIR", help="Folder with an oarbank-module.toml.")],
        as_json: bool = False,
    ) -> OperationResult:
        """Run the module as an agent would, and check what it promises: one line a check, with the figure and why.

        Manifest, doctor, goldens (twice, elsewhere), pause, resume, stop, file writes, children, and each duty spec of
        conformance.json, measured from outside. About a minute. Exit code 1 when a check fails, 2 for a bad folder.
        """
        from cotenant.conform import conform as run
        from cotenant.conform import summary

        checks = []
        for check in run(directory.expanduser()):
            checks.append(check)
            if not as_json:
                print(check.line(), flush=True)
        failed = any(check.verdict == "FAIL" for check in checks)
        data = {"module": str(directory), "checks": [check.as_dict() for check in checks], "summary": summary(checks)}
        code = Exit.OTHER_ANSWER if failed else Exit.DONE
        return OperationResult(data, exit_code=code, view=lambda one: [one["summary"]])

    @command(sdk, "new", example="cotenant sdk new render --id dev.example.render")
    def new(
        directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to make; it must not hold anything.")],
        module_id: Annotated[
            str | None, typer.Option("--id", help="The module's id, such as dev.example.render.")
        ] = None,
    ) -> OperationResult:
        """Make a module that passes `sdk conform`, to be filled with work."""
        from cotenant.conform.newmodule import new_module

        folder = directory.expanduser()
        names = new_module(folder, module_id)
        return OperationResult({"folder": str(folder), "files": names}, view=_made)


def _made(data: dict[str, Any]) -> Iterator[RenderableType]:
    yield from (f"{data['folder']}/{name}" for name in data["files"])
    yield f"check it with: cotenant sdk conform {data['folder']}"
