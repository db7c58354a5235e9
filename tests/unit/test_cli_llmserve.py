"""``llmserve`` and ``mod``: what is refused before anything starts, and what is shown of what is kept."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from cotenant import fleet, store
from cotenant.cli import fleet_link, llmserve_input
from cotenant.settings import Settings
from policies.prompts import BatchSpec, parse_list
from policies.refusal import Refused
from tests.cli_runner import Cli, cli, home
from tests.fake_agent import FakeAgent

__all__ = ["cli", "home"]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Flow runs asked for, where a Prefect server would take them; models are not looked at."""
    runs: list[dict[str, Any]] = []

    def run_flow(url: str, deployment: str, parameters: dict[str, Any], node: str) -> str:
        runs.append({"deployment": deployment, "node": node, **parameters})
        return f"00000000-0000-0000-0000-{len(runs):012d}"

    monkeypatch.setattr(fleet_link, "connect", lambda settings: fleet_link.Fleet("http://127.0.0.1:1/api"))
    monkeypatch.setattr(fleet, "run_flow", run_flow, raising=False)
    monkeypatch.setattr(fleet_link.Fleet, "cancel_ended", lambda self, run: None)
    monkeypatch.setattr(llmserve_input, "check_model", lambda settings, spec, notes: None)
    return runs


def prompts(tmp_path: Path, *lines: object) -> str:
    file = tmp_path / "p.jsonl"
    file.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return str(file)


def test_bad_lines_are_listed_and_nothing_starts(cli: Cli, tmp_path: Path, started: list[dict[str, Any]]) -> None:
    file = prompts(tmp_path, {"prompt": "a"}, '{"prompt": \n', {"prompt": "b", "maxtokens": 1})
    said = cli("llmserve", "queue", file)
    assert said.code == 2
    assert "line 2: this is no JSON" in said.err
    assert "line 3: it has maxtokens" in said.err
    assert "--skip-bad" in said.err
    assert started == []
    half = cli("llmserve", "queue", prompts(tmp_path, '{"prompt": "a", "\\ud800": 1}'), "--json")
    assert half.code == 2
    assert "it has" in half.json["errors"][0]["data"]["lines"][0]["why"]
    file = prompts(tmp_path, {"prompt": "a"}, '{"prompt": \n', {"prompt": "b", "maxtokens": 1})
    said = cli("llmserve", "queue", file, "--skip-bad", "--json")
    assert said.code == 0, said.err
    assert said.json["data"]["prompts"] == 1
    assert [words.split(":")[0] for words in said.json["messages"]] == ["left out", "left out"]


def test_the_same_prompts_twice_are_a_second_batch_and_said_so(
    cli: Cli, tmp_path: Path, started: list[dict[str, Any]]
) -> None:
    file = prompts(tmp_path, {"prompt": "a"}, {"prompt": "b"})
    first = cli("llmserve", "queue", file, "--json").json["data"]
    second = cli("llmserve", "queue", file, "--json").json
    assert second["data"]["batch"] != first["batch"]
    assert first["batch"] in second["messages"][0]
    skipped = cli("llmserve", "queue", file, "--dedupe", "--json").json["data"]
    assert (skipped["queued"], skipped["batch"]) == (False, second["data"]["batch"])
    other = cli("llmserve", "queue", file, "--dedupe", "--max-tokens", "5", "--json").json["data"]
    assert other["queued"], "other options are other work"
    assert [run["batch"] for run in started] == [first["batch"], second["data"]["batch"], other["batch"]]


def test_a_batch_is_shown_with_its_results(cli: Cli, tmp_path: Path, home: Path, started: list[dict[str, Any]]) -> None:
    batch = cli("llmserve", "queue", prompts(tmp_path, {"prompt": "a"}, {"prompt": "b"}), "--json").json["data"][
        "batch"
    ]
    engine = store.open(store.default_url(home))
    store.next_job(engine, batch)
    # what a renderer of terminals would make something else of
    text = "hello :heart: [bold]\u2028\x85  "
    done = {"id": "0", "text": text, "finish": "stop", "prompt_tokens": 1, "tokens": 2, "error": None}
    figures = {"tokens": 2, "busy_s": 0.5, "wall_s": 2.0}
    store.take_over(engine, batch, 0, [done], [figures], after=0, place=9)
    status = cli("llmserve", "status", batch)
    assert status.code == 0, status.err
    assert "1 of 2 done, 0 failed" in status.out
    assert "4.0" in status.out
    assert cli("llmserve", "list", "--json").json["data"][0]["open"] == 1
    out = tmp_path / "out.jsonl"
    got = cli("llmserve", "results", batch, "-o", str(out))
    assert got.code == 1, "a prompt is open"
    first, second = (json.loads(line) for line in out.read_text().split("\n")[:2])
    assert (first["text"], first["state"]) == (text, "done")
    assert (second["text"], second["state"]) == (None, "open")
    assert cli("llmserve", "results", batch, "-o", "-").out == cli("llmserve", "results", batch).out == out.read_text()
    missing = cli("llmserve", "status", batch[:-1])
    assert missing.code == 2
    assert f"did you mean '{batch}'" in missing.err


def test_results_go_through_links_and_into_pipes_and_replace_neither(
    cli: Cli, tmp_path: Path, started: list[dict[str, Any]]
) -> None:
    batch = cli("llmserve", "queue", prompts(tmp_path, {"prompt": "a"}), "--json").json["data"]["batch"]
    real, link, pipe = tmp_path / "real.jsonl", tmp_path / "link.jsonl", tmp_path / "pipe"
    link.symlink_to(real)
    assert cli("llmserve", "results", batch, "-o", str(link)).code == 1
    assert link.is_symlink()
    assert json.loads(real.read_text())["state"] == "open"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert cli("llmserve", "results", batch, "-o", str(pipe)).code == 1
        assert json.loads(os.read(reader, 65536))["state"] == "open"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    said = cli("llmserve", "results", batch, "-o", str(tmp_path / "none" / "out.jsonl"))
    assert said.code not in (0, 1)
    assert "out.jsonl" in said.err


def test_a_batch_that_was_answered_whole_and_never_ended_may_be_retried(
    cli: Cli, tmp_path: Path, home: Path, started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_link.Fleet, "state_of", lambda self, run: {"words": "Crashed", "final": True})
    batch = cli("llmserve", "queue", prompts(tmp_path, {"prompt": "a"}), "--json").json["data"]["batch"]
    engine = store.open(store.default_url(home))
    store.next_job(engine, batch)
    done = {"id": "0", "text": "hello", "finish": "stop", "prompt_tokens": 1, "tokens": 2, "error": None}
    store.take_over(engine, batch, 0, [done], [], after=0, place=9)
    assert cli("llmserve", "retry", batch).code == 0
    assert [run["batch"] for run in started] == [batch, batch]
    store.end_batch(engine, batch, "done")
    said = cli("llmserve", "retry", batch)
    assert said.code == 2
    assert "no prompt of it is open" in said.err


@pytest.fixture
def flow_state(monkeypatch: pytest.MonkeyPatch, started: list[dict[str, Any]]) -> dict[str, Any]:
    """What the server says of the flow run; cancelled ones are listed."""
    state: dict[str, Any] = {"words": "Running", "final": False, "cancelled": [], "ended": [], "obeys": True}
    monkeypatch.setattr(fleet_link.Fleet, "state_of", lambda self, run: dict(state))
    monkeypatch.setattr(fleet_link.Fleet, "cancel", lambda self, run: state["cancelled"].append(run))

    def cancel_ended(self: fleet_link.Fleet, run: str) -> None:
        state["ended"].append(run)
        state["final"] = state["final"] or state["obeys"]

    monkeypatch.setattr(fleet_link.Fleet, "cancel_ended", cancel_ended)
    return state


def queued(cli: Cli, tmp_path: Path) -> dict[str, Any]:
    return dict(cli("llmserve", "queue", prompts(tmp_path, {"prompt": "a"}), "--json").json["data"])


def test_an_open_batch_says_how_its_flow_run_stands_and_what_to_do(
    cli: Cli, tmp_path: Path, home: Path, flow_state: dict[str, Any]
) -> None:
    batch = queued(cli, tmp_path)["batch"]
    said = cli("llmserve", "status", batch)
    assert "Running" in said.out
    assert "retry" not in said.out
    flow_state |= {"words": "Failed: the agent does not answer", "final": True}
    said = cli("llmserve", "status", batch)
    assert "the agent does not answer" in said.out
    assert f"at once: cotenant llmserve retry {batch}" in " ".join(said.out.split())
    store.end_batch(store.open(store.default_url(home)), batch, "failed", "it was put back often enough")
    assert cli("llmserve", "status", batch, "--json").json["data"]["next"] == f"cotenant llmserve retry {batch}"


def test_a_batch_that_no_flow_run_works_on_says_so_and_can_be_retried_or_cancelled(
    cli: Cli, home: Path, started: list[dict[str, Any]]
) -> None:
    """Killed between keeping the batch and starting its flow run."""
    engine = store.open(store.default_url(home))
    for name in ("b1", "b2"):
        items = parse_list(["a"]).items
        store.make_batch(engine, name, BatchSpec(node="n"), items, source="s", digest="d" * 64, style="plain")
    said = cli("llmserve", "status", "b1", "--json").json["data"]
    assert (said["flow"]["words"], said["next"]) == ("no flow run works on it", "cotenant llmserve retry b1")
    assert cli("llmserve", "retry", "b1").code == 0
    assert [run["batch"] for run in started] == ["b1"]
    assert cli("llmserve", "cancel", "b2").code == 0
    status = store.batch_status(engine, "b2")
    assert status is not None
    assert (status["state"], status["open"]) == ("cancelled", 1)


def test_cancelling_a_batch_whose_flow_run_ended_ends_the_batch(
    cli: Cli, tmp_path: Path, home: Path, flow_state: dict[str, Any]
) -> None:
    first = queued(cli, tmp_path)
    batch = first["batch"]
    flow_state |= {"words": "Crashed", "final": True}
    engine = store.open(store.default_url(home))
    store.next_job(engine, batch)
    store.set_job(engine, batch, 0, 7)
    unknown = Refused("JOB_UNKNOWN", "job", "there is no such job", "cotenant job list")
    with FakeAgent(home, job_show={"key": "another/0"}, job_cancel=unknown).serving() as agent:
        assert "does not know it any more" in " ".join(cli("llmserve", "status", batch).out.split())
        assert cli("llmserve", "cancel", batch).code == 0
        cancels = [params for verb, params in agent.asked if verb == "job_cancel"]
        assert cancels == [{"key": f"{batch}/0"}], "the number is another job's by now"
    status = store.batch_status(engine, batch)
    assert status is not None
    assert (status["state"], flow_state["cancelled"]) == ("cancelled", [])
    assert flow_state["ended"] == [first["flow_run_id"]], "its worker might be putting it back"


def test_of_a_batch_on_another_machine_nothing_is_claimed_of_its_job(
    cli: Cli, tmp_path: Path, home: Path, flow_state: dict[str, Any]
) -> None:
    (home / "nodes" / "local").mkdir(parents=True)
    file = prompts(tmp_path, {"prompt": "a"})
    batch = cli("llmserve", "queue", file, "--node", "far", "--json").json["data"]["batch"]
    engine = store.open(store.default_url(home))
    store.next_job(engine, batch)
    store.set_job(engine, batch, 0, 7)
    assert "node far does not answer here" in " ".join(cli("llmserve", "status", batch).out.split())
    flow_state |= {"words": "Crashed", "final": True}
    said = cli("llmserve", "cancel", batch)
    assert said.code == 0, said.err
    assert "job 7 was not stopped" in said.err
    assert (store.batch_status(engine, batch) or {})["state"] == "cancelled"


def test_a_retry_does_not_wait_for_a_run_that_is_to_be_put_back_later(
    cli: Cli, tmp_path: Path, home: Path, flow_state: dict[str, Any], started: list[dict[str, Any]]
) -> None:
    first = queued(cli, tmp_path)
    assert "has not ended" in cli("llmserve", "retry", first["batch"]).err
    flow_state |= {"words": "AwaitingNode: local: FLOW_PUT_BACK: put back: it was lost (4 of 9)", "obeys": False}
    assert "began again just now" in cli("llmserve", "retry", first["batch"]).err
    assert len(started) == 1, "two flow runs of a batch would take each other's jobs"
    flow_state["obeys"] = True
    again = cli("llmserve", "retry", first["batch"], "--json").json["data"]
    assert flow_state["ended"] == [first["flow_run_id"]] * 2
    status = store.batch_status(store.open(store.default_url(home)), first["batch"])
    assert status is not None
    assert status["flow_run_id"] == again["flow_run_id"] != first["flow_run_id"]


def test_failed_prompts_are_asked_again_where_that_is_wanted(
    cli: Cli, tmp_path: Path, home: Path, started: list[dict[str, Any]]
) -> None:
    batch = queued(cli, tmp_path)["batch"]
    engine = store.open(store.default_url(home))
    store.next_job(engine, batch)
    store.take_over(engine, batch, 0, [{"id": "0", "error": {"code": "job_failed", "message": "x"}}])
    store.end_job(engine, batch, 0, "done")
    store.end_batch(engine, batch, "done")
    assert cli("llmserve", "status", batch, "--json").json["data"]["next"].endswith("--failed")
    said = cli("llmserve", "retry", batch)
    assert said.code == 2
    assert "--failed" in said.err
    assert cli("llmserve", "retry", batch, "--failed", "--json").json["data"]["open"] == 1
    status = store.batch_status(engine, batch)
    assert status is not None
    assert (status["state"], status["open"], status["failed"]) == ("open", 1, 0)


def test_operations_of_modules(cli: Cli, started: list[dict[str, Any]]) -> None:
    asked = json.dumps({"prompts": ["a", "b"], "backend": "stub", "max_tokens": 9})
    said = cli("mod", "llmserve", "queue_prompts", "-p", asked, "--json")
    assert said.code == 0, said.err
    assert (said.json["data"]["prompts"], len(started)) == (2, 1)
    for words, named in (
        (("mod", "llmserv", "queue_prompts"), "llmserve"),
        (("mod", "llmserve", "queue"), "queue_prompts"),
        (("mod", "llmserve", "queue_prompts", "-p", '{"prompts": ["a"], "maxtokens": 1}'), "maxtokens"),
        (("mod", "llmserve", "queue_prompts", "-p", '{"prompts": []}'), "no prompt"),
        (("mod", "llmserve", "queue_prompts", "-p", "{}"), "there are none"),
        (("mod", "llmserve", "queue_prompts", "-p", '{"prompts": "Hi"}'), "no list"),
    ):
        said = cli(*words)
        assert said.code == 2
        assert named in said.err
    assert len(started) == 1


def test_requests_name_the_model_where_the_command_does_not() -> None:
    def request(number: int, model: str) -> dict[str, Any]:
        body = {"model": model, "messages": [{"role": "user", "content": "x"}]}
        return {"custom_id": str(number), "url": "/v1/chat/completions", "body": body}

    one, two = parse_list([request(1, "a")]), parse_list([request(1, "a"), request(2, "b")])
    assert llmserve_input.spec_of({"node": "n"}, one).model == "a"
    assert llmserve_input.spec_of({"node": "n", "model": "m"}, two).model == "m"
    with pytest.raises(Exception, match="they name the models a, b"):
        llmserve_input.spec_of({"node": "n"}, two)


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        ({"model": "m.gguf"}, None, ""),
        ({"model": "m.gguf", "backend": "mlx"}, "BACKEND_MISSING", "has llamacpp"),
        ({"model": "folder"}, "MODEL_OTHER_BACKEND", "it needs backend mlx, and node local has llamacpp"),
        ({"model": "other.gguf"}, "MODEL_UNKNOWN", "it has: bad.gguf, folder, m.gguf"),
        ({"model": "bad.gguf"}, "MODEL_BAD", "truncated"),
        ({}, "MODEL_UNKNOWN", "none was named"),
        ({"backend": "stub"}, None, ""),
    ],
)
def test_a_model_that_the_node_cannot_run_is_refused_before_anything_is_kept(
    home: Path, asked: dict[str, Any], code: str | None, words: str
) -> None:
    models = [
        {"name": "m.gguf", "kind": "gguf", "ok": True, "why": ""},
        {"name": "folder", "kind": "mlx", "ok": True, "why": ""},
        {"name": "bad.gguf", "kind": "gguf", "ok": False, "why": "it is truncated"},
    ]
    told = {"attrs": {"backends": ["llamacpp", "stub"], "models": models}}
    settings = Settings.from_env()
    with FakeAgent(home, settings.node, module_doctor=told).serving():
        spec = BatchSpec(node=settings.node, **asked)
        if code is None:
            llmserve_input.check_model(settings, spec, [])
            return
        with pytest.raises(Refused, match=words) as refused:
            llmserve_input.check_model(settings, spec, [])
    assert refused.value.code == code
    assert refused.value.remedy


@pytest.mark.parametrize("code", ["MODULE_HELD", "RUN_LOCKED"])
def test_prompts_are_queued_also_while_the_doctor_may_not_run(home: Path, code: str) -> None:
    settings, notes = Settings.from_env(), list[str]()
    held = Refused(code, "the doctor of llmserve", "rule trainer pauses fleet work of scope all", "ask later")
    with FakeAgent(home, settings.node, module_doctor=held).serving():
        llmserve_input.check_model(settings, BatchSpec(node=settings.node, model="m.gguf"), notes)
    assert "were not looked at now: rule trainer pauses" in notes[0]


@pytest.mark.parametrize("name", ["../x.gguf", "a/b.gguf", ".hidden", "x" * 300])
def test_a_model_with_a_path_for_a_name_is_refused(cli: Cli, tmp_path: Path, name: str) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    said = cli("llmserve", "add-model", str(file), "--name", name)
    assert said.code == 2
    assert "no plain file name" in said.err


def test_a_file_that_is_no_model_is_refused_with_the_reason(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"not a model")
    said = cli("llmserve", "add-model", str(file))
    assert said.code == 2
    assert "no GGUF file" in said.err


def test_a_spec_that_cannot_be_used_names_the_option() -> None:
    with pytest.raises(Exception, match="temperature 11"):
        llmserve_input.spec_of({"node": "n", "temperature": 11}, parse_list(["a"]))
    assert BatchSpec(node="n").per_job == 100


def test_looking_makes_no_store(cli: Cli, home: Path) -> None:
    for arguments in (
        ("list",),
        ("status", "batch-1"),
        ("results", "batch-1"),
        ("cancel", "batch-1"),
        ("retry", "batch-1"),
    ):
        said = cli("llmserve", *arguments)
        assert "no store yet" in said.err
        assert said.err.rstrip().endswith("cotenant up")
    assert not (home / "store.sqlite").exists()


def test_a_store_that_cannot_be_reached_is_said_with_its_address(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTENANT_STORE_URL", "sqlite:////proc/no/such/store.sqlite")
    for arguments in (("list",), ("status", "batch-1")):
        said = cli("llmserve", *arguments)
        assert said.code in (2, 3), said.err
        assert "/proc/no" in said.err
        assert "fault of cotenant" not in said.err


def test_a_file_whose_head_is_not_read_in_time_is_refused_as_such(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cotenant.cli import llmserve_models

    monkeypatch.setattr(llmserve_models, "CHECK_S", 0.001)
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    said = cli("llmserve", "add-model", str(file), "--json")
    assert (said.code, said.json["errors"][0]["code"]) == (2, "MODEL_BAD")
    assert "within 0.001 s" in said.json["errors"][0]["why"]
