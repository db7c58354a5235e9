"""The head of a GGUF file, read and checked without any backend. ``python gguf.py FILE`` prints it as JSON.

Source: the format's own description (ggml, ``docs/gguf.md``): little-endian; magic, version, number of tensors, number of
keys, keys with typed values, tensor infos, padding, data.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

MAGIC = b"GGUF"
VERSIONS = (2, 3)
KEYS_MAX = 100_000
TENSORS_MAX = 200_000
STRING_MAX = 64 << 20
ARRAY_MAX = 16_000_000
DIMS_MAX = 4
ALIGNMENT = 32
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
# ggml type -> (values in a block, bytes of a block); types that are not here are not checked for their size
_TYPES = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36), 10: (256, 84),
    11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66), 17: (256, 74),
    18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2),
    26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
}  # fmt: skip


class BadModel(ValueError):
    """The file is no model that could be loaded; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Header:
    """What the head tells. ``context`` is the length it was trained for; figures that the file does not name are None."""

    bytes: int
    version: int
    architecture: str
    name: str | None
    context: int | None
    layers: int | None
    kv_bytes_per_token: int | None
    tensors: int


def read_header(path: str) -> Header:
    """Read and check it.

    Raises:
        BadModel: foreign, damaged or truncated.
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        return _Reader(file, size).header()


class _Reader:
    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size

    def header(self) -> Header:
        magic = self._file.read(4)
        if magic != MAGIC:
            raise BadModel(f"it begins with {magic!r}, not with {MAGIC!r}: no GGUF file")
        version = self._scalar(4)
        if version not in VERSIONS:
            raise BadModel(f"its GGUF version is {version}; versions {' and '.join(map(str, VERSIONS))} can be read")
        tensors, count = self._scalar(10), self._scalar(10)
        if not 0 < tensors <= TENSORS_MAX:
            raise BadModel(f"it names {tensors} tensors")
        if not 0 < count <= KEYS_MAX:
            raise BadModel(f"it names {count} keys")
        keys = self._keys(count)
        end = self._tensors(tensors, keys)
        if end > self._size:
            raise BadModel(f"it is truncated: {self._size} bytes of {end}")
        return _header(self._size, int(version), int(tensors), keys)

    def _bytes(self, count: int) -> bytes:
        # What is promised beyond the file's end is never asked for in memory.
        if count > self._size - self._file.tell():
            raise BadModel(f"it is truncated: it ends in its head, at {self._size} bytes")
        return self._file.read(count)

    def _scalar(self, kind: int) -> Any:
        form = _SCALARS[kind]
        return struct.unpack(form, self._bytes(struct.calcsize(form)))[0]

    def _string(self) -> str:
        length = self._scalar(10)
        if length > STRING_MAX:
            raise BadModel(f"a text in its head is {length} bytes long")
        return self._bytes(length).decode("utf-8", "replace")

    def _keys(self, count: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for number in range(count):
            name = self._string()
            if not name:
                raise BadModel(f"key {number + 1} of its head has no name")
            if name in found:
                raise BadModel(f"key {name!r} of its head is there twice")
            found[name] = self._value(self._scalar(4), name)
        return found

    def _value(self, kind: int, name: str) -> Any:
        if kind in _SCALARS:
            return self._scalar(kind)
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            raise BadModel(f"key {name!r} has a value of the unknown type {kind}")
        item, length = self._scalar(4), self._scalar(10)
        if length > ARRAY_MAX:
            raise BadModel(f"key {name!r} is a list of {length}")
        if item in _SCALARS:
            self._bytes(length * struct.calcsize(_SCALARS[item]))
            return None
        if item != _STRING:
            raise BadModel(f"key {name!r} is a list of the unknown type {item}")
        self._pass_texts(length)
        return None

    def _pass_texts(self, count: int) -> None:
        """A vocabulary: hundreds of thousands of short texts that nobody asks for, so nothing is made of them."""
        read, number, left = self._file.read, struct.Struct("<Q").unpack, self._size - self._file.tell()
        for _ in range(count):
            left -= 8
            length = number(read(8))[0] if left >= 0 else 0
            left -= length
            if length > STRING_MAX:
                raise BadModel(f"a text in its head is {length} bytes long")
            if left < 0:
                raise BadModel(f"it is truncated: it ends in its head, at {self._size} bytes")
            read(length)

    def _tensors(self, count: int, keys: dict[str, Any]) -> int:
        """Where the file must end at least."""
        alignment = keys.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment % 8:
            raise BadModel(f"general.alignment is {alignment!r}")
        last = 0
        for _ in range(count):
            name, dims = self._string(), self._scalar(4)
            if not name or not 1 <= dims <= DIMS_MAX:
                raise BadModel(f"tensor {name!r} has {dims} dimensions")
            values = 1
            for _ in range(dims):
                values *= self._scalar(10)
            kind, offset = self._scalar(4), self._scalar(10)
            block, size = _TYPES.get(kind, (1, 0))
            if values <= 0 or values % block:
                raise BadModel(f"tensor {name!r} has {values} values, which its type cannot hold")
            last = max(last, offset + values // block * size)
        data = -(-self._file.tell() // alignment) * alignment
        return data + last


def _header(size: int, version: int, tensors: int, keys: dict[str, Any]) -> Header:
    architecture = keys.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise BadModel("it does not name its architecture")

    def number(name: str) -> int | None:
        value = keys.get(f"{architecture}.{name}")
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    layers, heads, width = number("block_count"), number("attention.head_count"), number("embedding_length")
    kv_heads = number("attention.head_count_kv") or heads
    head = number("attention.key_length") or (width // heads if width and heads else None)
    # keys and values of each layer, two bytes a number
    kv = 4 * layers * kv_heads * head if layers and kv_heads and head else None
    name = keys.get("general.name")
    return Header(
        bytes=size,
        version=version,
        architecture=architecture,
        name=name if isinstance(name, str) else None,
        context=number("context_length"),
        layers=layers,
        kv_bytes_per_token=kv,
        tensors=tensors,
    )


def main(argv: list[str]) -> int:
    try:
        print(json.dumps({"ok": True, **asdict(read_header(argv[0]))}))
    except BadModel as error:
        print(json.dumps({"ok": False, "why": str(error)}))
    except OSError as error:
        print(json.dumps({"ok": False, "why": error.strerror or str(error)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
