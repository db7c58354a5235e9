"""Device time from DRM's fdinfo, on a fake /proc and /sys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodes.meters.drm import DrmMeter, DrmReading
from nodes.meters.fdinfo import parse_fdinfo

PDEV = "0000:03:00.0"
PROGRAM, CHILD, FLEET, COMPOSITOR = 101, 102, 201, 50


def ns(client: int, busy: int, extra: str = "") -> str:
    return f"pos:\t0\ndrm-driver:\tamdgpu\ndrm-pdev:\t{PDEV}\ndrm-client-id:\t{client}\ndrm-engine-gfx:\t{busy} ns\n{extra}"


def cycles(client: int, used: int, total: int, capacity: int = 1) -> str:
    return (
        f"drm-driver:\txe\ndrm-pdev:\t{PDEV}\ndrm-client-id:\t{client}\n"
        f"drm-cycles-rcs:\t{used}\ndrm-total-cycles-rcs:\t{total}\ndrm-engine-capacity-rcs:\t{capacity}\n"
    )


class Tree:
    def __init__(self, root: Path, driver: str = "amdgpu") -> None:
        self.proc, self.sys = root / "proc", root / "sys"
        self.device = self.sys / f"devices/pci0000:00/{PDEV}"
        self.device.mkdir(parents=True)
        (self.sys / f"bus/{driver}").mkdir(parents=True)
        os.symlink(self.sys / f"bus/{driver}", self.device / "driver")
        (self.sys / "class/drm/renderD128").mkdir(parents=True)
        os.symlink(self.device, self.sys / "class/drm/renderD128/device")
        self.proc.mkdir()

    def process(self, pid: int, start_ticks: int = 1000, parent: int = 1) -> None:
        for part in ("fd", "fdinfo"):
            (self.proc / str(pid) / part).mkdir(parents=True)
        fields = " ".join(["S", str(parent), *["0"] * 17, str(start_ticks), *["0"] * 10])
        (self.proc / str(pid) / "stat").write_text(f"{pid} (x) {fields}")

    def file(self, pid: int, fd: int, text: str) -> None:
        link = self.proc / str(pid) / "fd" / str(fd)
        if not link.is_symlink():
            os.symlink("/dev/dri/renderD128", link)
        (self.proc / str(pid) / "fdinfo" / str(fd)).write_text(text)

    def meter(self) -> DrmMeter:
        return DrmMeter(self.proc, self.sys)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def read(meter: DrmMeter, second: float, *interest: int, protected: tuple[int, ...] = ()) -> DrmReading:
    return meter.read(second, interest, protected)[0]


def test_case_026_a_client_counts_once_however_many_descriptors_share_it(tree: Tree) -> None:
    for pid, start in ((PROGRAM, 10), (CHILD, 20)):
        tree.process(pid, start)
    meter = tree.meter()
    for second, busy in ((0, 5_000_000_000), (2, 6_000_000_000)):
        for pid, fd in ((PROGRAM, 3), (PROGRAM, 4), (CHILD, 3)):
            tree.file(pid, fd, ns(7, busy))
        seen = read(meter, second, PROGRAM, CHILD)
    assert seen.use([PROGRAM, CHILD]).busy_s == pytest.approx(1.0)


def test_case_026_a_client_shared_with_fleet_work_is_the_protected_programs(tree: Tree) -> None:
    tree.process(FLEET, 10)  # the earlier holder
    tree.process(PROGRAM, 20)
    meter = tree.meter()
    for second, busy in ((0, 0), (2, 1_000_000_000)):
        for pid in (FLEET, PROGRAM):
            tree.file(pid, 3, ns(7, busy))
        seen = read(meter, second, PROGRAM, FLEET, protected=(PROGRAM,))
    assert seen.use([PROGRAM]).busy_s == pytest.approx(1.0)
    assert seen.use([FLEET]).busy_s == 0.0


def test_case_028_cycles_are_read_against_the_class_wide_clock(tree: Tree) -> None:
    tree.process(PROGRAM)
    tree.process(FLEET)
    meter = tree.meter()
    tree.file(PROGRAM, 3, cycles(1, 100, 1_000))
    tree.file(FLEET, 3, cycles(2, 0, 1_010))
    read(meter, 0, PROGRAM, FLEET)
    tree.file(PROGRAM, 3, cycles(1, 600, 2_000))
    tree.file(FLEET, 3, cycles(2, 250, 2_010))  # the class's newest clock: 1,000 cycles went by
    seen = read(meter, 2, PROGRAM, FLEET)
    assert seen.use([PROGRAM]).busy_s == pytest.approx(1.0)
    assert seen.use([FLEET]).busy_s == pytest.approx(0.5)
    tree.file(PROGRAM, 3, cycles(1, 1_100, 3_010))
    tree.file(FLEET, 3, cycles(2, 250, 2_500))  # looked at first, an instant before: not the class's clock
    assert read(meter, 4, PROGRAM, FLEET).use([PROGRAM]).busy_s == pytest.approx(1.0)


def test_engine_classes_work_at_the_same_time_and_the_busiest_is_the_devices(tree: Tree) -> None:
    tree.process(PROGRAM)
    meter = tree.meter()
    for second, gfx, video in ((0, 0, 0), (2, 1_500_000_000, 800_000_000)):
        tree.file(PROGRAM, 3, ns(1, gfx, f"drm-engine-dec:\t{video} ns\n"))
        seen = read(meter, second, PROGRAM)
    assert seen.use([PROGRAM]).busy_s == pytest.approx(1.5)


def test_case_028_a_class_of_several_engines_is_whole_when_all_are_busy(tree: Tree) -> None:
    tree.process(PROGRAM)
    meter = tree.meter()
    for second, used in ((0, 0), (2, 2_000)):
        tree.file(PROGRAM, 3, cycles(1, used, 1_000 * second, capacity=4))
        seen = read(meter, second, PROGRAM)
    assert seen.use([PROGRAM]).busy_s == pytest.approx(0.5), "2,000 of 4 × 2,000 cycles in 2 s"
    tree.process(FLEET)
    for second, busy in ((4, 0), (6, 4_000_000_000)):
        tree.file(FLEET, 3, ns(9, busy, "drm-engine-capacity-gfx:\t2\n"))
        seen = read(meter, second, FLEET)
    assert seen.use([FLEET]).busy_s == pytest.approx(2.0)


def test_case_031_counters_that_repeat_or_step_back_keep_their_sum(tree: Tree) -> None:
    tree.process(PROGRAM)
    meter = tree.meter()
    used = []
    for index, busy in enumerate((5_000_000_000, 5_000_000_000, 4_900_000_000, 7_000_000_000)):
        tree.file(PROGRAM, 3, ns(1, busy))
        used.append(read(meter, 2.0 * index, PROGRAM).use([PROGRAM]).busy_s)
    assert used[1:] == [0.0, 0.0, pytest.approx(2.0)]


def test_case_031_a_counter_that_began_anew_counts_on_from_there(tree: Tree) -> None:
    tree.process(PROGRAM)
    meter = tree.meter()
    used = []
    for index, busy in enumerate((5_000_000_000, 100_000_000, 600_000_000)):
        tree.file(PROGRAM, 3, ns(1, busy))
        used.append(read(meter, 2.0 * index, PROGRAM).use([PROGRAM]).busy_s)
    assert used[1:] == [0.0, pytest.approx(0.5)]


def test_case_031_counters_that_stand_still_on_a_busy_device_tell_nothing(tree: Tree) -> None:
    tree.process(PROGRAM)
    (tree.device / "gpu_busy_percent").write_text("97\n")
    meter = tree.meter()
    for second in (0, 2):
        tree.file(PROGRAM, 3, ns(1, 5_000_000_000))
        seen = read(meter, second, PROGRAM)
    assert "stand still" in str(seen.use([PROGRAM]).why)


def test_case_031_rates_are_over_a_second_at_least(tree: Tree) -> None:
    tree.process(PROGRAM)
    meter = tree.meter()
    tree.file(PROGRAM, 3, ns(1, 0))
    one = read(meter, 0, PROGRAM)
    tree.file(PROGRAM, 3, ns(1, 300_000_000))
    assert read(meter, 0.3, PROGRAM) is one
    assert read(meter, 1.0, PROGRAM).use([PROGRAM]).busy_s == pytest.approx(0.3)


def test_case_032_a_process_that_may_not_be_read_is_unknown_and_says_what_is_missing(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.process(PROGRAM)
    tree.process(FLEET)
    meter = tree.meter()
    really = os.listdir

    def listing(path: str) -> list[str]:
        if str(path).endswith(f"/{PROGRAM}/fd"):
            raise PermissionError(13, "Permission denied")
        return really(path)

    monkeypatch.setattr(os, "listdir", listing)
    for second, busy in ((0, 0), (2, 1_000_000_000)):
        tree.file(FLEET, 3, ns(2, busy))
        seen = read(meter, second, PROGRAM, FLEET)
    assert "CAP_SYS_PTRACE" in str(seen.use([PROGRAM]).why)
    assert seen.use([FLEET]).busy_s == pytest.approx(1.0)


def test_case_035_an_inherited_descriptor_holds_the_device_and_uses_nothing(tree: Tree) -> None:
    tree.process(COMPOSITOR, 5)
    tree.process(FLEET, 900)
    meter = tree.meter()
    for second, busy in ((0, 0), (2, 1_900_000_000)):
        tree.file(COMPOSITOR, 9, ns(1, busy))
        tree.file(FLEET, 9, ns(1, busy))
        seen = read(meter, second, FLEET)
    assert seen.use([FLEET]).busy_s == 0.0
    assert seen.use([COMPOSITOR]).busy_s == pytest.approx(1.9)


def test_case_035_a_newcomer_with_the_compositors_descriptor_is_not_taken_for_its_owner(tree: Tree) -> None:
    """The compositor opened the device after it was looked at; the newcomer is what shows the client."""
    tree.process(COMPOSITOR, 5)
    for pid in range(300, 500):
        tree.process(pid)
    meter = tree.meter()
    read(meter, 0, PROGRAM)
    read(meter, 2, PROGRAM)
    tree.process(FLEET, 900, parent=COMPOSITOR)
    for second, busy in ((4, 10**15), (6, 10**15 + 10**9)):
        for pid in (COMPOSITOR, FLEET):
            tree.file(pid, 9, ns(1, busy))
        seen = read(meter, second, PROGRAM, FLEET)
        assert seen.use([FLEET]).busy_s == 0.0
    assert seen.use([COMPOSITOR]).busy_s == pytest.approx(1.0)


def test_a_process_that_starts_between_readings_is_counted_from_its_start(tree: Tree) -> None:
    tree.process(PROGRAM)
    meter = tree.meter()
    read(meter, 0, PROGRAM)
    tree.process(FLEET, 2000)
    tree.file(FLEET, 3, ns(4, 700_000_000))
    assert read(meter, 2, PROGRAM, FLEET).use([FLEET]).busy_s == pytest.approx(0.7)


def test_a_client_that_was_not_seen_before_has_no_baseline(tree: Tree) -> None:
    tree.process(PROGRAM)
    tree.process(FLEET)
    tree.file(FLEET, 3, ns(4, 700_000_000))
    meter = tree.meter()
    assert read(meter, 0, PROGRAM).use([PROGRAM]).why is not None, "a meter's first reading says nothing"
    assert read(meter, 2, PROGRAM).use([PROGRAM]).why is None


def test_processes_of_no_interest_are_looked_at_once_and_then_in_turn(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid in range(300, 600):
        tree.process(pid)
    tree.process(PROGRAM)
    meter = tree.meter()
    read(meter, 0, PROGRAM)
    looks: list[str] = []
    really = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: looks.append(str(path)) or really(path))
    read(meter, 2, PROGRAM)
    assert len(looks) <= 1 + 1 + 301 // 30 + 1


def test_text_that_is_no_client_or_a_strange_number_is_left_out() -> None:
    assert parse_fdinfo("pos:\t0\nflags:\t02\n") is None
    assert parse_fdinfo("drm-driver:\tx\n") is None
    for number in ("9" * 5000, "²", "-1", "0x1f", "18446744073709551616000"):
        assert parse_fdinfo(f"drm-driver:\tx\ndrm-client-id:\t{number}\n") is None, number[:30]
    made = parse_fdinfo(
        "drm-driver:\ti915\ndrm-client-id:\t3\ndrm-engine-render:\tmany ns\ndrm-memory-vram:\t8 MiB\ndrm-resident-vram:\t4 KiB\n",
        "00:02.0",
    )
    assert made is not None
    assert (made.pdev, made.metered, made.memory_bytes) == ("00:02.0", False, {"vram": 4096})


def test_case_036_several_engines_at_once_are_no_more_than_a_whole_device(tree: Tree) -> None:
    """Engine classes run side by side: a program's share is that of the class it kept busiest, never their sum."""
    tree.process(PROGRAM)
    meter = tree.meter()
    for second, (gfx, compute, copy) in ((0, (0, 0, 0)), (2, (1_200_000_000, 1_000_000_000, 40_000_000))):
        extra = f"drm-engine-compute:\t{compute} ns\ndrm-engine-dma:\t{copy} ns\n"
        tree.file(PROGRAM, 3, ns(7, gfx, extra))
        seen = read(meter, second, PROGRAM)
    assert seen.use([PROGRAM]).busy_s == pytest.approx(1.2)
    # of two clients in the same class the times add up, and a second class beside them does not
    tree.file(PROGRAM, 4, ns(8, 0, "drm-engine-compute:\t0 ns\n"))
    read(meter, 4, PROGRAM)
    tree.file(PROGRAM, 3, ns(7, 1_700_000_000, "drm-engine-compute:\t1400000000 ns\n"))
    tree.file(PROGRAM, 4, ns(8, 500_000_000, "drm-engine-compute:\t300000000 ns\n"))
    assert read(meter, 6, PROGRAM).use([PROGRAM]).busy_s == pytest.approx(1.0)


def test_case_039_a_driver_that_counts_nothing_for_its_clients_leaves_their_use_unknown(tree: Tree) -> None:
    tree.process(PROGRAM)
    tree.process(FLEET)
    meter = tree.meter()
    bare = f"drm-driver:\tnouveau\ndrm-pdev:\t{PDEV}\ndrm-client-id:\t7\n"
    for second in (0, 2, 4):
        tree.file(PROGRAM, 3, bare)
        tree.file(FLEET, 3, ns(8, 10**9 * second))
        seen = read(meter, second, PROGRAM, FLEET)
    assert "does not tell the engine time" in str(seen.use([PROGRAM]).why)
    assert seen.use([FLEET]).why is None, "what can be told of another stays told"


def test_case_040_a_clients_time_ends_with_it_and_the_next_one_begins_its_own(tree: Tree) -> None:
    tree.process(PROGRAM)
    meter = tree.meter()
    for second, busy in ((0, 8_000_000_000), (2, 9_000_000_000)):
        tree.file(PROGRAM, 3, ns(7, busy))
        read(meter, second, PROGRAM)
    tree.file(PROGRAM, 3, ns(8, 0))  # the same descriptor, another client
    assert read(meter, 4, PROGRAM).use([PROGRAM]).busy_s == 0.0
    tree.file(PROGRAM, 3, ns(8, 300_000_000))
    assert read(meter, 6, PROGRAM).use([PROGRAM]).busy_s == pytest.approx(0.3)
    # one that came and worked between two looks counts from its beginning
    tree.file(PROGRAM, 3, ns(9, 500_000_000))
    assert read(meter, 8, PROGRAM).use([PROGRAM]).busy_s == pytest.approx(0.5)
