"""Which devices a program uses, and where a unit may start."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.devices import DEVICE_USE_KEPT_S, DOUBT, DeviceView, UseState, device_use, place, step_use
from policies.explain import node_state
from policies.units import reasons, rules_beside
from policies.views import NodeView, Reason, RuleView, Unit

GB = 1_000_000_000


def used(*readings: tuple[float, dict[str, tuple[float, str | None]]]) -> UseState:
    state = UseState()
    for now_s, shares in readings:
        state = step_use(state, shares, now_s)
    return state


def test_without_a_reading_it_may_use_every_device() -> None:
    found = device_use(UseState(), 0.0)
    assert (found.uses, found.devices) == (None, None)


def test_case_080_a_program_uses_the_device_it_was_seen_on_and_no_other() -> None:
    found = device_use(used((0.0, {"a": (0.4, None), "b": (0.0, None)})), 0.0)
    assert (found.uses, found.devices) == (True, frozenset({"a"}))


@pytest.mark.parametrize(("share", "uses"), [(0.05, False), (0.051, True)])
def test_above_five_percent_of_its_time_is_use(share: float, uses: bool) -> None:
    assert device_use(used((0.0, {"a": (share, None)})), 0.0).uses is uses


def test_unreadable_counts_as_use_of_that_device_alone() -> None:
    found = device_use(used((0.0, {"a": (0.0, None), "b": (0.0, "MIG")})), 0.0)
    assert (found.uses, found.devices) == (None, frozenset({"b"}))


def test_use_is_kept_over_a_pause_between_steps() -> None:
    state = used((0.0, {"a": (0.9, None)}), (30.0, {"a": (0.0, None)}))
    assert device_use(state, DEVICE_USE_KEPT_S).uses is True
    assert device_use(state, DEVICE_USE_KEPT_S + 0.1).uses is False


def over(state: UseState, share: float, from_s: float, to_s: float, fleet_on: set[str] | None) -> UseState:
    """Readings of device a, one a tick."""
    for tick in range(int((to_s - from_s) / 2.0) + 1):
        state = step_use(state, {"a": (share, None)}, from_s + 2.0 * tick, fleet_on)
    return state


@pytest.mark.parametrize("fleet_on", [{"a"}, None], ids=["on its device", "on any"])
def test_a_program_that_fleet_work_starves_is_not_idle(fleet_on: set[str] | None) -> None:
    state = over(UseState(), 0.5, 0.0, 10.0, set())
    state = over(state, 0.03, 12.0, 600.0, fleet_on)
    found = device_use(state, 600.0)
    assert (found.uses, found.devices, found.why) == (None, frozenset({"a"}), DOUBT)
    state = over(state, 0.03, 602.0, 650.0, set())
    assert device_use(state, 650.0).uses is None, "not yet a minute without fleet work"
    assert device_use(over(state, 0.03, 652.0, 662.0, set()), 662.0).uses is False


def test_fleet_work_on_another_device_leaves_no_doubt() -> None:
    state = over(UseState(), 0.5, 0.0, 10.0, {"b"})
    assert device_use(over(state, 0.03, 12.0, 72.0, {"b"}), 72.0).uses is False


def test_a_program_that_was_seen_to_leave_the_device_alone_is_idle_until_it_has_more_than_then() -> None:
    for alone, beside, uses in ((0.0, 0.0, False), (0.0, 0.03, None), (0.02, 0.025, False), (0.02, 0.2, True)):
        state = over(UseState(), alone, 0.0, 10.0, set())
        assert device_use(state, 10.0).uses is False, "nobody is there who could starve it"
        assert device_use(over(state, beside, 12.0, 300.0, {"a"}), 300.0).uses is uses, (alone, beside)


def test_a_program_that_was_never_seen_alone_may_be_starved() -> None:
    assert device_use(over(UseState(), 0.0, 0.0, 300.0, {"a"}), 300.0).uses is None


def test_an_unread_moment_is_no_proof_that_it_left_the_device_alone() -> None:
    state = step_use(UseState(), {"a": (0.0, "first reading")}, 0.0)
    assert device_use(over(state, 0.0, 2.0, 4.0, {"a"}), 4.0).why == DOUBT


@given(
    readings=st.lists(
        st.tuples(st.sampled_from([0.0, 0.02, 0.04, 0.3]), st.sampled_from([None, "unread"]), st.booleans()),
        max_size=80,
    )
)
def test_fleet_work_never_makes_a_program_look_less_used(readings: list[tuple[float, str | None, bool]]) -> None:
    """The same readings with fleet work beside them in some: what was use or doubt without it, is with it."""
    alone, beside = UseState(), UseState()
    for tick, (share, why, fleet) in enumerate(readings):
        alone = step_use(alone, {"a": (share, why)}, 2.0 * tick, set())
        beside = step_use(beside, {"a": (share, why)}, 2.0 * tick, {"a"} if fleet else set())
        if device_use(beside, 2.0 * tick).uses is False:
            assert device_use(alone, 2.0 * tick).uses is False


def test_what_cannot_be_told_of_the_device_is_said_to_the_owner() -> None:
    rule = RuleView("game", True, True, uses_device=None, protects_progress=True, reaction="free", device_doubt=DOUBT)
    (reason,) = reasons(Unit("1-1", 1, "m", "s", device=True), NodeView(rules=(rule,)))
    assert DOUBT in reason.why
    for gpu_jobs in ("certified", "when_no_gpu_protected"):
        (row,) = node_state(NodeView(rules=(rule,), gpu_jobs=gpu_jobs))  # type: ignore[arg-type]
        assert DOUBT in row["does"][0]


def device(key: str, free_gb: float, **more: object) -> DeviceView:
    return DeviceView(key, key, 16 * GB, int(free_gb * GB), **more)  # type: ignore[arg-type]


def free(_key: str) -> list[Reason]:
    return []


def test_case_023_an_idle_device_that_is_full_has_no_room() -> None:
    full, busy = device("full", 1.3, busy=0.0), device("busy", 15.0, busy=0.9)
    assert place([full, busy], free, needs_bytes=4 * GB).device == "busy"
    alone = place([full], free, needs_bytes=4 * GB)
    assert alone.device is None
    assert [reason.code for reason in alone.reasons] == ["GPU_MEMORY_SHORT"]
    assert place([full], free, soft_free_pct=12).device is None, "8 % is free"


def test_of_devices_with_room_the_one_with_the_least_on_it() -> None:
    devices = [device("a", 10, units=1), device("b", 9, busy=0.5), device("c", 8, busy=0.1), device("d", 8, busy=None)]
    assert place(devices, free).device == "c"


def test_case_080_a_unit_starts_where_nothing_holds_it_back() -> None:
    held = {"a": [Reason("PROTECTION_PAUSE", "rule game holds device work back")]}
    found = place([device("a", 16), device("b", 2)], lambda key: held.get(key, []))
    assert found.device == "b"
    assert place([device("a", 16)], lambda key: held.get(key, [])).reasons[0].code == "PROTECTION_PAUSE"


def test_memory_that_cannot_be_read_admits_nothing() -> None:
    assert place([DeviceView("a", "a", None, None)], free).reasons[0].code == "GPU_MEMORY_SHORT"


def test_case_017_a_unified_devices_memory_is_judged_as_the_machines() -> None:
    assert place([DeviceView("a", "a", 0, 0, unified=True)], free, needs_bytes=GB).device == "a"


@pytest.mark.parametrize(
    ("on", "used", "held"),
    [
        ({"b"}, {"a"}, False),
        ({"a"}, {"a"}, True),
        ({"a", "b"}, {"b"}, True),
        (None, {"a"}, True),
        ({"b"}, None, True),
        (None, None, True),
    ],
)
def test_case_080_a_rule_holds_a_unit_where_they_may_share_a_device(
    on: set[str] | None, used: set[str] | None, held: bool
) -> None:
    rule = RuleView(
        "game", active=True, holding=True, uses_device=True, protects_progress=True, reaction="free",
        devices=None if used is None else frozenset(used),
    )  # fmt: skip
    unit = Unit("1-1", 1, "m", "s", device=True, gpu=True, devices=None if on is None else frozenset(on))
    node = NodeView(rules=(rule,))
    assert bool(reasons(unit, node)) is held
    assert bool(rules_beside(unit, node)) is held
