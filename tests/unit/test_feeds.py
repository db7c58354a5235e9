"""What keeps ON windows loaded: a stage's duty spec, or a bundle's feed with the model that the owner named."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nodes.doctor import DoctorReport
from nodes.feeds import check_feed, feed_payload
from nodes.modules import ModuleStore
from policies.refusal import Refused
from policies.work import feed_parts

BUNDLE = Path(__file__).resolve().parents[2] / "modules" / "llmserve"


def store(bundle: Path, models: list[dict[str, Any]] | None) -> ModuleStore:
    attrs = {} if models is None else {"models": models}
    found = SimpleNamespace(
        manifest=SimpleNamespace(stage=lambda name: name if name in ("batch", "selftest") else None),
        bundle=bundle, short="llmserve", module="dev.cotenant.llmserve", state="ready", why="", stages=["batch"],
        doctor=DoctorReport("healthy", "", [], attrs, []),
    )  # fmt: skip
    return cast(ModuleStore, SimpleNamespace(get=lambda name: found if name == "llmserve" else None))


def test_a_feed_may_name_a_model() -> None:
    assert feed_parts("llmserve/batch") == ("llmserve/batch", None)
    assert feed_parts("llmserve/batch@m.gguf") == ("llmserve/batch", "m.gguf")
    assert feed_parts("llmserve/batch@") == ("llmserve/batch", "")


def test_the_model_that_was_named_is_what_a_bundles_feed_runs() -> None:
    here = store(BUNDLE, [{"name": "m.gguf", "ok": True}, {"name": "bad.gguf", "ok": False}])
    module, stage, payload = feed_payload(here, "llmserve/batch@m.gguf")
    assert (module, stage, payload["model"]) == ("dev.cotenant.llmserve", "batch", "m.gguf")
    assert payload["backend"] == "auto", "the real one, whichever the node has"
    assert len(payload["prompts"]) > 16, "as many are decoded together as in a batch of the owner's"
    assert "model" not in feed_payload(here, "llmserve/batch")[2]
    check_feed(here, "llmserve/batch@m.gguf")
    check_feed(here, "llmserve/batch")
    for unknown in ("other.gguf", "bad.gguf", ""):
        with pytest.raises(Refused, match=r"no such model; it names: m\.gguf"):
            check_feed(here, f"llmserve/batch@{unknown}")
    check_feed(store(BUNDLE, None), "llmserve/batch@m.gguf")  # a doctor that lists none knows of none


@pytest.mark.parametrize("feeds", [None, [], {}, 5, [5], [{"stage": "batch"}], [{"stage": "batch", "payload": 5}]])
def test_a_bundle_that_says_no_feed_for_a_model_is_refused(tmp_path: Path, feeds: Any) -> None:
    (tmp_path / "conformance.json").write_text(
        json.dumps({"duty_specs": []} | ({} if feeds is None else {"feeds": feeds}))
    )
    with pytest.raises(Refused, match="no feed of that stage for a model"):
        feed_payload(store(tmp_path, None), "llmserve/batch@m.gguf")
