"""Models of the module's data folder: finding one, checking that it can be loaded, knowing what memory it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gguf import BadModel, Header, read_header
from loading import Pieces, wait_in_pieces

FOLDER = "models"
CHECKED = ".checked.json"
PROBE_LIMIT_S = 600.0
# besides weights and cache: compute buffers, the interpreter, the vocabulary
EXTRA_BYTES = 160 << 20
# signals by which a backend dies of the file, not of the machine
_ABORTS = {4, 6, 7, 8, 11}


class NoRoom(RuntimeError):
    """It does not fit in the memory that is free now; later it may."""


def folder() -> Path:
    return Path(os.environ.get("OARBANK_MODULE_DATA", os.getcwd())) / FOLDER


def find(name: str, backend: str) -> Path:
    """The model's path.

    Raises:
        BadModel: there is none of that name, or it is none for this backend.
    """
    path = folder() / name
    if not name or not path.exists():
        there = ", ".join(sorted(one.name for one in _entries())) or "none"
        if not name:
            raise BadModel(f"none was named; there is: {there}")
        raise BadModel(f"there is no model {name!r} here; there is: {there}")
    if backend == "llamacpp" and not path.is_file():
        raise BadModel("it is no file, and llama.cpp loads GGUF files")
    if backend == "mlx" and not path.is_dir():
        raise BadModel("it is no folder, and MLX loads folders")
    return path


def listed() -> list[dict[str, Any]]:
    """``[{name, kind: gguf|mlx, ok, why, bytes, architecture, context, …}]``, by name."""
    return [describe(path) for path in sorted(_entries())]


def _entries() -> list[Path]:
    place = folder()
    if not place.is_dir():
        return []
    return [path for path in place.iterdir() if not path.name.startswith(".") and (path.is_dir() or path.is_file())]


def describe(path: Path) -> dict[str, Any]:
    if path.is_dir():
        return {"name": path.name, "kind": "mlx", **_mlx_folder(path)}
    try:
        header = read_header(str(path))
    except (BadModel, OSError) as error:
        size = path.stat().st_size if path.exists() else None
        return {"name": path.name, "kind": "gguf", "ok": False, "why": str(error), "bytes": size}
    found = {name: getattr(header, name) for name in ("bytes", "architecture", "context", "kv_bytes_per_token")}
    return {"name": path.name, "kind": "gguf", "ok": True, "why": "", **found}


def _mlx_folder(path: Path) -> dict[str, Any]:
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        size = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    except (OSError, ValueError) as error:
        return {"ok": False, "why": f"config.json: {error}", "bytes": None}
    if not isinstance(config, dict) or not size:
        return {"ok": False, "why": "it holds no weights (*.safetensors) or no config.json", "bytes": size}
    context = config.get("max_position_embeddings")
    return {"ok": True, "why": "", "bytes": size, "architecture": config.get("model_type"), "context": context}


def need_bytes(header: Header, tokens: int) -> int:
    """Memory that the model takes with a cache of so many tokens; the cache counts nothing where the head does not tell."""
    return header.bytes + (header.kv_bytes_per_token or 0) * tokens + EXTRA_BYTES


def free_bytes() -> int | None:
    """What may still be taken without swapping: the machine's, or the container's where that is less. None: unknown."""
    found = []
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    found.append(int(line.split()[1]) << 10)
    except (OSError, ValueError, IndexError):
        pass
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            most, now = (int(Path(name).read_text(encoding="ascii")) for name in (limit, used))
        except (OSError, ValueError):
            continue
        if most < 1 << 60:
            # what the container keeps as cache of files it gives back
            found.append(max(0, most - now) + _file_cache(Path(limit).parent))
    return min(found) if found else None


def _file_cache(place: Path) -> int:
    try:
        for line in (place / "memory.stat").read_text(encoding="ascii").splitlines():
            if line.startswith(("inactive_file ", "total_inactive_file ")):
                return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return 0


def has_room(header: Header, tokens: int) -> bool:
    free = free_bytes()
    return free is None or need_bytes(header, tokens) <= free


def check_room(header: Header, tokens: int) -> None:
    """Raises:
    NoRoom: it needs more than is free.
    """
    free, need = free_bytes(), need_bytes(header, tokens)
    if free is not None and need > free:
        raise NoRoom(f"the model needs {need / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free")


def least_tokens(header: Header, context: int | None, max_tokens: Iterable[int]) -> int:
    """Tokens that the cache needs room for whatever the prompts are, before they are read: those of the shortest answer.

    Args:
        context: the longest prompt and answer that were asked for; None: as far as the model goes.
        max_tokens: of each prompt. An answer that leaves no room for its prompt is refused as ``too_long`` and needs none.
    """
    least = min(max_tokens)
    known = [length for length in (header.context, context) if length is not None]
    return 0 if known and least >= min(known) else least


# -- loading it in a child first ----------------------------------------------------------------------------------------


def probe(path: Path, pieces: Pieces) -> None:
    """Load the file in a child once, as a damaged one may abort the process that loads it; what was loaded is remembered.

    Raises:
        BadModel: the child could not load it, or died of it.
        OSError: the child was killed, or did not come to an end.
    """
    stat = path.stat()
    key = f"{path.name} {stat.st_size} {stat.st_mtime_ns} {os.path.realpath(sys.executable)}"
    known = _known()
    if known.get(path.name) == key:
        return
    child = subprocess.Popen(
        [sys.executable, "-I", str(Path(__file__).with_name("probe.py")), str(path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        code = wait_in_pieces(child, pieces, PROBE_LIMIT_S)
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()
    said = (child.stdout.read() if child.stdout else b"").decode("utf-8", "replace").strip()[:500]
    if code == 0:
        _remember(known | {path.name: key})
    elif code == 2:
        raise BadModel(said or "it does not load")
    elif -code in _ABORTS:
        raise BadModel(f"the backend died of it, with signal {-code}")
    else:
        raise OSError(f"loading it in a child ended with {code}: {said}")


def _known() -> dict[str, str]:
    try:
        found = json.loads((folder() / CHECKED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _remember(known: dict[str, str]) -> None:
    temporary = folder() / f"{CHECKED}.{os.getpid()}"
    try:
        temporary.write_text(json.dumps(known), encoding="utf-8")
        os.replace(temporary, folder() / CHECKED)
    except OSError:
        pass  # the next job loads it twice again
