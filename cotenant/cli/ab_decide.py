"""``protection ab decide``: the verdict over blocks from a file, by the same function that judges a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from cotenant.cli.command import command
from cotenant.cli.result import Exit, OperationResult
from cotenant.cli.watching import look_words

__all__ = ["register"]

DEFAULT_MARGIN = 0.02
# What a run at its defaults may use: 8 hours of blocks of two 300 s windows and two 60 s washouts.
DEFAULT_N_MAX = 40


def register(ab: typer.Typer) -> None:
    @command(
        ab, "decide", example="cotenant protection ab decide blocks.json --margin 0.02\ncotenant protection ab decide -"
    )
    def decide(
        file: Annotated[str, typer.Argument(metavar="FILE", help="Blocks as JSON or CSV; - for standard input.")],
        margin: Annotated[
            float | None,
            typer.Option("--margin", help="The slowdown that counts; the file's own, or 0.02, by default."),
        ] = None,
        n_max: Annotated[
            int | None,
            typer.Option(
                "--n-max", help="The most blocks this run might have used; the file's own, or 40, by default."
            ),
        ] = None,
    ) -> OperationResult:
        """Judge blocks from a file: [order, on_rate, off_rate] each, the order on_first or off_first; in CSV the columns order, on, off.

        Exit code 0 only for "no slowdown shown".
        """
        from cotenant.cli.blocks_file import read_blocks
        from policies.harness.verdict import PASS

        given = read_blocks(_text(file), file)
        chosen = margin if margin is not None else given.margin
        most = n_max if n_max is not None else given.n_max
        assumed = []
        if most is None:
            most = DEFAULT_N_MAX
            assumed.append(f"at most {most} blocks (--n-max)")
        if chosen is None:
            chosen = DEFAULT_MARGIN
            assumed.append(f"a margin of {100 * chosen:g} % (--margin)")
        decision = _decide(list(given.blocks), chosen, most, given.first_look, file)
        data = decision.as_dict() | {"blocks": len(given.blocks), "left_out": given.left_out}
        passed = decision.verdict == PASS
        return OperationResult(
            data,
            exit_code=Exit.DONE if passed else Exit.OTHER_ANSWER,
            messages=[f"assumed, since the file does not say: {', '.join(assumed)}"] if assumed else [],
            view=_view,
        )


def _text(file: str) -> str:
    from policies.refusal import Refused

    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).expanduser().read_bytes()
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise Refused(
            "BLOCKS_BAD", file, error.strerror or str(error), "name a file with blocks; - is standard input"
        ) from error
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise Refused("BLOCKS_BAD", f"{file}, line {line}", "this is no UTF-8 text", "give JSON or CSV") from error


def _decide(blocks: list[Any], margin: float, n_max: int, first_look: int | None, name: str) -> Any:
    from policies.refusal import Refused
    from policies.statistics import decide

    try:
        looks = {} if first_look is None else {"first_look": first_look}
        return decide(blocks, margin=margin, n_max=n_max, **looks)
    except ValueError as error:
        raise Refused("BLOCKS_BAD", name, str(error), "cotenant protection ab decide --help") from error


def _view(data: dict[str, Any]) -> Iterator[str]:
    yield f"{data['verdict']}"
    if data["R"] is None and data["usable"] < data["first_look"]:
        yield f"  no look yet: {data['usable']} usable blocks, the first look comes at {data['first_look']}"
    elif data["R"] is None:
        if not data.get("collapse"):
            yield "  all blocks have one order, so what the work does cannot be told from what time does:"
            yield "  both are needed, on_first and off_first"
    else:
        yield f"  {look_words(data)}, margin {100 * data['margin']:g} %"
    refusal = data.get("refusal")
    if refusal:
        yield (
            f"  too noisy to reach the margin in {data['n_max']} blocks: the blocks scatter by {100 * refusal['s']:.1f} %, "
            f"at most {100 * refusal['s_limit']:.1f} % would do; a margin of {100 * refusal['margin_needed']:.1f} % could be reached"
        )
    if data.get("collapse"):
        yield "  with the work on, a window saw no progress at all"
    if data.get("zero_variance"):
        yield "  the blocks do not scatter at all: quantised counts, not evidence"
    if data["void"] or data["left_out"]:
        yield f"  not judged: {data['left_out']} left out by the run, {data['void']} without OFF progress"
