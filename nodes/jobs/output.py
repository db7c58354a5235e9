"""One of a runner's output streams, as its launcher keeps it. Standard library only, loaded by its path (``launcher.py``)."""

from __future__ import annotations

import os

__all__ = ["Output"]


class Output:
    """The first ``limit`` bytes go to a file, the rest is read and dropped.

    Attributes:
        write_fd: the runner's end, closed here once the runner has it.
        read_fd: -1 once every writer has closed.
    """

    def __init__(self, path: str, limit: int) -> None:
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._left = limit

    def pump(self) -> None:
        """Move what is there."""
        while self.read_fd >= 0:
            try:
                data = os.read(self.read_fd, 65536)
            except BlockingIOError:
                return
            if not data:
                os.close(self.read_fd)
                self.read_fd = -1
            keep = data[: self._left]
            self._left -= len(keep)
            try:
                if keep:
                    os.write(self._file, keep)
            except OSError:
                # a full disk costs the log, not the attempt
                self._left = 0
