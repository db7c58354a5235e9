"""Every key of the schema, in a section that is read."""

from __future__ import annotations

import pytest

from policies.section import parse_section

RULE = '[[rule]]\nid = "x"\nmatch = { name = "x" }\n'
EVICT = RULE + "evict = true\n"
PHASE = RULE + "[[rule.during]]\nsource = { jsonl = '/x', enter = 'a', exit = 'b' }\n"
SOURCE = "source = { jsonl = '/x', event = 'e' }"

TEXTS = [
    "[node]\ngpu_jobs = 'certified'\n",
    RULE + "protect = { metric = 'progress_rate', max_slowdown = 0.1, source = { exec = ['/bin/rate'] } }\n",
    RULE + "[[rule.during]]\nsource = { on_exec = { match = { name = 'y' } } }\npause_fleet = true\n",
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


@pytest.mark.parametrize("text", TEXTS)
def test_it_is_read(text: str) -> None:
    parse_section(text)
