"""Records to events, counter values and phases."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.sources.json_lines import at_path, stamp_s
from policies.sources.meaning import (
    Counter,
    EventPhaseMeaning,
    FieldPhaseMeaning,
    JsonlProgressMeaning,
    LogProgressMeaning,
    PhaseChange,
    ProgressEvent,
)


def line(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def test_an_event_counts_and_others_do_not() -> None:
    meaning = JsonlProgressMeaning("step_done")
    assert meaning.read(line(event="step_done", step=1)) == ProgressEvent()
    assert meaning.read(line(event="eval_done")) is None
    assert meaning.read(line(other="step_done")) is None
    assert meaning.skipped.total == 0


def test_the_fast_way_through_many_records_agrees_with_the_slow_one() -> None:
    records = [
        line(event="step_done"),
        line(event="other", text="step_done"),
        b'{"event":"step\\u005fdone"}',
        b'{"event":"step_done"',
        b'"step_done"',
        b"[1]",
        b"no json",
        b'{"event":"\xff"}',
        line(event="unrelated"),
        b' {"event":"step_done"} ',
        line(event=["step_done"]),
    ]
    slow, fast = JsonlProgressMeaning("step_done"), JsonlProgressMeaning("step_done")
    assert fast.read_all(records) == [event for record in records if (event := slow.read(record)) is not None]
    assert len(fast.read_all(records)) == 3
    assert slow.skipped.no_json == 2


def test_after_many_events_what_is_no_event_is_read_as_ever() -> None:
    """A file of events alone is parsed without a look at each line first; what comes then is not counted as one."""
    meaning = JsonlProgressMeaning("step_done")
    event = line(event="step_done", step=1)
    assert len(meaning.read_all([event] * 20)) == 20
    assert (
        len(meaning.read_all([event, line(event="other", of="step_done"), line(x=1), line(event=["step_done"])])) == 1
    )
    assert len(meaning.read_all([event] * 20)) == 20
    assert len(meaning.read_all([event, b"junk", b'["step_done"]', b'{"cut": tru}', event])) == 2
    assert meaning.skipped.as_dict() == {"no_json": 1, "no_object": 1}


def test_what_cannot_be_read_is_counted_by_reason() -> None:
    meaning = JsonlProgressMeaning("step_done")
    for bad in (b"{", b"nonsense", b'{"event":"\xff\xfe"}', b"[]", b"1", b"null"):
        assert meaning.read(bad) is None
    assert meaning.skipped.as_dict() == {"no_json": 2, "no_utf8": 1, "no_object": 3}


def test_a_line_of_a_thousand_brackets_does_no_harm() -> None:
    meaning = JsonlProgressMeaning("step_done")
    assert meaning.read(b"[" * 100_000) is None
    assert meaning.read(b'{"a":' * 50_000) is None
    assert meaning.skipped.no_json == 2


def test_a_lone_surrogate_is_what_python_programs_write() -> None:
    assert JsonlProgressMeaning("e").read(json.dumps({"event": "e", "text": "\ud83d"}).encode()) == ProgressEvent()


def test_dotted_paths_find_nested_and_literal_keys() -> None:
    assert at_path({"a": {"b": 1}}, "a.b") == 1
    assert at_path({"a.b": 2}, "a.b") == 2
    assert at_path({"a.b": {"c": 3}}, "a.b.c") == 3
    assert at_path({"a": {"b.c": 4}}, "a.b.c") == 4
    assert at_path({"a": 5}, "a.b") is at_path({}, "x")
    meaning = JsonlProgressMeaning("done", "meta.kind")
    assert meaning.read(line(meta={"kind": "done"})) == ProgressEvent()
    assert meaning.read(b'{"meta.kind":"done"}') == ProgressEvent()


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (12.5, 12.5),
        (3, 3.0),
        ("12.5", 12.5),
        ("2026-11-29T00:00:00+00:00", 1795910400.0),
        ("2026-11-29T01:00:00+01:00", 1795910400.0),
        ("2026-11-29T00:00:00Z", 1795910400.0),
        ("2026-11-29T00:00:00", 1795910400.0),
    ],
)
def test_stamps(value: object, seconds: float) -> None:
    assert stamp_s(value) == seconds


@pytest.mark.parametrize("value", [True, None, "soon", float("nan"), float("inf"), [], {}, "9" * 100, 10**400])
def test_what_is_no_stamp(value: object) -> None:
    assert stamp_s(value) is None


def test_an_event_without_its_stamp_still_counts() -> None:
    meaning = JsonlProgressMeaning("e", time_key="t.s")
    assert meaning.read(line(event="e", t={"s": 4})) == ProgressEvent(4.0)
    assert meaning.read(line(event="e")) == ProgressEvent()
    assert meaning.skipped.no_time == 1


def test_log_lines_count_or_carry_a_counter() -> None:
    assert LogProgressMeaning(r"step \d+ done").read(b"12:01 step 3 done") == ProgressEvent()
    counter = LogProgressMeaning(r"(\S+)/1000")
    assert counter.counts == "counter"
    assert counter.read(b"[===>  ] 450/1000") == Counter(450.0)
    assert counter.read(b"12.5/1000") == Counter(12.5)
    assert counter.read(b"1,250/1000") is None
    assert counter.read(b"nan/1000") is None
    assert counter.read("٣/1000".encode()) is None
    assert counter.skipped.no_number == 3
    with pytest.raises(ValueError, match="one capture group"):
        LogProgressMeaning("(a)(b)")


def test_case_065_a_reported_throughput_is_never_used() -> None:
    meaning = JsonlProgressMeaning("step_done")
    assert meaning.read(line(event="step_done", throughput=76232)) == meaning.read(line(event="step_done"))


def test_phases_from_events() -> None:
    meaning = EventPhaseMeaning("begin", "end", "soon")
    assert meaning.read(line(event="begin", time=7.0)) == PhaseChange("on", 7.0)
    assert meaning.read(line(event="end")) == PhaseChange("off")
    assert meaning.read(line(event="soon")) == PhaseChange("soon")
    assert meaning.read(line(event="step")) is None


def test_phases_from_a_field() -> None:
    meaning = FieldPhaseMeaning("status", "state.phase", ["uploading", 1], ["packing"])
    assert meaning.read(line(event="status", state={"phase": "uploading"})) == PhaseChange("on")
    assert meaning.read(line(event="status", state={"phase": "packing"})) == PhaseChange("soon")
    assert meaning.read(line(event="status", state={"phase": "training"})) == PhaseChange("off")
    assert meaning.read(line(event="status", state={"phase": True})) == PhaseChange("off"), "true is not 1"
    assert meaning.read(line(event="status")) == PhaseChange("off")
    assert meaning.read(line(event="step", state={"phase": "uploading"})) is None


def test_many_phase_lines_agree_with_one_by_one() -> None:
    records = [line(event="step"), b'{"event":"begin"}', b'{"event":"\\u0065nd"}', b"junk", line(x="begin")]
    one, many = EventPhaseMeaning("begin", "end"), EventPhaseMeaning("begin", "end")
    assert many.read_all(records) == [change for record in records if (change := one.read(record)) is not None]
    assert [change.state for change in many.read_all(records)] == ["on", "off"]
    assert one.skipped.no_json == 1


@pytest.mark.parametrize(
    "odd",
    [
        b'{"event":"begin"}',
        b'{"event":"\\u0065nd"}',
        b"junk",
        b"{",
        b"}",
        b'{"a":1}\n{"event":"begin"}',
        line(x="begin"),
    ],
)
@pytest.mark.parametrize("at", [0, 10, 20])
def test_one_odd_line_among_many_is_read_as_it_is_alone(odd: bytes, at: int) -> None:
    records = [line(event="step", step=number) for number in range(20)]
    records.insert(at, odd)
    one, many = EventPhaseMeaning("begin", "end"), EventPhaseMeaning("begin", "end")
    assert many.read_all(records) == [change for record in records if (change := one.read(record)) is not None]
    assert many.skipped == one.skipped


@given(record=st.binary(max_size=300))
@settings(deadline=None)
def test_no_bytes_raise(record: bytes) -> None:
    JsonlProgressMeaning("e", "a.b", "t").read_all([record])
    LogProgressMeaning(r"(\S+)").read_all([record])
    EventPhaseMeaning("a", "b").read_all([record])
    FieldPhaseMeaning("a", "b", ["c"]).read_all([record])


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=8) | st.sampled_from(["e", "begin"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["event", "a", "t"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(objects=st.lists(JSON, max_size=10), escape=st.booleans())
@settings(deadline=None, max_examples=50)
def test_any_json_reads_the_same_one_by_one_and_all_together(objects: list[object], escape: bool) -> None:
    records = [json.dumps(item, ensure_ascii=escape).encode("utf-8", "surrogatepass") for item in objects]
    for one, many in (
        (JsonlProgressMeaning("e"), JsonlProgressMeaning("e")),
        (EventPhaseMeaning("begin", "e"), EventPhaseMeaning("begin", "e")),
    ):
        expected = [found for record in records if (found := one.read(record)) is not None]
        assert many.read_all(records) == expected
        assert many.read_all(records * 10) == expected * 10


@pytest.mark.parametrize(
    "text", ["1e308", "-1e308", "9007199254740994", "9" * 40, "nan", "inf", "1,250", "0x10", "1_000", "٣"]
)
def test_case_064_a_count_that_is_none_is_counted_and_says_nothing(text: str) -> None:
    """Beyond 2**53 one step more is the same number, and a sum of such leaves no count at all."""
    meaning = LogProgressMeaning(r"step (\S+)")
    assert meaning.read_all([f"step {text}".encode(), b"step 12"]) == [Counter(12.0)]
    assert meaning.skipped.no_number == 1
