"""Where each key of a TOML text stands: path -> line.

``tomllib`` gives values without positions, and an error that names no line is no help in a long file. This scanner
walks a text that ``tomllib`` has accepted (so it checks nothing) and notes the line of every table, key, array entry
and inline table. Paths are those of the parsed value: ``("rule", 0, "during", 1, "source", "field")``.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["Path", "TooDeep", "line_of", "locate"]

Path = tuple[str | int, ...]

MAX_DEPTH = 32
_BARE_END = frozenset(" \t\n=.]")
_SCALAR_END = frozenset(",]}#\n")
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}


class TooDeep(ValueError):
    """Arrays or inline tables nested beyond any that a section has."""


def locate(text: str) -> dict[Path, int]:
    """Line (from 1) of every path in ``text``, which must be valid TOML. Raises ``TooDeep``."""
    scanner = _Scanner(text.replace("\r\n", "\n"))
    scanner.document()
    return scanner.lines


def line_of(lines: Mapping[Path, int], path: Path) -> int:
    """The line of ``path``, or of the nearest table around it where it is not written itself; 1 for the document."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


class _Scanner:
    """One pass over the text. ``at`` only moves forward, and ``line`` with it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1
        self.lines: dict[Path, int] = {}
        self.array_lengths: dict[Path, int] = {}

    def document(self) -> None:
        prefix: Path = ()
        while self._skip_blank():
            if self.text[self.at] == "[":
                prefix = self._header()
            else:
                self._pair(prefix, 0)

    def _header(self) -> Path:
        """``[a.b]`` or ``[[a.b]]``: the path of the table that it opens, with the index of each array of tables."""
        line = self.line
        is_array = self.text.startswith("[[", self.at)
        self.at += 2 if is_array else 1
        keys = self._key()
        self.at += 2 if is_array else 1
        path: Path = ()
        for key in keys[:-1]:
            path = (*path, key)
            self.lines.setdefault(path, line)
            if path in self.array_lengths:
                path = (*path, self.array_lengths[path] - 1)
        path = (*path, keys[-1])
        self.lines.setdefault(path, line)
        if is_array:
            index = self.array_lengths.get(path, 0)
            self.array_lengths[path] = index + 1
            path = (*path, index)
            self.lines[path] = line
        return path

    def _pair(self, prefix: Path, depth: int) -> None:
        line = self.line
        keys = self._key()
        path = prefix
        for key in keys:
            path = (*path, key)
            self.lines.setdefault(path, line)
        self.at += 1  # the equals sign
        self._value(path, depth)

    def _key(self) -> list[str]:
        """A dotted key; ends at its ``=`` or ``]``."""
        parts = []
        while True:
            self._skip_spaces()
            if self.text[self.at] in "\"'":
                parts.append(self._string())
            else:
                start = self.at
                while self.text[self.at] not in _BARE_END:
                    self.at += 1
                parts.append(self.text[start : self.at])
            self._skip_spaces()
            if self.text[self.at] != ".":
                return parts
            self.at += 1

    def _value(self, path: Path, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise TooDeep(f"nested deeper than {MAX_DEPTH} levels")
        self._skip_spaces()
        first = self.text[self.at]
        if first in "\"'":
            self._string()
        elif first == "[":
            self._array(path, depth)
        elif first == "{":
            self._inline_table(path, depth)
        else:
            while self.at < len(self.text) and self.text[self.at] not in _SCALAR_END:
                self.at += 1

    def _array(self, path: Path, depth: int) -> None:
        self.at += 1
        index = 0
        while self._skip_blank() and self.text[self.at] != "]":
            if self.text[self.at] == ",":
                self.at += 1
                continue
            self.lines[(*path, index)] = self.line
            self._value((*path, index), depth + 1)
            index += 1
        self.at += 1

    def _inline_table(self, path: Path, depth: int) -> None:
        self.at += 1
        while self._skip_blank() and self.text[self.at] != "}":
            if self.text[self.at] == ",":
                self.at += 1
                continue
            self._pair(path, depth + 1)
        self.at += 1

    def _string(self) -> str:
        """Any of the four kinds of string. Its text is exact for one-line strings, the only ones that may be keys."""
        quote = self.text[self.at]
        if self.text.startswith(quote * 3, self.at):
            return self._long_string(quote)
        self.at += 1
        out = []
        while (char := self.text[self.at]) != quote:
            if char == "\\" and quote == '"':
                out.append(self._escape())
            else:
                out.append(char)
                self.at += 1
        self.at += 1
        return "".join(out)

    def _escape(self) -> str:
        kind = self.text[self.at + 1]
        width = {"x": 2, "u": 4, "U": 8}.get(kind)
        if width is None:
            self.at += 2
            return _ESCAPES.get(kind, kind)
        digits = self.text[self.at + 2 : self.at + 2 + width]
        self.at += 2 + width
        return chr(int(digits, 16))

    def _long_string(self, quote: str) -> str:
        start = self.at
        self.at += 3
        while not self.text.startswith(quote * 3, self.at):
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        self.at += 3
        while self.text.startswith(quote, self.at):  # up to two quotes may stand before the closing three
            self.at += 1
        self.line += self.text.count("\n", start, self.at)
        return self.text[start : self.at]

    def _skip_spaces(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1

    def _skip_blank(self) -> bool:
        """Past spaces, newlines and comments; False at the end of the text."""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "\n":
                self.line += 1
            elif char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
                continue
            elif char not in " \t":
                return True
            self.at += 1
        return False
