"""Running the command line in this process, in a home of its own (fixtures ``home`` and ``cli``)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cotenant.cli import main as entry

__all__ = ["Cli", "Said", "cli", "home"]


@dataclass
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)  # type: ignore[no-any-return]


Cli = Callable[..., Said]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("COTENANT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COTENANT_HOME", str(tmp_path / "h"))
    return tmp_path / "h"


@pytest.fixture
def cli(home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setattr(sys, "argv", ["cotenant"])

    def run(*arguments: str) -> Said:
        capfd.readouterr()
        code = entry.main(list(arguments))
        said = capfd.readouterr()
        return Said(code, said.out, said.err)

    return run
