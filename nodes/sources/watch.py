"""Tells the loop when a source may have changed: one inotify instance for the whole agent, or a check every 250 ms.

Events are hints. What is true is what ``stat`` says at each tick; a file that grows without an event (overlay, network
and bind mounts) is found there, and the 250 ms check takes over for it.

``fileno()`` is one epoll descriptor over the inotify instance and a timer, so a loop needs to wait for nothing else.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

try:
    import inotify_simple
except (ImportError, OSError):  # not Linux
    inotify_simple = None

if TYPE_CHECKING:
    from nodes.sources.lookout import Lookout

__all__ = ["POLL_S", "Timer", "Watch"]

POLL_S = 0.25
# IN_MODIFY | IN_ATTRIB | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR
_MASK = 0x2 | 0x4 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800 | 0x01000000
_MODIFY = 0x2
_OVERFLOW = 0x4000
_IGNORED = 0x8000
_SELF_GONE = 0x400 | 0x800


class _Itimerspec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Timer:
    """A Linux timer descriptor (``os.timerfd_create`` came with Python 3.13). Raises OSError where there is none."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "timerfd_create"):
            raise OSError(errno.ENOSYS, "no timer descriptors here")
        self._settime = libc.timerfd_settime
        self.fd: int = libc.timerfd_create(1, os.O_NONBLOCK | os.O_CLOEXEC)  # CLOCK_MONOTONIC
        if self.fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def set(self, first_s: float, every_s: float = 0.0) -> None:
        """Ready in ``first_s`` (never, if 0) and then every ``every_s``."""

        def parts(seconds: float) -> tuple[int, int]:
            return int(seconds), int(seconds % 1.0 * 1e9)

        spec = _Itimerspec(*parts(every_s), *parts(first_s))
        if self._settime(self.fd, 0, ctypes.byref(spec), None) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def clear(self) -> None:
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            pass

    def close(self) -> None:
        os.close(self.fd)


def _new_inotify() -> Any:
    if inotify_simple is None:
        raise OSError(errno.ENOSYS, "no inotify here")
    return inotify_simple.INotify(nonblocking=True)


class Watch:
    """Watches directories.

    Args:
        new_inotify: makes the inotify instance; raises OSError where there is none to be had.
    """

    def __init__(self, new_inotify: Callable[[], Any] = _new_inotify) -> None:
        self._wanted: set[str] = set()
        self._by_wd: dict[int, set[str]] = {}  # one directory may be reached by two names
        self._by_dir: dict[str, tuple[int, tuple[int, int]]] = {}
        self._failed: dict[str, str] = {}
        self._muted = False
        self._resting = False
        self._inotify: Any = None
        self._lookout: Lookout | None = None
        self._why_no_inotify = ""
        self._epoll = select.epoll()
        self._timer = Timer()
        self._armed = False
        self._epoll.register(self._timer.fd, select.EPOLLIN)
        try:
            self._inotify = new_inotify()
            self._epoll.register(self._inotify.fileno(), select.EPOLLIN)
        except OSError as error:
            self._why_no_inotify = _in_words(error)
        self._arm()

    def fileno(self) -> int:
        return self._epoll.fileno()

    def close(self) -> None:
        if self._lookout is not None:
            self._lookout.close()
        if self._inotify is not None:
            self._inotify.close()
        self._timer.close()
        self._epoll.close()

    def look_out(self, seen: Callable[[bytes], bool], begin: Callable[[], object]) -> bool:
        """From now on events are read in a thread (``lookout.py``), which calls ``seen`` before the loop hears of them.

        False where there is no inotify, or no descriptor left for it: the loop then reads, as before.
        """
        if self._inotify is None or self._lookout is not None:
            return False
        from nodes.sources.lookout import Lookout

        if self._resting:
            self._wake()
        try:
            self._lookout = Lookout(self._inotify, seen, begin)
        except (OSError, RuntimeError):
            os.set_blocking(self._inotify.fileno(), False)
            return False
        self._epoll.unregister(self._inotify.fileno())
        self._epoll.register(self._lookout.fileno(), select.EPOLLIN)
        return True

    @property
    def polls(self) -> bool:
        """Whether files are checked every 250 ms: no inotify (or nobody who reads it), watches exhausted, or a file system
        without events.
        """
        return self._inotify is None or self._unread or bool(self._failed) or self._muted

    @property
    def _unread(self) -> bool:
        return self._lookout is not None and not self._lookout.alive

    def describe(self) -> str:
        """How changes are seen, in words."""
        if self._inotify is None:
            return f"a check every 250 ms: {self._why_no_inotify}"
        if self._unread:
            return "a check every 250 ms: the thread that reads inotify has ended"
        if self._failed:
            where, why = next(iter(self._failed.items()))
            return f"inotify, and a check every 250 ms: {where} cannot be watched: {why}"
        if self._muted:
            return "inotify, and a check every 250 ms: files grew without an event"
        return "inotify"

    def how(self, dirs: Iterable[str]) -> str:
        """``inotify`` or ``poll`` for a source with these directories."""
        if self._inotify is None or self._unread or self._muted:
            return "poll"
        return "poll" if any(d in self._failed for d in dirs) else "inotify"

    def set_dirs(self, dirs: set[str]) -> bool:
        """Watches exactly these directories; one that was made anew under its old name is watched anew.

        Returns whether a directory is watched that was not before.
        """
        self._wanted = set(dirs)
        if self._inotify is None:
            return False
        before = dict(self._by_dir)
        for path in [known for known in self._by_dir if known not in self._wanted]:
            self._unwatch(path)
        self._failed = {path: why for path, why in self._failed.items() if path in self._wanted}
        for path in self._wanted:
            self._watch(path)
        if self.polls and not self._armed:
            self._arm()
        return any(before.get(path) != known for path, known in self._by_dir.items())

    def set_muted(self, muted: bool) -> None:
        """The hub found a file that grew without an event (or got events again)."""
        if muted != self._muted:
            self._muted = muted
            self._arm()

    def changed(self) -> tuple[dict[str, bool], bool]:
        """Paths that events named since the last call, and whether all files must be looked at.

        A path's value is False where its content changed only, True where another file may stand there now. All files
        must be looked at after an overflow, and when it is time for the 250 ms check.
        """
        if self._armed or self.polls:
            self._timer.clear()
            self._wake()
        everything = self.polls
        paths: dict[str, bool] = {}
        if self._inotify is None:
            return paths, everything
        if self._lookout is not None:
            events = self._lookout.take()
        else:
            try:
                events = list(self._inotify.read(timeout=0))
            except BlockingIOError:
                events = []
        for event in events:
            if event.mask & _OVERFLOW:
                everything = True
            names = self._by_wd.get(event.wd, set())
            if event.name:
                for where in names:
                    path = os.path.join(where, event.name)
                    paths[path] = paths.get(path, False) or event.mask != _MODIFY
                continue
            paths.update(dict.fromkeys(names, True))
            if event.mask & (_IGNORED | _SELF_GONE):
                for where in list(names):
                    self._unwatch(where)
        return paths, everything

    def rest(self, seconds: float) -> None:
        """Keeps events from waking the loop for a while; they are collected, and none is lost. A lookout rests by itself."""
        if self._inotify is not None and self._lookout is None and not self._resting and seconds > 0.0:
            self._epoll.unregister(self._inotify.fileno())
            self._resting = self._armed = True
            self._timer.set(seconds)

    def wake_soon(self) -> None:
        """Makes ``fileno()`` ready at once (there is more to read)."""
        if not self._resting:
            self._armed = True
            self._timer.set(1e-4, POLL_S if self.polls else 0.0)

    def _wake(self) -> None:
        if self._resting:
            self._resting = False
            self._epoll.register(self._inotify.fileno(), select.EPOLLIN)
        self._arm()

    def _arm(self) -> None:
        if not self._resting:
            self._armed = self.polls
            self._timer.set(POLL_S, POLL_S) if self.polls else self._timer.set(0.0)

    def _watch(self, path: str) -> None:
        try:
            info = os.stat(path)
        except OSError:
            self._unwatch(path)
            return
        key = (info.st_dev, info.st_ino)
        known = self._by_dir.get(path)
        if known is not None:
            if known[1] == key:
                return
            self._unwatch(path)
        try:
            wd = self._inotify.add_watch(path, _MASK)
        except OSError as error:
            # a directory that may not be read cannot be watched; its sources are unreadable and say so themselves
            if error.errno not in (errno.EACCES, errno.ENOENT, errno.ENOTDIR):
                self._failed[path] = _in_words(error)
            return
        self._failed.pop(path, None)
        self._by_wd.setdefault(wd, set()).add(path)
        self._by_dir[path] = (wd, key)

    def _unwatch(self, path: str) -> None:
        known = self._by_dir.pop(path, None)
        if known is None:
            return
        names = self._by_wd.get(known[0], set())
        names.discard(path)
        if not names:
            self._by_wd.pop(known[0], None)
            try:
                self._inotify.rm_watch(known[0])
            except OSError:
                pass  # the kernel took it away with the directory


def _in_words(error: OSError) -> str:
    """The kernel's own words for exhausted limits mislead ("no space left on device"): name the limit instead."""
    if error.errno == errno.ENOSPC:
        return "inotify watches are exhausted; raise the limit: sysctl -w fs.inotify.max_user_watches=524288"
    if error.errno == errno.EMFILE:
        return "inotify instances are exhausted; raise the limit: sysctl -w fs.inotify.max_user_instances=1024"
    return os.strerror(error.errno) if error.errno else str(error)
