"""What strangers and owners may hand us, in any shape: a strategy for each kind of input, and what must hold of each.

``check`` of a target takes one input, calls the code that reads it, and raises where an answer is not among those that the
code may give. A crash is any other exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import string
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from cotenant.sdk.control import Control
from nodes.patience import Patience
from nodes.rpc import Peer, RpcServer
from policies.manifest import ManifestError, parse_manifest
from policies.patterns import search_with
from policies.section import SectionErrors, parse_section
from policies.sources.meaning import (
    Counter,
    EventPhaseMeaning,
    FieldPhaseMeaning,
    JsonlProgressMeaning,
    LogProgressMeaning,
)
from policies.sources.progress import ProgressTrack, live_rate
from policies.sources.splitter import LineSplitter
from policies.sources.timed import check_timed

__all__ = ["TARGETS", "Target"]

ROOT = Path(__file__).resolve().parents[2]

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
    | st.sampled_from(["trainer", "all", "gpu", "/x", "~/x", "(a+)+$", "1e400", "", "\x00", "local"])
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def mutated(draw: st.DrawFn, texts: list[str]) -> str:
    """A good text with a few pieces cut out, doubled, swapped or replaced."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(0, 4))):
        low = draw(st.integers(0, len(text)))
        high = min(len(text), low + draw(st.integers(0, 30)))
        piece = draw(
            st.sampled_from(
                ["", "\n", "[[", "]]", "{", "}", "=", '"', "'''", "[[rule]]\n", "id = 1\n", "-1", "1e999", "\0", "é"]
            )
            | st.text(string.printable, max_size=8)
            | st.just(text[low:high] * 2)
        )
        text = text[:low] + piece + text[high:]
    return text


# -- sections ------------------------------------------------------------------------------------------------------------

_SECTIONS = [
    *re.findall(r"```toml\n(.*?)```", (ROOT / "docs/protection.md").read_text(), re.S),
    '[[rule]]\nid = "x"\nmatch = { argv_regex = "(a+)+$" }\nprotect = { metric = "progress_rate", max_slowdown = 0.1, '
    'source = { exec = ["/bin/rate", "now"] } }\n[[rule.during]]\nsource = { on_exec = { match = { name = "y" } } }\n'
    'pause_fleet = { scope = "io" }\ncap_fleet = { slots = 1 }\n',
]


@contextlib.contextmanager
def sections() -> Iterator[Callable[[str], None]]:
    def check(text: str) -> None:
        told = []
        try:
            parse_section(text)
        except SectionErrors as errors:
            told = [(str(error), json.dumps(error.as_dict())) for error in errors.errors] or [("", "")]
        assert all(words for words, _ in told), "every refusal says why"

    yield check


# -- source lines --------------------------------------------------------------------------------------------------------

_LINES = [
    b'{"event": "step_done", "t": 12.5}\n',
    b'{"event": "status", "state": {"phase": "uploading"}}\r\n',
    b'{"event": "begin", "time": "2026-11-29T10:00:00Z"}\r',
    b"step 120/1000\n",
    b"\0" * 600,
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b'{"event": ' + b"[" * 300 + b"\n",
    b'{"t": 1e999, "event": "step_done"}\n',
    b'{"event": "step_done", "t": "' + b"9" * 400 + b'"}\n',
    b"a" * 3000 + b"!\n",
]


@contextlib.contextmanager
def lines() -> Iterator[Callable[[list[bytes]], None]]:
    patience = Patience(0.005)
    before = signal.signal(signal.SIGALRM, patience.alarm)
    search_with(patience.search)

    def check(pieces: list[bytes]) -> None:
        splitter, track, counter = LineSplitter(), ProgressTrack(), ProgressTrack()
        jsonl, log, endless = (
            JsonlProgressMeaning("step_done", time_key="t"),
            LogProgressMeaning(r"step (\d+)"),
            LogProgressMeaning("(a+)+$"),
        )
        phases = (
            EventPhaseMeaning("begin", "end", "soon"),
            FieldPhaseMeaning("status", "state.phase", ["uploading"], [1, None]),
        )
        now_s = 0.0
        for piece in pieces:
            now_s += 0.1
            records = splitter.feed(piece)
            assert splitter.held_bytes <= (1 << 20) + 4096
            found = jsonl.read_all(records)
            stamps = [each.time_s for each in found if not isinstance(each, Counter) and each.time_s is not None]
            track.add_stamped(now_s, 1.8e9 + now_s, stamps)
            track.add_events(now_s, len(found) - len(stamps))
            counter.add_counter(now_s, [each.value for each in log.read_all(records) if isinstance(each, Counter)])
            endless.read_all(records)
            for phase in phases:
                assert all(change.state in ("on", "off", "soon") for change in phase.read_all(records))
        for each in (track, counter):
            rate = live_rate(each, now_s, 2.0).per_s
            assert rate is None or rate >= 0.0, "no rate is negative"
            check_timed(each.recent_reads())

    try:
        yield check
    finally:
        search_with(None)
        signal.signal(signal.SIGALRM, before)


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


@dataclass(frozen=True)
class Target:
    """``inputs``: what is tried; ``opened``: gives the check, and takes away what that needed."""

    inputs: st.SearchStrategy[Any]
    opened: Callable[[], contextlib.AbstractContextManager[Callable[[Any], None]]]


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

TARGETS: dict[str, Target] = {
    "sections": Target(mutated(_SECTIONS), sections),
    "lines": Target(st.lists(st.sampled_from(_LINES) | st.binary(max_size=40), max_size=12), lines),
    "control": Target(_documents | st.binary(max_size=60), control_documents),
    "requests": Target(_calls | st.binary(max_size=60).filter(lambda data: b"\n" not in data), requests),
    "manifests": Target(mutated(_manifest_texts), manifests),
}
