"""Sections on the command line: what is given away is said before it is asked, versions come back, the fleet's goes to all."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from policies.refusal import Refused
from tests.cli_runner import Cli, cli, home
from tests.fake_agent import FakeAgent

__all__ = ["cli", "home"]

WARNING = "it has no rule: nothing of what is protected now (game) will be any more"
SEEN = {
    "ok": True,
    "errors": [],
    "changes": ["rule game: removed"],
    "warnings": [WARNING],
    "matches": [
        {"rule": "game", "processes": [{"pid": 7, "argv": ["game"]}], "members": 1, "unreadable": [{"pid": 9}]}
    ],
    "held": [3],
    "held_why": [{"job": 3, "action": "pause", "reasons": [{"code": "PROTECTION_PAUSE", "why": "rule game pauses"}]}],
}
KEPT = {"version": 2, "text": "# two\n", "set_at": "then", "set_by": "me", "digest": "d" * 64, "scope": "node"}


def show(version: int | None = None, scope: str = "node") -> Any:
    if version in (None, 2):
        return KEPT | {"scope": scope}
    return Refused("SECTION_UNKNOWN", f"section version {version}", "there is none", "cotenant protection show NODE")


def agent(home: Path, node: str = "local") -> FakeAgent:
    done = {"version": 5, "changes": ["rule game: removed"], "scope": "node"}
    return FakeAgent(
        home,
        node,
        section_preview=SEEN,
        section_set=done,
        section_show=show,
        section_versions=[KEPT | {"in_force": True}],
    )


@pytest.fixture
def empty(tmp_path: Path) -> str:
    file = tmp_path / "empty.toml"
    file.write_text("")
    return str(file)


def test_an_empty_section_that_removes_protection_warns_and_wants_an_answer(cli: Cli, home: Path, empty: str) -> None:
    fake = agent(home)
    with fake.serving():
        said = cli("protection", "set", "local", empty)
        assert said.code == 4
        assert WARNING in said.err.replace("\n", " ")
        assert "section_set" not in fake.verbs()
        agreed = cli("protection", "set", "local", empty, "--yes")
        assert agreed.code == 0
        assert "section version 5" in agreed.out
        assert fake.verbs()[-1] == "section_set"


def test_a_preview_shows_matches_apart_from_what_cannot_be_judged_and_what_would_be_held(
    cli: Cli, home: Path, empty: str
) -> None:
    with agent(home).serving():
        said = cli("protection", "preview", "local", empty).out
        for words in ("7 game", "PROTECTION_UNREADABLE", "PROTECTION_PAUSE", "rule game pauses", "WARNING"):
            assert words in said


def test_an_earlier_version_is_put_in_force_again_as_a_new_one(cli: Cli, home: Path) -> None:
    fake = agent(home)
    with fake.serving():
        assert cli("protection", "restore", "local", "2", "--yes").code == 0
        verb, parameters = fake.asked[-1]
        assert (verb, parameters["text"]) == ("section_set", "# two\n")
        assert "restored version 2" in parameters["by"]
        assert cli("protection", "restore", "local", "9", "--yes").code == 2
        listed = cli("protection", "show", "local", "--versions").out
        assert "node" in listed
        assert "d" * 12 in listed


def test_the_fleets_section_goes_to_every_node_of_this_machine(cli: Cli, home: Path, empty: str) -> None:
    fakes = [agent(home, name) for name in ("local", "other")]
    with ExitStack() as stack:
        for fake in fakes:
            stack.enter_context(fake.serving())
        said = cli("protection", "set", "local", empty, "--fleet", "--yes")
        assert said.code == 0, said.err
        for fake in fakes:
            verb, parameters = fake.asked[-1]
            assert (verb, parameters["scope"]) == ("section_set", "fleet")
            assert fake.node in said.out


def test_a_node_that_says_no_to_the_fleets_section_keeps_it_from_none_of_the_others(
    cli: Cli, home: Path, empty: str
) -> None:
    first, second = agent(home, "local"), agent(home, "other")
    first.answers["section_set"] = Refused("SECTION_LOCKED", "node local", "a run measures on it", "wait")
    with first.serving(), second.serving():
        said = cli("protection", "set", "local", empty, "--fleet", "--yes", "--json")
    assert said.code == 2
    assert [row["node"] for row in said.json["data"]["nodes"]] == ["other"]
    assert [error["code"] for error in said.json["errors"]] == ["SECTION_LOCKED"]


@pytest.mark.parametrize(
    ("name", "kind", "code", "exit_code"),
    [
        ("Completed", "COMPLETED", None, 0),
        ("Refused", "FAILED", "SECTION_INVALID", 2),
        ("Failed", "FAILED", "SECTION_NOT_SET", 1),
        ("Crashed", "CRASHED", "SECTION_NOT_SET", 1),
    ],
)
def test_a_remote_node_s_section_is_called_bad_only_where_its_agent_says_so(
    name: str, kind: str, code: str | None, exit_code: int, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cotenant import fleet
    from cotenant.cli import fleet_link
    from cotenant.cli.remote_section import set_remote
    from cotenant.settings import Settings

    ended = {"type": kind, "name": name, "message": "as it says", "final": True, "at": None}
    monkeypatch.setattr(fleet_link, "connect", lambda settings: fleet_link.Fleet("http://there/api"))
    monkeypatch.setattr(fleet, "run_flow", lambda *asked: "f" * 8, raising=False)
    monkeypatch.setattr(fleet, "flow_state", lambda url, flow_run: ended, raising=False)
    monkeypatch.setattr(fleet, "ui_link", lambda url, flow_run: f"{url}/{flow_run}", raising=False)
    said = set_remote(Settings(home=home), "far", "", "a.toml", yes=True)
    assert said.exit_code == exit_code
    assert [error.code for error in said.errors] == ([code] if code else [])
    assert all("as it says" in error.why and error.remedy for error in said.errors)


def test_a_section_that_is_too_long_for_its_review_is_cut_by_its_bytes() -> None:
    from tasks.section import SHOWN_BYTES, section_plan_markdown

    def shown(text: str) -> str:
        return section_plan_markdown("local", text, {"changes": [], "matches": []}, {"version": 1})

    long = shown("# " + "é" * SHOWN_BYTES)
    assert len(long.encode()) < SHOWN_BYTES + 1000
    assert "(cut here)" in long
    assert "(cut here)" not in shown("# é")
