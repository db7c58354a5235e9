"""What a runner left must never stop the agent's loop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nodes.jobs.workdir import AttemptDir


def left(folder: Path, name: str, document: Any) -> AttemptDir:
    found = AttemptDir(folder / "a")
    found.make({}, {"seq": 0}, {})
    (found.work / name).write_text(json.dumps(document))
    return found


@pytest.mark.parametrize("path", ["\ud800", "x" * 300])
def test_an_artifact_path_that_no_file_can_have_is_an_invalid_result(tmp_path: Path, path: str) -> None:
    result = {"schema": "m/result@1", "payload": {}, "artifacts": [{"name": "a", "files": [{"path": path}]}]}
    assert left(tmp_path, "result.json", result).outcome("m").state == "invalid"


def test_a_failure_that_no_row_can_hold_is_none(tmp_path: Path) -> None:
    found = left(tmp_path, "failure.json", {"reason": "\ud800x", "fault": "transient"})
    assert found.outcome("m").failure is None
