from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.agent_rig import Rig
from tests.node.certificate_rig import Node
from tests.node.proc_rig import FakeProc


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A home with no agent running yet; everything started through it is ended."""
    found = Rig(tmp_path)
    yield found
    found.stop()


@pytest.fixture
def measured(rig: Rig) -> Rig:
    """An agent with a protected program that it sees and reads."""
    rig.start_agent()
    rig.start_program()
    rig.protect()
    return rig


@pytest.fixture
def node(rig: Rig) -> Iterator[Node]:
    """An agent in the test's own process, with a program that it sees."""
    found = Node(rig)
    yield found
    found.agent.journal.close()


@pytest.fixture
def fake(tmp_path: Path) -> FakeProc:
    """A /proc of files, with an init and nothing else."""
    return FakeProc(tmp_path)
