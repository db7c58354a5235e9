"""A section is read whole, or refused whole with every error: key, rule, line, and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.section import Section, SectionErrors, digest, parse_section
from policies.section.models import JsonlFieldPhase, JsonlProgress, LogProgress
from policies.section.parse import MAX_BYTES

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

FULL = """\
schema = 1

[node]
mode = "moderate"
pause = false
gpu_jobs = "when_no_gpu_protected"
duty_device = "gpu"

[node.memory]
soft_free_pct = 12
hard_free_pct = 8
swap_growth_soft_mb_min = 256
swap_growth_hard_mb_min = 1024
min_reclaim_gb = 2

[node.defaults]
enter_for_s = 4
exit_after_s = 60
cooldown = { base_s = 120, backoff = 2.0, max_s = 3840, window_s = 3600 }

[[rule]]
id = "trainer"
match = { path_prefix = "/opt/trainer/" }
tree = "descendants"
active_when = "present"
immediate = true
protect.metric = "progress_rate"
protect.max_slowdown = 0.05
protect.window_s = 20
protect.source = { jsonl = "~/runs/*/events.jsonl", event = "step_done" }
tags = ["uplink"]
[[rule.during]]
source = { jsonl = "~/runs/*/events.jsonl", event = "status", field = "state.phase", on = ["uploading"] }
pause_fleet = { scope = "gpu" }
"""

# The reference document's own example: the tags stand behind the phase and belong to it.
REFERENCE = """\
[[rule]]
id = "trainer"
match = { path_prefix = "/Applications/Example Trainer.app/" }
tree = "descendants"
immediate = true
protect = { metric = "progress_rate", max_slowdown = 0.05, source = { jsonl = "~/Library/Example/e-*.jsonl", event = "step_done" } }
[[rule.during]]
source = { jsonl = "~/Library/Example/e-*.jsonl", event = "status", field = "state.phase", on = ["uploading"] }
pause_fleet = { scope = "gpu" }
tags = ["uplink"]
"""

RULE = '[[rule]]\nid = "x"\nmatch = { name = "x" }\n'


def errors_of(text: str) -> list[tuple[str, str | None, int]]:
    """(key, rule, line) of each error."""
    with pytest.raises(SectionErrors) as caught:
        parse_section(text)
    return [(error.key, error.rule, error.line) for error in caught.value.errors]


def only_error(text: str) -> str:
    with pytest.raises(SectionErrors) as caught:
        parse_section(text)
    (error,) = caught.value.errors
    return str(error)


def test_the_documented_section_is_read() -> None:
    section = parse_section(FULL)
    (rule,) = section.rules
    assert (section.node.mode, section.node.memory.hard_free_pct, rule.id) == ("moderate", 8.0, "trainer")
    assert rule.protect is not None
    assert rule.protect.source == JsonlProgress(jsonl="~/runs/*/events.jsonl", event="step_done")
    (phase,) = rule.during
    assert isinstance(phase.source, JsonlFieldPhase)
    assert (phase.source.on, phase.pause_fleet and phase.pause_fleet.scope) == (("uploading",), "gpu")
    assert section.rule("trainer") is rule
    assert section.rule("other") is None


def test_the_reference_document_s_example_is_read() -> None:
    (rule,) = parse_section(REFERENCE).rules
    assert (rule.tags, rule.during[0].tags) == ((), ("uplink",))


@pytest.mark.parametrize("name", ["trainer", "renderer", "limits"])
def test_the_examples_are_read(name: str) -> None:
    parse_section((EXAMPLES / f"{name}.toml").read_text())


def test_an_empty_text_is_the_empty_section() -> None:
    assert parse_section("") == parse_section("# nothing\n") == Section()


def test_a_byte_order_mark_and_windows_line_ends_are_read() -> None:
    assert parse_section("\ufeff" + FULL.replace("\n", "\r\n")) == parse_section(FULL)


def test_a_section_does_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        parse_section(FULL).node.pause = True  # type: ignore[misc]


def test_every_error_at_once_with_its_line() -> None:
    text = """\
schemaa = 1
[node]
mode = "modrate"
pause = "yes"
[node.memory]
hard_free_pct = 120

[[rule]]
id = "one"
match = { }
max_slowdown = 0.2
protect = { metric = "progress_rate", max = 0.05, source = { jsonl = "runs/x", evnt = "a" } }
[[rule.during]]
source = { jsonl = "~/x", event = "status", field = "f", on = "uploading" }
[[rule]]
id = "one"
match = { argv_regex = "a(b" }
ignore = true
evict = { scope = "disk" }
[[rule]]
match = { name = "x" }
"""
    assert sorted(errors_of(text), key=lambda found: (found[2], found[0])) == [
        ("schemaa", None, 1),
        ("node.mode", None, 3),
        ("node.pause", None, 4),
        ("node.memory.hard_free_pct", None, 6),
        ("node.memory.hard_free_pct", None, 6),
        ("rule.match", "one", 10),
        ("rule.max_slowdown", "one", 11),
        ("rule.protect.max", "one", 12),
        ("rule.protect.max_slowdown", "one", 12),
        ("rule.protect.source.event", "one", 12),
        ("rule.protect.source.evnt", "one", 12),
        ("rule.protect.source.jsonl", "one", 12),
        ("rule.during", "one", 13),
        ("rule.during.source.on", "one", 14),
        ("rule.id", "one", 16),
        ("rule.match.argv_regex", "one", 17),
        ("rule.evict", "one", 19),
        ("rule.evict.scope", "one", 19),
        ("rule", "#3", 20),
        ("rule.id", "#3", 20),
    ]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[node]\nmod = 'moderate'\n", ["line 2, node.mod", "unknown key 'mod' in [node]", "did you mean 'mode'", "gpu_jobs"]),
        ("[node]\nmode = 'modrate'\n", ["line 2", "did you mean 'moderate'", "fleet_first, moderate, strict_yield"]),
        ("[node]\nrule = 1\n", ["unknown key 'rule' in [node]"]),
        (RULE + "evict = true\nmax_slowdown = 1\n", ["line 5, rule x", "it is a key of protect"]),
        (RULE + "evict = true\nbundle_id = 'com.example'\n", ["unknown key 'bundle_id' in [[rule]]", "protect, pause_fleet"]),
        (RULE + "protect = { metric = 'cpu_stall', max = 0.1, window_s = 1 }\n", ["1 is out of range", "at least 2"]),
        ("[[rule]]\nid = 'x'\nevict = true\nmatch = { argv_regex = 'a[' }\n", ["unterminated character set at position 1"]),
        ("[[rule]]\nid = 'x'\nevict = true\nmatch = { path_prefix = 'opt/x' }\n", ["not an absolute path", "~/"]),
        ("[[rule]]\nid = 'X y'\nevict = true\nmatch = { name = 'x' }\n", ["line 2", "'X y' does not fit", "lower-case"]),
        (RULE + "evict = false\n", ["means nothing here", "leave the key out"]),
        (RULE + "evict = {}\n", ["rule.evict.scope", "is missing"]),
        (RULE + "evict = true\nenter_for_s = -1\n", ["-1 is out of range", "at least 0"]),
        (RULE + "evict = true\nenter_for_s = nan\n", ["must be a finite number"]),
        (RULE + "evict = true\nenter_for_s = 1979-05-27\n", ["must be a number, not 1979-05-27"]),
        (RULE + "evict = true\nactive_when = 'always'\n", ["rule.active_when", "'always' is not known", "present"]),
        (RULE + "evict = true\nactive_when = 3\n", ["neither \"present\" nor a table"]),
        (RULE + "tags = ['a']\n", ["a rule without an action does nothing", "[[rule.during]], ignore"]),
        (RULE + "during = []\n", ["a rule without an action"]),
        (RULE + "ignore = true\nreserve = { cpu = 1 }\n", ["reserve cannot stand beside ignore = true"]),
        (RULE + "cap_fleet = {}\n", ["cap_fleet caps nothing", "slots, cpu_cores, threads, gpu_jobs"]),
        (RULE + "evict = true\ncooldown = { base_s = 5000 }\n", ["line 5", "base_s is 5000, max_s is 3840"]),
        ("[node.memory]\nsoft_free_pct = 5\n", ["hard level lies above the soft one", "hard_free_pct is 8, soft_free_pct is 5"]),
        ("schema = 2\n", ["2 is not known", "allowed: 1"]),
    ],
)  # fmt: skip
def test_an_error_says_what_and_why_and_what_is_allowed(text: str, parts: list[str]) -> None:
    said = only_error(text)
    assert [part for part in parts if part not in said] == []


@pytest.mark.parametrize(
    ("protect", "parts"),
    [
        ("metric = 'progress_rate', max_slowdown = 0.05", ["progress_rate needs a source"]),
        ("metric = 'progress_rate', source = { path = '/l', log_regex = 'x' }", ["needs max_slowdown"]),
        ("metric = 'cpu_stall', max_slowdown = 0.1, max = 0.1", ["limited by max, not max_slowdown"]),
        ("metric = 'gpu_share'", ["gpu_share needs max"]),
        ("metric = 'gpu_share', max = 0.1, source = { exec = ['x'] }", ["takes no source"]),
        ("metric = 'fps', max = 0.1", ["'fps' is not known", "progress_rate, gpu_share, cpu_stall"]),
        ("metric = 'cpu_stall', max = 1.5", ["1.5 is out of range", "at most 1"]),
        (
            "metric = 'progress_rate', max_slowdown = 0.1, source = {}",
            ["not a kind of progress source", "{ jsonl, event }"],
        ),
        ("metric = 'progress_rate', max_slowdown = 0.1, source = 'x'", ["'x' is not a kind of progress source"]),
        (
            "metric = 'progress_rate', max_slowdown = 0.1, source = { jsonl = '/x', event = 'e', log_regex = 'x' }",
            ["unknown key 'log_regex' in progress from a JSONL file", "jsonl, event, event_key, time_key"],
        ),
        (
            "metric = 'progress_rate', max_slowdown = 0.1, source = { path = '/l', log_regex = '(a)(b)' }",
            ["has 2 capture groups", "(?:…)"],
        ),
        (
            "metric = 'progress_rate', max_slowdown = 0.1, source = { jsonl = '/x', event = 'e', time_key = 'a..b' }",
            ["'a..b' does not fit", "dotted path"],
        ),
    ],
)
def test_what_protect_may_say(protect: str, parts: list[str]) -> None:
    said = only_error(RULE + f"protect = {{ {protect} }}\n")
    assert [part for part in parts if part not in said] == []


def test_a_log_s_one_group_is_a_counter_and_none_counts_matches() -> None:
    for regex, counter in (("step (\\d+)", True), ("step \\d+", False), ("(?:a|b) step", False)):
        source = LogProgress(path="/var/log/x", log_regex=regex)
        assert source.counter is counter


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("jsonl = '/x'", ["not a kind of phase source", "{ jsonl, enter, exit }"]),
        ("jsonl = '/x', enter = 'a'", ["rule.during.source.exit", "is missing"]),
        ("jsonl = '/x', event = 'e', field = 'f'", ["rule.during.source.on", "is missing"]),
        ("jsonl = '/x', event = 'e', field = 'f', on = []", ["rule.during.source.on", "is empty"]),
        ("jsonl = '/x', event = 'e', field = 'f', on = [[]]", ["rule.during.source.on[0]", "neither text nor"]),
        ("on_exec = { match = {} }", ["rule.during.source.on_exec.match", "an empty match"]),
    ],
)
def test_what_a_phase_may_say(source: str, parts: list[str]) -> None:
    said = only_error(RULE + f"[[rule.during]]\nsource = {{ {source} }}\npause_fleet = true\n")
    assert [part for part in parts if part not in said] == []


def test_true_in_an_action_s_place_means_all() -> None:
    (rule,) = parse_section(RULE + "evict = true\n").rules
    assert rule.evict is not None
    assert rule.evict.scope == "all"


def test_an_ignore_rule_takes_the_processes_it_names_and_no_children_unless_it_says_so() -> None:
    section = parse_section(
        RULE + "ignore = true\n[[rule]]\nid = 'y'\nmatch = { name = 'y' }\nignore = true\ntree = 'descendants'\n"
    )
    assert [rule.tree for rule in section.rules] == ["self", "descendants"]


def test_an_id_used_twice_names_both_lines() -> None:
    said = only_error(RULE + "evict = true\n\n" + RULE + "evict = true\n")
    assert "used twice" in said
    assert "(lines 2 and 7)" in said


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("a = 1\nb = \n", 2, "Invalid value"),
        ("a = 1\n\nc = 'x\n", 3, "is no TOML"),
        ("[node]\npause = true\npause = false\n", 3, "Cannot overwrite"),
        ("[node\n", 1, "is no TOML"),
        ('x = 1\ny = """\n\n', 2, "Unterminated string"),
        ("x = " + "9" * 5000, 1, "is no TOML"),
        ("x = " + "[" * 50_000, 1, "nested deeper"),
        ("x = " + "[" * 40 + "]" * 40, 1, "nested deeper"),
    ],
)
def test_what_is_no_toml_says_where(text: str, line: int, part: str) -> None:
    with pytest.raises(SectionErrors) as caught:
        parse_section(text)
    (error,) = caught.value.errors
    assert error.line == line
    assert part in error.message


def test_a_text_beyond_the_limit_is_refused_and_one_at_the_limit_is_read() -> None:
    assert parse_section("#" * MAX_BYTES) == Section()
    assert f"{MAX_BYTES + 1} bytes" in only_error("#" * (MAX_BYTES + 1))
    assert "bytes" in only_error("#" + "ü" * (MAX_BYTES // 2))


def test_every_error_is_told_at_once() -> None:
    with pytest.raises(SectionErrors) as caught:
        parse_section("[node]\na = 1\nb = 2\n")
    assert [each.as_dict()["key"] for each in caught.value.errors] == ["node.a", "node.b"]


def test_digests_tell_texts_apart() -> None:
    assert digest(FULL) == digest(FULL)
    assert digest(FULL) != digest(FULL + "\n")


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_no_text_breaks_the_parser(data: st.DataObject) -> None:
    """A valid section with a piece cut out, doubled or replaced is read, or refused with lines that exist."""
    start = data.draw(st.integers(0, len(FULL)))
    length = data.draw(st.integers(0, 60))
    put = data.draw(
        st.sampled_from(["", "[", "]", "{", "}", "'", '"""', "=", "\n", "[]", "{}", "1e999", "-1", "true", "x = 1\n"])
    )
    text = FULL[:start] + put + FULL[start + length :]
    try:
        parse_section(text)
    except SectionErrors as errors:
        found = errors.errors
    else:
        return
    assert found
    assert all(1 <= error.line <= text.count("\n") + 1 and error.message for error in found)


def test_a_cooldown_of_a_rule_is_filled_in_from_the_node() -> None:
    section = parse_section(
        "[node.defaults]\nenter_for_s = 9\ncooldown = { base_s = 10, max_s = 9000 }\n"
        + RULE + "evict = true\nexit_after_s = 1\ncooldown = { base_s = 5000 }\n"
    )  # fmt: skip
    timing = section.timing(section.rules[0])
    assert (timing.enter_for_s, timing.exit_after_s) == (9, 1)
    assert (timing.cooldown.base_s, timing.cooldown.backoff, timing.cooldown.max_s) == (5000, 2, 9000)
