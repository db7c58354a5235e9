"""Text that every database, request and terminal takes: no half characters, no NULs.

A file name that is no UTF-8 comes to Python with half characters (surrogates) in it, and a program may write either into its log.
"""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["plain", "plain_json"]

# also finds the two halves of whole characters beyond the first plane, which ``plain`` leaves alone
_SUSPECT = re.compile(r"\\u(?:d[89a-f]|0000)")


def plain(value: Any) -> Any:
    """The same JSON value or text, with these written out: ``\\udce9``, ``\\x00``."""
    if isinstance(value, str):
        if value.isascii() and "\0" not in value:
            return value
        return value.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def plain_json(text: str) -> str:
    """The same for JSON as ``json.dumps`` writes it (ASCII alone); most of it is only looked through."""
    return json.dumps(plain(json.loads(text))) if _SUSPECT.search(text) else text
