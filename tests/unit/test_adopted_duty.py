"""The duty of an adopted attempt is the one that its runner was told, whatever its row says."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nodes.jobs.adoption import revive
from nodes.jobs.guard import Guard
from nodes.jobs.registry import AttemptRow
from nodes.jobs.workdir import AttemptDir, write_document

JOB = cast(Any, SimpleNamespace(module="m", short="m", stage="s", timeout_s=None, feed_of=None))


def row(duty: float | None) -> AttemptRow:
    return AttemptRow(attempt="1-1-a", job=1, number=1, bundle="b", capabilities=frozenset({"freeze_ok"}), cores=1.0,
                      mem_gb=1.0, stop_grace_s=5.0, launcher=None, runner=None, boot_id="another", duty=duty, stop=None,
                      ran_s=0.0, cgroup=None, tree={})  # fmt: skip


@pytest.mark.parametrize(("kept", "told"), [(0.0, 0.5), (0.5, 0.0), (0.0, None), (None, 0.3)])
def test_an_agent_that_died_between_the_document_and_its_row(
    tmp_path: Path, kept: float | None, told: float | None
) -> None:
    """A duty of 0 that the row remembers is not written again to a runner that was told 0.5: nothing would look changed."""
    folder = AttemptDir(tmp_path / "1-1-a")
    folder.control.parent.mkdir(parents=True)
    write_document(folder.control, {"seq": 3, "pause": False} | ({} if told is None else {"gpu_duty": told}))
    guard = Guard(cast(Any, SimpleNamespace(stat=lambda pid: None, children=lambda pid: [])), lambda *_: None)
    assert revive(row(kept), JOB, tmp_path, guard, 100.0).duty == told


def test_without_a_document_the_row_counts(tmp_path: Path) -> None:
    guard = Guard(cast(Any, SimpleNamespace(stat=lambda pid: None, children=lambda pid: [])), lambda *_: None)
    assert revive(row(0.4), JOB, tmp_path, guard, 100.0).duty == 0.4
