"""Entry point of ``cotenant`` (and of its alias ``oarbank``)."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

import typer

from cotenant.cli import (
    ab,
    backup,
    doctor,
    explain,
    helper,
    job,
    llmserve,
    machine,
    mod,
    module,
    node,
    protection,
    sdk,
    service,
    timeline,
    workload,
)
from cotenant.cli.result import Exit, OperationError, OperationResult

__all__ = ["app", "main"]

app = typer.Typer(
    help="Run fleet work beside a protected program, and prove that it does no harm.\n\n"
    "Start with `cotenant demo` (five minutes), or `cotenant up` and `cotenant protection set`.",
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
machine.register(app)
node.register(app)
protection.register(app)
ab.register(protection.app)
timeline.register(app)
job.register(app)
explain.register(app)
module.register(app)
helper.register(app)
llmserve.register(app)
mod.register(app)
workload.register(app)
service.register(app)
backup.register(app)
sdk.register(app)
doctor.register(app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and give its exit code. Wrong usage speaks JSON too where ``--json`` was asked for."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # a file's name that is no UTF-8 has half characters, which standard output else refuses (standard error does not)
        sys.stdout.reconfigure(errors="backslashreplace")
    program = "oarbank" if os.path.basename(sys.argv[0]) == "oarbank" else "cotenant"
    try:
        code = typer.main.get_command(app).main(args=arguments, prog_name=program, standalone_mode=False)
    except Exception as error:
        # Wrong usage: the parser's own exception, whichever package it comes from in this version of typer.
        if not hasattr(error, "format_message"):
            raise
        return _usage(error, arguments, program)
    return int(code or 0)


def _usage(error: Exception, arguments: list[str], program: str) -> int:
    from cotenant.cli.render import emit

    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else program
    if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
        print(context.get_help())
        return int(Exit.REFUSED_INPUT) if context.parent is not None else int(Exit.DONE)
    said = error.format_message().rstrip(".")  # type: ignore[attr-defined]
    failed = OperationError("USAGE", path, said, f"{path} --help")
    result = OperationResult.failed(Exit.REFUSED_INPUT, failed)
    emit(result, path.partition(" ")[2], "json" if "--json" in arguments else "text")
    return int(result.exit_code)


def entry() -> None:
    sys.exit(main())


if __name__ == "__main__":
    entry()
