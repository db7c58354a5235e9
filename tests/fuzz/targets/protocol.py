"""What runners, modules and clients of the socket hand us: control documents, requests, manifests, a runner's documents."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from hypothesis import strategies as st

from cotenant.sdk.control import Control
from nodes.doctor import _read_report
from nodes.jobs.adoption import _duty, _threads
from nodes.jobs.workdir import AttemptDir, newest_lines, told_process
from nodes.rpc import Peer, RpcServer
from policies.manifest import ManifestError, parse_manifest
from tests.fuzz.targets.shapes import ROOT, Target, altered, json_values, mutated, scalars

__all__ = ["PROTOCOL"]

# -- control documents ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def control_documents() -> Iterator[Callable[[bytes], None]]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)}
    folder = tempfile.mkdtemp()
    control = Control(folder)

    def check(document: bytes) -> None:
        path = os.path.join(folder, "control.json")
        with open(path, "wb") as file:
            file.write(document)
        before = control.seq
        signal.raise_signal(signal.SIGUSR1)
        assert control.seq >= before, "an older document never applies"
        duty, threads = control.gpu_duty, control.threads
        assert duty is None or 0.0 <= duty <= 1.0
        assert threads is None or threads >= 1
        assert control.pause in (True, False)

    try:
        yield check
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        shutil.rmtree(folder)


# -- JSON-RPC ------------------------------------------------------------------------------------------------------------

# They start processes or wait for the program: what they do with nonsense is decided before that, by the same checks.
_SLOW_VERBS = {"run_block", "run_plan", "run_begin", "run_reference", "module_add", "module_doctor"}
_NAMES = [
    "text",
    "by",
    "version",
    "module",
    "stage",
    "payload",
    "timeout_s",
    "job",
    "state",
    "limit",
    "after_seq",
    "code",
    "flow",
    "parameters",
    "run",
    "spec",
    "holder",
    "number",
    "order",
    "look",
    "ending",
    "reason",
    "verdict",
    "key",
    "rule",
    "work",
    "owner",
    "fleet",
]


class _Writer:
    """What ``RpcServer`` needs of a stream: it keeps what was written."""

    def __init__(self) -> None:
        self.out = b""

    def write(self, data: bytes) -> None:
        self.out += data

    async def drain(self) -> None:
        return None


@contextlib.contextmanager
def requests() -> Iterator[Callable[[bytes], None]]:
    from nodes.agent.core import Agent
    from nodes.agent.verbs import Verbs

    folder = Path(tempfile.mkdtemp())
    agent = Agent(folder, "fuzz", folder / "none")
    agent.start()
    agent.tick()
    verbs = {name: verb for name, verb in Verbs(agent).table().items() if name not in _SLOW_VERBS}
    server = RpcServer(folder / "never.sock", verbs)
    loop = asyncio.new_event_loop()
    asked = 0

    async def ask(line: bytes) -> bytes:
        writer, reader = _Writer(), asyncio.StreamReader()
        await server._one(line, Peer(os.getpid(), os.getuid(), asyncio.Event()), reader, writer)  # type: ignore[arg-type]
        return writer.out

    def check(line: bytes) -> None:
        nonlocal asked
        asked += 1
        out = loop.run_until_complete(ask(line + b"\n"))
        answer = json.loads(out)
        assert ("result" in answer) != ("error" in answer)
        if "error" in answer:
            assert answer["error"]["code"] != -32603, answer
        if asked % 500 == 0:
            for job in agent.jobs.waiting():
                agent.jobs.cancel(job.job)

    try:
        yield check
    finally:
        loop.close()
        agent.journal.close()
        agent.hub.close()
        shutil.rmtree(folder)


# -- manifests -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def manifests() -> Iterator[Callable[[str], None]]:
    def check(text: str) -> None:
        with contextlib.suppress(ManifestError):
            parse_manifest(text)

    yield check


# -- documents of a runner -----------------------------------------------------------------------------------------------

_RESULT = {
    "schema": "m/result@1",
    "payload": {"a": 1},
    "artifacts": [{"name": "x", "files": [{"local": "out/a.txt", "path": "a.txt"}]}],
}
_FAILURE = {"reason": "m/x", "detail": "why", "fault": "job", "retry_after_s": 5}
_WHO = {"attempt_id": "1-1-a", "pid": 12, "start_ticks": 5, "boot_id": "b", "mono_s": 1.5}
_REPORT = {
    "health": "healthy",
    "runner_protocol": {"supported": [1]},
    "capabilities": ["freeze_ok"],
    "checks": [{"name": "python", "ok": True}],
    "attrs": {"a": 1},
}
_NAMES_OF_DOCUMENTS = ("work/result.json", "work/failure.json", "work/control.json", "runner.json", "events")


@contextlib.contextmanager
def runner_documents() -> Iterator[Callable[[tuple[str, str]], None]]:
    folder = Path(tempfile.mkdtemp())
    attempt = AttemptDir(folder)
    attempt.work.mkdir()

    def check(found: tuple[str, str]) -> None:
        name, text = found
        path = folder / name
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        outcome = attempt.outcome("m")
        assert (outcome.result is None) == (outcome.state != "ok")
        for each in json.loads(json.dumps(outcome.result or {})).get("artifacts", []):
            for file in each["files"]:
                assert ".." not in Path(file.get("local", file.get("path"))).parts, "nothing leads out of the folder"
        assert isinstance(attempt.last_seq(), int)
        duty, threads = _duty(attempt, None), _threads(attempt)
        assert duty is None or isinstance(duty, float)
        assert threads is None or isinstance(threads, int)
        told_process(attempt.root, "runner", "1-1-a")
        assert all(isinstance(line, str) for line in newest_lines(folder / "events"))
        _read_report(path.read_bytes(), 0, "")
        path.unlink()

    try:
        yield check
    finally:
        shutil.rmtree(folder)


_documents = st.builds(
    lambda raw: json.dumps(raw).encode(),
    st.dictionaries(st.sampled_from(["seq", "stop", "pause", "threads", "gpu_duty", "reason"]), scalars) | json_values,
)
_calls = st.builds(
    lambda method, params, ident: json.dumps(
        {"jsonrpc": "2.0", "id": ident, "method": method, "params": params}
    ).encode(),
    st.sampled_from(
        [
            "hello",
            "status",
            "section_show",
            "section_preview",
            "section_set",
            "sources",
            "modules",
            "job_submit",
            "job_list",
            "job_show",
            "job_cancel",
            "timeline",
            "admit_flow",
            "run_look",
            "run_status",
            "run_end",
            "run_abort",
            "run_show",
            "run_list",
            "certificate_offer",
            "certificates",
            "nope",
        ]
    )
    | json_values,
    st.dictionaries(st.sampled_from(_NAMES), json_values, max_size=4) | json_values,
    json_values,
)
_manifest_texts = [
    path.read_text()
    for path in (*ROOT.glob("modules/*/oarbank-module.toml"), ROOT / "tests/node/foreign_module/oarbank-module.toml")
]

PROTOCOL = {
    "control": Target(_documents | st.binary(max_size=60), control_documents),
    "requests": Target(_calls | st.binary(max_size=60).filter(lambda data: b"\n" not in data), requests),
    "manifests": Target(mutated(_manifest_texts), manifests),
    "runner_documents": Target(
        st.tuples(
            st.sampled_from(_NAMES_OF_DOCUMENTS),
            altered([_RESULT, _FAILURE, _WHO, _REPORT, {"seq": 4, "gpu_duty": 0.5, "threads": 2}]),
        ),
        runner_documents,
    ),
}
