"""``service``: systemd units for this machine's node."""

from __future__ import annotations

import getpass
import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cotenant.cli.command import command, group
from cotenant.cli.options import NodeOption, settings
from cotenant.cli.result import OperationResult

if TYPE_CHECKING:
    from cotenant.fleet.units import Install
    from cotenant.settings import Settings

__all__ = ["register"]

ROOT = Path(__file__).parents[2]
SYSTEM_UNITS = Path("/etc/systemd/system")
# Units of every account's own manager.
ALL_USERS_UNITS = Path("/etc/systemd/user")
# There while systemd is what runs the machine's services (sd_booted(3)).
SYSTEMD_RUNS = Path("/run/systemd/system")


def register(app: typer.Typer) -> None:
    service = group("Run the node as a service of this machine, from its boot on.")
    app.add_typer(service, name="service")

    @command(
        service,
        "install",
        example="cotenant service install --print\nsudo cotenant service install --system --run-as me\n"
        "sudo cotenant service install --system --run-as cotenant --owners me",
    )
    def install(
        node: NodeOption = None,
        system: Annotated[
            bool, typer.Option("--system", help="Units of the system, for all who use it; your own ones else.")
        ] = False,
        run_as: Annotated[
            str | None, typer.Option("--run-as", metavar="USER", help="With --system: the account it runs as.")
        ] = None,
        owners: Annotated[
            str | None,
            typer.Option(
                "--owners",
                metavar="USER,…",
                help="With --system: accounts that may set the section, and whose sources a session helper reads.",
            ),
        ] = None,
        only_print: Annotated[bool, typer.Option("--print", help="Show the units and write nothing.")] = False,
    ) -> OperationResult:
        """Write systemd units: for the agent, for the fleet side, with --owners for their session helpers.

        Says which commands start them. With --system the home is COTENANT_HOME where that is set, /var/lib/cotenant else.
        What the environment says about the fleet (server, databases, password) is kept in the home's fleet.json.
        """
        return _install(node, system=system, run_as=run_as, owners=owners, only_print=only_print)


def _install(
    node: str | None, *, system: bool, run_as: str | None, owners: str | None, only_print: bool
) -> OperationResult:
    from cotenant.fleet.units import units, user_units
    from policies.refusal import Refused

    for option, given, why in (
        ("--run-as", run_as, "your own units run as you"),
        ("--owners", owners, "an agent of your own reads your home by itself"),
    ):
        if given is not None and not system:
            raise Refused("USAGE", option, why, "leave it out, or give --system with it")
    asked = _asked(settings(), node, system=system, run_as=run_as, owners=owners)
    made = {SYSTEM_UNITS if system else _user_units(): units(asked)}
    if of_users := user_units(asked):
        made[ALL_USERS_UNITS] = of_users
    data: dict[str, Any] = {
        "folder": str(next(iter(made))),
        "units": {file: text for files in made.values() for file, text in files.items()},
        "folders": {file: str(folder) for folder, files in made.items() for file in files},
        "home": str(asked.home),
        "written": not only_print,
    }
    notes = _unreadable(asked) + _no_systemd(asked)
    if kept := _kept(asked):
        names = ", ".join(f"COTENANT_{name.upper()}" for name in kept[1])
        notes.append(f"{'to be ' if only_print else ''}kept in {kept[0]}, for the units and every shell: {names}")
    if only_print:
        return OperationResult(data, messages=notes, view=lambda shown: _shown(shown["units"]))
    if kept:
        _keep(asked, *kept)
    for folder, files in made.items():
        _write(folder, files)
        notes += _complaints(folder, list(files), user=folder != SYSTEM_UNITS)
    return OperationResult(data, messages=notes, view=lambda shown: _next(asked, shown["folder"]))


def _asked(in_force: Settings, node: str | None, *, system: bool, run_as: str | None, owners: str | None) -> Install:
    """What the units are for, every account of it known to this machine."""
    from cotenant.cli.agents import checked_name
    from cotenant.fleet.units import Install
    from cotenant.settings import SYSTEM_HOME, Settings

    # Of `sudo`, the home in force is root's own: no place for a service's state.
    own_home = system and "COTENANT_HOME" not in os.environ
    if own_home:  # what that home knows of its fleet, not what root's does
        in_force = Settings.from_env(home=SYSTEM_HOME)
    home = in_force.home
    user = (run_as or getpass.getuser()) if system else None
    if user is not None:
        _account("--run-as", user, f"useradd --system --home-dir {home} --shell /usr/sbin/nologin {user}")
    names = tuple(dict.fromkeys(name.strip() for name in (owners or "").split(",") if name.strip()))
    for name in names:
        _account("--owners", name, "name accounts of this machine, with commas between")
    return Install(
        node=checked_name(node or in_force.node),
        home=home,
        python=Path(sys.executable),
        root=ROOT,
        user=user,
        joined=in_force.prefect_api_url is not None,
        owners=names,
        state_dir=own_home,
    )


def _account(option: str, name: str, remedy: str) -> pwd.struct_passwd:
    from policies.refusal import Refused

    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise Refused("ACCOUNT_UNKNOWN", f"{option} {name}", "this machine has no such account", remedy) from None


def _unreadable(asked: Install) -> list[str]:
    """What the service's account and the owners need of this checkout and may not read."""
    from nodes.sources.rights import may_read

    notes = []
    for name in dict.fromkeys([*([asked.user] if asked.user else []), *asked.owners]):
        for file in (asked.python, Path(sys.prefix) / "pyvenv.cfg", ROOT / "nodes" / "agent" / "__main__.py"):
            if not file.exists():
                continue
            with open(file, "rb") as opened:
                if may_read(opened.fileno(), pwd.getpwnam(name).pw_uid):
                    continue
            notes.append(
                f"note: account {name} may not read {file}, so its unit cannot start: "
                "have the checkout and its python where all may read, such as /opt/cotenant"
            )
            break
    return notes


def _no_systemd(asked: Install) -> list[str]:
    """That the units start nothing here, where another program than systemd runs the machine's services, or none."""
    if SYSTEMD_RUNS.is_dir():
        return []
    start = f"node run {asked.node}" if asked.joined else f"up --node {asked.node} --detach"
    return [
        f"note: systemd does not run on this machine, so nothing starts these units; cotenant {start} starts the node"
    ]


def _kept(asked: Install) -> tuple[Path, dict[str, str]] | None:
    """The file, and what of the environment goes into it; None where the environment says nothing about the fleet."""
    from cotenant.cli.fleet_file import kept_from
    from cotenant.settings import FLEET_FILE

    said = kept_from(os.environ)
    return (asked.home / FLEET_FILE, said) if said else None


def _keep(asked: Install, file: Path, said: dict[str, str]) -> None:
    from cotenant.cli.fleet_file import write
    from cotenant.settings import joined
    from policies.refusal import Refused

    account = None if asked.user is None else pwd.getpwnam(asked.user)
    try:
        write(file, joined({"home": asked.home}) | said, None if account is None else (account.pw_uid, account.pw_gid))
    except OSError as error:
        raise Refused(
            "SERVICE_NOT_WRITTEN", str(file), error.strerror or str(error), "run it as root, or leave --system out"
        ) from error


def _write(folder: Path, files: dict[str, str]) -> None:
    from policies.refusal import Refused

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            draft = folder / f"{file}.new"
            draft.write_text(text)
            os.replace(draft, folder / file)
    except OSError as error:
        raise Refused(
            "SERVICE_NOT_WRITTEN", str(folder), error.strerror or str(error), "run it as root, or leave --system out"
        ) from error


def _user_units() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"


def _shown(made: dict[str, str]) -> list[str]:
    return [part for file, text in made.items() for part in (f"# {file}", text)]


def _next(asked: Install, folder: str) -> list[str]:
    manager = "systemctl" if asked.system else "systemctl --user"
    lines = [
        f"written to {folder}; start it now and at each boot:",
        f"  {manager} daemon-reload",
        f"  {manager} enable --now cotenant-agent cotenant-fleet",
    ]
    if not asked.system:
        return [*lines, "  loginctl enable-linger   (so that it also runs while you are logged out)"]
    if asked.owners:
        lines += [
            f"each owner's session helper ({', '.join(asked.owners)}), from the next login on:",
            "  systemctl --global enable cotenant-session-helper",
            "  systemctl --user daemon-reload; systemctl --user start cotenant-session-helper   (in a login that is open now)",
        ]
    return lines


def _complaints(folder: Path, files: list[str], *, user: bool) -> list[str]:
    """What systemd itself says of the units; nothing where it is not installed."""
    try:
        done = subprocess.run(
            ["systemd-analyze", "verify", *(["--user"] if user else []), *(str(folder / file) for file in files)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line for line in done.stderr.splitlines() if "cotenant" in line]
