"""The home's ``fleet.json``: the node's fleet, and on the server's machine the databases and the password."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["kept_from", "write"]


def kept_from(environ: Mapping[str, str]) -> dict[str, str]:
    """What the environment says about the fleet: a service has the units' environment, not the shell's."""
    from cotenant.settings import ENV_PREFIX, KEPT

    named = {name: environ.get(ENV_PREFIX + name.upper()) for name in KEPT if name != "node"}
    return {name: value for name, value in named.items() if value}


def write(target: Path, said: Mapping[str, Any], owner: tuple[int, int] | None = None) -> None:
    """Whole or not at all; it may hold passwords, so it is its account's alone.

    Args:
        owner: uid and gid of the account that is to have it, and the home where that is made now; None: who calls.
    """
    made = not target.parent.exists()
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = target.with_suffix(".new")
    draft.unlink(missing_ok=True)
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        json.dump(said, file, indent=1)
        if owner is not None:
            os.fchown(file.fileno(), *owner)
    os.replace(draft, target)
    if made and owner is not None:
        os.chown(target.parent, *owner)
