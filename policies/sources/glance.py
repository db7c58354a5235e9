"""What new bytes of a file say of a phase, before anybody has accounted for them."""

from __future__ import annotations

from policies.sources.meaning import PhaseMeaning, PhaseState

__all__ = ["newest_state"]

# A reader of JSON goes one call deeper for each bracket. Who glances may have a small stack, and a line of brackets that runs over it
# would end the process.
BRACKETS_AT_MOST = 64


def newest_state(data: bytes, meaning: PhaseMeaning) -> tuple[PhaseState | None, int]:
    """The state that the newest whole line of ``data`` with a word on the phase tells (None: no line does), and the bytes of
    the whole lines.

    ``data`` begins at a line. Only LF ends one here: what ends otherwise, and what may be nested deeply, is left to whoever reads
    the file in full.
    """
    whole = data.rfind(b"\n") + 1
    if not whole:
        return None, 0
    changes = meaning.read_all([line for line in data[:whole].splitlines() if _flat(line)])
    return (changes[-1].state if changes else None), whole


def _flat(line: bytes) -> bool:
    return line.count(b"[") + line.count(b"{") <= BRACKETS_AT_MOST
