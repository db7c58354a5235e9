"""A child in a session of its own: what it leaves behind neither keeps whoever waits for it, nor costs a stranger its life."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from nodes.child import end_group, ended_within
from nodes.doctor import run_doctor
from nodes.identity import stat_fields

HEALTHY = {"health": "healthy", "checks": [], "runner_protocol": {"supported": [1]}}
# It leaves a process in a session of its own, with its output and error still open.
LEAVES_ONE = f"""
import json, pathlib, subprocess, sys
left = subprocess.Popen(["sleep", "600"], start_new_session=True)
pathlib.Path("left").write_text(str(left.pid))
print({json.dumps(HEALTHY)!r})
"""


def started(*argv: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)


def test_one_that_has_ended_is_not_collected_before_its_group_is_ended() -> None:
    child = started(sys.executable, "-c", "raise SystemExit(3)")
    assert ended_within(child, 60.0)
    fields = stat_fields(child.pid)
    assert (child.returncode, fields is not None and fields[0]) == (None, "Z"), "its number is nobody else's yet"
    assert end_group(child)
    assert child.returncode == 3


def test_one_that_goes_on_is_ended_with_its_group() -> None:
    child = started("sh", "-c", "sleep 600 & wait")
    assert not ended_within(child, 0.2)
    assert end_group(child)
    assert child.returncode == -signal.SIGKILL


def test_a_doctor_that_leaves_a_process_behind_is_heard_at_once(tmp_path: Path) -> None:
    module = SimpleNamespace(
        short="m", data=tmp_path / "data", search=os.defpath, variables={}, command=lambda: [sys.executable, str(code)]
    )
    code = tmp_path / "doctor.py"
    code.write_text(LEAVES_ONE)
    module.data.mkdir()
    began_s = time.monotonic()
    try:
        report = run_doctor(cast(Any, module), limit_s=60.0)
    finally:
        with contextlib.suppress(
            ProcessLookupError
        ):  # where it has a control group, what left its session ends with it
            os.kill(int((module.data / "left").read_text()), signal.SIGKILL)
    assert (report.health, report.why) == ("healthy", "")
    assert time.monotonic() - began_s < 60.0
