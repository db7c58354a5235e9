"""What keeps the ON windows of a run loaded: a stage's duty spec from the bundle's ``conformance.json``."""

from __future__ import annotations

from typing import Any

from nodes.modules import ModuleStore
from policies.json_text import parse_json
from policies.refusal import Refused
from policies.workloads import is_workload, workload_name

__all__ = ["feed_payload"]


def feed_payload(modules: ModuleStore, feed: str) -> tuple[str, str, Any]:
    """``(module id, stage, payload)`` for ``MODULE/STAGE``.

    Raises:
        Refused: no such module or stage, the module is not ready, or it gives no duty spec for the stage.
    """
    name, _, stage = feed.partition("/")
    found = modules.get(name)
    if found is None or found.manifest is None or found.bundle is None:
        why = "there is no such module on this node" if found is None else found.why or "it was not added yet"
        raise Refused("RUN_BAD_FEED", f"--feed {feed}", why, "cotenant module list")
    if not stage or found.manifest.stage(stage) is None:
        stages = ", ".join(f"{found.short}/{known}" for known in found.stages)
        raise Refused("RUN_BAD_FEED", f"--feed {feed}", "it names no stage of that module", f"one of {stages}")
    if is_workload(stage):
        why = "a workload is not fed: it runs of itself, so it is measured as it is"
        start = f"cotenant workload start {found.short}/{workload_name(stage)}, then --work {feed} without --feed"
        raise Refused("RUN_BAD_FEED", f"--feed {feed}", why, start)
    if found.state != "ready":
        raise Refused(
            "RUN_BAD_FEED",
            f"--feed {feed}",
            f"the module is not ready: {found.why}",
            f"cotenant module doctor {found.short}",
        )
    try:
        specs = parse_json((found.bundle / "conformance.json").read_text(encoding="utf-8"))["duty_specs"]
        payload = next(spec["payload"] for spec in specs if spec.get("stage") == stage)
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        raise Refused(
            "RUN_BAD_FEED",
            f"--feed {feed}",
            "its bundle has no duty spec for that stage in conformance.json, so there is nothing to feed",
            "queue jobs of it instead, or add a duty spec to the module",
        ) from None
    return found.module, stage, payload
