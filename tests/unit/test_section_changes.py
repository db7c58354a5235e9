"""What a section changes in words, what it gives away, and two sections as one."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodes.agent.sections import Sections, checked_scope
from nodes.journal import Journal
from policies.refusal import Refused
from policies.section import Section, SectionErrors, parse_section
from policies.section.changes import changes, warnings
from policies.section.effective import effective, for_sources
from policies.units import brakes
from policies.views import NodeView, Unit

GAME = '[[rule]]\nid = "game"\nmatch = { name = "game" }\nevict = true\n'
TRAINER = '[[rule]]\nid = "trainer"\nmatch = { name = "t" }\npause_fleet = true\n'


def words(old: str, new: str) -> list[str]:
    return [change.words for change in changes(parse_section(old), parse_section(new))]


def test_changes_in_words() -> None:
    assert words("", "[node]\npause = true\n" + GAME) == ["node.pause: False → True", "rule game: added"]
    assert words(GAME, GAME.replace("evict", "lower_fleet") + TRAINER) == ["rule game: changed", "rule trainer: added"]
    assert words(GAME, GAME + "tags = []\n") == []


def test_a_section_that_removes_all_protection_warns() -> None:
    (said,) = warnings(parse_section(GAME + TRAINER), Section())
    assert "game, trainer" in said
    assert warnings(Section(), Section()) == []
    assert warnings(Section(), parse_section(GAME)) == []


@pytest.mark.parametrize(
    ("old", "new", "loosens"),
    [
        ("mode = 'strict_yield'", "mode = 'moderate'", True),
        ("mode = 'moderate'", "mode = 'strict_yield'", False),
        ("gpu_jobs = 'never'", "gpu_jobs = 'always'", True),
        ("gpu_jobs = 'always'", "gpu_jobs = 'certified'", False),
        ("pause = true", "pause = false", True),
    ],
)
def test_a_change_that_protects_less_is_said(old: str, new: str, loosens: bool) -> None:
    found = warnings(parse_section(f"[node]\n{old}\n{GAME}"), parse_section(f"[node]\n{new}\n{GAME}"))
    assert bool(found) is loosens


def test_the_same_id_of_both_sections_is_both_and_the_stricter_node_binds() -> None:
    own, fleet = parse_section("[node]\nmode = 'strict_yield'\n" + GAME), parse_section("[node]\npause = true\n" + GAME)
    both = effective(own, fleet)
    assert [rule.id for rule in both.rules] == ["game", "fleet:game"]
    assert (both.node.mode, both.node.pause) == ("strict_yield", True)
    assert both.rule("fleet:game") is not None
    assert effective(own) is own


def test_a_phases_own_limit_has_a_source_of_its_own() -> None:
    text = TRAINER + (
        '[[rule.during]]\nsource = { jsonl = "/p", enter = "a", exit = "b" }\n'
        'protect = { metric = "progress_rate", max_slowdown = 0.1, source = { jsonl = "/x", event = "e" } }\n'
    )
    section = parse_section(text)
    assert [rule.id for rule in for_sources(section).rules] == ["trainer", "trainer/phase1"]
    extra = for_sources(section).rules[1]
    assert extra.protect == section.rules[0].during[0].protect
    assert extra.during == ()
    assert for_sources(parse_section(TRAINER)).rules == parse_section(TRAINER).rules


# -- kept in the journal ----------------------------------------------------------------------------------------------------


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.sqlite")


def test_each_scope_is_versioned_and_both_are_found_again(journal: Journal) -> None:
    kept = Sections(journal)
    assert kept.version == 0
    assert kept.set(GAME, "me", "node") == 1
    alone = kept.text
    assert kept.set(TRAINER, "boss", "fleet") == 2
    assert kept.set(GAME + TRAINER, "me", "node") == 3
    assert [rule.id for rule in kept.in_force.rules] == ["game", "trainer", "fleet:trainer"]
    assert alone == GAME
    assert TRAINER in kept.text
    again = Sections(journal)
    assert (again.version, again.in_force, again.text) == (kept.version, kept.in_force, kept.text)
    assert kept.show(None, "node")["text"] == GAME + TRAINER
    assert kept.show(None, "fleet")["set_by"] == "boss"
    assert kept.show(1, "node")["text"] == GAME
    assert [(row["version"], row["scope"], row["in_force"]) for row in kept.versions()] == [
        (3, "node", True),
        (2, "fleet", True),
        (1, "node", False),
    ]


def test_a_bad_section_leaves_the_one_in_force(journal: Journal) -> None:
    kept = Sections(journal)
    kept.set(GAME, "me", "node")
    before = kept.in_force
    for scope in ("node", "fleet"):
        with pytest.raises(SectionErrors):
            kept.set("[node]\nmoode = 1\n", "me", checked_scope(scope))
    assert kept.in_force is before
    assert kept.version == 1


def test_a_section_that_this_version_cannot_read_pauses_everything(journal: Journal) -> None:
    journal.add_section("[node]\nfrom_the_future = 1\n", "x", "me", "fleet")
    sections = Sections(journal)
    assert sections.in_force.node.pause
    assert not sections.owner_pause, "nor does anybody find a pause to take back"
    view = sections.said_in(NodeView(pause=sections.in_force.node.pause))
    (why,) = brakes(Unit("a", 1, "dev.example.sim", "run", device=False), view)
    assert why.code == "PROTECTION_CONFIG_ERROR"
    assert "the fleet's section (version 1)" in why.why
    assert "from_the_future" in why.why
    assert "cotenant protection set NODE FILE --fleet" in why.remedy
    node_too = sections.said_in(view, "[node]\npause = true\n", "node")
    assert len(brakes(Unit("a", 1, "dev.example.sim", "run", device=False), node_too)) == 2
    assert sections.said_in(NodeView(), "", "fleet").unknown == (), "what a preview of one that can be read shows"


def test_unknown_versions_and_scopes_are_refused(journal: Journal) -> None:
    with pytest.raises(Refused) as refused:
        Sections(journal).show(7, "node")
    assert refused.value.code == "SECTION_UNKNOWN"
    with pytest.raises(Refused):
        checked_scope("galaxy")


def test_a_journal_of_before_the_fleets_section_is_read(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "journal.sqlite"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE sections (version INTEGER PRIMARY KEY, text TEXT, digest TEXT, set_at TEXT, set_by TEXT)")
    db.execute("INSERT INTO sections VALUES (4, ?, 'd', 'then', 'me')", (GAME,))
    db.commit()
    db.close()
    kept = Sections(Journal(path))
    assert (kept.version, kept.of("node").text) == (4, GAME)
