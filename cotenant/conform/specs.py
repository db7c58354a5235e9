"""``conformance.json``: tasks that run long enough to measure a duty, ``{"duty_specs": [{name, stage, duty, window_s, payload}]}``."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from policies.manifest import Manifest

__all__ = ["DutySpec", "SpecError", "read_specs"]

FILE = "conformance.json"
WINDOW_MAX_S = 600.0


class SpecError(ValueError):
    """A file that cannot be used, and why."""


@dataclass(frozen=True, slots=True)
class DutySpec:
    name: str
    stage: str
    duty: float
    window_s: float
    payload: Any


def read_specs(bundle: Path, manifest: Manifest) -> list[DutySpec]:
    """The duty specs of a bundle; none where it has no such file.

    Raises:
        SpecError: naming the entry and its fault.
    """
    path = bundle / FILE
    if not path.exists():
        return []
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot be read: {error}") from None
    items = raw.get("duty_specs") if isinstance(raw, dict) else None
    if not isinstance(items, list):
        raise SpecError("duty_specs is no list")
    specs = [_spec(number, item, manifest) for number, item in enumerate(items)]
    names = [spec.name for spec in specs]
    if len(set(names)) < len(names):
        raise SpecError("two duty specs have the same name")
    return specs


def _spec(number: int, item: Any, manifest: Manifest) -> DutySpec:
    at = f"duty_specs[{number}]"
    if not isinstance(item, dict):
        raise SpecError(f"{at} is no object")
    name = item.get("name", f"spec {number}")
    stage = manifest.stage(item.get("stage"))
    if not isinstance(name, str) or not name:
        raise SpecError(f"{at}.name is no text")
    if stage is None:
        raise SpecError(f"{at}.stage: the manifest has no stage {item.get('stage')!r}")
    duty, window_s = item.get("duty"), item.get("window_s", 4.0)
    if not _number(duty) or not 0.0 < duty < 1.0:
        raise SpecError(f"{at}.duty is a number between 0 and 1, not {duty!r}")
    if not _number(window_s) or not 0.0 < window_s <= WINDOW_MAX_S:
        raise SpecError(f"{at}.window_s is a number of seconds up to {WINDOW_MAX_S:g}, not {window_s!r}")
    if "payload" not in item:
        raise SpecError(f"{at} has no payload")
    return DutySpec(name, stage.name, float(duty), float(window_s), item["payload"])


def _number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
