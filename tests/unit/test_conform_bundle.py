"""What of a bundle the kit reads: results against goldens, fixtures, duty specs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cotenant.conform.goldens import GoldenError, difference, digest, read_goldens
from cotenant.conform.specs import SpecError, read_specs
from policies.manifest import Manifest, parse_manifest

MANIFEST = """
manifest = 1
[module]
id = "dev.example.m"
version = "1"
[runner]
exec = ["python", "{bundle}/m.py"]
[[stages]]
name = "s"
determinism = "exact"
[results]
digest = { version = 1, over = ["a"] }
[goldens]
fixtures = ["g.json"]
"""


@pytest.fixture
def manifest() -> Manifest:
    return parse_manifest(MANIFEST)


@pytest.mark.parametrize(
    ("got", "exact", "differs"),
    [
        ({"a": [1, "x"], "b": 9}, True, False),
        ({"a": [1, "y"]}, True, True),
        ({"a": [1.0, "x"]}, True, True),
        ({"a": [1.0000001, "x"]}, False, False),
        ({"a": [1.1, "x"]}, False, True),
        ({"a": [1]}, True, True),
        ({}, True, True),
        (None, True, True),
    ],
)
def test_results_against_a_golden(manifest: Manifest, got: Any, exact: bool, differs: bool) -> None:
    assert (difference({"a": [1, "x"], "b": 2}, got, manifest, exact=exact) is not None) == differs


def test_the_digest_is_over_what_the_manifest_names(manifest: Manifest) -> None:
    assert digest({"a": 1, "b": 2}, manifest) == digest({"b": 3, "a": 1}, manifest)
    assert digest({"a": 1}, manifest) != digest({"a": 2}, manifest)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"stage": "s", "payload": 1}', '{"stage": "t", "payload": 1, "result": {}}']
)
def test_a_fixture_that_cannot_be_used_is_named(tmp_path: Path, manifest: Manifest, text: str) -> None:
    (tmp_path / "g.json").write_text(text)
    with pytest.raises(GoldenError, match=r"g\.json"):
        read_goldens(tmp_path, manifest)


def test_a_fixture_outside_the_bundle_is_none(tmp_path: Path, manifest: Manifest) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (tmp_path / "g.json").write_text('{"stage": "s", "payload": 1, "result": {}}')
    (bundle / "g.json").symlink_to(tmp_path / "g.json")
    with pytest.raises(GoldenError, match="leaves the bundle"):
        read_goldens(bundle, manifest)


GOOD = {"name": "n", "stage": "s", "duty": 0.3, "window_s": 4, "payload": {}}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"stage": "t"}, "stage"),
        ({"duty": 0}, "duty"),
        ({"duty": 1.5}, "duty"),
        ({"duty": "half"}, "duty"),
        ({"duty": True}, "duty"),
        ({"window_s": 0}, "window_s"),
        ({"window_s": 1e9}, "window_s"),
        ({"name": ""}, "name"),
    ],
)
def test_a_duty_spec_that_cannot_be_used_is_named(
    tmp_path: Path, manifest: Manifest, change: dict[str, object], named: str
) -> None:
    (tmp_path / "conformance.json").write_text(json.dumps({"duty_specs": [{**GOOD, **change}]}))
    with pytest.raises(SpecError, match=rf"duty_specs\[0\]\.{named}"):
        read_specs(tmp_path, manifest)


def test_duty_specs(tmp_path: Path, manifest: Manifest) -> None:
    assert read_specs(tmp_path, manifest) == []
    (tmp_path / "conformance.json").write_text(json.dumps({"duty_specs": [GOOD]}))
    assert [(spec.name, spec.duty) for spec in read_specs(tmp_path, manifest)] == [("n", 0.3)]
    (tmp_path / "conformance.json").write_text(json.dumps({"duty_specs": [GOOD, GOOD]}))
    with pytest.raises(SpecError, match="same name"):
        read_specs(tmp_path, manifest)
