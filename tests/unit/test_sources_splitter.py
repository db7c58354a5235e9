"""Bytes to records: any input, cut anywhere, in bounded memory."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policies.sources.splitter import HOLE_BYTES, MAX_RECORD_BYTES, LineSplitter, encoding_fault

GOOD = b'{"step":2}'


def all_at_once(data: bytes) -> tuple[list[bytes], tuple[int, int, int]]:
    splitter = LineSplitter()
    return splitter.feed(data), (splitter.dropped_long, splitter.bad, splitter.gaps)


def in_pieces(data: bytes, sizes: list[int]) -> tuple[list[bytes], tuple[int, int, int]]:
    splitter, records, at = LineSplitter(), [], 0
    turn = 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        records += splitter.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    return records, (splitter.dropped_long, splitter.bad, splitter.gaps)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_each_kind_of_record_end(end: bytes) -> None:
    assert all_at_once(b"a" + end + b"b" + end + b"c")[0] == [b"a", b"b"]


def test_a_crlf_cut_in_two_is_one_end() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"a\r") == [b"a"]
    assert splitter.feed(b"\nb\n") == [b"b"]


def test_case_050_a_hole_of_nuls_is_one_gap_and_the_next_line_is_read() -> None:
    records, (_, bad, gaps) = all_at_once(b"\0" * (1024 * 1024) + GOOD + b"\n")
    assert records == [GOOD]
    assert (bad, gaps) == (0, 1)


def test_case_050_a_hole_behind_half_a_line_costs_that_half_only() -> None:
    records, (_, bad, gaps) = all_at_once(b'{"st' + b"\0" * HOLE_BYTES + GOOD + b"\n")
    assert records == [GOOD]
    assert (bad, gaps) == (1, 1)


def test_case_051_a_nul_inside_a_line_is_one_bad_line() -> None:
    records, (_, bad, gaps) = all_at_once(b'{"step":1}\0\n' + GOOD + b"\n")
    assert records == [GOOD]
    assert (bad, gaps) == (1, 0)


def test_case_052_a_line_without_end_is_dropped_in_bounded_memory() -> None:
    splitter = LineSplitter()
    for _ in range(50):
        assert splitter.feed(b"x" * (1024 * 1024)) == []
        assert splitter.held_bytes <= MAX_RECORD_BYTES
    assert splitter.feed(b"tail\n" + GOOD + b"\n") == [GOOD]
    assert splitter.dropped_long == 1


def test_a_line_of_just_the_cap_is_kept() -> None:
    line = b"y" * MAX_RECORD_BYTES
    assert all_at_once(line + b"\n")[0] == [line]
    assert all_at_once(line + b"y\n" + GOOD + b"\n") == ([GOOD], (1, 0, 0))


def test_case_055_a_partial_line_is_held() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"step 12") == []
    assert splitter.feed(b"3\n") == [b"step 123"]


def test_case_057_a_byte_order_mark_is_no_content() -> None:
    assert all_at_once(b"\xef\xbb\xbf" + GOOD + b"\n")[0] == [GOOD]
    assert in_pieces(b"\xef\xbb\xbf" + GOOD + b"\n", [1])[0] == [GOOD]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_case_057_utf16_is_named(encoding: str) -> None:
    data = '{"step":1}\n'.encode(encoding)
    fault = encoding_fault(data[:4])
    assert fault is not None
    assert "UTF-16" in fault


def test_case_057_utf16_with_its_mark_stops_the_splitter_with_a_fault() -> None:
    splitter = LineSplitter()
    data = '{"step":1}\n'.encode("utf-16")
    assert splitter.feed(data[:1]) == []
    assert splitter.feed(data[1:]) == []
    assert splitter.fault is not None
    assert "UTF-16" in splitter.fault


@pytest.mark.parametrize("mark", [b"\xff\xfe", b"\xfe\xff", b"\xff\xfe\0\0", b"\0\0\xfe\xff"])
def test_case_057_a_mark_that_comes_in_pieces_is_a_mark(mark: bytes) -> None:
    splitter = LineSplitter()
    for byte in mark:
        assert splitter.feed(bytes([byte])) == []
    assert splitter.fault is not None
    assert splitter.gaps == splitter.bad == 0


def test_utf8_is_no_fault() -> None:
    assert encoding_fault(b'{"a"') is None
    assert encoding_fault("größe".encode()) is None
    assert encoding_fault(b"") is None
    assert encoding_fault(b"\0\0\0\0") is None


def test_case_062_carriage_returns_end_records() -> None:
    bar = b"".join(b"\r%d/10000" % i for i in range(1, 10_001))
    records, counts = all_at_once(bar)
    assert records == [b"%d/10000" % i for i in range(1, 10_000)]
    assert counts == (0, 0, 0)
    assert LineSplitter(mid_record=True).feed(b"rest\nfirst\n") == [b"first"]


PIECES = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from([b"\n", b"\r", b"\r\n", b"\0", b"\xef\xbb\xbf", GOOD, b"\0" * 511, b"\0" * 512, b"\0" * 2000]),
    ),
    max_size=30,
).map(b"".join)


@given(data=PIECES, sizes=st.lists(st.integers(1, 700), min_size=1, max_size=20))
@example(data=b"\0\0\xfe\xff", sizes=[1])
@example(data=b"\0\0\xfe", sizes=[1])
@settings(deadline=None)
def test_where_the_bytes_are_cut_does_not_matter(data: bytes, sizes: list[int]) -> None:
    assert in_pieces(data, sizes) == all_at_once(data)


@given(sizes=st.lists(st.integers(1, 400_000), min_size=1, max_size=5), long=st.integers(-3, 3), nuls=st.integers(0, 3))
@settings(deadline=None, max_examples=6)
def test_the_cap_does_not_depend_on_the_cuts(sizes: list[int], long: int, nuls: int) -> None:
    half = b"z" * (MAX_RECORD_BYTES // 2)
    data = half + b"\0" * nuls + half + b"z" * (3 + long) + b"\n" + GOOD + b"\r\n"
    sizes = [size + 100_000 for size in sizes]
    assert in_pieces(data, sizes) == all_at_once(data)
    assert all_at_once(data)[0][-1] == GOOD


@given(data=st.binary(max_size=5000), sizes=st.lists(st.integers(1, 500), min_size=1, max_size=10))
@settings(deadline=None)
def test_no_record_holds_an_end_or_a_nul(data: bytes, sizes: list[int]) -> None:
    for record in in_pieces(data, sizes)[0]:
        assert record
        assert not set(record) & {0, 10, 13}


@pytest.mark.parametrize("encoding", ["utf-32-le", "utf-32-be"])
def test_case_057_utf32_is_named_with_and_by_its_mark(encoding: str) -> None:
    data = "\ufeff".encode(encoding) + '{"step": 1}\n'.encode(encoding)
    assert "UTF-32" in str(encoding_fault(data[:4]))
    splitter = LineSplitter()
    assert splitter.feed(data) == []
    assert "UTF-32" in str(splitter.fault)
