"""The tables of the socket's verbs in docs/architecture.md are what a real agent takes and answers."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from nodes.agent.core import Agent
from nodes.agent.verbs import Verbs
from tests.node.agent_rig import ROOT, Rig

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)` \|(.*?)\| (.*) \|$", re.MULTILINE)
TABLE, OF_OWNERS = PAGE.split("## The socket")[1].split("**The owners' socket.**")
VERBS = {verb: (parameters.strip("` "), result) for verb, parameters, result in ROW.findall(TABLE)}
# A shape: the keys of an object with the shape of each; [shape] a list of such; None is not said. "…" stands for more keys.
Shape = Any


def shape(text: str) -> Shape:
    """``{a, b: [{c}], d: x|y}`` as written in the table."""
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        return [shape(text[1:-1])]
    if not (text.startswith("{") and text.endswith("}")):
        return None
    found: dict[str, Shape] = {}
    for part in _parts(text[1:-1]):
        key, _, value = part.partition(":")
        found[key.strip()] = shape(value)
    return found


def _parts(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "{[") - (letter in "}]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip()]


def written(verb: str, place: int = 0) -> Shape:
    """The ``place``-th shape in the row of a verb."""
    return shape(re.findall(r"`([{\[].*?)`", VERBS[verb][1].replace("\\|", "|"))[place])


def differences(told: Shape, answer: Any, where: str) -> list[str]:
    """What a written shape lacks or has too much; lists are looked at by their first entry, where there is one."""
    if isinstance(told, list) and isinstance(answer, list):
        return differences(told[0], answer[0], f"{where}[]") if answer else []
    if not isinstance(told, dict) or not isinstance(answer, dict):
        return []
    found = [f"{where}: {key} is not written" for key in answer if key not in told and "…" not in told]
    found += [f"{where}: there is no {key}" for key in told if key not in answer and key != "…"]
    return found + [
        each for key in told if key in answer for each in differences(told[key], answer[key], f"{where}.{key}")
    ]


def test_a_shape_is_read_and_a_wrong_one_is_found() -> None:
    told = shape("{a, b: [{c: x|y, d}], e: {f, …}}")
    assert told == {"a": None, "b": [{"c": None, "d": None}], "e": {"f": None, "…": None}}
    assert not differences(told, {"a": 1, "b": [{"c": "x", "d": 2}], "e": {"f": 1, "g": 2}}, "v")
    wrong = differences(told, {"a": 1, "b": [{"c": "x", "h": 2}], "e": None, "i": 0}, "v")
    assert wrong == ["v: i is not written", "v.b[]: h is not written", "v.b[]: there is no d"]


def test_every_verb_stands_in_the_table_with_its_parameters(tmp_path: Path) -> None:
    table = Verbs(Agent(tmp_path, "local", ROOT / "modules")).table()
    assert set(VERBS) == set(table)
    for verb, function in table.items():
        taken = [each for each in inspect.signature(function).parameters.values() if each.name != "peer"]
        names = {
            re.split(r"[?=]", part.strip())[0]: "?" in part or "=" in part for part in VERBS[verb][0].split(",") if part
        }
        assert names == {each.name: each.default is not each.empty for each in taken}, verb


@pytest.mark.parametrize("part", ["node", "work"])
def test_what_a_real_agent_answers_is_what_the_table_says(measured: Rig, part: str) -> None:
    """One agent each for what it says of itself and what it says of work."""
    ask = measured.client.call
    wrong: list[str] = []

    def same(verb: str, answer: Any, told: Shape = None) -> None:
        wrong.extend(differences(written(verb) if told is None else told, answer, verb))

    if part == "node":
        status = written("status")
        del status["hello…"]
        same("status", ask("status"), {**written("hello"), **status})
        for verb in ("hello", "doctor", "section_show", "section_versions", "sources", "duty", "modules"):
            same(verb, ask(verb))
        same("section_preview", ask("section_preview", text=measured.section(name="other")))
        same("section_set", ask("section_set", text=measured.section(name="other"), by="test"))
        same("explain", ask("explain"), written("explain", 1))
        same("timeline", ask("timeline", limit=3))
    else:
        same("module_doctor", ask("module_doctor", module="llmserve", _timeout_s=300))
        job = written("job_list", 1)
        same("job_submit", ask("job_submit", module="llmserve", stage="selftest", payload={"prompts": 2}), job)
        same("job_list", ask("job_list"), [job])
        more = dict.fromkeys(("attempts", "result", "failure", "events"))
        same("job_show", ask("job_show", job=1), {**job, **more})
        same("job_events", ask("job_events", job=1))
        same("explain", ask("explain", job=1))
        same("job_cancel", ask("job_cancel", job=1), job)
        said = re.search(r"^\*\*Plan\*\*: `(.*?)`\.$", TABLE + OF_OWNERS, re.MULTILINE | re.DOTALL)
        assert said is not None
        same("run_plan", ask("run_plan", spec=measured.spec()), shape(said[1].replace("\n", " ")))
    assert wrong == []
