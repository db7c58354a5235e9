"""What memory is left, read from fake /proc and cgroup trees of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodes.agent.program_use import footprint_bytes, held_bytes
from nodes.memory import read_memory
from policies.rules import ProcInfo

GIB = 1 << 30


class Tree:
    def __init__(self, root: Path, membership: str) -> None:
        self.proc, self.sys = root / "proc", root / "sys"
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self/cgroup").write_text(membership)
        self.meminfo(64 * GIB, 40 * GIB)

    def meminfo(self, total: int, available: int, swap: tuple[int, int] = (0, 0)) -> None:
        facts = {"MemTotal": total, "MemAvailable": available, "SwapTotal": swap[0], "SwapFree": swap[1]}
        (self.proc / "meminfo").write_text("".join(f"{name}: {value // 1024} kB\n" for name, value in facts.items()))

    def group(self, path: str, **files: object) -> None:
        where = self.sys / "fs/cgroup" / path
        where.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (where / name.replace("__", ".")).write_text(f"{text}\n")

    def free(self) -> dict[str, tuple[int | None, int | None]]:
        return {
            pool.name.rpartition("/")[2]: (pool.total_bytes, pool.available_bytes)
            for pool in read_memory(self.proc, self.sys).pools
        }


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path, "0::/box/agent\n")


def test_without_a_limit_the_machine_counts(tree: Tree) -> None:
    tree.group("box/agent", memory__max="max", memory__high="max", memory__current=GIB)
    assert tree.free() == {"machine": (64 * GIB, 40 * GIB)}


def test_case_047_the_limit_of_any_group_above_counts(tree: Tree) -> None:
    tree.group("box", memory__max=GIB, memory__current=GIB // 4)
    assert tree.free() == {"machine": (64 * GIB, 40 * GIB), "box": (GIB, 3 * GIB // 4)}


def test_case_082_page_cache_that_can_go_is_no_use(tree: Tree) -> None:
    stat = f"anon {GIB}\ninactive_file {25 * GIB}\nactive_file 5\n"
    tree.group("box/agent", memory__max="max", memory__current=26 * GIB, memory__stat=stat)
    assert tree.free() == {"machine": (64 * GIB, 40 * GIB)}
    tree.group("box/agent", memory__max=27 * GIB)
    assert tree.free()["agent"] == (27 * GIB, 26 * GIB)


def test_case_083_the_machine_stays_a_pool_of_its_own_beside_a_roomy_group(tree: Tree) -> None:
    tree.meminfo(64 * GIB, GIB)
    tree.group("box/agent", memory__max=60 * GIB, memory__current=GIB)
    assert tree.free()["machine"] == (64 * GIB, GIB)


def test_the_level_at_which_the_kernel_takes_pages_back_is_a_limit(tree: Tree) -> None:
    tree.group("box/agent", memory__max=8 * GIB, memory__high=2 * GIB, memory__current=GIB)
    assert tree.free()["agent"] == (2 * GIB, GIB)


def test_a_limit_that_cannot_be_read_is_unknown_and_not_none(tree: Tree) -> None:
    tree.group("box/agent", memory__max="plenty")
    assert tree.free()["agent"] == (None, None)
    tree.group("box/agent", memory__max=GIB)
    assert tree.free()["agent"] == (GIB, None), "its use is unknown"


def test_version_1(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "9:memory:/job\n3:cpu:/x\n0::/\n")
    stat = f"total_inactive_file {GIB}\n"
    tree.group("memory/job", memory__limit_in_bytes=4 * GIB, memory__usage_in_bytes=3 * GIB, memory__stat=stat)
    tree.group("memory", memory__limit_in_bytes=(1 << 63) - 4096, memory__usage_in_bytes=9 * GIB)
    assert tree.free() == {"machine": (64 * GIB, 40 * GIB), "job": (4 * GIB, 2 * GIB)}


def test_swap_in_use_and_what_cannot_be_read(tree: Tree) -> None:
    tree.meminfo(64 * GIB, GIB, swap=(8 * GIB, 6 * GIB))
    assert read_memory(tree.proc, tree.sys).swap_used_bytes == 2 * GIB
    (tree.proc / "meminfo").write_text("MemTotal: what\n")
    reading = read_memory(tree.proc, tree.sys)
    assert (reading.pools[0].total_bytes, reading.swap_used_bytes) == (None, None)


# -- what processes hold ----------------------------------------------------------------------------------------------------


def test_a_footprint_is_never_too_small_and_what_is_held_never_too_large(tmp_path: Path) -> None:
    for pid, statm in ((5, "900 100 60 1 0 9 0"), (6, "900 50 50 1 0 9 0"), (7, "nonsense")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "statm").write_text(statm)
    page = footprint_bytes([5], str(tmp_path)) or 0
    unit = page // 100
    assert footprint_bytes([5, 6], str(tmp_path)) == 150 * unit
    assert footprint_bytes([5, 99], str(tmp_path)) == 100 * unit, "what is gone holds nothing"
    assert footprint_bytes([5, 7], str(tmp_path)) is None, "unknown is no zero"
    procs = [ProcInfo(pid, 1, 1) for pid in (5, 6, 7, 99)]
    assert held_bytes(procs, str(tmp_path)) == 40 * unit
