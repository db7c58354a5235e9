"""The benchmark's own arithmetic, on samples that are true by construction."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.duty_accuracy import Held, Samples, Stretch, _figures, _on_one_processor, judged


def samples(*pieces: tuple[float, float], step_s: float = 0.05) -> Samples:
    """CPU used at a rate over a span, one piece after the other."""
    at, cpu = [0.0], [0.0]
    for seconds, rate in pieces:
        for _ in range(round(seconds / step_s)):
            at.append(at[-1] + step_s)
            cpu.append(cpu[-1] + rate * step_s)
    return Samples(at, cpu, [0.1 * moment for moment in at])


def test_the_largest_window_is_found_wherever_it_lies() -> None:
    seen = samples((4.0, 0.2), (10.0, 0.5), (6.0, 0.2))
    assert seen.largest_share(0.0, 20.0, 10.0) == pytest.approx(0.5)
    assert seen.largest_share(0.0, 9.0, 10.0) is None


def test_shares_and_ratios_by_arithmetic() -> None:
    # 12 s held at 0.3, then 1 s free, 3 s held and 3 s bare by turns, on a machine that gives a free loop 0.8 of a core
    seen = samples((12.0, 0.3), (1.0, 0.8), (3.0, 0.3), (3.0, 0.3), (1.0, 0.8))
    stretches = [
        Stretch("held", 0.0, 12.0, 360),
        Stretch("free", 12.0, 13.0, 80),
        Stretch("held", 13.0, 16.0, 90),
        Stretch("bare", 16.0, 19.0, 72),
        Stretch("free", 19.0, 20.0, 80),
    ]
    held = judged(0.01, 0.3, seen, stretches)
    assert held.share == pytest.approx(0.3)
    assert held.largest == pytest.approx(0.3)
    assert held.waited == pytest.approx(0.1)
    assert held.took_s == pytest.approx(0.01)
    # 30 units a second and 24 against 0.3 of 80
    assert held.throughput_ratio == pytest.approx(30.0 / 24.0)
    assert held.bare_ratio == pytest.approx(1.0)


@pytest.mark.parametrize(("took_s", "judged_so"), [(0.205, False), (0.243, None)])
def test_a_unit_that_the_host_made_longer_than_the_promise_is_for_is_not_judged_by_it(
    took_s: float, judged_so: bool | None
) -> None:
    held = Held(0.2, 0.1, waited=0.3, share=0.12, largest=0.1214, took_s=took_s, throughput_ratio=1.0, bare_ratio=1.0)
    largest = _figures(held, busy=False)[0]
    assert largest.holds is judged_so
    assert "of CPU time" in (largest.reference or "")


def test_the_child_stays_on_one_processor_and_whoever_measures_on_all_of_its_own() -> None:
    """Competitors and the next child are given what this process may use."""
    ours = os.sched_getaffinity(0)
    for _ in range(2):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        try:
            _on_one_processor(child.pid)
            assert os.sched_getaffinity(child.pid) == {max(ours)}
        finally:
            child.communicate(b"\n", timeout=60)
    assert os.sched_getaffinity(0) == ours
