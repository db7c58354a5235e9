"""Golden fixtures: a payload and what it must give. ``{"name", "stage", "payload", "result"}``.

``[results].digest.over`` of the manifest names the keys of the result's payload that count; all of them where it names none.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodes.jobs.workdir import canonical
from policies.manifest import Manifest

__all__ = ["Golden", "GoldenError", "difference", "digest", "read_goldens"]

TOLERANCE = 1e-6


class GoldenError(ValueError):
    """A fixture that cannot be used, and why."""


@dataclass(frozen=True, slots=True)
class Golden:
    name: str
    stage: str
    payload: Any
    result: Mapping[str, Any]


def read_goldens(bundle: Path, manifest: Manifest) -> list[Golden]:
    """The fixtures that the manifest names, in its order.

    Raises:
        GoldenError: one is missing or malformed.
    """
    found = []
    for name in manifest.goldens.fixtures:
        path = bundle / name
        if not path.resolve().is_relative_to(bundle.resolve()):
            raise GoldenError(f"{name} leaves the bundle")
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise GoldenError(f"{name} cannot be read: {error}") from None
        if not isinstance(raw, dict) or not isinstance(raw.get("result"), dict) or "payload" not in raw:
            raise GoldenError(f"{name} holds no payload and result object")
        wanted = manifest.stage(raw.get("stage"))
        if wanted is None:
            raise GoldenError(f"{name} is for stage {raw.get('stage')!r}, which the manifest does not have")
        found.append(Golden(str(raw.get("name", name)), wanted.name, raw["payload"], raw["result"]))
    return found


def counted(payload: Mapping[str, Any], manifest: Manifest) -> dict[str, Any]:
    """The part of a result's payload that the digest is over."""
    over = (manifest.results.digest or {}).get("over") or sorted(payload)
    return {key: payload.get(key) for key in over}


def digest(payload: Mapping[str, Any], manifest: Manifest) -> str:
    """sha256 of the canonical JSON of what counts."""
    return hashlib.sha256(canonical(counted(payload, manifest)).encode()).hexdigest()


def difference(expected: Mapping[str, Any], got: Any, manifest: Manifest, *, exact: bool) -> str | None:
    """Where a result departs from its golden; None: it compares."""
    if not isinstance(got, Mapping):
        return "the result's payload is no object"
    tolerance = 0.0 if exact else _tolerance(manifest)
    return _apart(counted(expected, manifest), counted(got, manifest), tolerance, "payload")


def _tolerance(manifest: Manifest) -> float:
    given = (manifest.results.model_extra or {}).get("tolerance")
    return float(given) if isinstance(given, (int, float)) and not isinstance(given, bool) else TOLERANCE


def _apart(expected: Any, got: Any, tolerance: float, at: str) -> str | None:
    if isinstance(expected, dict) and isinstance(got, dict):
        if set(expected) != set(got):
            return f"{at}: other keys ({', '.join(sorted(set(expected) ^ set(got)))})"
        pairs = [(f"{at}.{key}", expected[key], got[key]) for key in expected]
    elif isinstance(expected, list) and isinstance(got, list):
        if len(expected) != len(got):
            return f"{at}: {len(got)} items, not {len(expected)}"
        pairs = [(f"{at}[{i}]", expected[i], got[i]) for i in range(len(expected))]
    elif tolerance and _number(expected) and _number(got):
        close = math.isclose(expected, got, rel_tol=tolerance, abs_tol=tolerance)
        return None if close else f"{at}: {got!r}, not {expected!r} within {tolerance:g}"
    else:
        same = type(expected) is type(got) and expected == got
        return None if same else f"{at}: {_short(got)}, not {_short(expected)}"
    return next((found for name, a, b in pairs if (found := _apart(a, b, tolerance, name)) is not None), None)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
