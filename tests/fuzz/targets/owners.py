"""What owners and their programs hand us: sections, lines of sources, the output of probes."""

from __future__ import annotations

import contextlib
import json
import math
import re
import signal
from collections.abc import Callable, Iterator

from hypothesis import strategies as st

from nodes.patience import Patience
from nodes.sources.probe import _rate
from policies.patterns import search_with
from policies.section import SectionErrors, parse_section
from policies.sources.meaning import (
    Counter,
    EventPhaseMeaning,
    FieldPhaseMeaning,
    JsonlProgressMeaning,
    LogProgressMeaning,
)
from policies.sources.progress import ProgressTrack
from policies.sources.splitter import LineSplitter
from policies.sources.timed import check_timed
from policies.sources.windows import live_rate
from tests.fuzz.targets.shapes import ROOT, Target, mutated

__all__ = ["OWNERS"]

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
    b"it 1e308 of 99999999999999999999999999999999\n",
    "step ٣ 1,250 -5 +.5 1e 0x10 _1_\n".encode(),
]
# An owner's one group may hold anything.
_COUNTERS = (r"(\S+)", r"(-?[\d.,e+_]+)", r"step(.*)of", r"(?:it|step) *(\d*)", "()")


@contextlib.contextmanager
def lines() -> Iterator[Callable[[list[bytes]], None]]:
    patience = Patience(0.005)
    before = signal.signal(signal.SIGALRM, patience.alarm)
    search_with(patience.search)

    def check(pieces: list[bytes]) -> None:
        splitter, track, counter, reset = LineSplitter(), ProgressTrack(), ProgressTrack(), ProgressTrack()
        jsonl, log, endless = (
            JsonlProgressMeaning("step_done", time_key="t"),
            LogProgressMeaning(r"step (\d+)"),
            LogProgressMeaning("(a+)+$"),
        )
        counting = [LogProgressMeaning(pattern) for pattern in _COUNTERS]
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
            for meaning in counting:
                values = [each.value for each in meaning.read_all(records) if isinstance(each, Counter)]
                assert all(math.isfinite(value) for value in values)
                reset.add_counter(now_s, values)
            for phase in phases:
                assert all(change.state in ("on", "off", "soon") for change in phase.read_all(records))
        for each in (track, counter, reset):
            rate = live_rate(each, now_s, 2.0).per_s
            assert rate is None or rate >= 0.0, "no rate is negative"
            check_timed(each.recent_reads())

    try:
        yield check
    finally:
        search_with(None)
        signal.signal(signal.SIGALRM, before)


# -- what a probe prints ---------------------------------------------------------------------------------------------------

_PRINTED = [
    b"12.5\n",
    b"warm up\n3 of 4\n0.25",
    b"",
    b"nan",
    b"-inf",
    b"1e999",
    b"9" * 5000,
    b"1_000",
    b"\xff\xfe1",
    b"-0.0",
]


@contextlib.contextmanager
def probes() -> Iterator[Callable[[bytes], None]]:
    def check(printed: bytes) -> None:
        answer = _rate(printed, ("/bin/rate", "now"))
        assert (answer.rate is None) == (answer.bad is not None), "a rate, or why there is none"
        assert answer.rate is None or (math.isfinite(answer.rate) and answer.rate >= 0.0)

    yield check


OWNERS = {
    "sections": Target(mutated(_SECTIONS), sections),
    "lines": Target(st.lists(st.sampled_from(_LINES) | st.binary(max_size=40), max_size=12), lines),
    "probes": Target(st.lists(st.sampled_from(_PRINTED) | st.binary(max_size=20), max_size=4).map(b"\n".join), probes),
}
