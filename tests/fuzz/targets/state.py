"""What lies on disk between two starts: certificates, the journal, notes of processes, settings, what the governor left."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from cotenant.cli.uplog import UpLog, read_all
from cotenant.settings import FLEET_FILE, Settings, joined
from nodes.agent.certificates import KEY_BYTES, KeptCertificates
from nodes.agent.governing import FACT, Governing
from nodes.flow_processes import FlowProcesses
from nodes.identity import boot_id, noted, own_id
from nodes.journal import Journal
from policies.certificate import sign
from policies.compliance import CLEAR
from policies.governor import INITIAL
from policies.kept import compliance_kept, governor_kept
from policies.refusal import Refused
from tests.fuzz.targets.shapes import Target, altered, mutated_bytes
from tests.unit.certificates import certificate, record

__all__ = ["STATE"]

# -- certificates --------------------------------------------------------------------------------------------------------

_KEY = b"k" * KEY_BYTES
_GOOD = json.loads(sign(certificate(record(program={"unbound": []})), _KEY).model_dump_json())


@contextlib.contextmanager
def certificates() -> Iterator[Callable[[str], None]]:
    """A row of the journal that somebody edited: nothing but the signed row itself is ever used."""
    folder = Path(tempfile.mkdtemp())
    (folder / "key").write_bytes(_KEY)
    journal = Journal(folder / "journal.sqlite")
    journal.db.execute("PRAGMA synchronous=OFF")
    good = KeptCertificates(journal, folder / "key")
    journal.put_certificate("c", "r", _GOOD)
    assert len(good.all()) == 1

    def check(text: str) -> None:
        row = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        journal.db.execute("UPDATE certificates SET row = ?", (row,))
        used = KeptCertificates(journal, folder / "key").all()
        same = False
        with contextlib.suppress(ValueError, RecursionError):
            same = json.loads(row) == _GOOD
        assert len(used) == same, "an edited certificate is refused, a good one is not"
        journal.db.execute("DELETE FROM timeline")

    try:
        yield check
    finally:
        journal.close()
        shutil.rmtree(folder)


# -- the journal ---------------------------------------------------------------------------------------------------------


def _journal_bytes() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "journal.sqlite")
        journal.write("AGENT_STARTED", {"pid": 1})
        journal.add_section("[node]\n", "d", "x")
        journal.close()
        return (Path(folder) / "journal.sqlite").read_bytes()


@contextlib.contextmanager
def journals() -> Iterator[Callable[[bytes], None]]:
    """A file that a power cut or a hand left: it is read, or set aside whole; either way the agent has a journal."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))  # each syncs
    logging.getLogger("nodes.journal").setLevel(logging.CRITICAL)

    def check(content: bytes) -> None:
        path = folder / "journal.sqlite"
        path.write_bytes(content)
        (folder / "key").write_bytes(_KEY)
        with contextlib.suppress(sqlite3.OperationalError):
            journal = Journal(path)
            kept = journal.set_aside
            assert kept is None or kept.read_bytes() == content, "nothing of it is lost"
            if kept is not None:
                assert journal.section_lost()
                assert journal.write("AGENT_STARTED") is not None
            journal.close()
        for file in folder.iterdir():
            file.unlink()

    try:
        yield check
    finally:
        logging.getLogger("nodes.journal").setLevel(logging.NOTSET)
        shutil.rmtree(folder)


# -- small files ---------------------------------------------------------------------------------------------------------

_WHO = own_id().as_dict()
_UP = {"node": "local", "kind": "up", "supervisor": _WHO, "pieces": ["agent", "worker"], "ready": True}
_FLEET = {"prefect_api_url": "http://a:4200/api", "store_url": "sqlite:///x", "home": "/x"}
_GOVERNOR = {
    "boot_id": boot_id(),
    "pace": 1.0,
    "governor": governor_kept(INITIAL),
    "compliance": compliance_kept(CLEAR),
}
_FLOW_RUN = UUID(int=7)
_FILES = ("run/up-local.json", "note.json", f"flows/{_FLOW_RUN}.json", FLEET_FILE, "prefect/server.json")


@contextlib.contextmanager
def small_files() -> Iterator[Callable[[tuple[str, str]], None]]:
    home = Path(tempfile.mkdtemp())
    for name in _FILES:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
    settings = Settings(home=home)

    def check(found: tuple[str, str]) -> None:
        name, text = found
        (home / name).write_bytes(text.encode("utf-8", "surrogatepass"))
        for log in read_all(home):
            assert isinstance(log, UpLog)
            assert log.alive in (True, False)
        noted(home / "note.json")
        FlowProcesses(home / "flows").of(_FLOW_RUN)
        assert settings.api_url is None or settings.api_url.startswith("http://127.0.0.1:")
        with contextlib.suppress(Refused):
            assert isinstance(joined({"home": str(home)}), dict)
        (home / name).unlink()

    try:
        yield check
    finally:
        shutil.rmtree(home)


# -- what the governor left ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def governors() -> Iterator[Callable[[str], None]]:
    """The fact of an earlier process: it is gone on from, or the governor begins anew. It never starts with a budget."""
    logging.getLogger("nodes.agent.governing").setLevel(logging.CRITICAL)

    def check(text: str) -> None:
        def fact(name: str) -> Any:
            assert name == FACT
            try:
                return json.loads(text)
            except RecursionError as error:
                raise ValueError("too deep") from error

        agent = SimpleNamespace(journal=SimpleNamespace(fact=fact))
        made = Governing.__new__(Governing)
        made.agent, made.pace, made.state, made.checked = agent, 1.0, INITIAL, CLEAR  # type: ignore[assignment]
        made.now_s = lambda: 1000.0  # type: ignore[method-assign]
        made._resume()
        assert not made.state.budget

    try:
        yield check
    finally:
        logging.getLogger("nodes.agent.governing").setLevel(logging.NOTSET)


STATE = {
    "certificates": Target(altered([_GOOD]), certificates),
    "journals": Target(mutated_bytes([_journal_bytes()]) | st.binary(max_size=200), journals),
    "small_files": Target(
        st.tuples(st.sampled_from(_FILES), altered([_UP, _WHO, _FLEET, {"port": 4200}])), small_files
    ),
    "governors": Target(altered([_GOVERNOR]), governors),
}
