"""New bytes at a glance: what the newest whole line says of a phase, and never more than the full reading would find."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.sources.glance import newest_state
from policies.sources.meaning import EventPhaseMeaning, FieldPhaseMeaning

ROOT = Path(__file__).resolve().parents[2]
EVENTS = [b'{"event": "begin", "time": 1.5}', b'{"event": "end"}', b'{"event": "soon"}', b'{"event": "step_done"}']


def meaning() -> EventPhaseMeaning:
    return EventPhaseMeaning("begin", "end", "soon")


def test_the_newest_word_counts() -> None:
    begin, end, soon, step = EVENTS
    assert newest_state(begin + b"\n", meaning()) == ("on", len(begin) + 1)
    assert newest_state(begin + b"\n" + end + b"\n", meaning())[0] == "off"
    assert newest_state(end + b"\n" + begin + b"\r\n" + step + b"\n", meaning())[0] == "on"
    assert newest_state(soon + b"\n", meaning())[0] == "soon"
    assert newest_state(step + b"\n", meaning()) == (None, len(step) + 1)


def test_a_line_without_its_end_says_nothing_yet() -> None:
    begin, end, _, _ = EVENTS
    assert newest_state(b"", meaning()) == (None, 0)
    assert newest_state(begin, meaning()) == (None, 0)
    assert newest_state(begin + b"\r", meaning()) == (None, 0)
    assert newest_state(end + b"\n" + begin, meaning()) == ("off", len(end) + 1)


@pytest.mark.parametrize("deep", ["[" * 990, '{"event":' * 990, '{"a":[' * 490])
def test_a_line_of_brackets_does_not_run_over_a_small_stack(deep: str) -> None:
    """In a process of its own, with a smaller stack than any thread here has: it would end by SIGSEGV."""
    code = (
        "import threading; from policies.sources.glance import newest_state as newest\n"
        "from policies.sources.meaning import EventPhaseMeaning as Meaning\n"
        "found = []\n"
        f"data = {deep!r}.encode() + b'\\n' + {EVENTS[0]!r} + b'\\n' + {deep!r}.encode() + b'\\n'\n"
        "threading.stack_size(64 << 10)\n"
        "thread = threading.Thread(target=lambda: found.append(newest(data, Meaning('begin', 'end'))))\n"
        "thread.start(); thread.join()\n"
        "assert found == [('on', len(data))], found\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


def test_what_cannot_be_read_says_nothing() -> None:
    for bad in (b"begin\n", b"\xff\xfe\n", b'{"event": "begin"\n', b'["begin"]\n', b"\0\0\n", b"\n"):
        assert newest_state(bad, meaning()) == (None, len(bad))


def test_a_field_phase_is_read_the_same_way() -> None:
    field = FieldPhaseMeaning("status", "state.phase", ["uploading"])
    lines = [json.dumps({"event": "status", "state": {"phase": name}}).encode() for name in ("uploading", "training")]
    assert newest_state(lines[0] + b"\n", field)[0] == "on"
    assert newest_state(lines[0] + b"\n" + lines[1] + b"\n", field)[0] == "off"


@given(st.lists(st.sampled_from([*EVENTS, b"x", b'{"a":']), max_size=8), st.integers(0, 400))
def test_cut_anywhere_the_pieces_end_in_what_the_whole_says(lines: list[bytes], cut: int) -> None:
    data = b"".join(line + b"\n" for line in lines)
    whole = newest_state(data, meaning())[0]
    first, taken = newest_state(data[:cut], meaning())
    then, _ = newest_state(data[taken:], meaning())
    assert (then or first) == whole
