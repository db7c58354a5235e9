"""New bytes at a glance: what the newest whole line says of a phase, and never more than the full reading would find."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from policies.sources.glance import newest_state
from policies.sources.meaning import EventPhaseMeaning, FieldPhaseMeaning

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
