"""Short turns on the processor: asked for by the agent alone, and not passed on."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import subprocess, sys
from nodes.agent.prompt import SLICE_NS, ask_for_short_turns

def turns(pid):
    try:
        lines = open(f"/proc/{pid}/sched").read().splitlines()
    except OSError:
        return None
    return next((int(line.split()[-1]) for line in lines if line.startswith("se.slice")), None)

before, taken, after = turns("self"), ask_for_short_turns(), turns("self")
child = subprocess.Popen(["sleep", "60"])
print(before, taken, after, turns(child.pid))
child.kill()
"""


def test_the_kernel_takes_it_and_children_do_not_inherit_it() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=120)
    before, taken, after, child = done.stdout.split()
    if taken != "True" or before == "None":
        pytest.skip(f"this kernel does not take it, or does not show it: {done.stdout.strip()}")
    assert int(after) == 100_000 < int(before)
    assert child == before
