"""Reading blocks from a file for ``ab decide``: text in, blocks out, each complaint with its place.

Taken are

- JSON: a list of ``[order, on_rate, off_rate]``, or of objects with those names; the same under the key ``blocks``,
  beside an optional ``margin``, ``n_max`` and ``first_look``; a run as ``ab show RUN --json`` gives it, whose spec says
  all three;
- CSV with a header: one row a block (``order,on,off``), or the raw windows that stand beside a report.

Blocks that a run left out are left out here too.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from policies.json_text import parse_json
from policies.refusal import Refused

__all__ = ["BlocksFile", "RawBlock", "read_blocks"]

ORDERS = ("on_first", "off_first")
RATE_KEYS = {"on": ("on_rate", "on"), "off": ("off_rate", "off")}

RawBlock = tuple[str, float, float]


@dataclass(frozen=True, slots=True)
class BlocksFile:
    """Counted blocks in their order; ``margin``, ``n_max`` and ``first_look`` where the file names them."""

    blocks: tuple[RawBlock, ...]
    left_out: int = 0
    margin: float | None = None
    n_max: int | None = None
    first_look: int | None = None


def read_blocks(text: str, name: str) -> BlocksFile:
    """Blocks from a file's text.

    Raises:
        Refused: BLOCKS_BAD, naming the file, the line or block, and what is wrong there.
    """
    if not text.strip():
        raise _bad(name, "the file is empty")
    if text.lstrip()[0] in "[{":
        try:
            return _from_json(parse_json(text), name)
        except json.JSONDecodeError as error:
            raise _bad(f"{name}, line {error.lineno}", f"this is no JSON: {error.msg}") from error
        except ValueError as error:
            raise _bad(name, f"this is no JSON: {error}") from error
    return _from_csv(text, name)


def _bad(where: str, why: str) -> Refused:
    return Refused(
        "BLOCKS_BAD", where, why, 'give a JSON list of ["on_first", 9.94, 10.0] blocks, or a CSV with order,on,off'
    )


# -- JSON ---------------------------------------------------------------------------------------------------------------


def _from_json(raw: Any, name: str) -> BlocksFile:
    margin = n_max = first_look = None
    if isinstance(raw, Mapping):
        if isinstance(raw.get("data"), Mapping):  # the envelope of `ab show --json`
            raw = raw["data"]
        if isinstance(raw.get("record"), Mapping):
            raw = raw["record"]
        of_run = _of_spec(raw["spec"], name) if isinstance(raw.get("spec"), Mapping) else {}
        margin = _optional_number(raw.get("margin", of_run.get("margin")), f"{name}, margin")
        n_max = _optional_whole(raw.get("n_max", of_run.get("n_max")), f"{name}, n_max")
        first_look = _optional_whole(raw.get("first_look", of_run.get("first_look")), f"{name}, first_look")
        raw = raw.get("blocks")
    if not isinstance(raw, Sequence) or isinstance(raw, str):
        raise _bad(name, "it holds neither a list of blocks nor an object with 'blocks'")
    found: list[RawBlock] = []
    left_out = 0
    for number, block in enumerate(raw, start=1):
        where = f"{name}, block {number}"
        if isinstance(block, Mapping):
            if block.get("state", "counted") != "counted":
                left_out += 1
                continue
            found.append((_order(block.get("order"), where), _arm(block, "on", where), _arm(block, "off", where)))
        elif isinstance(block, Sequence) and not isinstance(block, str) and len(block) == 3:
            found.append((_order(block[0], where), _rate(block[1], where, "ON"), _rate(block[2], where, "OFF")))
        else:
            raise _bad(where, "a block is [order, on_rate, off_rate]")
    return BlocksFile(tuple(found), left_out, margin, n_max, first_look)


def _of_spec(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What a run is judged by: the most blocks follow from its hours and windows, and stand nowhere in its record."""
    from pydantic import ValidationError

    from policies.harness.spec import RunSpec

    try:
        spec = RunSpec.model_validate(dict(raw))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _bad(f"{name}, spec, {where}", str(first["msg"])) from error
    try:
        return {"margin": spec.margin, "n_max": spec.n_max, "first_look": spec.first_look}
    except (ArithmeticError, ValueError) as error:
        hours = f"max_hours {spec.max_hours:g} in blocks of {spec.block_s:g} s"
        raise _bad(f"{name}, spec", f"{hours} is no number of blocks") from error


def _arm(block: Mapping[str, Any], arm: str, where: str) -> float:
    for key in RATE_KEYS[arm]:
        if (value := block.get(key)) is not None:
            return _rate(value.get("rate") if isinstance(value, Mapping) else value, where, arm.upper())
    raise _bad(where, f"there is no {arm.upper()} rate")


def _order(value: Any, where: str) -> str:
    order = value.strip().lower() if isinstance(value, str) else value
    if order not in ORDERS:
        raise _bad(where, f"the order {value!r} is neither on_first nor off_first")
    return str(order)


def _rate(value: Any, where: str, arm: str) -> float:
    rate = _optional_number(value, f"{where}, {arm} rate")
    if rate is None:
        raise _bad(where, f"there is no {arm} rate (an unknown rate is not zero)")
    if rate < 0:
        raise _bad(where, f"the {arm} rate {rate:g} is negative")
    return rate


def _optional_number(value: Any, where: str) -> float | None:
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        raise _bad(where, f"{value!r} is no number")
    try:
        number = float(value)
    except OverflowError:
        raise _bad(where, "a whole number of hundreds of digits is no number to reckon with") from None
    except (TypeError, ValueError):
        raise _bad(where, f"{value!r} is no number") from None
    if not math.isfinite(number):
        raise _bad(where, f"{value!r} is no finite number")
    return number


def _optional_whole(value: Any, where: str) -> int | None:
    number = _optional_number(value, where)
    if number is None or number == int(number):
        return None if number is None else int(number)
    raise _bad(where, f"{value!r} is no whole number")


# -- CSV ----------------------------------------------------------------------------------------------------------------


def _from_csv(text: str, name: str) -> BlocksFile:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    offset = len(text.splitlines()) - len(lines)
    reader = csv.DictReader(io.StringIO("\n".join(lines)))
    columns = set(reader.fieldnames or ())
    if {"arm", "rate_per_s"} <= columns:
        return _from_report(lines, name)
    names = {arm: next((key for key in keys if key in columns), None) for arm, keys in RATE_KEYS.items()}
    if "order" not in columns or None in names.values():
        has = ", ".join(reader.fieldnames or ()) or "no columns"
        raise _bad(
            f"{name}, line {offset + 1}",
            f"the header has {has}; needed are order, on and off; an order is on_first or off_first",
        )
    found: list[RawBlock] = []
    left_out = 0
    for row in reader:
        where = f"{name}, line {reader.line_num + offset}"
        if (row.get("state") or "counted") != "counted":
            left_out += 1
            continue
        on, off = (_rate(row[str(names[arm])], where, arm.upper()) for arm in ("on", "off"))
        found.append((_order(row["order"], where), on, off))
    if not found and not left_out:
        raise _bad(name, "it has a header and no rows")
    return BlocksFile(tuple(found), left_out)


def _from_report(lines: list[str], name: str) -> BlocksFile:
    """The raw windows that stand beside every report."""
    from policies.report import windows_csv

    text = "\n".join(lines) + "\n"
    try:
        blocks = windows_csv.read_blocks(text)
    except Refused as refused:
        raise _bad(name, f"{refused.what}: {refused.why}") from refused
    states = {row["block"]: row["state"] for row in csv.DictReader(io.StringIO(text))}
    if not states:
        raise _bad(name, "it has a header and no rows")
    checked = tuple((_order(b[0], name), _rate(b[1], name, "ON"), _rate(b[2], name, "OFF")) for b in blocks)
    return BlocksFile(checked, sum(state != "counted" for state in states.values()))
