"""What the observer knows no longer counts when what it was read of is another; a starved program is not idle."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nodes.agent.observe import Observer
from policies.rules import Group, ProcInfo, RuleState
from policies.section import parse_section

PROC = ProcInfo(pid=4_000_001, start_ticks=5, ppid=1, name="x", exe="/x", argv=("x",))
FOUND = Group(roots=(PROC,), members=(PROC,), holding=(PROC,))
RULE = """
[[rule]]
id = "x"
match = { path_prefix = "~/x" }
active_when = %s
pause_fleet = { scope = "all" }
"""


def section(when: str, device: str = "cpu") -> Any:
    return parse_section(f'[node]\nduty_device = "{device}"\n' + RULE % when)


def observer(when: str, device: str = "cpu") -> Observer:
    made = Observer(cast(Any, SimpleNamespace(write=lambda *_: None)), cast(Any, SimpleNamespace()))
    made.home = "/home/a"
    made.configure(section(when, device))
    return made


@pytest.mark.parametrize("when", ["{ cpu_cores_gt = 2.0 }", "{ gpu_active = { min_busy = 0.5 } }"])
@pytest.mark.parametrize(("wanted", "holds"), [(2.5, True), (0.3, False), (None, False)])
def test_what_a_program_waits_for_counts_towards_its_condition(when: str, wanted: float | None, holds: bool) -> None:
    seen = observer(when)
    rule = seen._rules[0]
    seen.table = seen.on_device.table = cast(Any, SimpleNamespace(cpu_cores_used=lambda pids, now_s: 0.3))
    seen.on_device._wanted["x"] = cast(Any, SimpleNamespace(read=lambda program, now_s: wanted))
    assert seen._holds(rule, FOUND, 10.0) is holds
    seen.table = seen.on_device.table = cast(Any, SimpleNamespace(cpu_cores_used=lambda pids, now_s: None))
    assert seen._holds(rule, FOUND, 10.0), "unknown holds"


def test_what_a_program_waits_for_is_no_share_of_a_gpu() -> None:
    seen = observer("{ gpu_active = { min_busy = 0.5 } }", "gpu")
    seen.on_device.meters = cast(Any, SimpleNamespace(share=lambda pids, now_s: 0.1))
    seen.on_device._wanted["x"] = cast(Any, SimpleNamespace(read=lambda program, now_s: 2.5))
    assert not seen._holds(seen._rules[0], FOUND, 10.0)


@pytest.mark.parametrize(("fleet_on", "holds"), [({"a"}, True), ({"b"}, False)])
def test_a_program_that_is_starved_of_the_gpu_meets_its_condition(fleet_on: set[str], holds: bool) -> None:
    """It had half of the device; with fleet work there it has 3 %: its rule stays active."""
    seen = observer("{ gpu_active = { min_busy = 0.1 } }", "gpu")
    rule, share = seen._rules[0], 0.5
    seen.on_device.meters = cast(
        Any,
        SimpleNamespace(share=lambda pids, now_s: share, shares=lambda pids, now_s: {"a": (share, None)}),
    )
    seen.on_device.read("x", FOUND, 0.0, ())
    assert seen._holds(rule, FOUND, 0.0)
    share = 0.03
    for tick in range(1, 100):
        seen.on_device.read("x", FOUND, 2.0 * tick, fleet_on)
    assert seen._holds(rule, FOUND, 198.0) is holds


def test_what_was_read_of_one_duty_device_says_nothing_of_the_other() -> None:
    """cpu, gpu and cpu again: what was idle before may be busy by now."""
    seen = observer('"present"')
    seen._states["x"] = RuleState()
    seen.on_device._cpu["x"] = cast(Any, SimpleNamespace(now=lambda now_s: False))
    assert seen.on_device.uses("x", 10.0) is False
    seen.configure(section('"present"'))
    assert seen.on_device.uses("x", 10.0) is False, "the same section: nothing is forgotten"
    seen.configure(section('"present"', "gpu"))
    seen.configure(section('"present"'))
    assert seen.on_device.uses("x", 10.0) is None
    assert "x" not in seen._states


def test_the_rule_of_another_owners_home_is_another_rule() -> None:
    seen = observer('"present"')
    seen._states["x"] = RuleState()
    seen.home = "/home/b"
    seen.configure(section('"present"'))
    assert "x" not in seen._states, "never judged, which counts as holding"


def test_a_certificate_is_not_vouched_for_by_one_program_while_another_cannot_be_read() -> None:
    """Of two processes that match one can be read: what the other runs is unknown, so the fingerprint is."""
    seen = observer('"present"')
    hidden = ProcInfo(pid=4_000_002, start_ticks=6, ppid=1, name="x", uid=1000)
    program = replace(PROC, uid=1000)
    seen._groups["x"] = Group(roots=(program,), members=(program,), holding=(program,))
    assert not seen.program_unknown("x")
    seen._groups["x"] = Group(roots=(program,), members=(program,), unreadable=(hidden,), holding=(program, hidden))
    assert seen.program_unknown("x")
