"""A key that nothing acts on yet is refused, and says why; nothing of the schema is silently ignored."""

from __future__ import annotations

import pytest

from policies.section import SectionErrors, parse_section
from policies.section.acted_on import IN_FORCE, PENDING, Feature, not_acted_on

RULE = '[[rule]]\nid = "x"\nmatch = { name = "x" }\n'
EVICT = RULE + "evict = true\n"
PHASE = RULE + "[[rule.during]]\nsource = { jsonl = '/x', enter = 'a', exit = 'b' }\n"
SOURCE = "source = { jsonl = '/x', event = 'e' }"

REFUSED = {
    "node.gpu_jobs": "[node]\ngpu_jobs = 'certified'\n",
    "rule.protect.source.exec": RULE
    + "protect = { metric = 'progress_rate', max_slowdown = 0.1, source = { exec = ['/bin/rate'] } }\n",
    "rule.during.source.on_exec": RULE
    + "[[rule.during]]\nsource = { on_exec = { match = { name = 'y' } } }\npause_fleet = true\n",
}

FEATURES = {".".join(part for part in row.path if part != "*"): row.feature for row in PENDING}
WAITING = [key for key in REFUSED if FEATURES[key.strip()] not in IN_FORCE]

IN_FORCE_TEXTS = [
    *(text for key, text in REFUSED.items() if FEATURES[key.strip()] in IN_FORCE),
    "[node]\nmode = 'fleet_first'\npause = true\ngpu_jobs = 'never'\nduty_device = 'cpu'\naccept_demonstration = true\n",
    "[node]\nmode = 'strict_yield'\ngpu_jobs = 'always'\nduty_device = 'gpu'\n[node.memory]\nmin_reclaim_gb = 1\n",
    EVICT
    + "tree = 'self'\nactive_when = 'present'\nimmediate = true\ntags = ['a']\nenter_for_s = 1\nexit_after_s = 1\n"
    "cooldown = { base_s = 1 }\n",
    RULE + "ignore = true\n",
    RULE + "pause_fleet = { scope = 'io' }\n",
    RULE + f"protect = {{ metric = 'progress_rate', max_slowdown = 0.1, {SOURCE} }}\n",
    RULE + "protect = { metric = 'progress_rate', max_slowdown = 0.1, source = { path = '/l', log_regex = 'x' } }\n",
    RULE + "protect = { metric = 'progress_rate', max_slowdown = 0.1, "
    "source = { jsonl = '/x', event = 'e', event_key = 'a.b', time_key = 't' } }\n",
    PHASE + "pause_fleet = { scope = 'gpu' }\n",
    RULE + "[[rule.during]]\nsource = { jsonl = '/x', event = 'e', field = 'f', on = [true], soon = ['s'] }\n"
    "pause_fleet = true\n",
    EVICT + "active_when = { cpu_cores_gt = 1, footprint_gb_gt = 2, gpu_active = { min_busy = 0.1 }, for_s = 3 }\n",
    RULE + "cap_fleet = { slots = 1, cpu_cores = 2, threads = 1, gpu_jobs = 0 }\n",
    RULE + "lower_fleet = true\n",
    RULE + "reserve = { cpu = 1, mem_gb = 2 }\n",
    RULE + "protect = { metric = 'cpu_stall', max = 0.1 }\n",
    RULE + "protect = { metric = 'gpu_share', max = 0.1 }\n",
    PHASE + f"protect = {{ metric = 'progress_rate', max_slowdown = 0.1, {SOURCE} }}\n",
    PHASE + "evict = true\n",
    PHASE + "cap_fleet = { slots = 1 }\n",
    PHASE + "lower_fleet = true\n",
    PHASE + "reserve = { mem_gb = 1 }\n",
]


@pytest.mark.parametrize("key", WAITING)
def test_what_waits_for_a_later_version_is_refused_with_its_reason(key: str) -> None:
    with pytest.raises(SectionErrors) as caught:
        parse_section(REFUSED[key])
    (error,) = caught.value.errors
    assert error.key == key.strip()
    assert "this version does not act on it" in error.message
    assert error.allowed


@pytest.mark.parametrize("key", REFUSED)
def test_it_is_read_once_its_feature_is_in_force(key: str) -> None:
    parse_section(REFUSED[key], frozenset(row.feature for row in PENDING))


def test_every_row_is_shown_to_refuse_something() -> None:
    refused = {key.strip() for key in REFUSED}
    rows = {".".join(part for part in row.path if part != "*") for row in PENDING}
    assert rows == refused


@pytest.mark.parametrize("text", IN_FORCE_TEXTS)
def test_what_is_acted_on_is_read(text: str) -> None:
    parse_section(text)


def test_features_are_switched_on_one_by_one() -> None:
    none: frozenset[Feature] = frozenset()
    with pytest.raises(SectionErrors):
        parse_section(REFUSED["node.gpu_jobs"], none)
    assert parse_section(REFUSED["node.gpu_jobs"]).node.gpu_jobs == "certified"
    with pytest.raises(SectionErrors):
        parse_section(REFUSED["rule.protect.source.exec"], none | {"governor"})


def test_nonsense_in_the_place_of_tables_is_no_matter_here() -> None:
    assert list(not_acted_on({"node": 3, "rule": [4, {"during": "x", "protect": []}]})) == []


def test_it_is_reported_beside_other_errors() -> None:
    with pytest.raises(SectionErrors) as caught:
        parse_section("[node]\ngpu_jobs = 'certified'\ntypo = 1\n", frozenset())
    assert [(error.key, error.line) for error in caught.value.errors] == [("node.gpu_jobs", 2), ("node.typo", 3)]
