"""Which running work counts as work on the GPU: what it was started from says so, and what it was seen on, also after a restart."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nodes.agent.seen_on_gpu import FACT, SeenOnGpu
from nodes.agent.units import Units
from nodes.journal import Journal


def test_work_seen_on_a_gpu_undeclared_counts_after_a_restart_for_the_bundle_that_ran(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    journal = Journal(path)
    seen = SeenOnGpu(journal)
    seen.add("m", "s", "d1")
    seen.add("n", "s", None)
    journal.close()
    journal = Journal(path)
    again = SeenOnGpu(journal)
    journal.close()
    for each in (seen, again):
        assert each.was("m", "s", "d1")
        assert each.was("m", "s", None), "a bundle that is not known may be that one"
        assert each.was("n", "s", "d9"), "nor is it known which bundle was seen there"
        assert not each.was("m", "s", "d2"), "mended, and added again"
        assert not each.was("m", "t", "d1")


@pytest.mark.parametrize("left", [7, "text", [["m"]], [None], {"a": 1}])
def test_what_cannot_be_read_of_it_stops_no_agent(tmp_path: Path, left: Any) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    journal.set_fact(FACT, left)
    assert not SeenOnGpu(journal).was("m", "s", "d1")
    journal.close()


@pytest.mark.parametrize("started_for_gpu", [True, False])
@pytest.mark.parametrize("duty_device", ["gpu", "cpu"])
def test_a_running_attempt_is_classed_by_what_it_was_started_from_too(started_for_gpu: bool, duty_device: str) -> None:
    """Its module was added again meanwhile and says that it uses no GPU."""
    manifest = SimpleNamespace(gpu_of=lambda stage: SimpleNamespace(use="none"))
    agent = SimpleNamespace(
        modules=SimpleNamespace(get=lambda name: SimpleNamespace(manifest=manifest, digest="new")),
        gpus=SimpleNamespace(was_seen=lambda *work: False),
        section=SimpleNamespace(node=SimpleNamespace(duty_device=duty_device)),
        governing=SimpleNamespace(work_of_attempt=lambda attempt: SimpleNamespace(digest="old")),
    )
    units = Units(cast(Any, agent))
    attempt = cast(Any, SimpleNamespace(module="m", stage="s", gpu=started_for_gpu))
    assert units.attempt_uses_gpu(attempt) is started_for_gpu
    assert units.attempt_is_device(attempt) is (started_for_gpu or duty_device == "cpu")
    assert units.attempt_on_gpu(attempt) is (started_for_gpu and duty_device == "gpu")


def test_work_seen_on_a_gpu_counts_as_that_also_when_its_module_was_replaced() -> None:
    manifest = SimpleNamespace(gpu_of=lambda stage: SimpleNamespace(use="none"))
    seen = SeenOnGpu()
    seen.add("m", "s", "old")
    agent = SimpleNamespace(
        modules=SimpleNamespace(get=lambda name: SimpleNamespace(manifest=manifest, digest="new")),
        gpus=SimpleNamespace(was_seen=seen.was),
        section=SimpleNamespace(node=SimpleNamespace(duty_device="gpu")),
        governing=SimpleNamespace(work_of_attempt=lambda attempt: SimpleNamespace(digest=attempt.digest)),
    )
    units = Units(cast(Any, agent))
    old, new = (cast(Any, SimpleNamespace(module="m", stage="s", gpu=False, digest=each)) for each in ("old", "new"))
    assert units.attempt_uses_gpu(old)
    assert units.attempt_is_device(old)
    assert not units.attempt_uses_gpu(new)
    assert not units.uses_gpu("m", "s")
