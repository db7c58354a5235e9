"""Models of a node: what is there and whether it fits, adding one, installing what runs them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotenant.cli.agents import Agent
    from cotenant.settings import Settings

__all__ = ["BUNDLE", "DOCTOR_S", "add_model", "as_bundle", "install", "models"]

BUNDLE = Path(__file__).resolve().parents[2] / "modules" / "llmserve"
# The module's doctor answers within a minute, and beside a busy program within ten.
DOCTOR_S = 660.0
CHECK_S = 120.0
# llama.cpp is built from source where there is no wheel of it: minutes, at idle priority on a busy machine many.
INSTALL_S = 4 * 3600.0
# beside weights: sixteen sequences of some hundred tokens, compute buffers, the interpreter
CACHE_TOKENS = 16 * 512
EXTRA_BYTES = 160 << 20


def folder_of(settings: Settings, node: str) -> Path:
    from nodes.client import node_dir

    return node_dir(settings.home, node) / "modules" / "llmserve" / "data" / "models"


def models(settings: Settings, agent: Agent) -> dict[str, Any]:
    """``{folder, backends, free_bytes, models: [{name, bytes, architecture, context, ok, why, need_bytes, fits}]}``.

    ``fits``: in the memory that is free beside what runs now; None where either is unknown.
    """
    told = agent.ask("module_doctor", module="llmserve", _timeout_s=DOCTOR_S)["attrs"]
    free = _free_bytes(agent)
    found = []
    for model in told.get("models") or []:
        need = None
        if model["ok"] and model.get("bytes"):
            need = model["bytes"] + (model.get("kv_bytes_per_token") or 0) * CACHE_TOKENS + EXTRA_BYTES
        fits = None if need is None or free is None else need <= free
        why = model["why"]
        if fits is False and need is not None and free is not None:
            why = f"needs {need / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"
        found.append(model | {"need_bytes": need, "fits": fits, "why": why})
    return {
        "folder": str(folder_of(settings, agent.node)),
        "backends": told.get("backends") or [],
        "free_bytes": free,
        "models": found,
    }


def _free_bytes(agent: Agent) -> int | None:
    """As the node's memory guard measures it, so that both say the same."""
    pools = (agent.ask("status").get("memory") or {}).get("pools") or []
    return min((pool["available_bytes"] for pool in pools if pool.get("available_bytes") is not None), default=None)


def add_model(settings: Settings, agent: Agent, path: Path, name: str | None, *, copy: bool) -> dict[str, Any]:
    """Put a model where the module looks for it: a hard link on the same file system, else a copy.

    Raises:
        Refused: it is no model, or there is one of that name.
    """
    from policies.refusal import Refused

    source = path.expanduser().resolve()
    name = name or path.name
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}", name) or ".." in name:
        raise Refused("MODEL_BAD_NAME", f"model name {name!r}", "it is no plain file name", "give one with --name")
    if not source.exists():
        raise Refused("MODEL_BAD", str(path), "there is no such file", "name a GGUF file or an MLX folder")
    header = _check(source)
    agent.ask("hello")  # the node's folder is made by its agent
    folder = folder_of(settings, agent.node)
    target = folder / name
    if os.path.lexists(target):
        raise Refused("MODEL_EXISTS", f"model {name}", f"there is one of that name in {folder}", "give another --name")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    coming = folder / f".{name}.{os.getpid()}"
    try:
        if source.is_dir():
            shutil.copytree(source, coming, copy_function=shutil.copy2 if copy else _link_or_copy)
        elif copy:
            shutil.copy2(source, coming)
        else:
            _link_or_copy(str(source), str(coming))
        os.rename(coming, target)
    finally:
        if coming.is_dir():
            shutil.rmtree(coming, ignore_errors=True)
        else:
            coming.unlink(missing_ok=True)
    return {"model": name, "path": str(target), **header}


def _link_or_copy(source: str, target: str) -> object:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def _check(source: Path) -> dict[str, Any]:
    from policies.refusal import Refused

    if source.is_dir():
        if not (source / "config.json").is_file() or not list(source.glob("*.safetensors")):
            raise Refused(
                "MODEL_BAD",
                str(source),
                "the folder holds no config.json with *.safetensors beside it",
                "name an MLX folder",
            )
        return {"kind": "mlx"}
    if not source.is_file():
        raise Refused("MODEL_BAD", str(source), "it is no regular file", "name a GGUF file or an MLX folder")
    # The module's own reader, in a process of its own: the file may be anything.
    reader = [sys.executable, "-I", str(BUNDLE / "gguf.py"), str(source)]
    try:
        done = subprocess.run(reader, capture_output=True, text=True, timeout=CHECK_S, check=False)
    except subprocess.TimeoutExpired as error:
        why = f"its head could not be read within {CHECK_S:g} s"
        raise Refused("MODEL_BAD", str(source), why, "add it from a disk that answers") from error
    try:
        told: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        told = {"ok": False, "why": "it cannot be read"}
    if not told.get("ok"):
        raise Refused("MODEL_BAD", str(source), str(told.get("why")), "name a whole GGUF file")
    return {"kind": "gguf"} | {key: told[key] for key in ("bytes", "architecture", "context")}


def install(agent: Agent, wheels: Path | None) -> dict[str, Any]:
    """Add the module with an environment of its own, built from its lock by the agent, in which real models run."""
    with tempfile.TemporaryDirectory(prefix="llmserve-") as place:
        bundle = as_bundle(Path(place) / "llmserve", wheels)
        return dict(agent.ask("module_add", path=str(bundle), _timeout_s=INSTALL_S))


def as_bundle(place: Path, wheels: Path | None) -> Path:
    """The module's bundle with ``runtime.kind = "uv"``, and these wheels in it.

    Raises:
        Refused: there are no wheels in the folder given.
    """
    from policies.refusal import Refused

    shutil.copytree(BUNDLE, place, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    manifest = (BUNDLE / "oarbank-module.toml").read_text(encoding="utf-8")
    before, after = 'runtime = { kind = "python" }', 'runtime = { kind = "uv", lock = "uv.lock" }'
    if before not in manifest:
        raise ValueError(f"the module's manifest has no {before}")
    (place / "oarbank-module.toml").write_text(manifest.replace(before, after), encoding="utf-8")
    if wheels is not None:
        found = sorted(wheels.expanduser().glob("*.whl"))
        if not found:
            raise Refused("WHEELS_NONE", str(wheels), "it holds no *.whl", "leave --wheels out to use your index")
        (place / "wheels").mkdir()
        for wheel in found:
            shutil.copy2(wheel, place / "wheels")
    return place
