"""``module``: bundles of fleet work on a node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cotenant.cli.command import command, group
from cotenant.cli.options import NodeOption, agent_of
from cotenant.cli.result import Exit, OperationResult

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["register"]

# Adding a module may build its environment.
ADD_S = 900.0
DOCTOR_S = 660.0


def register(app: typer.Typer) -> None:
    modules = group("Bundles of fleet work: what a node can run.")
    app.add_typer(modules, name="module")

    @command(modules, "list", example="cotenant module list")
    def list_modules(node: NodeOption = None) -> OperationResult:
        """Modules of the node, and why one is not ready."""
        return OperationResult(agent_of(node).ask("modules"), view=_list)

    @command(modules, "add", example="cotenant module add modules/llmserve")
    def add(
        directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder with an oarbank-module.toml.")],
        now: Annotated[bool, typer.Option("--now", help="In spite of what holds fleet work (not of a run).")] = False,
        node: NodeOption = None,
    ) -> OperationResult:
        """Add the module in DIR to the node, or replace an older version of it."""
        from policies.refusal import Refused

        path = directory.expanduser().resolve()
        if not (path / "oarbank-module.toml").is_file():
            raise Refused(
                "MODULE_BAD",
                f"module {directory}",
                "there is no oarbank-module.toml in it",
                "name a module's folder; a new one: cotenant sdk new DIR",
            )
        added = agent_of(node).ask("module_add", path=str(path), **({"now": True} if now else {}), _timeout_s=ADD_S)
        result = OperationResult(added, view=lambda one: _list([one]))
        if added.get("state") != "ready":
            result.exit_code = Exit.OTHER_ANSWER
            result.messages.append(f"it is not ready: {added.get('why')}; cotenant module doctor {added.get('short')}")
        return result

    @command(modules, "doctor", example="cotenant module doctor llmserve")
    def doctor(
        module: Annotated[str, typer.Argument(metavar="MODULE", help="A module, as `module list` names it.")],
        now: Annotated[bool, typer.Option("--now", help="In spite of what holds fleet work (not of a run).")] = False,
        node: NodeOption = None,
    ) -> OperationResult:
        """Ask the module's own doctor whether it can work here. Exit code 1 when it cannot."""
        more = {"now": True} if now else {}
        found = agent_of(node).ask("module_doctor", module=module, **more, _timeout_s=DOCTOR_S)
        code = Exit.DONE if found["health"] == "healthy" else Exit.OTHER_ANSWER
        return OperationResult(found, exit_code=code, view=_doctor)


def _list(modules: list[dict[str, Any]]) -> Iterator[RenderableType]:
    from cotenant.cli.render import table

    if not modules:
        yield "no modules; add one with: cotenant module add DIR"
        return
    yield table(
        ("module", "version", "state", "stages", "why", "id", "digest"),
        (
            (
                module.get("short"),
                module.get("version"),
                module["state"],
                ", ".join(_stage(stage) for stage in module.get("stages") or []),
                module.get("why"),
                module.get("module"),
                (module.get("digest") or "")[:12],
            )
            for module in modules
        ),
    )


def _stage(stage: Any) -> str:
    return str(stage.get("name", stage.get("stage"))) if isinstance(stage, dict) else str(stage)


def _doctor(found: dict[str, Any]) -> Iterator[RenderableType]:
    from cotenant.cli.render import fields, table

    yield f"health: {found['health']}" + (f": {found['why']}" if found.get("why") else "")
    checks = found.get("checks") or []
    if checks and all(isinstance(check, dict) for check in checks):
        keys = list(dict.fromkeys(key for check in checks for key in check))
        yield table(keys, ([check.get(key) for key in keys] for check in checks))
    attrs = found.get("attrs") or {}
    if attrs:
        yield fields((name, json.dumps(value, ensure_ascii=False)) for name, value in attrs.items())
