"""One open DRM file as the kernel describes it (``Documentation/gpu/drm-usage-stats.rst``). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["DrmFile", "parse_fdinfo"]

_BYTES = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_MEMORY = ("drm-resident-", "drm-memory-")


@dataclass(frozen=True, slots=True)
class DrmFile:
    """``pdev`` and ``client`` name whose time this is: descriptors that were duplicated or inherited share them.

    ``busy_ns``: nanoseconds by engine class; ``cycles``: (cycles, total cycles) by class; ``capacity``: how many engines a
    class has. ``memory_bytes``: by region; a driver may print it under an older and a newer name.
    """

    driver: str
    pdev: str
    client: int
    busy_ns: Mapping[str, int] = field(default_factory=dict)
    cycles: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    memory_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def metered(self) -> bool:
        return bool(self.busy_ns or self.cycles)


def parse_fdinfo(text: str, pdev: str = "") -> DrmFile | None:
    """None for a file that is no DRM client. ``pdev``: the device's address where the driver does not print it."""
    facts: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.startswith("drm-"):
            facts[key.strip()] = value.strip()
    client = _number(facts.get("drm-client-id"))
    if "drm-driver" not in facts or client is None:
        return None
    capacity = _numbers(facts, "drm-engine-capacity-")
    busy_ns = {name: ns for name, ns in _numbers(facts, "drm-engine-").items() if not name.startswith("capacity-")}
    total = _numbers(facts, "drm-total-cycles-")
    cycles = {name: (used, total[name]) for name, used in _numbers(facts, "drm-cycles-").items() if name in total}
    memory: dict[str, int] = {}
    for prefix in _MEMORY:
        for name, count in _numbers(facts, prefix).items():
            memory.setdefault(name, count)
    return DrmFile(facts["drm-driver"], facts.get("drm-pdev", pdev), client, busy_ns, cycles, capacity, memory)


def _number(text: str | None) -> int | None:
    words = (text or "").split()
    if not words or not words[0].isascii() or not words[0].isdigit() or len(words[0]) > 20:  # 64 bits
        return None
    return int(words[0]) * (_BYTES.get(words[1], 1) if len(words) > 1 else 1)


def _numbers(facts: Mapping[str, str], prefix: str) -> dict[str, int]:
    found = {}
    for key, text in facts.items():
        if key.startswith(prefix) and (number := _number(text)) is not None:
            found[key[len(prefix) :]] = number
    return found
