"""Registering a command: ``--json`` and ``--debug`` for each, its exit code, and no exception past this point."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer

from cotenant.cli.result import Form, OperationResult

__all__ = ["command", "finish", "group"]

JsonFlag = Annotated[bool, typer.Option("--json", help="Answer as one JSON object.")]
DebugFlag = Annotated[bool, typer.Option("--debug", help="On an error, also show where it happened.")]

Command = Callable[..., OperationResult]


def group(help_text: str) -> typer.Typer:
    return typer.Typer(help=help_text, no_args_is_help=True, rich_markup_mode=None, add_completion=False)


def command(
    app: typer.Typer, name: str, *, example: str, lines_with: str | None = None
) -> Callable[[Command], Command]:
    """Register a function that returns an ``OperationResult``.

    Its docstring is the help text; the example is shown below it. A parameter named ``as_json`` is given the flag's
    value, for commands that show something while they work. ``lines_with`` names the flag with which such a command writes
    one JSON object a line; its envelope, which comes last whatever ends it, is then one line too.
    """

    def register(function: Command) -> Command:
        signature = inspect.signature(function, eval_str=True)
        parameters = [p for p in signature.parameters.values() if p.name != "as_json"]
        wants_json = len(parameters) < len(signature.parameters)
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters += [
            inspect.Parameter("_context", keyword, annotation=typer.Context),
            inspect.Parameter("_json", keyword, default=False, annotation=JsonFlag),
            inspect.Parameter("_debug", keyword, default=False, annotation=DebugFlag),
        ]

        def run(**given: Any) -> None:
            context, as_json, debug = given.pop("_context"), given.pop("_json"), given.pop("_debug")
            if wants_json:
                given["as_json"] = as_json
            path = context.command_path.split(" ", 1)[-1]
            form: Form = "text" if not as_json else "line" if lines_with and given[lines_with] else "json"
            raise typer.Exit(finish(functools.partial(function, **given), path, form, debug=debug))

        run.__signature__ = signature.replace(parameters=parameters, return_annotation=None)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        examples = "\n".join("  " + line for line in example.strip().splitlines())
        app.command(name, help=f"{inspect.getdoc(function)}\n\n\b\nExample:\n{examples}")(run)
        return function

    return register


def finish(work: Callable[[], OperationResult], path: str, form: Form, *, debug: bool) -> int:
    """Do the work, print what came of it, and give the exit code."""
    from cotenant.cli.failures import as_result
    from cotenant.cli.render import emit

    def failed(error: BaseException) -> OperationResult:
        if debug:
            traceback.print_exception(error, file=sys.stderr)
        return as_result(error)

    try:
        result = work()
    except BrokenPipeError:
        return _quiet_end(0)
    except (Exception, KeyboardInterrupt) as error:
        result = failed(error)
    try:
        emit(result, path, form)
    except BrokenPipeError:
        return _quiet_end(int(result.exit_code))
    except Exception as error:  # the answer could not be put into words
        result = failed(error)
        emit(result, path, form)
    return int(result.exit_code)


def _quiet_end(code: int) -> int:
    """The reader of our output went away (``| head``): nothing more to say, and nothing to say it to."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
