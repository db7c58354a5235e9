"""Follows the newest file of a pattern: what was appended since the last look, whatever rotation does in between.

Contract: each whole line is delivered once and in order. A reading says when lines may be missing (``lost``), when the
file is another program run's (``replaced``), and why nothing can be read. No call blocks, and none reads more than
``MAX_READ_BYTES`` of new data.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field

from nodes.sources import matching
from nodes.sources.reader import FileReader, Start
from nodes.sources.rights import may_read
from nodes.sources.unreadable import Unreadable, because_denied, because_failed, because_missing, because_odd

__all__ = ["Follower", "Reading"]

MAX_READ_BYTES = 1024 * 1024
# A path may be missing for a moment while something replaces it; longer than this is deleted.
MISSING_GRACE_S = 2.0
# After a move-and-create rotation the writer may go on in the old file until it is told to reopen.
LINGER_S = 60.0
# More than this at once in a file that appears is history that was moved here, not what a program just wrote.
MAX_FIRST_READ_BYTES = 16 * 1024 * 1024
MAX_KNOWN = 20_000


@dataclass(slots=True)
class Reading:
    """What one look brought.

    Attributes:
        records: new whole records.
        ended: with ``replaced``, the last records of the file before.
        history: records before the place where reading began (at most 1 MiB), given once per file that was not read
            from its top; ``history_whole`` says that they reach back to its beginning.
        lost: records between the last ones and these may be missing.
        replaced: this is another file, not the old one rotated; its counters and phases begin anew.
        behind: there is more to read at once.
        mtime_s: the file's modification time (wall clock), None without a file.
        unreadable: why the source cannot be read, or None.
    """

    records: list[bytes] = field(default_factory=list)
    ended: list[bytes] = field(default_factory=list)
    history: list[bytes] | None = None
    history_whole: bool = False
    lost: bool = False
    replaced: bool = False
    behind: bool = False
    mtime_s: float | None = None
    unreadable: Unreadable | None = None


class Follower:
    """One source's file. Not thread-safe; ``close`` gives its descriptors back."""

    def __init__(
        self,
        pattern: str,
        *,
        owner_home: str | None = None,
        owner_uid: int | None = None,
        helper_socket: str | None = None,
    ) -> None:
        self.pattern = pattern
        self.dirs: set[str] = set()
        self._owner_home = owner_home
        # root reads everything, and a section's owner does not: see ``rights``
        self._reader_uid = owner_uid if owner_uid not in (None, 0) and os.geteuid() == 0 else None
        self._helper_socket = helper_socket
        self._now: FileReader | None = None
        self._real_path: str | None = None
        self._old: list[tuple[FileReader, float]] = []
        self._known: dict[tuple[int, int], Start] = {}
        self._began = False  # what was there at the first look is history; what appears later is read from its top
        self._gap = False  # a stretch went unread
        self._missing_since_s: float | None = None
        self._closed_counts = {"dropped_long": 0, "bad": 0, "gaps": 0}

    @property
    def path(self) -> str | None:
        """The file being followed."""
        return self._now.path if self._now is not None else None

    @property
    def reader(self) -> FileReader | None:
        """That file, open."""
        return self._now

    @property
    def real_path(self) -> str | None:
        """Where that file lies once links are followed."""
        return self._real_path

    def look_back(self) -> tuple[list[bytes], bool]:
        """The records before the place of reading, at most 1 MiB, and whether those are all."""
        return self._now.look_back() if self._now is not None else ([], True)

    @property
    def damage(self) -> dict[str, int]:
        """Lines that were too long, held NULs, and holes that were skipped, over all files so far."""
        counts = dict(self._closed_counts)
        for reader in (*([self._now] if self._now else ()), *(reader for reader, _ in self._old)):
            for name in counts:
                counts[name] += getattr(reader.splitter, name)
        return counts

    def close(self) -> None:
        for reader, _ in self._old:
            reader.close()
        self._old.clear()
        if self._now is not None:
            self._now.close()
            self._now = None

    def poll(self, now_s: float, *, rescan: bool = True) -> Reading:
        """What is new. ``rescan``: look for a newer file first; without, only the files in hand are read."""
        reading = Reading()
        trouble = self._choose(now_s, reading) if rescan else None
        left = MAX_READ_BYTES
        for reader, until_s in list(self._old):
            left -= self._take(reader, reading, left)
            if now_s >= until_s:
                self._retire(reader)
                self._old = [(kept, until) for kept, until in self._old if kept is not reader]
        if self._now is not None:
            grown = self._take(self._now, reading, max(left, 64 * 1024))
            reading.mtime_s = self._now.mtime_s
            if grown and self._missing_since_s is not None:
                self._missing_since_s = now_s  # renamed away, but still being written
            if self._now.fault is not None:
                trouble = self._now.fault
            elif trouble is None and self._missing_since_s is not None:
                trouble = self._missing(now_s)
        elif trouble is None and not rescan:
            trouble = because_missing(self.pattern)
        if trouble is not None:
            reading.unreadable = trouble
        return reading

    # -- which file

    def _choose(self, now_s: float, reading: Reading) -> Unreadable | None:
        found = matching.find(self.pattern)
        self.dirs = found.dirs
        self._forget_gone(found)
        newest = found.newest()
        if self._began:
            self._mark_copies(found)
            newest = self._newest_own(found)
        else:
            for file in found.files:
                self._known[file.key] = Start(file.size, mid_file=True)
            self._began = not found.denied
        if newest is None:
            if self._now is not None and not found.denied and not found.odd:
                if self._missing_since_s is None:
                    self._missing_since_s = now_s
                return None
            self._drop_current()
            self._missing_since_s = None
            if found.denied:
                return because_denied(found.denied[0], self._owner_home, self._helper_socket)
            if found.odd:
                return because_odd(*found.odd[0])
            return because_failed(found.failed[0]) if found.failed else because_missing(self.pattern)
        self._missing_since_s = None
        if self._now is not None and newest.key == self._now.key:
            self._now.path = newest.path
            self._real_path = newest.real
            return None
        return self._switch(newest, now_s, reading)

    def _missing(self, now_s: float) -> Unreadable | None:
        since = self._missing_since_s
        if since is None or now_s - since < MISSING_GRACE_S or self._now is None:
            return None
        return because_missing(self.pattern, was=self._now.path)

    def _forget_gone(self, found: matching.Found) -> None:
        """Inodes are used again: a place remembered for a file that is gone must not be taken for another's."""
        here = {file.key for file in found.files}
        if self._began:
            self._known = {key: start for key, start in self._known.items() if key in here}
        if len(self._known) > MAX_KNOWN:
            self._known.clear()

    def _mark_copies(self, found: matching.Found) -> None:
        """A dated file that holds all that was read of the current one is its rotated copy, not another run's file."""
        if self._now is None or all(file.key != self._now.key for file in found.files):
            return
        for file in found.files:
            if (
                file.key not in self._known
                and matching.may_be_dated_copy(file.path, self._now.path)
                and self._now.is_copied_in(file.path)
            ):
                self._known[file.key] = Start(file.size, mid_file=True, copy_of=self._now.key)

    def _newest_own(self, found: matching.Found) -> matching.Candidate | None:
        keys = {file.key for file in found.files}
        own = [
            file
            for file in found.files
            if (start := self._known.get(file.key)) is None
            or start.copy_of is None
            or start.copy_of not in keys
            or file.size > start.offset  # it grows by itself: a source after all
        ]
        return matching.Found(files=own).newest()

    def _switch(self, file: matching.Candidate, now_s: float, reading: Reading) -> Unreadable | None:
        old = self._now
        rotated = old is not None and old.path == file.path
        try:
            fresh = FileReader.open(file.path)
        except PermissionError:
            self._drop_current()
            self._known.setdefault(file.key, Start(file.size, mid_file=True))
            return because_denied(file.path, self._owner_home, self._helper_socket)
        except OSError as error:
            return because_failed(f"{file.path}: {error.strerror}")
        if self._reader_uid is not None and not may_read(fresh.fd, self._reader_uid):
            fresh.close()
            self._drop_current()
            return because_denied(file.path, self._owner_home, self._helper_socket, self._reader_uid)
        back = next((reader for reader, _ in self._old if reader.key == fresh.key), None)
        if back is not None and old is not None:
            # a link that was set back, or a name: this file is still in hand
            fresh.close()
            back.path = file.path
            self._old = [(old, now_s + LINGER_S), *((kept, until) for kept, until in self._old if kept is not back)]
            self._now, self._real_path = back, os.path.realpath(file.path)
            return None
        info = os.fstat(fresh.fd)
        if not stat.S_ISREG(info.st_mode):
            fresh.close()
            self._drop_current()
            return because_odd(file.path, "no regular file")
        start = self._known.get(fresh.key, Start(0))
        continued = None
        if old is not None:
            continued = old.continued_in(fresh) if rotated else None
            reading.lost |= self._let_go(old, rotated and continued is None, now_s, reading)
            reading.replaced = not rotated
            if reading.replaced:
                reading.ended, reading.records = reading.records, []
        if continued is not None:
            fresh.resume(continued)
        else:
            if info.st_size - start.offset > MAX_FIRST_READ_BYTES:
                start = Start(info.st_size, mid_file=True)
            reading.history, reading.history_whole = fresh.begin(start)
            reading.lost |= self._gap or (start.mid_file and reading.replaced)
        self._gap = False
        self._now = fresh
        self._real_path = os.path.realpath(fresh.path)
        return None

    def _let_go(self, old: FileReader, linger: bool, now_s: float, reading: Reading) -> bool:
        """Drains the old file first. Returns whether something of it stays unread."""
        self._take(old, reading, MAX_READ_BYTES)
        unread = reading.behind
        if linger:
            self._old.append((old, now_s + LINGER_S))
            for reader, _ in self._old[:-4]:
                self._retire(reader)
            self._old = self._old[-4:]
            return False
        self._known[old.key] = old.place()
        self._retire(old)
        return unread

    def _drop_current(self) -> None:
        if self._now is not None:
            self._known[self._now.key] = self._now.place()
            self._retire(self._now)
            self._now = None
            self._gap = True

    def _retire(self, reader: FileReader) -> None:
        for name in self._closed_counts:
            self._closed_counts[name] += getattr(reader.splitter, name)
        reader.close()

    # -- what it says

    def _take(self, reader: FileReader, reading: Reading, limit: int) -> int:
        before = reader.restarts
        records, taken = reader.read_new(limit)
        reading.records += records
        reading.lost |= reader.restarts > before
        reading.behind |= reader.behind
        return taken
