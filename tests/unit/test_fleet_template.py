"""A home's first database is a copy of the template, and only its first."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cotenant.fleet import template


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache" / "prefect.sqlite"
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as made:
        made.execute("PRAGMA journal_mode=WAL")
        made.execute("CREATE TABLE alembic_version (version_num TEXT)")
        made.execute("INSERT INTO alembic_version VALUES ('newest')")
        made.commit()
    monkeypatch.setattr(template, "template", lambda: path)
    return path


def versions(database: Path) -> list[tuple[str]]:
    with closing(sqlite3.connect(database)) as read:
        return read.execute("SELECT version_num FROM alembic_version").fetchall()


@pytest.mark.usefixtures("source")
def test_a_new_home_starts_from_the_template(tmp_path: Path) -> None:
    assert template.seed(tmp_path / "prefect")
    assert versions(tmp_path / "prefect" / "prefect.db") == [("newest",)]
    assert [path.name for path in (tmp_path / "prefect").iterdir()] == ["prefect.db"], "a draft was left"


@pytest.mark.usefixtures("source")
def test_a_database_that_is_there_is_left_alone(tmp_path: Path) -> None:
    home = tmp_path / "prefect"
    home.mkdir()
    (home / "prefect.db").write_bytes(b"the owner's")
    assert not template.seed(home)
    assert (home / "prefect.db").read_bytes() == b"the owner's"


def test_a_broken_or_missing_template_is_no_error(tmp_path: Path, source: Path) -> None:
    source.write_bytes(b"no database at all, but long enough to be looked at as one" * 20)
    assert not template.seed(tmp_path / "prefect")
    assert not (tmp_path / "prefect" / "prefect.db").exists()
    source.unlink()
    assert not template.seed(tmp_path / "prefect")
