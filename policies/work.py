"""Naming fleet work: ``gpu``, ``cpu``, ``all``, a module or ``MODULE/STAGE`` (short name or full id)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["CPU", "WorkSelector", "feed_parts"]

CPU: Final = "cpu"
"""The name of the CPU as duty device; other devices bear the names of GPUs."""


@dataclass(frozen=True, slots=True)
class WorkSelector:
    """``text`` as the owner wrote it. ``device`` work is what a duty is counted on (see ``node.duty_device``)."""

    text: str

    def selects(self, module: str, stage: str, *, device: bool) -> bool:
        """Whether work of ``module`` (full id) and ``stage`` is meant."""
        if self.text == "all":
            return True
        if self.text in ("gpu", "cpu"):
            return device if self.text == "gpu" else not device
        name, _, wanted_stage = self.text.partition("/")
        return name in (module, module.rpartition(".")[2]) and wanted_stage in ("", stage)

    @property
    def is_class(self) -> bool:
        return self.text in ("gpu", "cpu", "all")


def feed_parts(feed: str) -> tuple[str, str | None]:
    """What feeds a run: ``MODULE/STAGE``, and the model that ``MODULE/STAGE@MODEL`` names (None: none)."""
    work, names_one, model = feed.partition("@")
    return work, model if names_one else None
