"""``cotenant sdk new``: a module that passes the kit, to be filled with work."""

from __future__ import annotations

import re
from pathlib import Path

from policies.refusal import Refused

__all__ = ["new_module"]

SOURCE = Path(__file__).with_name("skeleton")
_ID, _SHORT = "dev.example.skeleton", "skeleton"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*(\.[a-z0-9][a-z0-9_-]*)*")


def new_module(folder: Path, module_id: str | None = None) -> list[str]:
    """Write the skeleton's files into ``folder``; their relative paths.

    Args:
        module_id: default ``dev.example.`` and the folder's name.

    Raises:
        Refused: the folder holds something, or the id is none.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        why = "is no folder" if not folder.is_dir() else "is not empty"
        raise Refused("SDK_FOLDER_TAKEN", f"folder {folder}", why, "name a folder that does not exist yet")
    wanted = module_id or "dev.example." + re.sub(r"[^a-z0-9_-]+", "-", folder.resolve().name.lower()).strip("-_")
    if not _NAME.fullmatch(wanted) or len(wanted) > 200:
        why = "must be lower-case words joined by dots"
        raise Refused("SDK_BAD_ID", f"module id {wanted!r}", why, "give one with --id, such as dev.example.render")
    short = wanted.rsplit(".", 1)[-1]
    names = sorted(
        path.relative_to(SOURCE) for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )
    for name in names:
        text = (SOURCE / name).read_text(encoding="utf-8").replace(_ID, wanted)
        text = text.replace(f'"{_SHORT}/', f'"{short}/').replace(f'"{_SHORT}"', f'"{short}"')
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return [name.as_posix() for name in names]
