"""A batch through a real agent and a real store, with the flow's steps called as the flow calls them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cotenant import store
from policies.prompts import BatchSpec, Item, digest_of
from tasks.prompts import BatchWork
from tests.node.agent_rig import Rig, wait_for

log = logging.getLogger("batch")


def make(home: Path, batch: str, count: int, **options: Any) -> BatchSpec:
    """Keep a batch of ``count`` prompts on the stub, with a common beginning."""
    spec = BatchSpec(**{"node": "local", "backend": "stub", "max_tokens": 6, "per_job": 20, **options})
    items = [Item({"prompt": f"Say something about number {number}."}) for number in range(count)]
    engine = store.open(store.default_url(home))
    digest = digest_of(spec.model_dump(), items)
    assert store.make_batch(engine, batch, spec, items, source="test", digest=digest, style="plain")
    engine.dispose()
    return spec


def work_on(rig: Rig, batch: str, flow_run_id: str = "flow-1") -> BatchWork:
    # looked at often: what is done to a job in the middle must find it there
    work = BatchWork(rig.client, store.default_url(rig.home), batch, log, sleep=lambda s: time.sleep(min(s, 0.1)))
    work.begin(flow_run_id)
    return work


def go_on(work: BatchWork, seen: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """To the end, as the flow does."""
    while (chunk := work.next()) is not None:
        work.follow(chunk, seen)
    work.end("done")
    return work.status()


def ready(rig: Rig) -> None:
    wait_for("llmserve is ready", lambda: rig.client.call("modules")[0]["state"] == "ready", 300)


def rows(home: Path, batch: str) -> list[dict[str, Any]]:
    return list(store.prompt_rows(store.open(store.default_url(home)), batch))
