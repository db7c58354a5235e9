"""The systemd units of a node, as text: its agent, and the fleet side (server where there is none elsewhere, and worker).

Two units, since they must not fall together: the agent protects without the other, comes back first, and is the last that the
kernel takes when memory is short. Both are checked with ``systemd-analyze verify`` by a test.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

__all__ = ["AGENT", "FLEET", "SLICE", "Install", "units"]

AGENT, FLEET, SLICE = "cotenant-agent.service", "cotenant-fleet.service", "cotenant.slice"

# What these processes never do. Nothing that hides other processes or their files from the agent: it has to see them.
HARDENING = ("NoNewPrivileges=yes", "LockPersonality=yes", "RestrictSUIDSGID=yes", "SystemCallArchitectures=native")
# Of the system's own manager only: a user's has no right to these.
SYSTEM_HARDENING = (
    "ProtectSystem=full",
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=no",  # cgroups and priorities of fleet work are written
    "ProtectClock=yes",
    "ProtectHostname=yes",
    "RestrictRealtime=yes",
)


@dataclass(frozen=True, slots=True)
class Install:
    """What the units are made for. ``user``: the account of a system service; None for a user's own units."""

    node: str
    home: Path
    python: Path
    root: Path
    user: str | None = None
    joined: bool = False

    @property
    def system(self) -> bool:
        return self.user is not None


def units(install: Install) -> dict[str, str]:
    """File name -> text."""
    return {SLICE: _slice(), AGENT: _agent(install), FLEET: _fleet(install)}


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
    command = _words([install.python, "-m", "nodes.agent", "--home", install.home, "--node", install.node])
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
        ],
        install,
    )  # fmt: skip


def _fleet(install: Install) -> str:
    verb = ["node", "run", install.node] if install.joined else ["up", "--node", install.node]
    cli = [install.python, "-m", "cotenant.cli.main"]
    ready = f"until {_words([*cli, 'node', 'show', install.node])} >/dev/null 2>&1; do sleep 1; done"
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
            f'ExecStartPre=/bin/sh -c "{ready}"',
            f"ExecStart={_words([*cli, *verb])}",
            "TimeoutStartSec=300",
            # Its own stop puts flow runs back before their processes end.
            "KillMode=mixed",
            "TimeoutStopSec=180",
            "Restart=always",
            "RestartSec=10",
            "Nice=5",
            "OOMScoreAdjust=300",
        ],
        install,
    )


def _unit(description: str, order: list[str], service: list[str], install: Install) -> str:
    settings = {"COTENANT_HOME": install.home, "COTENANT_NODE": install.node, "COTENANT_ROOT": install.root}
    lines = ["[Unit]", f"Description={description}", "Documentation=man:systemd.service(5)", *order, "", "[Service]"]
    lines += [f"Slice={SLICE}", f"WorkingDirectory={install.root}"]
    lines += [f'Environment="{name}={_escaped(str(value))}"' for name, value in settings.items()]
    if install.user is not None:
        lines += [f"User={install.user}", 'Environment="COTENANT_SYSTEM_SERVICE=true"', "UMask=0077"]
    lines += [*service, *HARDENING, *(SYSTEM_HARDENING if install.system else ())]
    lines += ["", "[Install]", f"WantedBy={'multi-user.target' if install.system else 'default.target'}", ""]
    return "\n".join(lines)


def _words(parts: list[str | Path]) -> str:
    return " ".join(_escaped(shlex.quote(str(part))) for part in parts)


def _escaped(text: str) -> str:
    """systemd reads % as the start of a specifier."""
    return text.replace("%", "%%")
