"""The systemd units of a node, as text: its agent, the fleet side (server where there is none elsewhere, and worker), and the
session helper of each owner.

Agent and fleet side are two, since they must not fall together: the agent protects without the other, comes back first, and
is the last that the kernel takes when memory is short. The helper is a unit of the owners' own managers: it lives and ends
with a login. All are checked with ``systemd-analyze verify`` by a test.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["AGENT", "FLEET", "HELPER", "SLICE", "Install", "units", "user_units"]

AGENT, FLEET, SLICE = "cotenant-agent.service", "cotenant-fleet.service", "cotenant.slice"
HELPER = "cotenant-session-helper.service"

# What these processes never do. Nothing that hides other processes or their files from the agent: it has to see them.
HARDENING = ("NoNewPrivileges=yes", "LockPersonality=yes", "RestrictSUIDSGID=yes", "SystemCallArchitectures=native")
# Of the system's own manager only: a user's has no right to these.
SYSTEM_HARDENING = (
    "ProtectSystem=full",
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=no",  # cgroups and priorities of fleet work are written
    "ProtectClock=yes",
    "ProtectHostname=yes",
)
NO_REAL_TIME = "RestrictRealtime=yes"
# For the thread of the agent that stops fleet work. Its runners give it up; as root they could take it, so there nobody may.
REAL_TIME = ("RestrictRealtime=no", "LimitRTPRIO=1")


_PLAIN = re.compile(r"[\w@+=:,./-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Install:
    """What the units are made for.

    ``user``: the account of a system service; None for a user's own units. ``owners``: accounts whose logins may set the
    section of a system service, and whose helpers it hears. ``state_dir``: systemd makes the home, under /var/lib.
    """

    node: str
    home: Path
    python: Path
    root: Path
    user: str | None = None
    joined: bool = False
    owners: tuple[str, ...] = ()
    state_dir: bool = False

    @property
    def system(self) -> bool:
        return self.user is not None


def units(install: Install) -> dict[str, str]:
    """File name -> text, of the units of the agent's own manager."""
    return {SLICE: _slice(), AGENT: _agent(install), FLEET: _fleet(install)}


def user_units(install: Install) -> dict[str, str]:
    """File name -> text, of the units of the owners' own managers; none where nobody else owns what the agent protects."""
    return {HELPER: _helper(install)} if install.owners else {}


def _slice() -> str:
    return "\n".join(
        [
            "[Unit]",
            "Description=cotenant: the agent, its fleet side and fleet work",
            "",
            "[Slice]",
            "CPUAccounting=yes",
            "MemoryAccounting=yes",
            "",
        ]
    )


def _agent(install: Install) -> str:
    owners = ["--owners", ",".join(install.owners)] if install.owners else []
    command = _command([install.python, "-m", "nodes.agent", "--home", install.home, "--node", install.node, *owners])
    return _unit(
        "cotenant agent: protects the owner's programs, and starts fleet work",
        # A clock that jumps at boot would make certificates invalid for a moment.
        ["After=time-sync.target local-fs.target" if install.system else "After=basic.target", "StartLimitIntervalSec=0"],
        [
            "Type=exec",
            f"ExecStart={command}",
            # Fleet work has its own watch and ends when its agent stays away; an agent that comes back at once goes on with it.
            "KillMode=process",
            "Delegate=yes",
            "Restart=always",
            "RestartSec=1",
            *(["OOMScoreAdjust=-800"] if install.system else []),
            *((REAL_TIME if install.user not in ("root", "0") else [NO_REAL_TIME]) if install.system else []),
            # where the owners' socket is: the kernel tells the agent who asks, so any account may knock
            *(["RuntimeDirectory=cotenant", "RuntimeDirectoryMode=0755"] if install.owners else []),
        ],
        install,
    )  # fmt: skip


def _helper(install: Install) -> str:
    command = [install.python, "-m", "nodes.session_helper", "--socket", f"/run/cotenant/{install.node}.owners.sock"]
    return "\n".join(
        [
            "[Unit]",
            "Description=cotenant session helper: reads progress in this home for the agent, passes on counts and phases",
            # Installed for all accounts at once; only the owners' are heard.
            *(f"ConditionUser=|{_escaped(owner)}" for owner in install.owners),
            "StartLimitIntervalSec=0",
            "",
            "[Service]",
            "Type=exec",
            f"ExecStart={_command(command)}",
            "Restart=always",
            "RestartSec=5",
            *HARDENING,
            "",
            "[Install]",
            "WantedBy=default.target",
            "",
        ]
    )


def _fleet(install: Install) -> str:
    verb = ["node", "run", install.node] if install.joined else ["up", "--node", install.node]
    cli = [install.python, "-m", "cotenant.cli.main"]
    ready = _words(["/bin/sh", "-c", 'until "$@" >/dev/null 2>&1; do sleep 1; done', "sh"])
    return _unit(
        "cotenant fleet side: Prefect worker" + ("" if install.joined else " and server"),
        [
            f"After={AGENT}" + (" network-online.target" if install.system else ""),
            *(["Wants=network-online.target"] if install.system else []),
            f"Wants={AGENT}",
            "StartLimitIntervalSec=0",
        ],
        [
            "Type=exec",
            # The agent is the other unit's: this one would start a second where it did not answer yet.
            f"ExecStartPre={ready} {_words([*cli, 'node', 'show', install.node])}",
            f"ExecStart={_command([*cli, *verb])}",
            "TimeoutStartSec=300",
            # Its own stop puts flow runs back before their processes end.
            "KillMode=mixed",
            "TimeoutStopSec=180",
            "Restart=always",
            "RestartSec=10",
            "Nice=5",
            "OOMScoreAdjust=300",
            *([NO_REAL_TIME] if install.system else []),
        ],
        install,
    )


def _unit(description: str, order: list[str], service: list[str], install: Install) -> str:
    settings = {"COTENANT_HOME": install.home, "COTENANT_NODE": install.node, "COTENANT_ROOT": install.root}
    lines = ["[Unit]", f"Description={description}", "Documentation=man:systemd.service(5)", *order, "", "[Service]"]
    lines += [f"Slice={SLICE}", f"WorkingDirectory={_escaped(str(install.root))}"]
    lines += [f"Environment={_quoted(f'{name}={value}')}" for name, value in settings.items()]
    if install.user is not None:
        lines += [f"User={install.user}", 'Environment="COTENANT_SYSTEM_SERVICE=true"', "UMask=0077"]
    if install.state_dir:
        lines += ["StateDirectory=cotenant", "StateDirectoryMode=0700"]
    lines += [*service, *HARDENING, *(SYSTEM_HARDENING if install.system else ())]
    lines += ["", "[Install]", f"WantedBy={'multi-user.target' if install.system else 'default.target'}", ""]
    return "\n".join(lines)


def _command(parts: Sequence[str | Path]) -> str:
    """A command line. systemd starts no program whose own name has quotes or the like in it; a shell does."""
    plain = _PLAIN.fullmatch(str(parts[0]))
    return _words(parts if plain else ["/bin/sh", "-c", 'exec "$@"', "sh", *parts])


def _words(parts: Sequence[str | Path]) -> str:
    """Words of a command line: in these systemd also reads $ as the start of a variable."""
    return " ".join(_quoted(str(part)).replace("$", "$$") for part in parts)


def _quoted(text: str) -> str:
    """As one word of a line that is split into words, where backslashes are escapes."""
    if _PLAIN.fullmatch(text):
        return text
    return '"' + _escaped(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _escaped(text: str) -> str:
    """systemd reads % as the start of a specifier."""
    return text.replace("%", "%%")
