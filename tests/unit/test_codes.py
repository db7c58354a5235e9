"""One table holds every code; the page, the journal and the reasons of waiting work are made from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from policies.caps import Caps, Reserve
from policies.codes import CODES, Code
from policies.codes_page import OTHER, group_of, page
from policies.explain import in_words, limits_in_words, node_state, reason_rows
from policies.views import NodeView, PhaseView, Reason, RuleView

ROOT = Path(__file__).resolve().parents[2]
# Where a code is written down: as the first argument of these.
WRITTEN = re.compile(
    r"(?:journal\.write|_journal|_note|Reason|\bEntry|note_waiting|\bNote)\(\s*(?:[\w.]+,\s*)?\"([A-Z][A-Z0-9_]+)\""
)


def test_the_page_is_made_from_the_table() -> None:
    kept = (ROOT / "docs/codes.md").read_text(encoding="utf-8")
    assert kept == page(), "make it anew: python -m policies.codes_page > docs/codes.md"


def test_every_code_stands_on_the_page_once() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    assert sorted(row.split("`")[1] for row in rows) == sorted(CODES)


def test_the_page_has_no_group_of_leftovers() -> None:
    assert [name for name in CODES if group_of(name) == OTHER and not name.startswith("JOURNAL_")] == []


@pytest.mark.parametrize("code", CODES.values(), ids=lambda code: code.name)
def test_a_code_says_what_it_means_and_trouble_says_what_to_do(code: Code) -> None:
    assert code.meaning
    assert code.remedy or code.severity == "info"


def test_every_code_that_is_written_down_is_in_the_table() -> None:
    found = {
        (path.name, name)
        for folder in ("policies", "nodes")
        for path in (ROOT / folder).rglob("*.py")
        for name in WRITTEN.findall(path.read_text(encoding="utf-8"))
    }
    assert len(found) > 30
    assert {(file, name) for file, name in found if name not in CODES} == set()


# -- explaining -----------------------------------------------------------------------------------------------------------


def test_a_reason_is_told_with_its_remedy_and_the_names_that_stand_in_it() -> None:
    rows = reason_rows(
        [Reason("MODULE_NOT_READY", "its doctor failed"), Reason("JOB_NO_SLOT", "full", "wait")], {"MODULE": "sim"}
    )
    assert [row["remedy"] for row in rows] == ["cotenant module doctor sim", "wait"]
    assert rows[0]["severity"] == CODES["MODULE_NOT_READY"].severity
    assert len(reason_rows([Reason("JOB_NO_SLOT", "full")] * 3, {})) == 1


def test_in_a_line() -> None:
    assert in_words("running", []) == "runs"
    assert in_words("running", [], lowered=True, threads=2) == "runs, in the lowest scheduling class, with 2 threads"
    rows = reason_rows([Reason("JOB_NO_SLOT", "all 2 slots are taken")], {})
    assert in_words("waiting", rows) == "waits: JOB_NO_SLOT: all 2 slots are taken"


def test_what_rules_do_now() -> None:
    rule = RuleView(
        "game",
        active=True,
        holding=True,
        pause="gpu",
        lower="cpu",
        cap=Caps(slots=1, by="rule game"),
        reserve=Reserve(2.0, 3e9, "rule game"),
        protects_stall=True,
        stall="lowered",
        stall_why="slow",
        phases=(PhaseView(0, True, "all", readable=False), PhaseView(1, False, "all")),
    )
    node = NodeView(rules=(rule, RuleView("idle", False, False)))
    told = node_state(node)
    assert [each["state"] for each in told] == ["active", "not active"]
    text = " / ".join(told[0]["does"])
    for words in ("scope gpu", "lowers fleet work of scope cpu", "caps", "reserves", "cannot be read", "lowered: slow"):
        assert words in text
    assert "phase 2" not in text
    assert told[1]["does"] == []


def test_a_rule_that_holds_device_work_does_not_read_as_idle() -> None:
    rule = RuleView("t", active=True, holding=True, uses_device=True, protects_progress=True, reaction="free")
    assert node_state(NodeView(rules=(rule,)))[0]["does"] == ["holds device work back"]
    assert node_state(NodeView(rules=(rule,), gpu_jobs="always"))[0]["does"] == []
    certified = node_state(NodeView(rules=(rule,), gpu_jobs="certified"))
    assert certified[0]["does"] == ["holds device work back that has no certificate"]


def test_limits_in_force() -> None:
    rule = RuleView("game", True, True, cap=Caps(slots=1, by="rule game"), reserve=Reserve(2.0, 3e9, "rule game"))
    node = NodeView(rules=(rule,))
    assert limits_in_words(node) == [
        "at most 1 jobs at once (rule game)",
        "2 cores set aside (rule game)",
        "3 GB of memory set aside (rule game)",
    ]
