"""Bytes in, whole records out, whatever a program or its log rotation writes.

A record ends with LF, CRLF or a lone CR (progress bars write nothing else for hours). What has no end yet is held. The
time is linear in the bytes and the memory bounded by one record, for any input cut at any place.
"""

from __future__ import annotations

import re

__all__ = ["LineSplitter", "encoding_fault"]

MAX_RECORD_BYTES = 1024 * 1024
# A run of NULs this long is a hole that truncation under a non-appending writer left, not a damaged line.
HOLE_BYTES = 512

_UTF8_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
_UTF32_BOMS = (b"\xff\xfe\0\0", b"\0\0\xfe\xff")
_RUNS = re.compile(rb"\x00+|[^\x00]+")


def encoding_fault(head: bytes) -> str | None:
    """Why a file that begins with these bytes (4 are enough) cannot be read as UTF-8 lines, or None.

    UTF-16 and UTF-32 are told by their byte order mark, and UTF-16 of ASCII text also without one.
    """
    if head[:4] in _UTF32_BOMS:
        return "the file is UTF-32 (it begins with its byte order mark); only UTF-8 is read"
    if head[:2] in _UTF16_BOMS:
        return "the file is UTF-16 (it begins with its byte order mark); only UTF-8 is read"
    if len(head) >= 4 and not any(head[1:4:2]) and all(head[0:4:2]):
        return "the file looks like UTF-16 (every other byte is 0); only UTF-8 is read"
    if len(head) >= 4 and not any(head[0:4:2]) and all(head[1:4:2]):
        return "the file looks like UTF-16 (every other byte is 0); only UTF-8 is read"
    return None


class LineSplitter:
    """Splits a stream of bytes into records; empty records are left out.

    Args:
        at_start: the first byte fed is the first of the file (a byte order mark may stand there).
        mid_record: the stream is entered inside a record: what comes before the first record end is thrown away.

    Attributes:
        dropped_long: records over 1 MiB, thrown away up to their end.
        bad: records with a NUL inside.
        gaps: holes of NULs that were skipped.
        fault: why nothing can be read from this stream (UTF-16), or None.
    """

    def __init__(self, *, at_start: bool = True, mid_record: bool = False) -> None:
        self.dropped_long = 0
        self.bad = 0
        self.gaps = 0
        self.fault: str | None = None
        self._head: bytes | None = b"" if at_start else None  # first bytes, until a byte order mark is ruled out
        self._held = bytearray()
        self._nuls = 0  # NULs behind what is held; they join it only when something follows
        self._in_hole = False
        self._damaged = False  # what is held has a NUL inside
        self._dropping = mid_record
        self._after_cr = False

    @property
    def held_bytes(self) -> int:
        """Bytes of the record that has no end yet (0 while a long one is being dropped)."""
        return len(self._held) + self._nuls + len(self._head or b"")

    def feed(self, data: bytes) -> list[bytes]:
        """The records that ``data`` completes, in order, without their ends."""
        if self.fault is not None:
            return []
        if self._head is not None:
            data = self._past_mark(data)
        if not data:
            return []
        if self._after_cr:
            self._after_cr = False
            if data[:1] == b"\n":
                data = data[1:]
                if not data:
                    return []
        self._after_cr = data[-1:] == b"\r"
        if b"\0" not in data and len(data) <= MAX_RECORD_BYTES:
            return self._feed_plain(data)
        return self._feed_careful(data)

    def _past_mark(self, data: bytes) -> bytes:
        """Strips the mark at offset 0; holds back only bytes that may still be the beginning of one."""
        head = (self._head or b"") + data
        if head[:2] in _UTF16_BOMS or head[:4] in _UTF32_BOMS:
            self.fault = encoding_fault(head[:4])
            self._head = None
            return b""
        if any(mark.startswith(head) and mark != head for mark in (_UTF8_BOM, *_UTF16_BOMS, *_UTF32_BOMS)):
            self._head = head
            return b""
        self._head = None
        return head.removeprefix(_UTF8_BOM)

    def _feed_plain(self, data: bytes) -> list[bytes]:
        lines = data.splitlines()  # for bytes: LF, CR and CRLF only
        rest = b"" if data[-1] in b"\r\n" else lines.pop()
        records: list[bytes] = []
        if lines:
            if self._pending():
                self._extend(lines[0])
                self._end(records)
                del lines[0]
            else:
                self._in_hole = False
            records += filter(None, lines)
        if rest:
            self._extend(rest)
        return records

    def _feed_careful(self, data: bytes) -> list[bytes]:
        lines = data.splitlines()
        rest = b"" if data[-1] in b"\r\n" else lines.pop()
        records: list[bytes] = []
        for line in lines:
            self._extend(line)
            self._end(records)
        if rest:
            self._extend(rest)
        return records

    def _pending(self) -> bool:
        return bool(self._held) or self._dropping or self._nuls > 0

    def _extend(self, part: bytes) -> None:
        """Adds bytes without a record end to the record under way."""
        if self._dropping or not part:
            return
        if not self._nuls and b"\0" not in part:
            self._in_hole = False
            self._hold(part)
            return
        for run in _RUNS.findall(part):
            if run[0]:
                self._in_hole = False
                if self._nuls:
                    # stays small: a run that reaches HOLE_BYTES was made a hole below
                    run = b"\0" * self._nuls + run
                    self._nuls = 0
                    self._damaged = True
                self._hold(run)
                if self._dropping:
                    return
            elif self._in_hole:
                continue
            elif not self._held:
                self._in_hole = True
                self.gaps += 1
            else:
                self._nuls += len(run)
                if self._nuls >= HOLE_BYTES:
                    self.bad += 1
                    self.gaps += 1
                    self._clear()
                    self._in_hole = True

    def _hold(self, part: bytes) -> None:
        if len(self._held) + len(part) > MAX_RECORD_BYTES:
            self.dropped_long += 1
            self._clear()
            self._dropping = True
            return
        self._held += part

    def _end(self, records: list[bytes]) -> None:
        if self._dropping:
            self._dropping = False
        elif self._damaged or self._nuls:
            self.bad += 1
        elif self._held:
            records.append(bytes(self._held))
        self._clear()
        self._in_hole = False

    def _clear(self) -> None:
        self._held.clear()
        self._nuls = 0
        self._damaged = False
