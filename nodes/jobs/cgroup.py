"""A cgroup v2 child group for one attempt: frozen, thawed and killed whole, whatever its processes do.

Standard library only and free of project imports: the launcher loads this file by its path. Membership is inherited at a fork
and kept by the kernel, so the group also holds what left its session or lost its parents. A group is named after its attempt, and
only a group so named is ever written to.

Nothing here raises for a group that is gone or refused: each act answers whether it was carried out, and what cannot be read is None.
"""

from __future__ import annotations

import os

__all__ = ["Group", "make_group", "parents"]

PREFIX = "cotenant-"
NEEDED = ("cgroup.freeze", "cgroup.events", "cgroup.procs")


def parents(proc: str = "/proc") -> list[str]:
    """Folders in which a child group may be tried: our own group in each cgroup2 mount, then the mount's root.

    The own group first: it is what a delegated unit may write to.
    """
    own = "/"
    try:
        with open(f"{proc}/self/cgroup", encoding="utf-8") as file:
            for line in file:
                if line.startswith("0::"):
                    own = line[3:].rstrip("\n")
        with open(f"{proc}/self/mountinfo", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        before, _, after = line.partition(" - ")
        if after.split(" ", 1)[0] != "cgroup2":
            continue
        fields = before.split(" ")
        root, mount = fields[3], fields[4].replace("\\040", " ")
        inside = own if root == "/" else own[len(root) :] if own.startswith(root) else ""
        for place in (os.path.normpath(mount + inside), mount):
            if place not in found and os.path.isdir(place):
                found.append(place)
    return found


def make_group(attempt_id: str, places: list[str]) -> Group | None:
    """A new group for this attempt in the first place that allows it; None where none does."""
    for place in places:
        path = os.path.join(place, PREFIX + attempt_id)
        try:
            os.mkdir(path, 0o700)
        except OSError:
            continue
        if all(os.path.exists(os.path.join(path, name)) for name in NEEDED):
            return Group(path, attempt_id)
        os.rmdir(path)
    return None


class Group:
    """The group at ``path``, which must be named after the attempt."""

    def __init__(self, path: str, attempt_id: str) -> None:
        if os.path.basename(path) != PREFIX + attempt_id or ".." in path.split("/"):
            raise ValueError(f"{path} is not the group of attempt {attempt_id}")
        self.path = path

    def _write(self, name: str, value: str, folder: str | None = None) -> bool:
        try:
            fd = os.open(os.path.join(folder or self.path, name), os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            os.write(fd, value.encode())
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def _events(self) -> dict[str, str]:
        try:
            with open(os.path.join(self.path, "cgroup.events"), encoding="ascii") as file:
                return dict(line.split() for line in file if len(line.split()) == 2)
        except OSError:
            return {}

    def add(self, pid: int) -> bool:
        """Move a process in (``0``: the caller)."""
        return self._write("cgroup.procs", str(pid))

    def freeze(self) -> bool:
        return self._write("cgroup.freeze", "1")

    @property
    def frozen(self) -> bool | None:
        """What the kernel says it has reached, not what was asked for."""
        value = self._events().get("frozen")
        return None if value is None else value == "1"

    @property
    def populated(self) -> bool | None:
        value = self._events().get("populated")
        return None if value is None else value == "1"

    def thaw(self) -> bool:
        """The whole subtree: a group inside that was frozen by itself would keep its processes from ending."""
        written = [self._write("cgroup.freeze", "0", folder) for folder in self._folders()]
        return all(written)

    def kill(self) -> bool:
        """SIGKILL to everything in it, new children too; False where the kernel has no such file (before 5.14)."""
        return self._write("cgroup.kill", "1")

    def pids(self) -> list[int]:
        """Of the whole subtree."""
        found = []
        for folder in self._folders():
            try:
                with open(os.path.join(folder, "cgroup.procs"), encoding="ascii") as file:
                    found += [int(line) for line in file]
            except (OSError, ValueError):
                continue
        return found

    def cpu_s(self) -> float | None:
        """CPU seconds of all that was ever in it or below, ended processes too, whoever collected them."""
        try:
            with open(os.path.join(self.path, "cpu.stat"), encoding="ascii") as file:
                facts = dict(line.split() for line in file if len(line.split()) == 2)
            return int(facts["usage_usec"]) / 1e6
        except (OSError, KeyError, ValueError):
            return None

    def set_idle(self, idle: bool) -> bool:
        """Lowest class against every other group, where the CPU controller is on: ``cpu.idle``, else the least ``cpu.weight``."""
        return self._write("cpu.idle", "1" if idle else "0") or self._write("cpu.weight", "1" if idle else "100")

    def set_tenth(self) -> bool:
        """A tenth of another group's turns, where the CPU controller is on."""
        return self._write("cpu.weight", "10")

    def remove(self) -> bool:
        """Deepest first; False while something is in it."""
        for folder in reversed(self._folders()):
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True

    def _folders(self) -> list[str]:
        """The group and every group below it, parents first."""
        return [folder for folder, _, _ in os.walk(self.path)]
