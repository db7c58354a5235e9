"""``tests/cases.md`` and the tests that carry a case's number say the same."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
# Every number of the collection; it has gaps.
NUMBERS = [
    *(1, 2, 3, 4, 6, 9, 10, 12, 13, 14, 16, 17, 18, 19, 21, 22, 23, 25, 26, 28, 31, 32, 35, 36, 37, 39, 40, 41, 42, 45, 47, 48),
    *(50, 51, 52, 54, 55, 57, 58, 59, 60, 62, 64, 65, 66, 67, 68, 69, 70, 72, 73, 74, 75, 77, 78, 80, 81, 82, 83, 85, 86),
    *(87, 88, 89, 90, 92, 94, 95, 96, 97, 99, 102, 103, 105, 106, 108, 109, 110, 111, 112, 115, 117, 118, 119, 121, 123, 125),
]  # fmt: skip
NOT_BUILT = "applies to what is not built: "
_ROW = re.compile(r"^\| (\d+) \| (.+?) \| (.+) \|$", re.MULTILINE)
_TEST = re.compile(r"^(?:async )?def (test_case_(\d{3})_\w+)\(", re.MULTILINE)


def table() -> dict[int, str]:
    rows = _ROW.findall((TESTS / "cases.md").read_text())
    assert len(rows) == len({number for number, _, _ in rows}), "a number stands there twice"
    return {int(number): held for number, _, held in rows}


def in_the_tree() -> dict[str, int]:
    """``file::test`` -> its number."""
    found = {}
    for path in TESTS.rglob("test_*.py"):
        for name, number in _TEST.findall(path.read_text()):
            found[f"{path.relative_to(TESTS).as_posix()}::{name}"] = int(number)
    return found


def listed() -> dict[str, int]:
    return {test: number for number, held in table().items() for test in re.findall(r"`([^`]+)`", held)}


def test_no_number_is_missing_and_none_was_made_up() -> None:
    assert list(table()) == NUMBERS


def test_every_test_of_a_case_is_listed_at_its_number_and_every_listed_one_exists() -> None:
    assert listed() == in_the_tree()


def test_what_no_test_holds_says_why() -> None:
    bare = {number: held for number, held in table().items() if "`" not in held}
    assert all(held.startswith(NOT_BUILT) and len(held) > len(NOT_BUILT) + 10 for held in bare.values()), bare
    assert not [number for number, held in table().items() if "`" in held and NOT_BUILT in held]


def test_the_faults_page_names_files_that_exist() -> None:
    page = (TESTS / "faults" / "README.md").read_text()
    named = re.findall(r"`((?:tests/)?[\w/]+(?:\.py)?)`", page)
    paths = [
        TESTS.parent / name if name.startswith("tests/") else TESTS / "faults" / name
        for name in named
        if ".py" in name or "/" in name
    ]
    assert len(paths) > 30
    assert [str(path) for path in paths if not path.exists()] == []
