"""Which devices a program uses, and where a unit may start."""

from __future__ import annotations

import pytest

from policies.devices import DEVICE_USE_KEPT_S, DeviceView, UseState, device_use, place, step_use
from policies.units import NodeView, Reason, RuleView, Unit, reasons, rules_beside

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
