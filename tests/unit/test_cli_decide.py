"""``ab decide``: the same verdict as the design's vectors, and bad files refused with their place."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cotenant.cli.blocks_file import read_blocks
from policies.harness.rows import BlockRow
from policies.harness.spec import RunSpec
from policies.harness.validity import decide_blocks
from policies.refusal import Refused
from policies.report import windows_csv
from policies.statistics import decide
from tests.cli_runner import Cli, cli, home

__all__ = ["cli", "home"]

DATA = Path(__file__).parents[1] / "data"
VECTORS = json.loads((DATA / "harness_vectors.json").read_text())["final_vectors"]
EIGHT = [["on_first" if i % 2 else "off_first", 10.0 + 0.01 * (i % 3), 10.0 + 0.01 * (i % 2)] for i in range(8)]


def write(folder: Path, name: str, content: Any) -> str:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


@pytest.mark.parametrize("vector", VECTORS, ids=[v["name"] for v in VECTORS])
def test_the_vectors(vector: dict[str, Any], tmp_path: Path, cli: Cli) -> None:
    file = write(tmp_path, "blocks.json", vector["blocks"])
    said = cli("protection", "ab", "decide", file, "--margin", str(vector["margin"]), "--json")
    for key, wanted in vector["expect"].items():
        found = said.json["data"][key]
        assert found == (pytest.approx(wanted, abs=1e-6) if isinstance(wanted, float) else wanted), key
    assert said.code == (0 if vector["expect"]["verdict"] == "no slowdown shown" else 1)


def test_text_says_the_verdict_first(tmp_path: Path, cli: Cli) -> None:
    said = cli("protection", "ab", "decide", write(tmp_path, "b.json", EIGHT))
    assert said.code == 0
    assert said.out.splitlines()[0] == "no slowdown shown"
    assert "(R) " in said.out
    assert "valid at every look" in said.out


def test_blocks_of_one_order_are_told_what_they_lack(tmp_path: Path, cli: Cli) -> None:
    said = cli("protection", "ab", "decide", write(tmp_path, "b.json", [["on_first", on, off] for _, on, off in EIGHT]))
    assert said.code == 1
    assert "both are needed, on_first and off_first" in said.out
    assert "no look yet" not in said.out


def test_before_the_first_look_there_is_no_verdict_and_no_R(tmp_path: Path, cli: Cli) -> None:
    said = cli("protection", "ab", "decide", write(tmp_path, "b.json", EIGHT[:7]))
    assert said.code == 1
    assert "no look yet: 7 usable blocks" in said.out
    assert "(R)" not in said.out


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("list.json", EIGHT),
        ("object.json", {"blocks": EIGHT, "margin": 0.02}),
        ("objects.json", [{"order": o, "on": on, "off": off} for o, on, off in EIGHT]),
        ("rates.json", [{"order": o, "on_rate": on, "off_rate": off} for o, on, off in EIGHT]),
        (
            "run.json",
            {"blocks": [{"order": o, "state": "counted", "on": {"rate": a}, "off": {"rate": b}} for o, a, b in EIGHT]},
        ),
        ("plain.csv", "order,on,off\n" + "".join(f"{o},{on},{off}\n" for o, on, off in EIGHT)),
        ("rates.csv", "# a note\norder,on_rate,off_rate\n" + "".join(f"{o},{on},{off}\n" for o, on, off in EIGHT)),
    ],
)
def test_every_form_gives_the_same_blocks(name: str, content: Any, tmp_path: Path) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    assert [list(block) for block in read_blocks(text, name).blocks] == EIGHT


def test_the_reports_csv_gives_the_runs_verdict(tmp_path: Path, cli: Cli) -> None:
    record = json.loads((DATA / "runs" / "left_out_many.json").read_text())
    rows = [BlockRow.model_validate(row) for row in record["blocks"]]
    file = write(tmp_path, "windows.csv", windows_csv.write(rows))
    said = cli("protection", "ab", "decide", file, "--json").json["data"]
    counted = sum(row.state == "counted" for row in rows)
    assert counted < len(rows)
    assert said["blocks"] == counted
    assert said["left_out"] == len(rows) - counted
    assert said["R"] == pytest.approx(decide(decide_blocks(rows)).R, abs=1e-12)


def test_a_saved_answer_of_ab_show_can_be_judged_again(tmp_path: Path, cli: Cli) -> None:
    record = json.loads((DATA / "runs" / "slowdown.json").read_text())
    file = write(tmp_path, "show.json", {"schema": 1, "data": {"record": record, "report": {}}})
    assert cli("protection", "ab", "decide", file, "--json").json["data"]["verdict"] == "slowdown"


@pytest.mark.parametrize("path", sorted((DATA / "runs").glob("*.json")), ids=lambda path: path.stem)
def test_a_saved_run_is_judged_by_its_own_spec(path: Path, tmp_path: Path, cli: Cli) -> None:
    record = json.loads(path.read_text())
    spec = RunSpec.model_validate(record["spec"])
    file = write(tmp_path, "show.json", {"schema": 1, "data": {"record": record, "report": {}}})
    said = cli("protection", "ab", "decide", file, "--json")
    data = said.json["data"]
    assert (data["margin"], data["n_max"], data["first_look"]) == (spec.margin, spec.n_max, spec.first_look)
    assert said.json["messages"] == []


def test_a_run_of_few_hours_is_not_judged_by_the_default_of_many(tmp_path: Path, cli: Cli) -> None:
    spec = RunSpec(node="local", rule="trainer", max_hours=2.5, first_look=12)
    file = write(tmp_path, "run.json", {"spec": spec.model_dump(), "blocks": EIGHT})
    data = cli("protection", "ab", "decide", file, "--json").json["data"]
    assert (data["n_max"], data["first_look"]) == (12, 12)
    assert data["R"] is None, "eight blocks are before this run's first look"


def test_what_a_csv_does_not_say_is_said_to_be_assumed(tmp_path: Path, cli: Cli) -> None:
    rows = "".join(f"{o.upper()},{on},{off}\n" for o, on, off in EIGHT)
    file = write(tmp_path, "b.csv", "order,on,off\n" + rows)
    said = cli("protection", "ab", "decide", file)
    assert said.code == 0
    assert "at most 40 blocks (--n-max), a margin of 2 % (--margin)" in said.err
    assert "assumed" not in cli("protection", "ab", "decide", file, "--n-max", "40", "--margin", "0.02").err


def test_standard_input(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(json.dumps(EIGHT).encode())))
    assert cli("protection", "ab", "decide", "-").code == 0


BAD = {
    "empty": ("", "empty"),
    "no json": ('[["on_first", 1, 2],\n ["on_first", 1 2]]', "line 2"),
    "no list": ('{"runs": []}', "blocks"),
    "a word for a block": ('["on_first"]', "block 1"),
    "an order of another kind": ('[["on_first", 1, 1], ["first", 1, 1]]', "block 2"),
    "a rate that is a word": ('[["on_first", "fast", 1]]', "'fast'"),
    "a negative rate": ('[["on_first", -1, 1]]', "negative"),
    "an unknown rate": ('[["on_first", null, 1]]', "unknown rate is not zero"),
    "true is no rate": ('[["on_first", true, 1]]', "no number"),
    "infinite": ('[["on_first", 1e999, 1]]', "finite"),
    "csv without columns": ("a,b\n1,2\n", "needed are order, on and off"),
    "csv with a bad line": ("order,on,off\non_first,1,1\non_first,x,1\n", "line 3"),
    "csv with a header alone": ("order,on,off\n", "no rows"),
    "windows with a header alone": (",".join(windows_csv.COLUMNS) + "\n", "no rows"),
    "binary": ("\x00\x01", "order"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_with_its_place(name: str, tmp_path: Path, cli: Cli) -> None:
    content, words = BAD[name]
    said = cli("protection", "ab", "decide", write(tmp_path, "bad.file", content))
    assert said.code == 2
    assert words in said.err
    assert "bad.file" in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    ("option", "value"),
    [("--margin", "1.5"), ("--margin", "nan"), ("--margin", "-1"), ("--n-max", "4"), ("--n-max", "900")],
)
def test_a_bad_margin_or_number_is_refused(option: str, value: str, tmp_path: Path, cli: Cli) -> None:
    said = cli("protection", "ab", "decide", write(tmp_path, "b.json", EIGHT), option, value)
    assert said.code == 2


def test_a_file_that_is_not_there(cli: Cli) -> None:
    said = cli("protection", "ab", "decide", "/no/such/file.json")
    assert said.code == 2
    assert "/no/such/file.json" in said.err


def test_not_utf_8(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "b.csv").write_bytes(b"order,on,off\non_first,1,1\n\xff\n")
    said = cli("protection", "ab", "decide", str(tmp_path / "b.csv"))
    assert said.code == 2
    assert "line 3" in said.err


def test_a_second_window_of_an_arm_is_not_taken_silently() -> None:
    head = ",".join(windows_csv.COLUMNS)
    line = "r,1,on_first,counted,,,on,1,2026-11-20T22:05:11+00:00,0,300,3000,10,0.1,300,,\n"
    with pytest.raises(Refused):
        read_blocks(f"{head}\n{line}{line}", "w.csv")


@pytest.mark.parametrize("hours", ["Infinity", "NaN"])
def test_a_run_without_a_number_of_blocks_is_refused_by_name(hours: str) -> None:
    text = '{"spec": {"node": "n", "rule": "r", "max_hours": %s}, "blocks": []}' % hours  # noqa: UP031
    with pytest.raises(Refused, match="no number of blocks"):
        read_blocks(text, "run.json")


def test_a_rate_that_no_float_holds_is_refused_by_name() -> None:
    with pytest.raises(Refused, match=r"block 2, OFF rate.*hundreds of digits"):
        read_blocks(json.dumps([["on_first", 1.0, 1.0], ["off_first", 1.0, 10**400]]), "list.json")
