"""Across scopes the strictest wins, dimension by dimension, and only what an owner wrote takes part."""

from __future__ import annotations

from itertools import product
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.section import Section, merge, parse_section
from policies.section.models import Cooldown, Defaults, GpuJobs, Memory, Mode, Node

GPU_JOBS_FROM_LENIENT = ("always", "certified", "when_no_gpu_protected", "never")


def node_of(own: dict[str, Any], fleet: dict[str, Any]) -> Node:
    return merge(Section(node=Node(**own)), Section(node=Node(**fleet))).node


def test_without_a_fleet_section_the_node_s_own_stands() -> None:
    own = parse_section("[node]\nmode = 'strict_yield'\n[[rule]]\nid = 'a'\nmatch = { name = 'a' }\nevict = true\n")
    found = merge(own)
    assert found.node == own.node
    assert [(each.scope, each.key) for each in found.rules] == [("node", "a")]


@pytest.mark.parametrize(("a", "b"), list(product(get_args(GpuJobs), repeat=2)))
def test_gpu_jobs(a: str, b: str) -> None:
    assert node_of({"gpu_jobs": a}, {"gpu_jobs": b}).gpu_jobs == max(a, b, key=GPU_JOBS_FROM_LENIENT.index)


@pytest.mark.parametrize(("a", "b"), list(product(get_args(Mode), repeat=2)))
def test_mode(a: str, b: str) -> None:
    assert node_of({"mode": a}, {"mode": b}).mode == max(a, b, key=("fleet_first", "moderate", "strict_yield").index)


def test_what_neither_writes_keeps_its_default_and_what_one_writes_stands() -> None:
    assert node_of({}, {}) == Node()
    assert node_of({"gpu_jobs": "certified"}, {"mode": "moderate"}).gpu_jobs == "certified"
    assert node_of({"accept_demonstration": True}, {}).accept_demonstration is True


def test_brakes_and_permissions() -> None:
    assert node_of({"pause": True}, {"pause": False}).pause is True
    assert node_of({"accept_demonstration": True}, {"accept_demonstration": False}).accept_demonstration is False
    assert node_of({"duty_device": "cpu"}, {"duty_device": "gpu"}).duty_device == "cpu"


def test_memory_levels_of_two_owners_never_cross() -> None:
    merged = node_of(
        {"memory": Memory(soft_free_pct=5, hard_free_pct=3, swap_growth_soft_mb_min=500)},
        {"memory": Memory(hard_free_pct=10, swap_growth_hard_mb_min=300, min_reclaim_gb=9)},
    ).memory
    assert (merged.hard_free_pct, merged.soft_free_pct) == (10, 10)
    assert (merged.swap_growth_soft_mb_min, merged.swap_growth_hard_mb_min) == (300, 300)
    assert merged.min_reclaim_gb == 9


def test_each_memory_key_takes_the_stricter() -> None:
    own = Memory(
        soft_free_pct=20, hard_free_pct=5, swap_growth_soft_mb_min=100, swap_growth_hard_mb_min=900, min_reclaim_gb=1
    )
    fleet = Memory(
        soft_free_pct=15, hard_free_pct=7, swap_growth_soft_mb_min=200, swap_growth_hard_mb_min=800, min_reclaim_gb=3
    )
    assert node_of({"memory": own}, {"memory": fleet}).memory == Memory(
        soft_free_pct=20, hard_free_pct=7, swap_growth_soft_mb_min=100, swap_growth_hard_mb_min=800, min_reclaim_gb=3
    )


def test_each_timing_key_takes_the_stricter() -> None:
    own = Defaults(enter_for_s=2, exit_after_s=9, cooldown=Cooldown(base_s=1, backoff=3, max_s=50, window_s=7))
    fleet = Defaults(enter_for_s=3, exit_after_s=8, cooldown=Cooldown(base_s=2, backoff=2, max_s=40, window_s=9))
    assert node_of({"defaults": own}, {"defaults": fleet}).defaults == Defaults(
        enter_for_s=2, exit_after_s=9, cooldown=Cooldown(base_s=2, backoff=3, max_s=50, window_s=9)
    )


def test_timing_defaults_reach_the_rules_of_both() -> None:
    rule = "[[rule]]\nid = 'a'\nmatch = { name = 'a' }\nevict = true\n"
    own = parse_section("[node.defaults]\nexit_after_s = 10\ncooldown = { base_s = 9, max_s = 20 }\n" + rule)
    fleet = parse_section(
        "[node.defaults]\nenter_for_s = 1\nexit_after_s = 99\ncooldown = { base_s = 50 }\n" + rule + "enter_for_s = 7\n"
    )
    first, second = merge(own, fleet).rules
    assert [(each.scope, each.key) for each in (first, second)] == [("node", "a"), ("fleet", "fleet:a")]
    assert (first.timing.enter_for_s, second.timing.enter_for_s) == (1, 7)
    assert first.timing.exit_after_s == second.timing.exit_after_s == 99
    assert (first.timing.cooldown.base_s, first.timing.cooldown.max_s) == (50, 50)


nodes = st.fixed_dictionaries(
    {},
    optional={
        "mode": st.sampled_from(get_args(Mode)),
        "pause": st.booleans(),
        "gpu_jobs": st.sampled_from(get_args(GpuJobs)),
        "duty_device": st.sampled_from(["gpu", "cpu"]),
        "accept_demonstration": st.booleans(),
        "memory": st.builds(Memory, soft_free_pct=st.integers(20, 40), hard_free_pct=st.integers(0, 19)),
        "defaults": st.builds(
            Defaults,
            enter_for_s=st.integers(0, 9),
            exit_after_s=st.integers(0, 99),
            cooldown=st.builds(Cooldown, base_s=st.integers(0, 99), max_s=st.integers(100, 999)),
        ),
    },
)


@settings(max_examples=60, deadline=None)
@given(a=nodes, b=nodes)
def test_merging_is_symmetric_idempotent_and_never_lenient(a: dict[str, Any], b: dict[str, Any]) -> None:
    merged = node_of(a, b)
    assert merged == node_of(b, a)
    assert node_of(a, a) == Node(**a)
    for own in (a, b):
        if "gpu_jobs" in own:
            assert GPU_JOBS_FROM_LENIENT.index(merged.gpu_jobs) >= GPU_JOBS_FROM_LENIENT.index(own["gpu_jobs"])
        if "memory" in own:
            assert merged.memory.hard_free_pct >= own["memory"].hard_free_pct
            assert merged.memory.soft_free_pct >= own["memory"].soft_free_pct
        assert merged.pause or not own.get("pause", False)
