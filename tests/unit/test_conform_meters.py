"""What the kit measures with: its meter against what children count of themselves, a device's readings, the watch on writes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from cotenant.conform.gpu import GpuMeter
from cotenant.conform.host import probe
from cotenant.conform.meter import TreeMeter
from nodes.jobs.proctree import ProcSystem, walk
from nodes.meters.reading import Unreadable

# Process and child each use at least EACH_S in the kernel and at least that outside it, by the kernel's own count: it samples
# which of the two a tick goes to, so a loop that mixes them may be charged to one alone.
EACH_S = 0.3
SPIN = f"""
import os, sys
source = os.open("/dev/zero", os.O_RDONLY)
def spin():
    while os.times().system < {EACH_S}:
        os.read(source, 1 << 24)
    while os.times().user < {EACH_S}:
        sum(range(100000))
spin()
child = os.fork()
if child == 0:
    spin()
    os._exit(0)
os.waitpid(child, 0)
times = os.times()
print(times.user, times.system, times.children_user, times.children_system, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def spinner() -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen([sys.executable, "-c", SPIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield child
    child.communicate(timeout=60)


def test_the_tree_meter_counts_what_the_tree_counts_of_itself(spinner: subprocess.Popen[str]) -> None:
    system, meter = ProcSystem(), TreeMeter()
    me = system.stat(spinner.pid)
    assert me is not None
    assert spinner.stdout is not None
    root = (spinner.pid, me.start_ticks)
    meter.read(walk(system, [root]))
    parts_s = [float(part) for part in spinner.stdout.readline().split()]
    meter.read(walk(system, [root]))
    assert min(parts_s) >= EACH_S, "what is less than this could be dropped unseen"
    assert meter.total_s == pytest.approx(sum(parts_s), abs=EACH_S / 3.0)
    began, ended = meter.at_s
    assert meter.used_s(began, ended) == pytest.approx(meter.cpu_s[1] - meter.cpu_s[0])
    assert meter.used_s(began, (began + ended) / 2.0) == pytest.approx((meter.cpu_s[1] - meter.cpu_s[0]) / 2.0)


def test_the_probe_finds_its_meter_right_and_the_host_gives_something() -> None:
    host = probe(1.0)
    assert host.meter[0] == "ok", host.meter
    assert 0.0 < host.share <= 1.0
    assert host.late_s >= 0.0


def test_a_probe_that_does_not_answer_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cotenant.conform.host.PROBE_LIMIT_S", 0.2)
    monkeypatch.setattr("cotenant.conform.host._CHILD", "import time; time.sleep(600)")
    with pytest.raises(OSError, match="did not answer within"):
        probe(1.0)


def test_the_mean_of_a_devices_readings_and_none_where_one_is_missing() -> None:
    meters = SimpleNamespace(cannot_meter=lambda: None)
    meter = GpuMeter(meters, [1.0, 2.0, 3.0, 4.0, 5.0], [0.9, 0.2, 0.4, Unreadable("old"), 0.9])  # type: ignore[arg-type]
    assert meter.share(1.0, 3.0) == pytest.approx(0.3)
    for began, ended, why in ((1.0, 4.5, "old"), (5.0, 9.0, "not read")):
        share = meter.share(began, ended)
        assert isinstance(share, Unreadable)
        assert why in share.why
    begins = GpuMeter(meters, [1.0, 2.0, 3.0], [Unreadable("first reading: no baseline yet"), 0.2, 0.3])  # type: ignore[arg-type]
    assert begins.share(0.0, 9.0) == pytest.approx(0.25), "what a meter begins with is no failed reading"
    assert isinstance(begins.share(0.0, 1.5), Unreadable)


def test_the_watch_sees_writes_outside_and_lets_them_happen(tmp_path: Path) -> None:
    from cotenant.conform.writes import Watch

    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.mkdir()
    other.mkdir()
    shared = f"/dev/shm/cotenant-test-{os.getpid()}"
    (mine / "link").symlink_to(other / "through")
    code = (
        f"import os; os.chdir({str(mine)!r}); open('a', 'w').close(); os.rename('a', 'b'); os.makedirs('c/d')\n"
        f"open({str(other / 'e')!r}, 'w').close(); os.rename('b', '../other/f'); open('link', 'w').close()\n"
        "open('/dev/null', 'w').close(); open('/proc/self/comm', 'w').close(); open('../other/e').close()\n"
        f"os.makedirs({str(other)!r}, exist_ok=True); os.mkdir({str(other / 'g')!r})\n"
        f"open({shared!r}, 'w').close(); os.unlink({shared!r})\n"
    )
    watch = Watch([mine])
    watch.start()
    done = subprocess.run(watch.wrap([sys.executable, "-c", code]), timeout=120, check=False)
    watch.close()
    assert done.returncode == 0
    if watch.unwatched is not None:
        pytest.skip(watch.unwatched)
    assert {name: (other / name).exists() for name in "ef"} == {"e": True, "f": True}
    seen = {item.partition(" ")[2] for item in watch.outside}
    assert seen == {str(other / "e"), str(other / "f"), str(mine / "link"), str(other / "g"), shared}
    assert watch.detached == []


def test_the_watch_sees_a_session_that_is_begun(tmp_path: Path) -> None:
    from cotenant.conform.writes import Watch

    watch = Watch([tmp_path])
    watch.start()
    code = "import os\nif os.fork() == 0:\n    os.setsid()\n    os._exit(0)\nos.wait()"
    subprocess.run(watch.wrap([sys.executable, "-c", code]), timeout=120, check=True)
    watch.close()
    if watch.unwatched is not None:
        pytest.skip(watch.unwatched)
    assert [told.partition(") ")[2] for told in watch.detached] == ["began a session of its own"]
