"""The systemd units: what they say, and that systemd itself accepts them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cotenant.fleet.units import AGENT, FLEET, Install, units

ROOT = Path(__file__).parents[2]


def made(**changes: object) -> dict[str, str]:
    facts = {"node": "mac-01", "home": Path("/srv/co tenant/100%"), "python": Path(sys.executable), "root": ROOT}
    return units(Install(**{**facts, **changes}))  # type: ignore[arg-type]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("user", [None, "root"])
@pytest.mark.parametrize("joined", [False, True])
def test_systemd_accepts_them(tmp_path: Path, user: str | None, joined: bool) -> None:
    for name, text in made(user=user, joined=joined).items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *([] if user else ["--user"]), *map(str, tmp_path.iterdir())],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    about_ours = [line for line in done.stderr.splitlines() if "cotenant" in line]
    assert (done.returncode, about_ours) == (0, [])


def test_the_agent_comes_first_keeps_its_work_and_is_the_last_to_go() -> None:
    found = made(user="root")
    agent, fleet = found[AGENT], found[FLEET]
    for line in ("Delegate=yes", "KillMode=process", "Restart=always", "OOMScoreAdjust=-800", "Slice=cotenant.slice"):
        assert line in agent.splitlines()
    assert f"After={AGENT} network-online.target" in fleet
    assert f"Requires={AGENT}" not in fleet, "the agent must not fall with the fleet side, nor it with the agent"
    assert "OOMScoreAdjust=-800" not in made()[AGENT], "a user's manager has no right to that"
    assert "up --node mac-01" in fleet
    assert "node run mac-01" in made(joined=True)[FLEET]
    assert 'COTENANT_HOME=/srv/co tenant/100%%"' in agent
