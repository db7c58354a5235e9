"""What follows the end of a workload, and what a manifest says of one."""

from __future__ import annotations

import pytest

from policies.jobs import ExitFacts, Failure, Stop, backoff_s
from policies.manifest import ManifestError, parse_manifest
from policies.workloads import STEADY_S, is_workload, judge_workload_exit, stage_of, workload_name

MANIFEST = """
manifest = 1
[module]
id = "dev.example.web"
version = "1.0"
[runner]
exec = ["python", "{bundle}/run.py"]
capabilities = ["cancellable"]
stop_grace_s = 3
[[stages]]
name = "one"
[sandbox]
devices = { gpu = "compute" }
[[services]]
name = "server"
exec = ["python", "{bundle}/serve.py", "--port", "0"]
lifecycle = "always"
stop_grace_s = 7
freeze_ok = true
gpu = { use = "shared" }
capabilities = ["cooperative_throttle"]
[[services]]
exec = ["{bundle}/other"]
"""


def ended(code: int | None = None, signal: int | None = None, **more: object) -> ExitFacts:
    return ExitFacts(code, signal, "missing", more.get("failure"), more.get("stop"))  # type: ignore[arg-type]


@pytest.mark.parametrize("facts", [ended(0), ended(1), ended(None, 11), ended(None), ended(75), ended(2)])
def test_whatever_ends_it_it_is_started_again_with_a_growing_wait(facts: ExitFacts) -> None:
    streak, waits = 0, []
    for _ in range(12):
        verdict, streak = judge_workload_exit(facts, ran_s=5.0, restarts=streak)
        assert (verdict.next, verdict.wait, verdict.counts) == ("requeue", True, False)
        waits.append(backoff_s(streak))
    assert waits[:4] == [1.0, 2.0, 4.0, 8.0]
    assert waits[-1] == 300.0
    verdict, streak = judge_workload_exit(facts, ran_s=STEADY_S, restarts=streak)
    assert backoff_s(streak) == 1.0, "one that ran well begins anew"


def test_only_its_owner_and_its_own_never_end_it() -> None:
    stopped, _ = judge_workload_exit(ended(0, stop=Stop("stopped", False, False)), ran_s=1.0, restarts=3)
    assert (stopped.next, stopped.outcome) == ("end", "cancelled")
    evicted, streak = judge_workload_exit(ended(None, 9, stop=Stop("phase", True, False)), ran_s=1.0, restarts=3)
    assert (evicted.next, evicted.wait, evicted.fault, streak) == ("requeue", True, "none", 4)
    never, _ = judge_workload_exit(ended(2, failure=Failure("no licence", fault="job")), ran_s=1.0, restarts=0)
    assert (never.next, never.outcome, never.reason) == ("end", "failed", "no licence")


def test_a_service_is_a_stage_of_its_own_kind() -> None:
    manifest = parse_manifest(MANIFEST)
    assert list(manifest.named_services) == ["server", "service-2"]
    stage = manifest.stage(stage_of("server"))
    assert stage is not None
    assert (stage.timeout_s, stage.requires.resources.cpu) == (None, 1.0)
    assert manifest.ways_of(stage.name) == {"freeze_ok", "cooperative_throttle"}
    assert (manifest.grace_of(stage.name), manifest.gpu_of(stage.name).use) == (7.0, "shared")
    assert (manifest.ways_of("one"), manifest.grace_of("one"), manifest.gpu_of("one").use) == (
        {"cancellable"},
        3.0,
        "none",
    )
    assert manifest.stage(stage_of("nobody")) is None
    assert manifest.stage().name == "one", "a service is never the default"  # type: ignore[union-attr]
    assert manifest.uses_gpu
    assert is_workload(stage.name)
    assert workload_name(stage.name) == "server"
    assert "services" not in manifest.not_used


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (('exec = ["{bundle}/other"]', 'exec = ["/bin/sh"]'), "services.1.exec"),
        (('["cooperative_throttle"]', '["telepathy"]'), "services.0.capabilities"),
        (('name = "server"', 'name = "Server!"'), "services.0.name"),
        (('name = "server"', 'name = "service-2"'), ""),
        (('gpu = "compute"', 'gpu = "none"'), ""),
    ],
)
def test_a_broken_service_is_refused_by_its_key(change: tuple[str, str], key: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse_manifest(MANIFEST.replace(*change))
    assert caught.value.problems[0][0] == key
