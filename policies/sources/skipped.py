"""Records of a source that said nothing because they could not be read, by reason."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Skipped"]


@dataclass(slots=True)
class Skipped:
    """Records that said nothing because they could not be read, by reason."""

    no_utf8: int = 0
    no_json: int = 0
    no_object: int = 0
    no_number: int = 0
    no_time: int = 0
    too_long: int = 0

    @property
    def total(self) -> int:
        return self.no_utf8 + self.no_json + self.no_object + self.no_number + self.too_long

    def as_dict(self) -> dict[str, int]:
        names = ("no_utf8", "no_json", "no_object", "no_number", "no_time", "too_long")
        return {name: count for name in names if (count := getattr(self, name))}
