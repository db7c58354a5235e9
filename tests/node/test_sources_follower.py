"""The follower with real files: where it begins, what it follows, and what it says when it cannot."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodes.sources.follower import MAX_READ_BYTES, MISSING_GRACE_S, Follower
from nodes.sources.matching import expand_home, find, is_rotated_copy, may_be_dated_copy


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


@contextmanager
def as_nobody() -> Iterator[None]:
    """File permissions as another account meets them; tests run as root in many containers."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_reading_begins_at_the_end_and_the_newest_mib_is_history(tmp_path: Path) -> None:
    path = tmp_path / "big.log"
    lines = b"".join(b"%09d\n" % index for index in range(400_000))  # 4 MB
    path.write_bytes(lines)
    follower = Follower(str(path))
    reading = follower.poll(0.0)
    assert reading.records == []
    assert reading.history is not None
    assert reading.history[-1] == b"000399999"
    assert not reading.history_whole
    assert sum(len(record) + 1 for record in reading.history) <= 1024 * 1024
    append(path, b"new\n")
    assert follower.poll(1.0).records == [b"new"]


def test_a_short_file_is_history_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"one\ntwo\nthr")
    follower = Follower(str(path))
    reading = follower.poll(0.0)
    assert (reading.history, reading.history_whole, reading.records) == ([b"one", b"two"], True, [])
    append(path, b"ee\n")
    assert follower.poll(1.0).records == [b"three"]


def test_the_end_of_a_long_line_without_begin_is_no_record(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * (3 * 1024 * 1024))
    follower = Follower(str(path))
    assert follower.poll(0.0).records == []
    append(path, b"tail\ngood\n")
    assert follower.poll(1.0).records == [b"good"]


def test_the_newest_file_is_followed_by_time_and_then_by_name(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl", "c.jsonl"):
        (tmp_path / name).write_bytes(b"old\n")
        os.utime(tmp_path / name, (1000, 1000))
    follower = Follower(str(tmp_path / "*.jsonl"))
    follower.poll(0.0)
    assert follower.path == str(tmp_path / "c.jsonl")
    os.utime(tmp_path / "a.jsonl", (2000, 2000))
    reading = follower.poll(1.0)
    assert follower.path == str(tmp_path / "a.jsonl")
    assert reading.replaced
    assert reading.records == [], "what stood there before is history"
    assert reading.history == [b"old"]


def test_a_new_file_is_read_from_its_top_also_in_a_new_directory(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    follower = Follower(str(tmp_path / "runs" / "*" / "events-*.jsonl"))
    assert follower.poll(0.0).unreadable is not None
    (tmp_path / "runs" / "one").mkdir()
    (tmp_path / "runs" / "one" / "events-1.jsonl").write_bytes(b"a\n")
    assert follower.poll(1.0).records == [b"a"]
    (tmp_path / "runs" / "two").mkdir()
    later = tmp_path / "runs" / "two" / "events-1.jsonl"
    later.write_bytes(b"b\n")
    os.utime(later, (2e9, 2e9))
    append(tmp_path / "runs" / "one" / "events-1.jsonl", b"last of one\n")
    os.utime(tmp_path / "runs" / "one" / "events-1.jsonl", (1e9, 1e9))
    reading = follower.poll(2.0)
    assert reading.replaced
    assert (reading.ended, reading.records) == ([b"last of one"], [b"b"])


def test_two_files_in_turn_lose_and_repeat_nothing(tmp_path: Path) -> None:
    one, two = tmp_path / "1.log", tmp_path / "2.log"
    follower = Follower(str(tmp_path / "*.log"))
    follower.poll(0.0)
    seen: list[bytes] = []
    for turn in range(20):
        path = one if turn % 2 else two
        append(path, b"%d\n" % turn)
        os.utime(path, (1e9 + turn, 1e9 + turn))
        reading = follower.poll(float(turn))
        seen += reading.ended + reading.records
    assert sorted(seen, key=int) == [b"%d" % turn for turn in range(20)]


def test_a_truncated_file_is_read_from_its_top_and_lines_may_be_lost(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"one\ntwo\nthree\n")
    follower = Follower(str(path))
    follower.poll(0.0)
    path.write_bytes(b"four\n")
    reading = follower.poll(1.0)
    assert (reading.records, reading.lost) == ([b"four"], True)


def test_a_file_truncated_and_grown_past_the_place_of_reading_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"one\n")
    follower = Follower(str(path))
    follower.poll(0.0)
    path.write_bytes(b"two\nthree\nfour\n")
    reading = follower.poll(1.0)
    assert (reading.records, reading.lost) == ([b"two", b"three", b"four"], True)


def test_a_file_written_anew_with_the_same_length_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"step 1\n")
    follower = Follower(str(path))
    follower.poll(0.0)
    path.write_bytes(b"step 2\n")
    os.utime(path, (2e9, 2e9))
    assert follower.poll(1.0).records == [b"step 2"]


def test_a_mirrored_file_that_is_replaced_by_a_longer_copy_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    content = b"".join(b"line %d\n" % index for index in range(1000))
    path.write_bytes(content)
    follower = Follower(str(path))
    follower.poll(0.0)
    (tmp_path / "new").write_bytes(content + b"more\n")
    (tmp_path / "new").replace(path)
    assert follower.poll(1.0).records == [b"more"]


def test_a_deleted_file_is_unreadable_after_a_grace_and_read_again_when_it_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"one\n")
    follower = Follower(str(path))
    follower.poll(0.0)
    path.unlink()
    assert follower.poll(1.0).unreadable is None
    gone = follower.poll(1.0 + MISSING_GRACE_S).unreadable
    assert gone is not None
    assert "deleted" in gone.why
    path.write_bytes(b"two\n")
    reading = follower.poll(10.0)
    assert (reading.unreadable, reading.records) == (None, [b"two"])


def test_a_renamed_file_that_is_still_written_stays_readable(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"one\n")
    follower = Follower(str(path))
    follower.poll(0.0)
    path.rename(tmp_path / "elsewhere")
    for second in range(1, 10):
        append(tmp_path / "elsewhere", b"more\n")
        reading = follower.poll(float(second))
        assert (reading.records, reading.unreadable) == ([b"more"], None)
    assert follower.poll(10.0 + MISSING_GRACE_S).unreadable is not None


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["a directory", "a FIFO"])
def test_a_file_replaced_by_something_else_never_blocks(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"one\n")
    follower = Follower(str(path))
    follower.poll(0.0)
    path.unlink()
    if kind == "a directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    bad = follower.poll(1.0).unreadable
    assert bad is not None
    assert kind in bad.why
    path.rmdir() if kind == "a directory" else path.unlink()
    path.write_bytes(b"back\n")
    reading = follower.poll(2.0)
    assert (reading.unreadable, reading.records, reading.lost) == (None, [b"back"], True)


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory that every account may search; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def test_a_file_that_may_not_be_read_is_named_with_a_command(open_dir: Path) -> None:
    path = open_dir / "a.log"
    path.write_bytes(b"one\n")
    path.chmod(0o600)
    follower = Follower(str(path))
    with as_nobody():
        if os.access(path, os.R_OK, effective_ids=True):
            pytest.skip("this account reads everything")
        bad = follower.poll(0.0).unreadable
        assert bad is not None
        assert bad.code == "PROTECTION_SOURCE_UNREADABLE"
        assert bad.remedy == f"chmod a+r {path}"
        helped = Follower(str(path), owner_home=str(open_dir)).poll(0.0).unreadable
        assert helped is not None
        assert helped.code == "PROTECTION_SOURCE_NEEDS_HELPER"
    append(path, b"while unreadable\n")
    path.chmod(0o644)
    with as_nobody():
        assert follower.poll(1.0).unreadable is None
        append_root(path, b"two\n")
        assert follower.poll(2.0).records[-1:] == [b"two"]


def append_root(path: Path, data: bytes) -> None:
    if os.getuid() == 0:
        os.seteuid(0)
    append(path, data)
    if os.getuid() == 0:
        os.seteuid(65534)


def test_a_directory_that_may_not_be_searched_is_named(open_dir: Path) -> None:
    closed = open_dir / "closed"
    closed.mkdir()
    (closed / "a.log").write_bytes(b"one\n")
    closed.chmod(0o700)
    with as_nobody():
        if os.access(closed, os.X_OK, effective_ids=True):
            pytest.skip("this account reads everything")
        for pattern in ("a.log", "*.log"):
            bad = Follower(str(closed / pattern)).poll(0.0).unreadable
            assert bad is not None
            assert bad.why.endswith(f"may not read {closed}")
            assert bad.remedy == f"chmod a+rx {closed}"


def test_a_flood_is_read_in_portions(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"")
    follower = Follower(str(path))
    follower.poll(0.0)
    append(path, (b"y" * 99 + b"\n") * 50_000)
    portions = []
    while True:
        reading = follower.poll(1.0)
        portions.append(len(reading.records))
        if not reading.behind:
            break
    assert sum(portions) == 50_000
    assert max(portions) * 100 <= MAX_READ_BYTES + 100
    assert len(portions) >= 4


def test_patterns(tmp_path: Path) -> None:
    for name in ("a/x.log", "a/b/x.log", "a/b/c/y.log", "a/.hidden.log", "a/[odd].log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")

    def names(pattern: str) -> list[str]:
        return sorted(os.path.relpath(file.path, tmp_path) for file in find(f"{tmp_path}/{pattern}").files)

    assert names("a/*.log") == ["a/[odd].log", "a/x.log"]
    assert names("a/**/x.log") == ["a/b/x.log", "a/x.log"]
    assert names("*/b/?.log") == ["a/b/x.log"]
    assert names("a/[odd].log") == ["a/[odd].log"], "a file of that very name"
    assert names("a/.hid*") == ["a/.hidden.log"]
    assert names("nowhere/*.log") == []
    assert str(tmp_path) in find(f"{tmp_path}/nowhere/*/x.log").dirs, "where a directory may appear"
    assert expand_home("~/runs/*.jsonl", "/home/ann/") == "/home/ann/runs/*.jsonl"


@pytest.mark.parametrize("name", ["run.log.1", "run.log.2.gz", "run.log-20261129", "run.log.old", "run.log.gz"])
def test_names_of_rotated_copies(name: str) -> None:
    assert is_rotated_copy(f"/x/{name}", {"/x/run.log"})
    assert not is_rotated_copy(f"/x/{name}", {"/x/other.log"})


def test_names_of_other_runs_are_no_rotated_copies() -> None:
    assert not is_rotated_copy("/x/run-2.log", {"/x/run.log"})
    assert not is_rotated_copy("/x/run.log", {"/x/run.log"})
    assert may_be_dated_copy("/x/run-20261129.log", "/x/run.log")
    assert may_be_dated_copy("/x/run-2026-11-29.log", "/x/run.log")
    assert not may_be_dated_copy("/x/run-2.log", "/x/run.log")


@given(seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=40)
def test_any_sequence_of_appends_and_rotations_gives_each_line_once(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """Moves, new files, partial lines, in any order: no line is lost, none is read twice, and order is kept."""
    rng = random.Random(seed)
    home = tmp_path_factory.mktemp("rotate")
    path = home / "run.log"
    path.write_bytes(b"")
    follower = Follower(str(path))
    follower.poll(0.0)
    written, seen = 0, []
    clock = 0.0
    for _ in range(rng.randint(1, 40)):
        clock += 0.1
        action = rng.choice(["append", "append", "partial", "move", "poll", "poll"])
        if action == "append":
            append(path, b"%d\n" % written)
            written += 1
        elif action == "partial":
            line = b"%d\n" % written
            written += 1
            append(path, line[:1])
            seen += follower.poll(clock).records
            append(path, line[1:])
        elif action == "move":
            seen += follower.poll(clock).records
            path.rename(home / f"run.log.{int(clock * 10)}")
            path.write_bytes(b"")
        else:
            seen += follower.poll(clock).records
    seen += follower.poll(clock + 0.1).records
    follower.close()
    assert seen == [b"%d" % number for number in range(written)]


@given(pieces=st.lists(st.binary(max_size=300), max_size=20))
@settings(deadline=None, max_examples=60)
def test_any_bytes_are_survived(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "run.log"
    path.write_bytes(b"\n")
    follower = Follower(str(path))
    follower.poll(0.0)
    for index, piece in enumerate(pieces):
        append(path, piece)
        follower.poll(float(index))
    append(path, b"\n\ngood\n")
    assert follower.poll(1000.0).records[-1:] == [b"good"]
    follower.close()
