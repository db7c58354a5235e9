"""A backup of a home in use is whole, comes back as it was, and a damaged one changes nothing."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sqlite3
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from cotenant.fleet.backup import backup, restore
from policies.refusal import Refused


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    node = home / "nodes" / "local"
    (node / "jobs" / "7").mkdir(parents=True)
    (node / "modules" / "m" / "bundles" / "d").mkdir(parents=True)
    (node / "jobs" / "7" / "work").write_text("made again")
    (node / "modules" / "m" / "bundles" / "d" / "runner.py").write_text("print(1)")
    (node / "key").write_bytes(b"k" * 32)
    os.chmod(node / "key", 0o600)
    (home / "reports").mkdir()
    (home / "reports" / "run-1.html").write_text("<p>")
    return home


def journal(home: Path) -> sqlite3.Connection:
    db = sqlite3.connect(home / "nodes" / "local" / "journal.sqlite")
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("CREATE TABLE IF NOT EXISTS runs (run TEXT)")
    db.execute("INSERT INTO runs VALUES ('run-1')")
    db.commit()
    return db


def test_a_home_in_use_comes_back_with_what_was_committed(home: Path, tmp_path: Path) -> None:
    open_journal = journal(home)
    open_journal.execute("INSERT INTO runs VALUES ('not committed')")
    file = tmp_path / "b.tar.gz"
    manifest = backup(home, file)
    assert file.stat().st_mode & 0o077 == 0, "it holds keys"
    assert "nodes/local/jobs/7/work" not in manifest["files"]

    back = tmp_path / "back"
    assert restore(file, back)["files"] == manifest["files"]
    runs = sqlite3.connect(back / "nodes" / "local" / "journal.sqlite").execute("SELECT run FROM runs").fetchall()
    assert runs == [("run-1",)]
    assert (back / "nodes" / "local" / "key").read_bytes() == b"k" * 32
    assert (back / "nodes" / "local" / "key").stat().st_mode & 0o077 == 0
    assert (back / "nodes" / "local" / "modules" / "m" / "bundles" / "d" / "runner.py").read_text() == "print(1)"
    assert (back / "reports" / "run-1.html").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "back", "home"], "nothing else is left"
    open_journal.close()


def test_a_restored_journal_says_so_and_the_owner_is_told_before(home: Path, tmp_path: Path) -> None:
    journal(home).close()
    file, back = tmp_path / "b.tar.gz", tmp_path / "back"
    backup(home, file)
    told: list[tuple[str, bool]] = []
    restore(file, back, lambda manifest: told.append((manifest["made_at"], back.exists())))
    ((made_at, was_there),) = told
    assert not was_there
    db = sqlite3.connect(back / "nodes" / "local" / "journal.sqlite")
    ((fact,),) = db.execute("SELECT value FROM facts WHERE name = 'restored'")
    assert (json.loads(fact)["made_at"], json.loads(fact)["runs"]) == (made_at, ["run-1"])
    assert [code for (code,) in db.execute("SELECT code FROM timeline")] == ["JOURNAL_NUMBERS", "JOURNAL_RESTORED"]
    db.close()


def test_a_model_that_is_larger_than_memory_is_copied_in_pieces(home: Path, tmp_path: Path) -> None:
    journal(home).close()
    model = home / "nodes" / "local" / "modules" / "m" / "data" / "models" / "m.gguf"
    model.parent.mkdir(parents=True)
    size = 24 << 20
    with open(model, "wb") as file:
        file.write(b"GGUF")
        file.truncate(size)
    file, back = tmp_path / "b.tar.gz", tmp_path / "back"
    tracemalloc.start()
    try:
        manifest = backup(home, file)
        restore(file, back)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    name = model.relative_to(home).as_posix()
    with open(back / name, "rb") as copied:
        assert hashlib.file_digest(copied, "sha256").hexdigest() == manifest["files"][name]
    assert (back / name).stat().st_size == size
    assert peak < size / 2


def test_a_home_that_has_something_is_left_as_it_is(home: Path, tmp_path: Path) -> None:
    journal(home).close()
    file = tmp_path / "b.tar.gz"
    backup(home, file)
    with pytest.raises(Refused, match="not empty"):
        restore(file, home)
    assert (home / "reports" / "run-1.html").read_text() == "<p>"


@pytest.mark.parametrize("damage", ["cut", "changed", "foreign", "no backup", "outside"])
def test_a_file_that_is_no_whole_backup_writes_nothing(home: Path, tmp_path: Path, damage: str) -> None:
    journal(home).close()
    file, back = tmp_path / "b.tar.gz", tmp_path / "back"
    backup(home, file)
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-200])
    elif damage == "no backup":
        file.write_bytes(b"hello")
    else:
        with tarfile.open(file) as tar:
            members = [(each, tar.extractfile(each).read()) for each in tar.getmembers()]  # type: ignore[union-attr]
        with tarfile.open(file, "w:gz") as tar:
            for each, content in members:
                kept = b"x" * len(content) if damage == "changed" and each.name.endswith(".html") else content
                tar.addfile(each, io.BytesIO(kept))
            if damage in ("foreign", "outside"):
                extra = tarfile.TarInfo("nodes/local/more" if damage == "foreign" else "../outside")
                extra.size = 1
                tar.addfile(extra, io.BytesIO(b"x"))
    with pytest.raises(Refused, match="no whole backup"):
        restore(file, back)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "home"]


def test_an_empty_home_has_nothing_to_keep(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no journal"):
        backup(tmp_path / "none", tmp_path / "b.tar.gz")


def test_a_file_that_is_there_is_kept_and_replaced_only_when_asked(home: Path, tmp_path: Path) -> None:
    journal(home).close()
    file = tmp_path / "b.tar.gz"
    file.write_bytes(b"an older backup")
    with pytest.raises(Refused, match="there already") as refused:
        backup(home, file)
    assert file.read_bytes() == b"an older backup"
    assert refused.value.remedy.startswith(f"cotenant backup {file} --overwrite")
    assert backup(home, file, overwrite=True)["files"]
    assert restore(file, tmp_path / "back")["files"]


def test_a_backup_that_fails_leaves_the_older_one(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal(home).close()
    file = tmp_path / "b.tar.gz"
    file.write_bytes(b"an older backup")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cotenant.fleet.backup._add", full)
    with pytest.raises(Refused, match="No space left"):
        backup(home, file, overwrite=True)
    monkeypatch.undo()
    (home / "nodes" / "local" / "journal.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(Refused, match=r"journal\.sqlite"):
        backup(home, file, overwrite=True)
    assert file.read_bytes() == b"an older backup"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "home"], "no draft is left"


def test_one_that_came_there_meanwhile_is_not_replaced(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal(home).close()
    file = tmp_path / "b.tar.gz"
    monkeypatch.setattr("cotenant.fleet.backup._check_target", lambda *_: file.write_bytes(b"another's"))
    with pytest.raises(Refused, match="there already"):
        backup(home, file)
    assert file.read_bytes() == b"another's"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "home"]


def test_a_mistyped_path_makes_no_folders(home: Path, tmp_path: Path) -> None:
    journal(home).close()
    with pytest.raises(Refused, match="not there") as refused:
        backup(home, tmp_path / "mnt" / "bakcup" / "b.tar.gz")
    assert refused.value.remedy == f"mkdir -p {tmp_path / 'mnt' / 'bakcup'}"
    with pytest.raises(Refused, match="is a folder"):
        backup(home, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home"]


def test_a_restore_of_what_is_no_file_says_so_first(home: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no such file"):
        restore(tmp_path / "none.tar.gz", home)
    with pytest.raises(Refused, match="is a folder"):
        restore(tmp_path, home)


@pytest.mark.parametrize("kind", ["above", "absolute", "link"])
def test_a_file_that_would_write_outside_the_home_writes_nothing(home: Path, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "b.tar.gz"
    entry = tarfile.TarInfo({"above": "../out", "absolute": f"{tmp_path}/out", "link": "reports"}[kind])
    if kind == "link":
        entry.type, entry.linkname = tarfile.SYMTYPE, str(tmp_path)
    with tarfile.open(file, "w:gz") as tar:
        tar.addfile(entry, io.BytesIO())
    with pytest.raises(Refused, match="no plain file inside a home"):
        restore(file, tmp_path / "back")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "home"]


def test_a_restore_needs_no_filter_of_tarfile(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first releases of Python 3.11 have none."""

    def refused(*_: object, **__: object) -> None:
        raise TypeError("unexpected keyword argument 'filter'")

    monkeypatch.setattr(tarfile.TarFile, "extractall", refused)
    journal(home).close()
    backup(home, tmp_path / "b.tar.gz")
    restore(tmp_path / "b.tar.gz", tmp_path / "back")
    assert (tmp_path / "back" / "nodes" / "local" / "key").read_bytes() == b"k" * 32
