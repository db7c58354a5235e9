"""Short turns on the processor: asked for by the agent alone, and not passed on."""

from __future__ import annotations

import resource
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


FIRST = """
import os, resource, subprocess, sys, threading
from nodes.agent.prompt import ask_to_come_first

def has_it():
    return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_FIFO

may = []
thread = threading.Thread(target=lambda: may.append((ask_to_come_first(), has_it())))
thread.start()
thread.join()
child = subprocess.Popen(["sleep", "60"])
print(*may[0], os.sched_getscheduler(0) == os.SCHED_OTHER, os.sched_getscheduler(child.pid) == os.SCHED_OTHER)
child.kill()
"""


def test_the_thread_alone_comes_first_where_it_may() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=True, timeout=120)
    told, first, main, child = done.stdout.split()
    assert told == first, "what is told is what the kernel has"
    assert main == child == "True", "neither the loop nor what is started has it"


RUNNER = """
import os, resource
from nodes.jobs.runnerstart import become_runner

resource.setrlimit = lambda which, limits: os.write(1, f"{which} {limits}\\n".encode())
go_read, go_write = os.pipe()
out_read, out_write = os.pipe()
told = {"cwd": "/", "argv": ["/bin/echo", "the runner"], "env": {}}
parent = os.getpid()
pid = os.fork()
if pid == 0:
    become_runner(told, [out_write, out_write], parent, go_read)
os.write(go_write, b"g")
os.close(out_write)
print(open(out_read).read())
os.waitpid(pid, 0)
"""


def test_a_runner_gives_up_what_its_agent_may_have() -> None:
    done = subprocess.run([sys.executable, "-c", RUNNER], capture_output=True, text=True, check=True, timeout=120)
    lines = done.stdout.splitlines()
    assert f"{resource.RLIMIT_RTPRIO} (0, 0)" in lines[: lines.index("the runner")]
