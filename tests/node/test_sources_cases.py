"""Progress sources as others saw them break, each with a real file: one test a row of the public cases."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodes.sources.hub import SourceHub
from nodes.sources.watch import Watch
from policies.section.models import Section

STEP = b'{"event":"step_done"}\n'


def section(path: Path | str, *, source: dict[str, Any] | None = None, phase: dict[str, Any] | None = None) -> Section:
    rule: dict[str, Any] = {
        "id": "t",
        "match": {"name": "trainer"},
        "protect": {
            "metric": "progress_rate",
            "max_slowdown": 0.05,
            "source": source or {"jsonl": str(path), "event": "step_done"},
        },
    }
    if phase is not None:
        rule["during"] = [{"source": {"jsonl": str(path), **phase}, "pause_fleet": {"scope": "all"}}]
    return Section.model_validate({"rule": [rule]})


OPEN: list[SourceHub] = []


@pytest.fixture(autouse=True)
def _close_hubs() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


class Rig:
    """A hub over one source, with a clock that the test moves."""

    def __init__(self, path: Path | str, **more: Any) -> None:
        self.now_s = 1000.0
        self.hub = SourceHub(lambda: self.now_s, **{key: more.pop(key) for key in ("watch",) if key in more})
        OPEN.append(self.hub)
        self.hub.configure(section(path, **more), "/nowhere")

    def tick(self, seconds: float = 2.0) -> list[Any]:
        self.now_s += seconds
        return self.hub.poll("tick")

    @property
    def total(self) -> float:
        return self.hub.progress("t").track.total


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "run.log"
    path.write_bytes(b"")
    return path


def anchored(rig: Rig, path: Path) -> None:
    """One event, so that the next one counts."""
    append(path, STEP)
    rig.tick()
    assert rig.total == 0


def test_case_050_a_hole_of_nuls_is_skipped_and_the_line_behind_it_read(log: Path) -> None:
    rig = Rig(log)
    anchored(rig, log)
    append(log, b"\0" * (1024 * 1024) + STEP)
    rig.tick()
    rig.tick()
    assert rig.total == 1
    assert rig.hub.describe()[0]["damage"]["gaps"] == 1


def test_case_050_a_sparse_hole_larger_than_memory_is_jumped(log: Path) -> None:
    rig = Rig(log)
    anchored(rig, log)
    with log.open("r+b") as writer:  # a writer that does not append goes on where it was
        writer.truncate(0)
        rig.tick()
        writer.seek(50 * 1024**3)
        writer.write(STEP)
    rig.tick()
    rig.tick()
    append(log, STEP)
    rig.tick()
    assert rig.total == 1, "the truncation left a void, the first line behind it anchors"


def test_case_051_a_nul_inside_a_line_costs_that_line(log: Path) -> None:
    rig = Rig(log)
    anchored(rig, log)
    append(log, b'{"event":"step_done"}\0\n' + STEP)
    rig.tick()
    assert rig.total == 1
    assert rig.hub.describe()[0]["damage"]["bad"] == 1


def test_case_052_fifty_megabytes_without_newline_then_a_good_line(log: Path) -> None:
    rig = Rig(log)
    anchored(rig, log)
    for _ in range(50):
        append(log, b"x" * (1024 * 1024))
        rig.tick(0.1)
    append(log, b"\n" + STEP)
    rig.tick()
    rig.tick()
    assert rig.total == 1
    assert rig.hub.describe()[0]["damage"]["dropped_long"] == 1


def test_case_054_a_rotated_copy_is_no_new_source(tmp_path: Path, log: Path) -> None:
    counter = {"path": str(tmp_path / "run.log*"), "log_regex": r"step (\d+)"}
    rig = Rig(log, source=counter)
    for value in range(1, 11):
        append(log, b"step %d\n" % value)
        rig.tick()
    (tmp_path / "run.log.1").write_bytes(log.read_bytes())
    os.utime(tmp_path / "run.log.1", (2e9, 2e9))  # newer than anything
    rig.tick()
    with log.open("r+b") as writer:
        writer.truncate(0)
    append(log, b"step 11\n")
    rig.tick()
    view = rig.hub.progress("t")
    assert view.path == str(log)
    assert view.track.resets == 0
    assert rig.total == 10


def test_case_054_a_dated_copy_is_no_new_source(tmp_path: Path, log: Path) -> None:
    rig = Rig(log, source={"jsonl": str(tmp_path / "*.log"), "event": "step_done"})
    for _ in range(5):
        append(log, STEP)
        rig.tick()
    copy = tmp_path / "run-20261129.log"
    copy.write_bytes(log.read_bytes())
    os.utime(copy, (2e9, 2e9))
    rig.tick()
    assert rig.hub.progress("t").path == str(log)
    assert rig.total == 4


def test_case_055_a_partial_line_is_never_read_as_less(log: Path) -> None:
    rig = Rig(log, source={"path": str(log), "log_regex": r"^step (\d+)$"})
    append(log, b"step 100\nstep 12")
    rig.tick()
    rig.tick()
    append(log, b"3\n")
    rig.tick()
    assert rig.total == 23
    assert rig.hub.progress("t").track.resets == 0


def test_case_055_a_partial_line_at_the_start_is_read_whole(log: Path) -> None:
    append(log, b"step 100\nstep 12")
    rig = Rig(log, source={"path": str(log), "log_regex": r"^step (\d+)$"})
    append(log, b"3\n")
    rig.tick()
    append(log, b"step 124\n")
    rig.tick()
    assert rig.total == 1, "123 anchors, 124 counts"


def test_case_057_a_byte_order_mark_does_not_break_the_first_line(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "*.log")
    (tmp_path / "run.log").write_bytes(b"\xef\xbb\xbf" + STEP + STEP)
    rig.tick()
    assert rig.hub.progress("t").track.points == 1
    assert rig.hub.describe()[0]["skipped"] == {}


@pytest.mark.parametrize("before", [True, False])
def test_case_057_utf16_is_an_error_and_no_silence(tmp_path: Path, before: bool) -> None:
    path, text = tmp_path / "run.log", '{"event":"step_done"}\n'.encode("utf-16")
    if before:
        path.write_bytes(text)
    rig = Rig(path)
    path.write_bytes(text)
    rig.tick()
    view = rig.hub.progress("t")
    assert not view.readable
    assert "UTF-16" in view.why
    assert view.code == "PROTECTION_SOURCE_UNREADABLE"


def test_case_058_a_file_replaced_twice_is_followed(tmp_path: Path, log: Path) -> None:
    rig = Rig(log)
    anchored(rig, log)
    for _ in range(2):
        fresh = tmp_path / "fresh"
        fresh.write_bytes(STEP)
        fresh.replace(log)
        rig.hub.poll("event")
        rig.now_s += 1
    append(log, STEP)
    rig.hub.poll("event")
    assert rig.total == 3


def test_case_058_a_link_set_to_another_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    link = tmp_path / "current.log"
    for name in ("a", "b"):
        (tmp_path / "data" / name).write_bytes(b"")
    link.symlink_to(tmp_path / "data" / "a")
    rig = Rig(link)
    anchored(rig, tmp_path / "data" / "a")
    for name in ("b", "a", "b"):
        new = tmp_path / "new"
        new.symlink_to(tmp_path / "data" / name)
        new.replace(link)
        rig.hub.poll("event")
        append(tmp_path / "data" / name, STEP)
        rig.now_s += 1
        rig.hub.poll("event")
    assert rig.total == 3


class Muted:
    """An inotify instance on a file system that gives no events."""

    def __init__(self) -> None:
        self._fds = os.pipe()

    def fileno(self) -> int:
        return self._fds[0]

    def add_watch(self, path: str, mask: int) -> int:
        return 1

    def rm_watch(self, wd: int) -> None:
        pass

    def read(self, timeout: int) -> list[Any]:
        return []

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)


def test_case_059_growth_without_events_is_found_and_said(log: Path) -> None:
    rig = Rig(log, watch=Watch(Muted))
    assert rig.hub.watching == "inotify"
    for _ in range(5):
        append(log, STEP)
        rig.tick()
    assert rig.total == 4
    assert "without an event" in rig.hub.watching
    assert rig.hub.describe()[0]["watch"] == "poll"
    # and from now on the 250 ms check reads it
    append(log, STEP)
    rig.now_s += 0.25
    rig.hub.poll("event")
    assert rig.total == 5


def test_case_059_a_quiet_file_with_events_is_not_taken_for_muted(log: Path) -> None:
    rig = Rig(log)
    for _ in range(6):
        append(log, STEP)
        rig.tick()
    assert rig.hub.watching == "inotify"


@pytest.mark.parametrize(
    ("code", "sysctl"),
    [(errno.EMFILE, "fs.inotify.max_user_instances"), (errno.ENOSPC, "fs.inotify.max_user_watches")],
)
def test_case_060_exhausted_watches_fall_back_and_name_the_limit(log: Path, code: int, sysctl: str) -> None:
    class Exhausted(Muted):
        def add_watch(self, path: str, mask: int) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    def none_left() -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    rig = Rig(log, watch=Watch(none_left if code == errno.EMFILE else Exhausted))
    assert sysctl in rig.hub.watching
    assert "No space left" not in rig.hub.watching
    assert sysctl in rig.hub.describe()[0]["watch_why"], "the owner who asks for the sources is told"
    anchored(rig, log)
    append(log, STEP)
    rig.now_s += 0.25
    rig.hub.poll("event")
    assert rig.total == 1


def test_case_060_one_instance_serves_all_sources(tmp_path: Path) -> None:
    def instances() -> int:
        links = (os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd))
        return sum("inotify" in link for link in links)

    before = instances()
    rules = []
    for index in range(20):
        (tmp_path / str(index)).mkdir()
        rules.append(
            section(tmp_path / str(index) / "*.log").rules[0].model_dump(exclude_none=True, exclude_defaults=True)
            | {"id": f"t{index}"}
        )
    hub = SourceHub()
    hub.configure(Section.model_validate({"rule": rules}), "/nowhere")
    assert instances() == before + 1
    hub.close()
    assert instances() == before


def _is_open(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


def test_case_062_progress_bars(log: Path) -> None:
    rig = Rig(log, source={"path": str(log), "log_regex": r"(\d+)/10000"})
    for step in range(1, 10_001, 500):
        append(log, b"".join(b"\r[====>   ] %d/10000" % value for value in range(step, step + 500)))
        rig.tick(0.5)
    assert rig.total == 9999 - 499
    append(log, b"\r")
    rig.tick()
    assert rig.total == 10_000 - 499, "the last bar ends with the next one"


def test_case_064_a_counter_that_restarts_gives_no_negative_and_no_huge_rate(log: Path) -> None:
    rig = Rig(log, source={"path": str(log), "log_regex": r"step (\d+)"})
    for value in (11990, 12000, 0, 1):
        append(log, b"step %d\n" % value)
        rig.tick(10.0)
    track = rig.hub.progress("t").track
    assert track.resets == 1
    assert rig.total == 11
    assert track.rate(rig.now_s, 30.0) == pytest.approx(11 / 20)


def test_case_065_a_throughput_field_is_never_used(log: Path) -> None:
    rig = Rig(log)
    for _ in range(11):
        append(log, json.dumps({"event": "step_done", "throughput": 76232.0}).encode() + b"\n")
        rig.tick(1.0)
    assert rig.hub.progress("t").track.rate(rig.now_s, 10.0) == pytest.approx(1.0)


def test_case_066_block_buffered_output_is_no_stall(log: Path) -> None:
    rig = Rig(log)
    for _ in range(8):
        append(log, STEP * 100)
        rig.tick(60.0)
    rig.tick(55.0)
    row = rig.hub.describe()[0]
    assert row["rate_window_s"] == pytest.approx(300.0)
    assert row["rate"] == pytest.approx(100 / 60, rel=0.1)


def test_case_067_rename_and_create_goes_on_and_drains_the_old_file(tmp_path: Path, log: Path) -> None:
    rig = Rig(log)
    anchored(rig, log)
    writer = log.open("ab", buffering=0)
    log.rename(tmp_path / "run.log.1")
    writer.write(STEP)  # after the rename, before the new file is there
    rig.tick(0.1)
    log.write_bytes(b"")
    rig.tick(0.1)
    writer.write(STEP)  # the writer was not told yet to open anew
    rig.tick(0.1)
    append(log, STEP)
    rig.tick(0.1)
    writer.close()
    assert rig.total == 3
    assert rig.hub.progress("t").path == str(log)
