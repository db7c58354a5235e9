"""``active_when``: any one of the conditions, and what is not known holds; shares over a window; scheduler delay."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodes.capacity import cores
from nodes.meters.reading import Unreadable
from nodes.meters.stall import StallMeter
from policies.condition import ProgramUse, condition_holds, enter_after_s, needs
from policies.section import Rule, parse_section, timing
from policies.section.models import Defaults
from policies.share_window import ShareWindow


def rule(when: str, more: str = "") -> Rule:
    return parse_section(
        f'[[rule]]\nid = "x"\nmatch = {{ name = "x" }}\nevict = true\nactive_when = {when}\n{more}'
    ).rules[0]


ALL = rule("{ cpu_cores_gt = 1.5, footprint_gb_gt = 2, gpu_active = { min_busy = 0.1 } }")
IDLE = ProgramUse(cores=0.1, footprint_bytes=10**9, device_share=0.0)


def test_any_one_condition_is_enough() -> None:
    assert not condition_holds(ALL, True, IDLE)
    assert condition_holds(ALL, True, ProgramUse(1.6, 10**9, 0.0))
    assert condition_holds(ALL, True, ProgramUse(0.1, 2_000_000_001, 0.0))
    assert condition_holds(ALL, True, ProgramUse(0.1, 10**9, 0.11))
    assert not condition_holds(ALL, True, ProgramUse(1.5, 2_000_000_000, 0.1)), "greater than, not at"


@pytest.mark.parametrize("use", [ProgramUse(None, 0, 0.0), ProgramUse(0.0, None, 0.0), ProgramUse(0.0, 0, None)])
def test_what_is_not_known_holds(use: ProgramUse) -> None:
    assert condition_holds(ALL, True, use)


def test_a_figure_that_no_condition_asks_for_matters_not() -> None:
    small = rule("{ footprint_gb_gt = 2 }")
    assert needs(small.active_when) == (False, True, False)
    assert not condition_holds(small, True, ProgramUse(None, 0, None))


def test_nothing_holds_for_a_program_that_is_not_there() -> None:
    assert not condition_holds(ALL, False, ProgramUse())
    assert not condition_holds(rule('"present"'), False, ProgramUse())
    assert condition_holds(rule('"present"'), True, ProgramUse())


def test_for_s_stands_for_the_default_wait() -> None:
    def enter(found: Rule) -> float:
        return enter_after_s(found, timing(found, Defaults()))

    assert enter(rule("{ cpu_cores_gt = 1 }")) == 4.0
    assert enter(rule("{ cpu_cores_gt = 1, for_s = 1 }")) == 1.0
    assert enter(rule("{ cpu_cores_gt = 1, for_s = 30 }")) == 30.0
    assert enter(rule("{ cpu_cores_gt = 1, for_s = 1 }", "enter_for_s = 9\n")) == 9.0


def test_a_share_is_part_of_whole_over_the_window() -> None:
    window = ShareWindow(60.0)
    window.add(0.0, 9.0, 9.0)  # before the first time nothing is known of how long it took
    assert window.over(0.0, 20.0) is None
    for at_s in range(2, 12, 2):
        window.add(float(at_s), 1.0, 2.0)
    assert window.over(10.0, 20.0) == pytest.approx(0.5)
    window.add(12.0, 0.0, 2.0)
    assert window.over(12.0, 4.0) == pytest.approx(0.25)
    window.add(14.0, None, None)
    assert window.over(14.0, 4.0) is None, "a hole in it is no zero"


def test_a_program_that_wants_nothing_is_not_stalled() -> None:
    window = ShareWindow(60.0)
    for at_s in (0.0, 10.0, 20.0):
        window.add(at_s, 0.0, 0.0)
    assert window.over(20.0, 20.0) == 0.0


# -- scheduler delay, on a fake /proc -------------------------------------------------------------------------------------


def thread(proc: Path, pid: int, tid: int, run_ns: int, wait_ns: int) -> None:
    where = proc / str(pid) / "task" / str(tid)
    where.mkdir(parents=True, exist_ok=True)
    (where / "schedstat").write_text(f"{run_ns} {wait_ns} 7\n")


def test_scheduler_delay_of_all_threads_since_the_last_reading(tmp_path: Path) -> None:
    meter, program = StallMeter(str(tmp_path)), [(5, 100)]
    thread(tmp_path, 5, 5, 10**9, 2 * 10**9)
    thread(tmp_path, 5, 6, 10**9, 0)
    assert isinstance(meter.read(program, 0.0), Unreadable)
    thread(tmp_path, 5, 5, 2 * 10**9, 3 * 10**9)
    thread(tmp_path, 5, 7, 10**9, 10**9)  # a new thread of a known process began since
    assert meter.read(program, 2.0) == (pytest.approx(2.0), pytest.approx(4.0))
    assert meter.read(program, 4.0) == (0.0, 0.0)


def test_a_wait_that_goes_on_is_told_as_it_goes_and_not_again_when_the_kernel_books_it(tmp_path: Path) -> None:
    meter, program = StallMeter(str(tmp_path)), [(5, 100)]
    thread(tmp_path, 5, 5, 10**9, 0)
    (tmp_path / "5/task/5/stat").write_text("5 (x) R 1 1\n")
    meter.read(program, 0.0)
    assert meter.read(program, 2.0) == (pytest.approx(2.0), pytest.approx(2.0)), "runnable, and nothing of it ran"
    assert meter.read(program, 4.0) == (pytest.approx(2.0), pytest.approx(2.0))
    thread(tmp_path, 5, 5, 2 * 10**9, 5 * 10**9)  # it waited 5 s in all and then ran for 1 s
    assert meter.read(program, 6.0) == (pytest.approx(1.0), pytest.approx(2.0))


def test_a_new_process_counts_from_here_on_and_one_that_is_gone_not_at_all(tmp_path: Path) -> None:
    meter = StallMeter(str(tmp_path))
    thread(tmp_path, 5, 5, 10**9, 0)
    meter.read([(5, 100)], 0.0)
    thread(tmp_path, 6, 6, 10**12, 10**12)
    assert meter.read([(5, 100), (6, 50), (99, 1)], 2.0) == (0.0, 0.0)
    # the pid used again is another process
    thread(tmp_path, 5, 5, 10**10, 10**10)
    assert meter.read([(5, 999), (6, 50)], 4.0) == (0.0, 0.0)


def test_a_kernel_without_statistics_is_no_calm_program(tmp_path: Path) -> None:
    meter = StallMeter(str(tmp_path))
    thread(tmp_path, 5, 5, 0, 0)
    meter.read([(5, 1)], 0.0)
    assert isinstance(meter.read([(5, 1)], 2.0), Unreadable)
    bare = tmp_path / "8/task/8"
    bare.mkdir(parents=True)
    assert isinstance(meter.read([(8, 1)], 4.0), Unreadable)


def test_many_threads_are_read_more_rarely(tmp_path: Path) -> None:
    meter = StallMeter(str(tmp_path))
    for tid in range(200):
        thread(tmp_path, 5, tid, 1, 1)
    meter.read([(5, 1)], 100.0)
    assert not meter.due(102.0)
    assert meter.due(120.0)


# -- cores ---------------------------------------------------------------------------------------------------------------


def test_case_047_a_quota_is_seen_and_rounded_up(tmp_path: Path) -> None:
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text("0::/a/b\n")
    (sys / "fs/cgroup/a/b").mkdir(parents=True)
    unlimited = cores(proc, sys)
    (sys / "fs/cgroup/a/b/cpu.max").write_text("max 100000\n")
    assert cores(proc, sys) == unlimited
    (sys / "fs/cgroup/a/cpu.max").write_text("50000 100000\n")
    assert cores(proc, sys) == 1
    (sys / "fs/cgroup/a/cpu.max").write_text("250000 100000\n")
    assert cores(proc, sys) == min(unlimited, 3)
    (proc / "self/cgroup").write_text("4:cpu,cpuacct:/c\n")
    (sys / "fs/cgroup/cpu/c").mkdir(parents=True)
    (sys / "fs/cgroup/cpu/c/cpu.cfs_quota_us").write_text("50000\n")
    (sys / "fs/cgroup/cpu/c/cpu.cfs_period_us").write_text("100000\n")
    assert cores(proc, sys) == 1
