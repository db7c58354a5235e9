"""``mod MODULE OPERATION``: what a module offers its owner, with its parameters as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from cotenant.cli.command import command
from cotenant.cli.job import json_object
from cotenant.cli.options import NodeOption, settings
from cotenant.cli.result import OperationResult

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    @command(app, "mod", example='cotenant mod llmserve queue_prompts -p \'{"prompts": ["Why is the sky blue?"]}\'')
    def mod(
        module: Annotated[str, typer.Argument(metavar="MODULE", help="A module, as `module list` names it.")],
        operation: Annotated[str, typer.Argument(metavar="OPERATION", help="What to do.")],
        parameters: Annotated[str, typer.Option("--parameters", "-p", metavar="JSON", help="Its parameters.")] = "{}",
        node: NodeOption = None,
    ) -> OperationResult:
        """Run a module's operation. There is llmserve's queue_prompts."""
        from policies.refusal import Refused

        offered = {"llmserve": {"queue_prompts": _queue_prompts}}
        if module not in offered:
            raise Refused(
                "MOD_UNKNOWN", f"module {module!r}", "it offers no operation here", f"one of: {', '.join(offered)}"
            )
        found: Callable[[dict[str, Any], str | None], OperationResult] | None = offered[module].get(operation)
        if found is None:
            raise Refused(
                "MOD_NO_OPERATION",
                f"operation {operation!r}",
                f"{module} offers {', '.join(offered[module])}",
                f"cotenant mod {module} {next(iter(offered[module]))}",
            )
        return found(json_object(parameters, "--parameters"), node)


def _queue_prompts(parameters: dict[str, Any], node: str | None) -> OperationResult:
    from cotenant.cli.llmserve_input import checked, queue, spec_of
    from policies.prompts import parse_list
    from policies.refusal import Refused

    in_force = settings()
    asked = dict(parameters)
    prompts, dedupe = asked.pop("prompts", None), asked.pop("dedupe", False)
    if not isinstance(prompts, list):
        why = "they are no list" if "prompts" in parameters else "there are none"
        example = """cotenant mod llmserve queue_prompts -p '{"prompts": ["Hi"], "model": "m.gguf"}'"""
        raise Refused("PROMPTS_NONE", "prompts", why, example)
    parsed = parse_list(prompts)
    notes = checked(parsed, "prompts", skip_bad=False)
    spec = spec_of({"node": node or in_force.node, **asked}, parsed)
    return queue(in_force, spec, parsed, "queue_prompts", dedupe=dedupe is True, notes=notes)
