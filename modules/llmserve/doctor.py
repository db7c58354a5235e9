"""``doctor --json``: can this node run the module?"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any

import backends
import models
from standin import StandIn

CAPABILITIES = ["cancellable", "cooperative_pause", "cooperative_throttle", "progress_events", "resumable"]


def main() -> int:
    there = {name: backends.check(name) for name in backends.loadable()}
    checks = [_model(), _data()]
    healthy = all(check["ok"] for check in checks)
    json.dump(
        {
            "runner_protocol": {"supported": [1]},
            "health": "healthy" if healthy else "unhealthy",
            "capabilities": CAPABILITIES,
            "attrs": {
                "backends": [name for name, why in there.items() if not why],
                "backends_that_do_not_load": {name: why for name, why in there.items() if why},
                "models": models.listed(),
                "python": ".".join(map(str, sys.version_info[:3])),
            },
            "checks": checks,
        },
        sys.stdout,
    )
    print()
    return 0


def _model() -> dict[str, Any]:
    """The stand-in must say here what the golden fixture says everywhere."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "goldens", "selftest.json")
    try:
        with open(path, encoding="utf-8") as file:
            golden = json.load(file)
    except (OSError, ValueError) as error:
        return {"name": "golden", "ok": False, "detail": f"cannot be read: {error}"}
    payload, expected = golden["payload"], golden["result"]
    model = StandIn(payload["seed"])
    for character in payload["prompts"][0]:
        model.read(character)
    text = "".join(model.step() for _ in range(payload["max_tokens"]))
    right = text == expected["texts"][0]
    return {
        "name": "golden",
        "ok": right,
        "detail": hashlib.sha256(text.encode()).hexdigest()[:16] if right else repr(text),
    }


def _data() -> dict[str, Any]:
    folder = os.environ.get("OARBANK_MODULE_DATA", os.getcwd())
    ok = os.access(folder, os.W_OK)
    return {"name": "data folder", "ok": ok, "detail": folder if ok else f"{folder} cannot be written"}
