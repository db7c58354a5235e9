"""Compliance, reading by reading, against the literals of governor.md."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.codes import CODES
from policies.compliance import CLEAR, ComplianceState, Entry, Judgement, Sample, gets_duty, judge

A = Sample("811", "llmserve", cooperative=True, duty=0.15, measured=0.15)


@dataclass
class Meter:
    """Feeds readings every two seconds."""

    state: ComplianceState = CLEAR
    now_s: float = 5000.0
    judgement: Judgement = field(default_factory=Judgement)
    entries: list[Entry] = field(default_factory=list)

    def read(self, *samples: Sample, budget: float | None = 0.3) -> dict[str, str]:
        self.now_s += 2.0
        self.state, self.judgement = judge(self.state, samples, budget, self.now_s)
        self.entries += self.judgement.entries
        return {unit: verdict.state for unit, verdict in self.judgement.verdicts.items()}

    def times(self, count: int, *samples: Sample, budget: float | None = 0.3) -> list[dict[str, str]]:
        return [self.read(*samples, budget=budget) for _ in range(count)]


def used(share: float | None, base: Sample = A, why: str = "") -> Sample:
    return replace(base, measured=share, why=why)


def test_a_unit_within_its_duty_and_slack_holds_it() -> None:
    meter = Meter()
    assert meter.times(50, used(0.25))[-1] == {"811": "holds"}
    assert meter.entries == []


def test_three_samples_in_a_row_over_it_are_held_for_a_minute() -> None:
    meter = Meter()
    assert meter.times(3, used(0.26)) == [{"811": "holds"}, {"811": "holds"}, {"811": "held"}]
    held_s = meter.now_s
    assert [entry.code for entry in meter.entries] == ["GPU_DUTY_EXCEEDED"]
    while meter.read(used(0.0)) == {"811": "held"}:
        pass
    assert meter.now_s - held_s == 60.0


def test_two_samples_and_one_within_are_no_overrun() -> None:
    meter = Meter()
    for _ in range(20):
        meter.times(2, used(0.9))
        assert meter.read(used(0.1)) == {"811": "holds"}
    assert meter.entries == []


def test_the_third_time_within_an_hour_is_stopped_and_its_module_gets_no_duty_for_an_hour() -> None:
    meter = Meter()
    other = replace(A, unit="900")
    for _ in range(2):
        meter.times(3, used(0.9), other)
        meter.times(31, used(0.0), other)
    assert meter.times(3, used(0.9), other)[-1] == {"811": "stopped", "900": "not_trusted"}
    stopped_s = meter.now_s
    assert meter.entries[-1].data["action"] == "stopped"
    assert not gets_duty(meter.state, "900", "llmserve", True, meter.now_s)
    assert gets_duty(meter.state, "901", "othermod", True, meter.now_s)
    while meter.read(other) == {"900": "not_trusted"}:
        pass
    assert meter.now_s - stopped_s == 3600.0


def test_overruns_over_an_hour_apart_do_not_add_up() -> None:
    meter = Meter()
    for _ in range(5):
        meter.times(3, used(0.9))
        assert meter.times(1000, used(0.1))[-1] == {"811": "holds"}
    assert {entry.data["action"] for entry in meter.entries} == {"held"}


def test_a_unit_that_goes_on_while_held_comes_to_its_third_time() -> None:
    meter = Meter()
    assert meter.times(9, used(0.9))[-1] == {"811": "stopped"}


def test_slack_does_not_add_up() -> None:
    """Four units, each 0.09 over a duty of 0.075: none is over its own slack, all together are over the budget's."""
    meter = Meter()
    units = [Sample(str(n), "m", True, 0.075, 0.165 + n / 1000) for n in range(4)]
    assert meter.times(2, *units)[-1] == {"0": "holds", "1": "holds", "2": "holds", "3": "holds"}
    assert meter.read(*units) == {"0": "holds", "1": "holds", "2": "holds", "3": "held"}
    assert meter.entries[-1].data["sum"] == pytest.approx(0.666)
    meter.times(3, *units[:3], replace(units[3], measured=0.0))
    assert meter.entries[-1].data["unit"] == "2", "still over: the next largest"


def test_an_unknown_share_does_not_show_that_the_sum_is_within_the_budget() -> None:
    meter = Meter()
    units = [Sample(str(n), "m", True, 0.1, 0.19) for n in range(3)]
    meter.times(2, *units)
    new = Sample("9", "m", True, 0.1, None, why="first reading")
    meter.read(*(replace(unit, measured=0.1) for unit in units), new)
    assert "held" in meter.read(*units, replace(new, measured=0.1)).values()


def test_the_sum_never_holds_an_innocent_unit_for_one_that_overruns_alone() -> None:
    meter = Meter()
    honest = replace(A, unit="900")
    for states in meter.times(60, used(0.6), honest):
        assert states["900"] == "holds" or states["811"] == "stopped"
    assert not any(entry.data["unit"] == "900" for entry in meter.entries)


def test_an_unreadable_unit_is_held_until_it_reads() -> None:
    meter = Meter()
    meter.read(A)
    assert meter.times(30, used(None, why="permission denied"))[-1] == {"811": "held"}
    assert [entry.code for entry in meter.entries] == ["GPU_DUTY_UNVERIFIED"], "journaled once"
    assert "permission denied" in meter.judgement.verdicts["811"].why
    assert meter.read(A) == {"811": "holds"}


def test_the_first_reading_of_a_new_unit_is_no_verdict() -> None:
    meter = Meter()
    assert meter.read(used(None, why="first reading")) == {"811": "holds"}
    assert meter.read(used(None, why="still none")) == {"811": "held"}


def test_case_003_an_old_share_is_no_data() -> None:
    """Two stamps of one query, nine and half a second old: the old one is the last value, not the current one."""
    meter = Meter()
    old, fresh = replace(A, measured=0.8, age_s=9.0), replace(A, unit="812", measured=0.05, age_s=0.5)
    meter.read(A, replace(A, unit="812"))
    assert meter.times(3, old, fresh)[-1] == {"811": "held", "812": "holds"}
    assert {entry.code for entry in meter.entries} == {"GPU_DUTY_UNVERIFIED"}, "unknown, so no overrun"


def test_case_004_a_burst_is_seen_reading_by_reading() -> None:
    """Ten seconds idle and two at full load are a mean of 0.17; each reading stands by itself, so no averaging hides it."""
    meter = Meter()
    load = [0.0] * 5 + [1.0]
    seen = [meter.read(used(share))["811"] for share in load * 3]
    assert set(seen) == {"holds"}, "one sample in six is within what three in a row allow"
    longer = [meter.read(used(share))["811"] for share in [0.0] * 5 + [1.0] * 3]
    assert longer[-1] == "held"


def test_case_021_time_that_belongs_to_nobody_is_no_verdict() -> None:
    """Under MPS the server has the samples and its clients none: unknown, not zero, hence held and never over."""
    meter = Meter()
    mixed = used(None, why="its time is counted on the MPS server")
    assert meter.times(10, mixed)[-1] == {"811": "held"}
    assert [entry.code for entry in meter.entries] == ["GPU_DUTY_UNVERIFIED"]


def test_case_095_every_unit_shows_whether_its_limit_is_enforced() -> None:
    meter = Meter()
    rigid = replace(A, unit="700", cooperative=False, measured=None)
    assert meter.read(A, rigid) == {"811": "holds", "700": "cannot_throttle"}
    assert meter.read(A, rigid, budget=None) == {}, "no duty is set: nothing is claimed"


def test_no_budget_asks_nothing_and_forgets_no_overrun() -> None:
    meter = Meter()
    for _ in range(2):
        meter.times(3, used(0.9))
        meter.times(31, used(0.0))
    assert meter.times(50, used(1.0), budget=None)[-1] == {}
    assert meter.times(2, used(0.9))[-1] == {"811": "holds"}, "counting begins anew"
    assert meter.read(used(0.9)) == {"811": "stopped"}, "but it is the third time"


def test_a_duty_that_just_fell_is_judged_from_the_next_reading() -> None:
    meter = Meter()
    meter.read(used(0.15))
    lower = replace(A, duty=0.0, measured=0.15)
    assert meter.times(3, lower, budget=0.0) == [{"811": "holds"}] * 3
    assert meter.read(lower, budget=0.0) == {"811": "held"}


def test_an_unreadable_reading_clears_no_overrun() -> None:
    meter = Meter()
    meter.times(2, used(0.9))
    meter.read(used(None, why="driver busy"))
    assert meter.read(used(0.9)) == {"811": "held"}
    assert meter.entries[-1].code == "GPU_DUTY_EXCEEDED"


def test_a_unit_that_vanishes_and_returns_keeps_its_record() -> None:
    meter = Meter()
    for _ in range(2):
        meter.times(3, used(0.9))
        meter.times(40)
    assert meter.times(3, used(0.9))[-1] == {"811": "stopped"}


def test_a_unit_within_its_own_slack_is_held_for_the_sum_and_never_stopped_for_it() -> None:
    """Only overruns of its own duty come to a third time."""
    meter = Meter()
    units = [Sample(str(n), "m", True, 0.075, 0.165 + n / 1000) for n in range(4)]
    for _ in range(5):
        meter.times(3, *units)
        meter.times(31, *(replace(unit, measured=0.0) for unit in units))
    assert [entry.data["unit"] for entry in meter.entries] == ["3"] * 5
    assert {entry.data["action"] for entry in meter.entries} == {"held"}
    assert meter.read(*(replace(unit, measured=0.0) for unit in units))["3"] == "holds"
    assert meter.times(3, replace(units[3], measured=0.9))[-1] == {"3": "held"}
    assert meter.entries[-1].data["time"] == 1, "the first of its own"


def test_a_time_without_a_budget_begins_the_sums_count_anew() -> None:
    meter = Meter()
    units = [Sample(str(n), "m", True, 0.075, 0.165) for n in range(4)]
    meter.times(2, *units)
    meter.read(*units, budget=None)
    assert set(meter.times(2, *units)[-1].values()) == {"holds"}
    assert "held" in meter.read(*units).values()


def test_a_unit_that_cannot_throttle_is_no_overrunner_and_costs_no_other_its_place() -> None:
    """It waits in any case; what it still uses is no other unit's."""
    meter = Meter()
    rigid = replace(A, unit="700", cooperative=False, measured=0.9)
    assert meter.times(10, A, rigid)[-1] == {"811": "holds", "700": "cannot_throttle"}
    assert meter.entries == []


@pytest.mark.parametrize(("age_s", "state"), [(4.0, "holds"), (4.1, "held")])
def test_a_share_counts_for_two_sampling_periods(age_s: float, state: str) -> None:
    meter = Meter()
    meter.read(A)
    assert meter.read(replace(A, age_s=age_s)) == {"811": state}


def test_what_cannot_be_read_is_told_anew_after_a_time_without_a_budget() -> None:
    meter = Meter()
    meter.read(A)
    for _ in range(2):
        meter.times(3, used(None, why="permission denied"))
        meter.times(3, used(None), budget=None)
    assert [entry.code for entry in meter.entries] == ["GPU_DUTY_UNVERIFIED"] * 2


shares = st.one_of(st.none(), st.floats(0.0, 1.0))


@given(st.lists(st.tuples(shares, shares), min_size=1, max_size=40), st.floats(0.0, 1.0))
def test_a_unit_never_runs_on_while_it_overran_the_last_three_readings(
    readings: list[tuple[float | None, float | None]], duty: float
) -> None:
    meter = Meter()
    for index, reading in enumerate(readings):
        states = meter.read(
            *(Sample(str(n), "m", True, duty, share) for n, share in enumerate(reading)), budget=2 * duty
        )
        for n in range(2):
            last = [readings[at][n] for at in range(max(0, index - 2), index + 1)]
            if len(last) == 3 and all(share is not None and share > duty + 0.11 for share in last):
                assert states[str(n)] != "holds"
            if index > 0 and last[-1] is None:
                assert states[str(n)] != "holds"
    assert {entry.code for entry in meter.entries} <= set(CODES)


# -- units that end before they can be read -----------------------------------------------------------------------------


def unread(meter: Meter, share: float, *samples: Sample, budget: float | None = 0.3) -> dict[str, str]:
    meter.now_s += 2.0
    meter.state, meter.judgement = judge(meter.state, samples, budget, meter.now_s, {"llmserve": share})
    meter.entries += meter.judgement.entries
    return {unit: verdict.state for unit, verdict in meter.judgement.verdicts.items()}


def test_work_in_pieces_too_short_to_be_read_is_held_by_its_module() -> None:
    """A meter needs two readings of a unit; one that never lives so long would run at any share, unseen."""
    meter = Meter()
    for number in range(2):
        unread(meter, 0.9, used(None, replace(A, unit=str(number))))
    assert meter.entries == []
    unread(meter, 0.9, used(None, replace(A, unit="2")))
    (entry,) = meter.entries
    assert (entry.code, entry.data["module"], entry.data["for_s"]) == ("GPU_DUTY_EXCEEDED", "llmserve", 60.0)
    assert meter.read(used(None, replace(A, unit="3"))) == {"3": "not_trusted"}
    meter.now_s += 60.0
    assert meter.read(used(0.1, replace(A, unit="4"))) == {"4": "holds"}


def test_the_third_time_within_an_hour_costs_the_module_an_hour() -> None:
    meter = Meter()
    for _ in range(3):
        for _ in range(3):
            unread(meter, 0.9)
        meter.now_s += 61.0
    assert [entry.data["for_s"] for entry in meter.entries] == [60.0, 60.0, 3600.0]
    assert meter.read(A) == {"811": "not_trusted"}
    assert not gets_duty(meter.state, "811", "llmserve", True, meter.now_s)


def test_pieces_of_a_module_that_is_not_trusted_for_an_hour_do_not_shorten_it() -> None:
    meter = Meter()
    for _ in range(2):
        meter.times(3, used(0.9))
        meter.times(31, used(0.0))
    assert meter.times(3, used(0.9))[-1] == {"811": "stopped"}
    for _ in range(3):
        unread(meter, 0.9)
    assert meter.entries[-1].data["for_s"] == 60.0
    meter.now_s += 120.0
    assert meter.read(replace(A, unit="900")) == {"900": "not_trusted"}


def test_a_short_unit_now_and_then_is_no_overrun() -> None:
    meter = Meter()
    for _ in range(30):
        unread(meter, 0.9)
        meter.read()
    assert meter.entries == []


def test_what_ended_unread_counts_with_what_runs_and_the_furthest_over_waits() -> None:
    meter = Meter()
    for _ in range(3):
        found = unread(meter, 0.1, used(0.34, replace(A, duty=0.3, module="sim")))
    assert found == {"811": "holds"}, "the piece used more beyond what it may than the unit"
    assert meter.entries[-1].data["module"] == "llmserve"
    assert "unit" not in meter.entries[-1].data
    other = Meter()
    for _ in range(3):
        found = unread(other, 0.05, used(0.4, replace(A, duty=0.3, module="sim")))
    assert found == {"811": "held"}


def next_one(number: int, share: float | None) -> Sample:
    return replace(A, unit=str(811 + number), measured=share)


def test_ending_while_held_and_beginning_anew_ends_no_hold_and_wipes_no_overrun_away() -> None:
    """A runner that leaves when it is paused, and is tried again, would else run at full share for most of the time."""
    meter = Meter()
    meter.times(3, used(0.9))
    held_s = meter.now_s
    meter.read()  # it ended
    while meter.read(next_one(1, 0.0)) == {"812": "held"}:
        pass
    assert meter.now_s - held_s == 60.0
    meter.times(3, next_one(1, 0.9))
    meter.read()
    while meter.read(next_one(2, 0.0)) == {"813": "held"}:
        pass
    assert meter.times(3, next_one(2, 0.9))[-1] == {"813": "stopped"}
    assert not gets_duty(meter.state, "900", "llmserve", True, meter.now_s + 3599.0)
    assert gets_duty(meter.state, "900", "other", True, meter.now_s)


def test_units_that_end_before_a_third_reading_are_in_a_row_with_the_next_of_their_module() -> None:
    """Each over its duty at both readings, and none there at the next: no unit's row alone would ever be long enough."""
    meter, seen = Meter(), set()
    for number in range(6):
        meter.read(next_one(number, None))
        seen |= set(meter.read(next_one(number, 0.9)).values()) | set(meter.read(next_one(number, 0.9)).values())
        meter.times(2)
    assert "held" in seen


def test_a_unit_takes_over_nothing_of_another_module_nor_of_one_that_is_there_nor_of_one_within_its_duty() -> None:
    meter = Meter()
    other = replace(A, unit="900", module="other")
    meter.times(3, used(0.9))
    assert meter.read(used(0.0), other)["900"] == "holds"
    assert meter.read(used(0.0), next_one(1, 0.1)) == {"811": "held", "812": "holds"}
    calm = Meter()
    calm.times(3, used(0.1))
    calm.read()
    assert calm.times(2, next_one(1, 0.9))[-1] == {"812": "holds"}


def test_a_unit_that_takes_over_is_not_held_for_its_first_reading() -> None:
    meter = Meter()
    meter.times(2, used(0.9))
    meter.read()
    assert meter.read(next_one(1, None)) == {"812": "holds"}
    assert meter.read(next_one(1, 0.1)) == {"812": "holds"}
    assert meter.times(2, next_one(1, 0.9))[-1] == {"812": "holds"}, "one reading within its duty ends the row"
    later = Meter()
    later.times(2, used(0.9))
    later.times(40)
    assert later.times(2, next_one(1, 0.9))[-1] == {"812": "holds"}, "what was a minute ago is in no row with this"
