"""One open file: what was appended to it since the last look, and whether it is still the same content."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from nodes.sources.unreadable import Unreadable, because_failed, because_fault
from policies.sources.splitter import LineSplitter, encoding_fault

__all__ = ["FileReader", "Start"]

SCAN_BACK_BYTES = 1024 * 1024
PIECE_BYTES = 256 * 1024
# This much before the place of reading is compared at each read: a file that was truncated and grew past it between two
# looks, or written anew in place, differs there.
TAIL_BYTES = 64
HEAD_BYTES = 256
HOLE_BYTES = 64 * 1024
MIRROR_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin in a file.

    Attributes:
        offset: at most here; reading begins behind the last record end before it.
        mid_file: what lies before was there already: it is history.
        tail: the bytes before ``offset``, where they are known; other bytes there mean other content.
        copy_of: the file of which this one is a rotated copy.
    """

    offset: int
    mid_file: bool = False
    tail: bytes = b""
    copy_of: tuple[int, int] | None = None


class FileReader:
    """Reads an open regular file forward. ``restarts`` counts how often it had to begin again at the top."""

    def __init__(self, path: str, fd: int) -> None:
        info = os.fstat(fd)
        self.path = path
        self.fd = fd
        self.key = (info.st_dev, info.st_ino)
        self.restarts = 0
        self.behind = False
        self.fault: Unreadable | None = None
        self.mtime_s = info.st_mtime_ns / 1e9
        self.splitter = LineSplitter()
        self._mtime_ns = -1
        self._pos = 0
        self._tail = b""

    @classmethod
    def open(cls, path: str) -> FileReader:
        """Opens without ever waiting (a FIFO would) and without becoming a terminal's process. Raises OSError."""
        return cls(path, os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY))

    def close(self) -> None:
        os.close(self.fd)

    def begin(self, start: Start) -> tuple[list[bytes] | None, bool]:
        """Places the reader; returns the records before that place (at most 1 MiB back) and whether those are all.

        Of a file read from its top there are none: (None, True).
        """
        size = os.fstat(self.fd).st_size
        offset = min(start.offset, size)
        tail_at = max(start.offset - len(start.tail), 0)
        same = start.offset <= size and os.pread(self.fd, len(start.tail), tail_at) == start.tail
        if offset == 0 or not same:
            self._place(0)
            return None, True
        low, ended, records = self._back_from(offset)
        if ended == low > 0:
            self._place(offset, mid_record=True)
            return [], False
        self._place(ended)
        self._check_encoding(os.pread(self.fd, 4, 0))
        return records, low == 0

    def look_back(self) -> tuple[list[bytes], bool]:
        """The records before the place of reading, at most 1 MiB back, and whether those are all."""
        low, _, records = self._back_from(self._pos)
        return records, low == 0

    def _back_from(self, offset: int) -> tuple[int, int, list[bytes]]:
        """Where the scan back began, where the last record before ``offset`` ends, and the records between."""
        low = max(0, offset - SCAN_BACK_BYTES)
        back = self._pread_all(low, offset - low)
        ended = max(back.rfind(b"\n"), back.rfind(b"\r")) + 1
        splitter = LineSplitter(at_start=low == 0, mid_record=low > 0)
        return low, low + ended, splitter.feed(back[:ended])

    @property
    def line_at(self) -> int:
        """Where the line begins that has no end yet: what comes from there on has not been told."""
        return self._pos - self.splitter.held_bytes

    def place(self) -> Start:
        """Where to go on if this file is opened again: at the record that has no end yet."""
        offset = self.line_at
        tail = os.pread(self.fd, min(TAIL_BYTES, offset), max(offset - TAIL_BYTES, 0)) if offset else b""
        return Start(offset, mid_file=True, tail=tail)

    def resume(self, other: FileReader) -> None:
        """Goes on in this file where ``other`` stands in its own, record under way included."""
        self.splitter = other.splitter
        other.splitter = LineSplitter()
        self._pos, self._tail = other._pos, other._tail

    def continued_in(self, fresh: FileReader) -> FileReader | None:
        """This reader, if ``fresh`` holds the same bytes up to here: a mirrored file, replaced by a longer copy.

        Not for short files: a program's new file may well begin with the same few lines.
        """
        return self if self._pos >= MIRROR_BYTES and self._same_up_to_here(fresh.fd) else None

    def is_copied_in(self, path: str) -> bool:
        """Whether the file at ``path`` holds the same bytes up to where this one was read."""
        if self._pos < 1:
            return False
        try:
            other = FileReader.open(path)
        except OSError:
            return False
        try:
            return self._same_up_to_here(other.fd)
        finally:
            other.close()

    def read_new(self, limit: int) -> tuple[list[bytes], int]:
        """New records and how many bytes were taken for them, at most ``limit``."""
        try:
            return self._read_new(max(limit, 4096))
        except OSError as error:
            self.fault = because_failed(f"{self.path}: {error.strerror}")
            return [], 0

    def _read_new(self, limit: int) -> tuple[list[bytes], int]:
        info = os.fstat(self.fd)
        self.mtime_s = info.st_mtime_ns / 1e9
        size = info.st_size
        self.behind = False
        if size == self._pos and info.st_mtime_ns == self._mtime_ns:
            return [], 0
        self._mtime_ns = info.st_mtime_ns
        if size < self._pos:
            self._restart()
        data = self._ahead(min(size - self._pos, limit))
        if data is None:
            self._restart()
            data = self._ahead(min(size, limit)) or b""
        if self._pos == 0:
            self._check_encoding(data[:4])
        self._pos += len(data)
        self._tail = (self._tail + data[-TAIL_BYTES:])[-TAIL_BYTES:]
        self.behind = self._pos < size and bool(data)
        records: list[bytes] = []
        for low in range(0, len(data), PIECE_BYTES):
            records += self.splitter.feed(data[low : low + PIECE_BYTES])
        self._skip_hole(data, size)
        if self.splitter.fault is not None:
            self.fault = because_fault(self.path, self.splitter.fault)
        return records, len(data)

    def _ahead(self, want: int) -> bytes | None:
        """The next bytes; None when what lies before them is no longer what was read."""
        known = len(self._tail)
        data = self._pread_all(self._pos - known, known + want)
        return data[known:] if data[:known] == self._tail else None

    def _pread_all(self, offset: int, size: int) -> bytes:
        data = os.pread(self.fd, size, offset)
        while 0 < len(data) < size:
            more = os.pread(self.fd, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def _skip_hole(self, data: bytes, size: int) -> None:
        """Jumps over a hole that a non-appending writer left behind a truncation: it may be larger than the disk."""
        if not data or data[-1] != 0 or size - self._pos < HOLE_BYTES:
            return
        try:
            there = os.lseek(self.fd, self._pos, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # no SEEK_DATA here: the hole is read like any other bytes
                return
            there = size
        if there > self._pos + HOLE_BYTES:
            self.splitter.feed(b"\0" * HOLE_BYTES)
            self._pos = there - TAIL_BYTES
            self._tail = b"\0" * TAIL_BYTES

    def _same_up_to_here(self, fd: int) -> bool:
        head = os.pread(self.fd, min(HEAD_BYTES, self._pos), 0)
        return (
            os.pread(fd, len(head), 0) == head
            and os.fstat(fd).st_size >= self._pos
            and os.pread(fd, len(self._tail), self._pos - len(self._tail)) == self._tail
        )

    def _restart(self) -> None:
        self.restarts += 1
        self.fault = None
        splitter = self.splitter
        self._place(0)
        self.splitter.dropped_long, self.splitter.bad = splitter.dropped_long, splitter.bad
        self.splitter.gaps = splitter.gaps

    def _place(self, offset: int, *, mid_record: bool = False) -> None:
        self.splitter = LineSplitter(at_start=offset == 0, mid_record=mid_record)
        self._pos = offset
        self._tail = os.pread(self.fd, min(TAIL_BYTES, offset), max(offset - TAIL_BYTES, 0)) if offset else b""
        self._mtime_ns = -1

    def _check_encoding(self, head: bytes) -> None:
        if (why := encoding_fault(head)) is not None:
            self.fault = because_fault(self.path, why)
