"""Everything that can happen to a source's file, done under a real agent: in doubt the work is held, and no later line is missed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.beside import Beside
from tests.node.agent_rig import wait_for

MIB = 1 << 20


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    home, place = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("runs") / "prö gram [1] #x"
    place.mkdir()
    found = Beside(home, place)
    found.begin(["freeze_ok"], {"do": "work"})
    yield found
    found.stop()


@pytest.fixture(autouse=True)
def as_it_was(node: Beside) -> Iterator[None]:
    """Each fault begins with an idle source that reads, and work that runs."""
    for path in (node.source, *node.place.glob("run.jsonl.*")):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif os.path.lexists(path):
            path.unlink()
    node.say("idle")
    wait_for("it reads", lambda: node.phase_row()["state"] == "ok" and node.phase_row()["phase"] == "off", 90)
    node.goes_on()
    return


def rotate(node: Beside) -> None:
    os.rename(node.source, node.source.with_name("run.jsonl.1"))
    node.append(b"")


def copy_and_truncate(node: Beside) -> None:
    shutil.copyfile(node.source, node.source.with_name("run.jsonl.1"))
    os.truncate(node.source, 0)


def replace(node: Beside) -> None:
    fresh = node.source.with_name("run.jsonl.new")
    fresh.write_bytes(b"")
    os.replace(fresh, node.source)


def link(node: Beside) -> None:
    os.rename(node.source, node.source.with_name("run.jsonl.0"))
    node.source.symlink_to(node.source.with_name("run.jsonl.0"))


def a_line_of_ten_megabytes(node: Beside) -> None:
    node.append(b'{"event": "status", "phase": "idle", "pad": "' + b"x" * (10 * MIB) + b'"}\n')


def nul_bytes(node: Beside) -> None:
    node.append(b"\0" * MIB + b"\n" + b'{"event"\0: "status"}\n' + b"\0")


def no_text_at_all(node: Beside) -> None:
    node.append(
        os.urandom(MIB).replace(b"\n", b" ") + b"\r\n" + b"\xff\xfe\n\x80\x80\n[1,2\n{}\n" + b"[" * 100_000 + b"\n"
    )


@pytest.mark.parametrize(
    "fault", [rotate, copy_and_truncate, replace, link, a_line_of_ten_megabytes, nul_bytes, no_text_at_all]
)
def test_the_file_changes_and_the_next_phase_is_seen(node: Beside, fault: Callable[[Beside], None]) -> None:
    fault(node)
    node.say("busy")
    node.is_held()
    assert node.still(node.stopped)
    node.say("idle")
    node.goes_on()
    assert node.phase_row()["state"] == "ok"


def deleted(node: Beside) -> Callable[[], None]:
    node.source.unlink()
    return lambda: None


def unreadable(node: Beside) -> Callable[[], None]:
    os.rename(node.source, node.source.with_name("run.jsonl.1"))
    node.source.touch(mode=0)
    node.source.chmod(0)
    return lambda: node.source.chmod(0o600)


def folder_closed(node: Beside) -> Callable[[], None]:
    node.place.chmod(0)
    return lambda: node.place.chmod(0o700)


def a_directory(node: Beside) -> Callable[[], None]:
    node.source.unlink()
    node.source.mkdir()
    return node.source.rmdir


def a_fifo(node: Beside) -> Callable[[], None]:
    node.source.unlink()
    os.mkfifo(node.source)
    return node.source.unlink


def a_device(node: Beside) -> Callable[[], None]:
    node.source.unlink()
    node.source.symlink_to("/dev/zero")
    return node.source.unlink


def a_ring_of_links(node: Beside) -> Callable[[], None]:
    node.source.unlink()
    node.source.symlink_to(node.source)
    return node.source.unlink


@pytest.mark.parametrize("fault", [deleted, unreadable, folder_closed, a_directory, a_fifo, a_device, a_ring_of_links])
def test_a_phase_that_cannot_be_read_counts_as_on_until_it_can(
    node: Beside, fault: Callable[[Beside], Callable[[], None]]
) -> None:
    undo = fault(node)
    try:
        node.is_held()
        row = wait_for("it is said", lambda: node.phase_row()["state"] == "unreadable" and node.phase_row(), 90)
        assert row["phase"] == "on"
        assert row["code"] == "PROTECTION_SOURCE_UNREADABLE"
        assert row["why"]
        assert row["remedy"]
        assert node.still(node.stopped)
    finally:
        undo()
    node.say("idle")
    node.goes_on()
    node.say("busy")
    node.is_held()


def test_the_section_names_a_folder_that_comes_later(node: Beside, tmp_path: Path) -> None:
    del tmp_path
    moved = node.place.with_name(node.place.name + "-away")
    node.place.rename(moved)
    try:
        node.is_held()
        node.place.mkdir(mode=0o700)
        node.say("idle")
        node.goes_on()
        shutil.rmtree(node.place)
    finally:
        moved.rename(node.place)
    node.say("idle")
    node.goes_on()
