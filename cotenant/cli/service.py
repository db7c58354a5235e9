"""``service``: systemd units for this machine's node."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cotenant.cli.command import command, group
from cotenant.cli.options import NodeOption, settings
from cotenant.cli.result import OperationResult

__all__ = ["register"]

SYSTEM_UNITS = Path("/etc/systemd/system")


def register(app: typer.Typer) -> None:
    service = group("Run the node as a service of this machine, from its boot on.")
    app.add_typer(service, name="service")

    @command(
        service,
        "install",
        example="cotenant service install --print\nsudo cotenant service install --system --run-as me",
    )
    def install(
        node: NodeOption = None,
        system: Annotated[
            bool, typer.Option("--system", help="Units of the system, for all who use it; your own ones else.")
        ] = False,
        run_as: Annotated[
            str | None, typer.Option("--run-as", metavar="USER", help="With --system: the account it runs as.")
        ] = None,
        only_print: Annotated[bool, typer.Option("--print", help="Show the units and write nothing.")] = False,
    ) -> OperationResult:
        """Write systemd units: one for the agent, one for the fleet side. Says which commands start them."""
        return _install(node, system=system, run_as=run_as, only_print=only_print)


def _install(node: str | None, *, system: bool, run_as: str | None, only_print: bool) -> OperationResult:
    from cotenant.cli.agents import checked_name
    from cotenant.fleet.units import Install, units
    from policies.refusal import Refused

    in_force = settings()
    name = checked_name(node or in_force.node)
    if run_as is not None and not system:
        raise Refused("USAGE", "--run-as", "your own units run as you", "give --system with it")
    made = units(
        Install(
            node=name,
            home=in_force.home,
            python=Path(sys.executable),
            root=Path(__file__).parents[2],
            user=(run_as or getpass.getuser()) if system else None,
            joined=in_force.prefect_api_url is not None,
        )
    )
    folder = SYSTEM_UNITS if system else _user_units()
    data: dict[str, Any] = {"folder": str(folder), "units": made, "written": not only_print}
    if only_print:
        return OperationResult(data, view=lambda shown: _shown(shown["units"]))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in made.items():
            draft = folder / f"{file}.new"
            draft.write_text(text)
            os.replace(draft, folder / file)
    except OSError as error:
        raise Refused(
            "SERVICE_NOT_WRITTEN", str(folder), error.strerror or str(error), "run it as root, or leave --system out"
        ) from error
    return OperationResult(data, messages=_complaints(folder, list(made), system), view=lambda _: _next(system, folder))


def _user_units() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"


def _shown(made: dict[str, str]) -> list[str]:
    return [part for file, text in made.items() for part in (f"# {file}", text)]


def _next(system: bool, folder: Path) -> list[str]:
    manager = "systemctl" if system else "systemctl --user"
    lines = [
        f"written to {folder}; start it now and at each boot:",
        f"  {manager} daemon-reload",
        f"  {manager} enable --now cotenant-agent cotenant-fleet",
    ]
    return lines if system else [*lines, "  loginctl enable-linger   (so that it also runs while you are logged out)"]


def _complaints(folder: Path, files: list[str], system: bool) -> list[str]:
    """What systemd itself says of the units; nothing where it is not installed."""
    try:
        done = subprocess.run(
            ["systemd-analyze", "verify", *([] if system else ["--user"]), *(str(folder / file) for file in files)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line for line in done.stderr.splitlines() if "cotenant" in line]
