"""Patterns that would take for ever are given up, and what they were to tell is unknown."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator

import pytest

from nodes.patience import STRIKES, Patience
from policies.patterns import TooLong, search, search_with
from policies.rules import ProcInfo, matches
from policies.section.models import Match
from policies.sources.meaning import LogProgressMeaning

ENDLESS = ["(a+)+$", "(a|a)*$", "(a|aa)+$", "^(([a-z])+.)+[A-Z]([a-z])+$", "(.*)*x"]
TEXT = "a" * 5000 + "!"


@pytest.fixture
def patience() -> Iterator[Patience]:
    made = Patience(0.02)
    before = signal.signal(signal.SIGALRM, made.alarm)
    search_with(made.search)
    yield made
    search_with(None)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("pattern", ENDLESS)
def test_an_endless_search_is_given_up_and_after_three_not_tried_again(patience: Patience, pattern: str) -> None:
    compiled = re.compile(pattern)
    for _ in range(STRIKES):
        with pytest.raises(TooLong):
            search(compiled, TEXT)
    # by construction: the fourth starts no timer and no search
    with pytest.raises(TooLong):
        search(compiled, "a")
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0


def test_a_search_that_ends_in_time_is_the_engines_own(patience: Patience) -> None:
    found = search(re.compile(r"step (\d+)"), "step 12")
    assert found is not None
    assert found.group(1) == "12"
    assert search(re.compile("b"), "aaa") is None
    time.sleep(0.05)  # no alarm is left behind


def test_a_late_alarm_means_nothing(patience: Patience) -> None:
    patience.alarm(signal.SIGALRM, None)


def test_a_process_on_which_argv_regex_is_given_up_counts_for_holding_only(patience: Patience) -> None:
    proc = ProcInfo(7, 1, 1, "x", "/bin/x", ("x", TEXT), 0)
    assert matches(Match(argv_regex="(a+)+$"), proc) == "unreadable"
    assert matches(Match(argv_regex="(b+)+$", name="y"), proc) == "no", "another key rules it out"


def test_lines_on_which_log_regex_is_given_up_are_counted(patience: Patience) -> None:
    meaning = LogProgressMeaning("(a+)+$")
    assert meaning.read_all([TEXT.encode()] * 50 + [b"aaa"]) == []
    assert meaning.skipped.too_long == 51
    assert meaning.skipped.as_dict() == {"too_long": 51}
