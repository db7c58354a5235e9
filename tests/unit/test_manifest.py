"""``oarbank-module.toml``: what is read, what is refused and by what key, what is not used."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodes.jobs.workdir import runner_environment
from policies.manifest import ManifestError, parse_manifest

ROOT = Path(__file__).resolve().parents[2]
GOOD = """
manifest = 1
[module]
id = "dev.example.render"
version = "1.0.0"
[runner]
exec = ["python", "-I", "{bundle}/render.py"]
capabilities = ["cancellable", "freeze_ok"]
[[stages]]
name = "frame"
"""


def with_line(section: str, line: str) -> str:
    return GOOD.replace(f"[{section}]\n", f"[{section}]\n{line}\n")


def test_defaults() -> None:
    manifest = parse_manifest(GOOD)
    assert (manifest.short, manifest.uses_gpu, manifest.runner.stop_grace_s) == ("render", False, 10.0)
    stage = manifest.stage()
    assert stage is not None
    assert (stage.name, stage.requires.resources.cpu, stage.retry.max_attempts, stage.timeout_s) == (
        "frame",
        1.0,
        1,
        None,
    )
    assert manifest.stage("none") is None
    assert manifest.not_used == []


def test_the_reference_module_is_read_whole() -> None:
    manifest = parse_manifest((ROOT / "modules/llmserve/oarbank-module.toml").read_text())
    assert manifest.module.id == "dev.cotenant.llmserve"
    assert manifest.capabilities == {
        "cancellable", "cooperative_pause", "cooperative_throttle", "progress_events", "resumable",
    }  # fmt: skip
    assert manifest.uses_gpu
    assert manifest.not_used == []
    assert [stage.name for stage in manifest.stages] == ["selftest", "batch"]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (GOOD.replace("manifest = 1", "manifest = 2"), "manifest"),
        (GOOD.replace('id = "dev.example.render"', 'id = "Render!"'), "module.id"),
        (GOOD.replace('id = "dev.example.render"', 'id = "dev.example./etc"'), "module.id"),
        (GOOD.replace('version = "1.0.0"', ""), "module.version"),
        (GOOD.replace('"python"', '"/usr/bin/python3"'), "runner.exec"),
        (GOOD.replace('"python"', '"sh"'), "runner.exec"),
        (GOOD.replace("{bundle}/render.py", "{bundle}/../../render.py"), "runner.exec"),
        (GOOD.replace('exec = ["python", "-I", "{bundle}/render.py"]', "exec = []"), "runner.exec"),
        (GOOD.replace('"freeze_ok"', '"freeze"'), "runner.capabilities"),
        (with_line("runner", "stop_grace_s = 0"), "runner.stop_grace_s"),
        (with_line("runner", 'env = { PATH = "/x" }'), "runner.env"),
        (with_line("runner", 'env = { OARBANK_PROTOCOL = "2" }'), "runner.env"),
        (with_line("runner", 'env = { CUDA_MPS_PIPE_DIRECTORY = "/x" }'), "runner.env"),
        (with_line("runner", 'env = { "A=B" = "x" }'), "runner.env"),
        (with_line("runner", 'runtime = { kind = "conda" }'), "runner.runtime.kind"),
        (with_line("runner", 'gpu = { use = "some" }'), "runner.gpu.use"),
        (with_line("runner", 'gpu = { use = "shared" }'), "sandbox.devices.gpu"),
        (GOOD.replace('name = "frame"', 'name = "../frame"'), "stages.0.name"),
        (GOOD + '[[stages]]\nname = "frame"\n', "stages"),
        (GOOD + "requires = { resources = { cpu = 0 } }\n", "stages.0.requires.resources.cpu"),
        (GOOD + "retry = { max_attempts = 0 }\n", "stages.0.retry.max_attempts"),
        (GOOD + "[requires]\nrunner_protocol = 2\n", "requires.runner_protocol"),
        (GOOD[: GOOD.index("[[stages]]")], "stages"),
        ("manifest = ", "TOML"),
    ],
)
def test_an_error_names_its_key(text: str, key: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse_manifest(text)
    assert key in str(caught.value)


def test_all_errors_are_named_at_once() -> None:
    with pytest.raises(ManifestError) as caught:
        parse_manifest(GOOD.replace("dev.example.render", "Render").replace('"freeze_ok"', '"freeze"'))
    assert [key for key, _ in caught.value.problems] == ["module.id", "runner.capabilities"]


def test_what_another_host_needs_is_accepted_and_listed() -> None:
    text = GOOD + (
        'colour = "blue"\n[coordinator]\nqueue = "q"\n[ui]\n[placement]\nzone = 1\n[sandbox]\nnet = "none"\nseccomp = "strict"\n'
        '[[operations]]\nverb = "go"\ntitle = "Go"\n[[services]]\nexec = ["{bundle}/serve"]\n'
    )
    assert parse_manifest(text).not_used == [
        "coordinator",
        "operations",
        "placement",
        "sandbox.seccomp",
        "stages.colour",
        "ui",
    ]


def test_a_variant_applies_to_its_platform() -> None:
    text = GOOD + (
        '[[variants]]\nplatforms = ["linux-arm64"]\nexec = ["{bundle}/render-arm"]\nruntime = { kind = "native" }\nenv = { A = "1" }\n'
    )
    manifest = parse_manifest(text)
    assert manifest.runner_on("linux-amd64").exec[0] == "python"
    arm = manifest.runner_on("linux-arm64")
    assert (arm.exec, arm.runtime.kind, arm.env) == (["{bundle}/render-arm"], "native", {"A": "1"})


@pytest.mark.parametrize(
    "name", ["CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_VISIBLE_DEVICES"]
)
def test_case_088_a_module_chooses_no_mps_daemon_and_no_device_for_itself(name: str) -> None:
    with pytest.raises(ManifestError, match=name):
        parse_manifest(with_line("runner", f'env = {{ {name} = "/tmp/nvidia-mps" }}'))


def test_case_088_a_runner_inherits_no_mps_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its environment is built from nothing, so what the agent was started with reaches nobody; the owner's own settings do."""
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    places = {"module_data": tmp_path, "tmp": tmp_path, "settings": tmp_path / "s.json"}
    env = runner_environment(short="render", search="/usr/bin", **places)
    assert not [name for name in env if name.startswith("CUDA_")]
    owners = {"CUDA_MPS_PIPE_DIRECTORY": "/run/mps-fleet"}
    env = runner_environment(
        short="render", search="/usr/bin", device=owners, module_env={"CUDA_MPS_PIPE_DIRECTORY": "/x"}, **places
    )
    assert env["CUDA_MPS_PIPE_DIRECTORY"] == "/run/mps-fleet"
