"""Room on the disk for what one block measured, taken before it begins: it is written there where the journal takes nothing.

A disk that is full takes no new bytes, but bytes that it has already may be written over. So the row of a block that ended while
the disk was full outlives the agent; the next one finds it. (A file system that copies on write may refuse this, too: then
the row is only as safe as the agent's memory, and its certificates wait all the same for as long as it lives.)
"""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

from policies.harness.rows import BlockRow

__all__ = ["Reserve"]

log = logging.getLogger(__name__)

SIZE_BYTES = 256 << 10
DIGEST_CHARS = 64


class Reserve:
    """One file in the node's home, for the newest block alone."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def take(self) -> None:
        """Empty, and as large as any row. Raises ``OSError`` where there is no room for it."""
        self._write(b"")

    def put(self, row: BlockRow) -> bool:
        """Write the row over what was taken; whether it is on the disk."""
        text = row.model_dump_json().encode()
        if DIGEST_CHARS + len(text) > SIZE_BYTES:
            log.error("block %d of run %s is too large for its reserve", row.number, row.run)
            return False
        try:
            self._write(hashlib.sha256(text).hexdigest().encode() + text)
        except OSError as error:
            log.error("block %d of run %s cannot be kept in its reserve either: %s", row.number, row.run, error)
            return False
        return True

    def row(self) -> BlockRow | None:
        """What was put there whole; None: nothing, or nothing whole."""
        try:
            found = self.path.read_bytes().rstrip(b" ")
            digest, text = found[:DIGEST_CHARS], found[DIGEST_CHARS:]
            if not text or hashlib.sha256(text).hexdigest().encode() != digest:
                return None
            return BlockRow.model_validate_json(text)
        except (OSError, ValueError):
            return None

    def _write(self, content: bytes) -> None:
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "r+b", buffering=0) as file:
            # written out: a hole, or room only promised, would still need some
            left = memoryview(content.ljust(SIZE_BYTES))
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
