"""A /proc of files, and a process table that reads it."""

from __future__ import annotations

import shutil
from pathlib import Path

from nodes.processes import ProcessTable


class FakeProc:
    """A /proc of files. Every read of a process's stat file is counted through ``reads``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now_s = 0.0
        self.last_pid = 0
        self.faults = 0
        (root / "loadavg").touch()
        self.table = ProcessTable(root, uptime_s=lambda: self.now_s)
        self.add(1, 0, name="init")

    def add(
        self,
        pid: int,
        ppid: int,
        *,
        start: int = 100,
        name: str = "prog",
        exe: str | None = "/bin/prog",
        argv: tuple[str, ...] = ("prog",),
        uid: int = 1000,
        state: str = "S",
        threads: int = 1,
        flags: int = 0,
        cpu_ticks: int = 0,
    ) -> None:
        home = self.root / str(pid)
        home.mkdir(exist_ok=True)
        self.faults += 1  # what execs, or is another process by now, has touched other pages
        fields = [state, ppid, 0, 0, 0, -1, flags, self.faults, 0, 0, 0, cpu_ticks, 0, 0, 0, 20, 0, threads, 0, start]
        (home / "stat").write_text(f"{pid} ({name}) {' '.join(str(field) for field in fields)} 0 0\n")
        (home / "cmdline").write_bytes(b"".join(arg.encode() + b"\0" for arg in argv))
        (home / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t0\t0\t0\n")
        (home / "exe").unlink(missing_ok=True)
        if exe is not None:
            (home / "exe").symlink_to(exe)
        self.last_pid = pid
        self.count()

    def end(self, pid: int) -> None:
        shutil.rmtree(self.root / str(pid))
        self.count()

    def count(self) -> None:
        """As the kernel tells how many tasks there are, and the pid that it gave out last."""
        tasks = sum(entry.name.isdigit() for entry in self.root.iterdir())
        (self.root / "loadavg").write_text(f"0.00 0.00 0.00 1/{tasks} {self.last_pid}\n")

    def tick(self, times: int = 1, seconds: float = 2.0) -> ProcessTable:
        for _ in range(times):
            self.now_s += seconds
            self.table.refresh(self.now_s)
        return self.table
