"""Latency from a source's write to the last runner paused."""

from __future__ import annotations

import pytest

from policies.sources.latency import KEPT, Latencies, latency_s


@pytest.mark.parametrize(
    ("mtime_s", "line_s", "expected"),
    [
        (100.0, None, 0.5),
        (100.0, 100.2, 0.3),  # the line's own stamp is later: the file's time is coarse
        (100.2, 100.0, 0.3),  # it waited in a buffer: the write is what counts
        (100.0, 7.0, 0.5),  # seconds since the program's start
        (100.0, 4000.0, 0.5),  # another clock
        (None, None, None),
        (101.0, None, None),
    ],
)
def test_the_later_known_of_both_is_the_write(
    mtime_s: float | None, line_s: float | None, expected: float | None
) -> None:
    assert latency_s(100.5, mtime_s, line_s) == (None if expected is None else pytest.approx(expected))


def test_quantiles_are_those_of_the_newest_thousand() -> None:
    kept = Latencies()
    assert kept.quantile_ms(0.5) is None
    for value in [5000.0] * 10 + [float(number) for number in range(1, KEPT + 1)]:
        kept.add(value)
    assert (kept.quantile_ms(0.5), kept.quantile_ms(0.99), kept.quantile_ms(1.0)) == (500.0, 990.0, 1000.0)
