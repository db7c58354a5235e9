"""What keeps the ON windows of a run loaded, out of the bundle's ``conformance.json``: a stage's duty spec, or its feed for a model.

A certificate covers the models that were measured, and no other. So a bundle whose work runs models that owners add says under
``feeds`` (``[{"stage", "payload"}]``) what is to be run of them: the model that is named with the feed is put into that payload.
"""

from __future__ import annotations

from typing import Any

from nodes.modules import ModuleStore
from policies.json_text import parse_json
from policies.refusal import Refused
from policies.work import feed_parts
from policies.workloads import is_workload, workload_name

__all__ = ["check_feed", "feed_payload"]


def check_feed(modules: ModuleStore, feed: str) -> None:
    """Raises:
    Refused: as ``feed_payload``, or the module's doctor lists its models and this one is none of them.
    """
    feed_payload(modules, feed)
    work, model = feed_parts(feed)
    found = modules.get(work.partition("/")[0])
    listed = found.doctor.attrs.get("models") if found is not None and found.doctor is not None else None
    if model is None or found is None or not isinstance(listed, list):
        return
    names = sorted(str(item["name"]) for item in listed if isinstance(item, dict) and item.get("ok") and "name" in item)
    if model not in names:
        why = f"its doctor names no such model; it names: {', '.join(names) or 'none'}"
        raise Refused("RUN_BAD_FEED", f"--feed {feed}", why, f"cotenant module doctor {found.short} looks again")


def feed_payload(modules: ModuleStore, feed: str) -> tuple[str, str, Any]:
    """``(module id, stage, payload)`` for ``MODULE/STAGE`` or ``MODULE/STAGE@MODEL``.

    Raises:
        Refused: no such module or stage, the module is not ready, or its bundle does not say what to run.
    """
    work, model = feed_parts(feed)
    name, _, stage = work.partition("/")
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
        document = parse_json((found.bundle / "conformance.json").read_text(encoding="utf-8"))
        specs = document["duty_specs" if model is None else "feeds"]
        payload = next(spec["payload"] for spec in specs if spec.get("stage") == stage)
        if model is not None:
            payload = {**payload, "model": model}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration):
        what = "duty spec for that stage" if model is None else "feed of that stage for a model"
        raise Refused(
            "RUN_BAD_FEED",
            f"--feed {feed}",
            f"its bundle has no {what} in conformance.json, so there is nothing to feed",
            "queue jobs of it instead, or add one to the module",
        ) from None
    return found.module, stage, payload
