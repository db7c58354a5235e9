"""The quick set: the tests are green on the unchanged copy, and each mutant turns them red."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutants.catalogue import ALL
from tests.mutants.runner import Mutant, Tree, run

QUICK = [mutant for mutant in ALL if mutant.quick]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    with contextlib.closing(Tree(tmp_path_factory.mktemp("tree"))) as tree:
        assert tree.imports_itself()
        code, said = tree.test(sorted({test for mutant in QUICK for test in mutant.tests}))
        assert code == 0, f"not green without a mutant: {said}"
        yield tree


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutant", QUICK, ids=lambda one: one.name.replace(" ", "-"))
def test_a_mutant_is_noticed(tree: Tree, mutant: Mutant) -> None:
    outcome = run(tree, mutant)
    assert outcome.state == "killed", outcome.said


@pytest.mark.timeout(900)
def test_a_change_of_nothing_is_not_noticed(tree: Tree) -> None:
    """The runner itself: an edit without an effect survives, and one that does not fit is no proof."""
    quiet = Mutant("nothing", "cotenant/conform/meter.py", "_KEY = ", "_KEY  = ", QUICK[0].tests)
    assert run(tree, quiet).state == "survived"
    assert run(tree, Mutant("gone", "cotenant/conform/meter.py", "no such text", "", QUICK[0].tests)).state == "broken"
    assert (
        run(tree, Mutant("bad", "cotenant/conform/meter.py", "_KEY = ", "_KEY = (", QUICK[0].tests)).state == "broken"
    )


def test_names_are_unique_and_each_edit_and_each_test_is_there() -> None:
    names = [mutant.name for mutant in ALL]
    assert len(set(names)) == len(names)
    root = Path(__file__).resolve().parents[2]
    for mutant in ALL:
        assert (root / mutant.file).read_text(encoding="utf-8").count(mutant.before) == 1, mutant.name
        for test in mutant.tests:
            file, _, name = test.partition("::")
            assert f"def {name}" in (root / file).read_text(encoding="utf-8"), f"{mutant.name}: there is no {test}"
