"""The locator names the line of every key, whatever TOML its owner writes."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.section.locate import Path, TooDeep, line_of, locate


def paths_of(value: Any, at: Path = ()) -> set[Path]:
    """Every path of a parsed value."""
    found = {at} if at else set()
    if isinstance(value, dict):
        for key, inner in value.items():
            found |= paths_of(inner, (*at, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found |= paths_of(inner, (*at, index))
    return found


CASES = {
    "keys and tables": (
        'a = 1\n\n[b]\nc = 2\n  d = "x"  # why\n',
        {("a",): 1, ("b",): 3, ("b", "c"): 4, ("b", "d"): 5},
    ),
    "arrays of tables": (
        "[[rule]]\nid = 'x'\n[[rule.during]]\nk = 1\n[[rule.during]]\nk = 2\n[[rule]]\n[[rule.during]]\nk = 3\n",
        {
            ("rule", 0): 1,
            ("rule", 0, "id"): 2,
            ("rule", 0, "during", 0): 3,
            ("rule", 0, "during", 1, "k"): 6,
            ("rule", 1): 7,
            ("rule", 1, "during", 0, "k"): 9,
        },
    ),
    "a table inside an array of tables": (
        "[[rule]]\n[rule.match]\nname = 'x'\n[[rule]]\n\n[rule.match]\nname = 'y'\n",
        {("rule", 0, "match", "name"): 3, ("rule", 1, "match"): 6, ("rule", 1, "match", "name"): 7},
    ),
    "inline tables": (
        "m = { a = 1, b = { c = [1, { d = 2 }] } }\nn = 1\n",
        {("m", "a"): 1, ("m", "b", "c", 1, "d"): 1, ("n",): 2},
    ),
    "arrays over several lines": (
        'on = [ # first, ] not the end\n  "a]", # "b\n\n  "c,",\n]\nnext = true\n',
        {("on",): 1, ("on", 0): 2, ("on", 1): 4, ("next",): 6},
    ),
    "quoted and dotted keys": (
        '"a.b" = 1\n\'c d\'."e\\u0041" . f = 2\n[g.\'h.i\']\n"" = 3\n',
        {("a.b",): 1, ("c d", "eA", "f"): 2, ("g", "h.i"): 3, ("g", "h.i", ""): 4},
    ),
    "strings with everything in them": (
        'a = """\n[x]\ny = 1\n\\""" still """\nb = \'\'\'\n\'quoted\'\n\'\'\'\nc = "# ] } \\" = "\nd = \'a\\\'\ne = ""\ng = 1\n',
        {("a",): 1, ("b",): 5, ("c",): 8, ("d",): 9, ("e",): 10, ("g",): 11},
    ),
    "quotes before the closing three": ('a = """x"""""\nb = 1\n', {("a",): 1, ("b",): 2}),
    "dates, numbers and no last newline": (
        "a = 1979-05-27 07:32:00Z\nb = [1_000, +1.5e3, 0xff]\nc = inf",
        {("a",): 1, ("b", 2): 2, ("c",): 3},
    ),
    "windows line ends": ("a = 1\r\n[b]\r\nc = '''\r\nx'''\r\nd = 2\r\n", {("b", "c"): 3, ("b", "d"): 5}),
}


@pytest.mark.parametrize("name", CASES)
def test_lines(name: str) -> None:
    text, expected = CASES[name]
    lines = locate(text)
    assert {path: lines.get(path) for path in expected} == expected


@pytest.mark.parametrize("name", CASES)
def test_every_path_of_the_parsed_value_has_a_line(name: str) -> None:
    text, _ = CASES[name]
    assert paths_of(tomllib.loads(text)) == set(locate(text))


def test_a_path_that_is_not_written_takes_the_line_of_the_table_around_it() -> None:
    lines = locate("a = 1\n[[rule]]\nid = 'x'\n")
    assert line_of(lines, ("rule", 0, "match", "name")) == 2
    assert line_of(lines, ("node",)) == 1


def test_what_is_nested_beyond_reason_is_refused() -> None:
    with pytest.raises(TooDeep):
        locate("a = " + "[" * 60 + "]" * 60)


keys = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=6)
scalars = st.one_of(st.booleans(), st.integers(-9, 9), st.text(st.characters(exclude_categories=["Cs"]), max_size=8))
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=8
)


def written(value: Any, gap: str) -> str:
    """A value as inline TOML with ``gap`` (blank or newlines) inside its arrays."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return "[" + gap + f",{gap}".join(written(each, gap) for each in value) + gap + "]"
    return "{ " + ", ".join(f"{written(key, gap)} = {written(inner, gap)}" for key, inner in value.items()) + " }"


@settings(max_examples=70, deadline=None)
@given(
    tables=st.lists(st.dictionaries(keys, values, max_size=3), max_size=4), gap=st.sampled_from([" ", "\n", "# ]}\n"])
)
def test_any_document_is_located_whole(tables: list[dict[str, Any]], gap: str) -> None:
    text, lines_of_tables = "", []
    for table in tables:
        lines_of_tables.append(text.count("\n") + 1)
        text += "[[t]]\n" + "".join(f"{written(key, gap)} = {written(value, gap)}\n" for key, value in table.items())
    parsed = tomllib.loads(text)
    lines = locate(text)
    assert paths_of(parsed) == set(lines)
    assert [lines[("t", index)] for index in range(len(tables))] == lines_of_tables
    assert all(1 <= line <= text.count("\n") + 1 for line in lines.values())
