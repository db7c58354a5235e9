"""The SDK's duty against the kernel's count of the process, on a machine as busy as it happens to be.

Never above the duty: asserted always. That the duty is reached can only be asked where the host gives the time, so that
side is anchored to what the same host gave the same loop without a limit, in a probe that runs at the same time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROBE = Path(__file__).with_name("duty_probe.py")
SPAN_S = 10.0


def start(workdir: Path, unit_s: float, duty: float, *options: str) -> subprocess.Popen[str]:
    workdir.mkdir()
    argv = [sys.executable, str(PROBE), str(workdir), str(unit_s), str(duty), str(SPAN_S + 1.5), *options]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def told(process: subprocess.Popen[str]) -> dict:
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    return json.loads(out)


def largest_share(samples: list[list[float]]) -> float:
    """Of any stretch of at least ten seconds between two samples."""
    found = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for number, earlier in enumerate(samples)
        for later in samples[number + 1 :]
        if later[0] - earlier[0] >= SPAN_S
    ]
    assert found, "the probe has to span ten seconds"
    return max(found)


@pytest.mark.parametrize(("unit_s", "duty"), [(0.001, 0.1), (0.001, 0.9), (0.02, 0.3), (0.02, 0.5), (0.2, 0.5)])
def test_never_above_the_duty_over_ten_seconds(tmp_path: Path, unit_s: float, duty: float) -> None:
    answer = told(start(tmp_path / "w", unit_s, duty))
    share = largest_share(answer["samples"])
    # at the edges of the stretch up to one whole unit may stand too much
    assert share <= duty + 0.02 + (unit_s / SPAN_S if unit_s > 0.02 else 0.0)
    first, last = answer["samples"][0], answer["samples"][-1]
    outside = last[1] - first[1]
    assert answer["busy_s"] >= outside * 0.98 - unit_s, (
        "what it says of itself is not less than what the kernel counted"
    )


def test_children_are_counted_too(tmp_path: Path) -> None:
    answer = told(start(tmp_path / "w", 0.05, 0.3, "--children"))
    # the samples hold collected children by clock ticks of 10 ms each
    assert largest_share(answer["samples"]) <= 0.3 + 0.02 + 0.05 / SPAN_S
    # a busy host may give the children less than that by itself: what it says of itself tells whether it counts them
    first, last = answer["samples"][0], answer["samples"][-1]
    assert answer["busy_s"] >= (last[1] - first[1]) * 0.98 - 0.05


def test_the_duty_is_reached_where_the_host_gives_the_time(tmp_path: Path) -> None:
    free = start(tmp_path / "free", 0.02, 1.0)
    held = start(tmp_path / "held", 0.02, 0.1)
    given, got = told(free), told(held)
    samples = given["samples"]
    free_share = (samples[-1][1] - samples[0][1]) / (samples[-1][0] - samples[0][0])
    if free_share < 0.2:
        pytest.skip(f"this host gave an unlimited loop {free_share:.2f} of a core")
    share = (got["samples"][-1][1] - got["samples"][0][1]) / (got["samples"][-1][0] - got["samples"][0][0])
    assert share >= 0.08
