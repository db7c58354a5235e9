"""The pictures of a report, drawn from its own figures: SVG for a page, PNG for an image artifact."""

from __future__ import annotations

import base64
import io
import math
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from policies.harness.validity import DEATHS
from policies.report.document import Arm, Block, Look, Report
from policies.report.evidence import interval, percent
from policies.report.sections import margin_words, result_title
from policies.report.words import LEFT_OUT_LABELS
from tasks.drawing import COLOURS, as_element, few_colours, new_figure, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["blocks_svg", "compare_svg", "interval_svg", "png", "png_data_uri"]

MAX_LOOK_ROWS = 8
SPEAKS = DEATHS | {"collapse"}
PER_PANEL_WIDE, PER_PANEL_NARROW = 40, 20


# --- what others call ---------------------------------------------------------------------------------------------


def interval_svg(report: Report, *, narrow: bool = False, prefix: str = "") -> ET.Element:
    """The estimate with its interval against the margin, a row a look; the last row is the one that stands."""
    rows = _look_rows(report)
    with style():
        figure = new_figure(narrow, 1.0 + (0.38 if narrow else 0.27) * len(rows))
        _draw_intervals(figure.add_subplot(), rows, report, strong={len(rows) - 1}, gutters=not narrow)
        description = "; ".join(f"after {name}: {_numbers(look, report.result.places)}" for name, look in rows)
        return as_element(figure, prefix + "interval", narrow, result_title(report), description)


def blocks_svg(report: Report, *, narrow: bool = False, prefix: str = "") -> ET.Element:
    """Each block's OFF and ON rate side by side, in the order in which they ran."""
    with style():
        per_panel = PER_PANEL_NARROW if narrow else PER_PANEL_WIDE
        panels = max(1, -(-len(report.blocks) // per_panel))
        figure = new_figure(narrow, 0.55 + 2.15 * panels)
        _draw_blocks(figure, report, per_panel)
        on, off = report.arms
        counted = sum(b.counted for b in report.blocks)
        description = (
            f"{len(report.blocks)} blocks, {counted} of them counted; a point for the {off} and the {on} window of each. "
            "The table below the picture has the same rates as numbers."
        )
        return as_element(
            figure, prefix + "blocks", narrow, f"Rate of each block, {off} and {on} side by side", description
        )


def compare_svg(reports: Sequence[Report], labels: Sequence[str], *, narrow: bool = False) -> ET.Element:
    """The results of several runs on one axis."""
    rows = [
        (label, Look(r.result.n, r.result.verdict, r.result.R, r.result.lo, r.result.hi))
        for label, r in zip(labels, reports, strict=True)
    ]
    with style():
        figure = new_figure(narrow, 1.05 + 0.5 * len(rows))
        tones = [report.tone for report in reports]
        places = [r.result.places for r in reports]
        strong = set(range(len(rows)))
        _draw_intervals(
            figure.add_subplot(), rows, reports[0], strong=strong, tones=tones, places=places, gutters=not narrow
        )
        description = "; ".join(f"{name}: {_numbers(look, p)}" for (name, look), p in zip(rows, places, strict=True))
        return as_element(figure, "compare", narrow, "The runs side by side", description)


def png(report: Report) -> bytes:
    """Verdict, interval and blocks in one picture, on white."""
    with style():
        rows = _look_rows(report)
        panels = max(1, -(-len(report.blocks) // PER_PANEL_WIDE))
        top = 0.9 + 0.27 * len(rows) if rows else 0.0
        figure = new_figure(False, 0.6 + top + 2.3 * panels)
        figure.suptitle(report.title, x=0.012, ha="left", fontsize=13, fontweight="bold", color=COLOURS[report.tone])
        if rows and report.blocks:
            upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=[top, 2.3 * panels])[:, 0]
            _draw_intervals(upper.add_subplot(), rows, report, strong={len(rows) - 1})
            _draw_blocks(lower, report, PER_PANEL_WIDE)
        elif report.blocks:
            _draw_blocks(figure, report, PER_PANEL_WIDE)
        out = io.BytesIO()
        figure.savefig(out, format="png", dpi=110, facecolor=COLOURS["paper"])
        return few_colours(out)


def png_data_uri(report: Report) -> str:
    return "data:image/png;base64," + base64.b64encode(png(report)).decode("ascii")


# --- drawing ------------------------------------------------------------------------------------------------------


def _numbers(look: Look, places: int) -> str:
    if look.R.value is None or look.lo.value is None or look.hi.value is None:
        return "unknown"
    return f"{percent(look.R.value, places)} ({interval(look.lo.value, look.hi.value, places)})"


def _look_rows(report: Report) -> list[tuple[str, Look]]:
    """At most ``MAX_LOOK_ROWS`` looks with an estimate, first and last among them; the result where there is none."""
    r = report.result
    known = [look for look in r.looks if look.R.known and look.lo.known and look.hi.known]
    if not known and r.R.known:
        known = [Look(r.n, r.verdict, r.R, r.lo, r.hi)]
    if len(known) > MAX_LOOK_ROWS:
        step = (len(known) - 1) / (MAX_LOOK_ROWS - 1)
        known = [known[round(i * step)] for i in range(MAX_LOOK_ROWS)]
    return [(f"{look.n} blocks", look) for look in known]


def _draw_intervals(
    axes: Axes,
    rows: Sequence[tuple[str, Look]],
    report: Report,
    *,
    strong: set[int],
    tones: Sequence[str] = (),
    places: Sequence[int] = (),
    gutters: bool = True,
) -> None:
    """A forest of intervals, first row on top, in percent. ``gutters``: names on the left and numbers on the right."""
    r = report.result
    bound = r.bound * 100.0
    ends = [100.0, bound]
    labels: list[tuple[str, str, float, float, int, bool]] = []
    height = len(rows)
    for i, (name, look) in enumerate(rows):
        y = height - 1 - i
        if look.R.value is None or look.lo.value is None or look.hi.value is None:
            axes.annotate(f"{name}: unknown", (0.01, y), xycoords=("axes fraction", "data"), va="center", zorder=6)
            continue
        low, mid, high = look.lo.value * 100.0, look.R.value * 100.0, look.hi.value * 100.0
        ends += [low, high]
        bold = i in strong
        colour = COLOURS[tones[i] if tones else report.tone] if bold else COLOURS["soft"]
        axes.plot([low, high], [y, y], color=colour, linewidth=3.2 if bold else 1.2, solid_capstyle="butt", zorder=3)
        axes.plot([low, high], [y, y], "|", color=colour, markersize=9 if bold else 5, zorder=3)
        axes.plot([mid], [y], "o", color=colour, markersize=7.5 if bold else 4, zorder=4)
        labels.append((name, _numbers(look, places[i] if places else r.places), low, high, y, bold))
    pad = (max(ends) - min(ends)) * 0.08
    left, right = min(ends) - pad, max(ends) + pad
    for name, numbers, low, high, y, bold in labels:
        if gutters:
            _beside(axes, name, -0.015, y, bold, "right")
            _beside(axes, numbers, 1.015, y, bold, "left")
        else:
            _above(axes, f"{name}: {numbers}", low, high, (left, right), y, bold)
    axes.axvspan(left, bound, color=COLOURS["beyond"], linewidth=0, zorder=0)
    axes.axvline(bound, color=COLOURS["harm"], linewidth=1.2, zorder=1)
    axes.axvline(100.0, color=COLOURS["soft"], linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
    top = height - 1 + 1.15
    roomy_left = bound - left > 0.3 * (right - left)
    axes.annotate(
        f"{margin_words(report)} margin",
        (bound, top),
        xytext=(-4 if roomy_left else 4, 0),
        textcoords="offset points",
        ha="right" if roomy_left else "left",
        va="top",
        color=COLOURS["harm"],
        fontsize=8.5,
    )
    axes.set(xlim=(left, right), ylim=(-0.6, top))
    axes.set_yticks([])
    axes.set_xlabel(_axis_words(report), color=COLOURS["soft"], fontsize=9.5 if gutters else 8.5)
    axes.xaxis.set_major_formatter(lambda v, _: f"{v:g} %")
    axes.locator_params(axis="x", nbins=5)
    axes.tick_params(axis="x", length=0)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)


def _look_of(bold: bool) -> dict[str, Any]:
    return {
        "fontsize": 9.5 if bold else 8.5,
        "fontweight": "bold" if bold else "normal",
        "color": COLOURS["ink"] if bold else COLOURS["soft"],
    }


def _beside(axes: Axes, words: str, x: float, y: float, bold: bool, align: str) -> None:
    place = ("axes fraction", "data")
    axes.annotate(words, (x, y), xycoords=place, ha=align, va="center", annotation_clip=False, **_look_of(bold))


def _above(axes: Axes, words: str, low: float, high: float, ends: tuple[float, float], y: float, bold: bool) -> None:
    """Over the bar, at the side of the picture that it is nearer to."""
    left = low - ends[0] <= ends[1] - high
    axes.annotate(
        words,
        (0.0 if left else 1.0, y),
        xycoords=("axes fraction", "data"),
        xytext=(0, 6),
        textcoords="offset points",
        ha="left" if left else "right",
        va="bottom",
        zorder=6,
        **_look_of(bold),
    ).set_in_layout(False)


def _axis_words(report: Report) -> str:
    if report.kind == "null":
        return "rate of OFF B, of OFF A"
    if report.kind == "self":
        return "speed with the agent, of its speed with the agent at rest"
    return "speed with fleet work, of its speed without"


def _draw_blocks(figure: Any, report: Report, per_panel: int) -> None:
    """Panels of blocks; within a block the window that ran first stands on the left."""
    blocks = report.blocks
    panels = max(1, -(-len(blocks) // per_panel))
    columns = min(per_panel, max(len(blocks), 6)) if panels == 1 else per_panel
    rates = [arm.rate.value for b in blocks for arm in (b.on, b.off) if arm is not None and arm.rate.value is not None]
    low, high = (min(rates), max(rates)) if rates else (0.0, 1.0)
    pad = (high - low) * 0.12 or max(abs(high) * 0.01, 0.01)
    all_axes = figure.subplots(panels, 1, sharey=True, squeeze=False)[:, 0]
    small = len(blocks) > 24 and per_panel == PER_PANEL_WIDE
    for panel, axes in enumerate(all_axes):
        part = blocks[panel * per_panel : (panel + 1) * per_panel]
        _draw_part(axes, part, small=small)
        axes.set(xlim=(-0.6, columns - 0.4), ylim=(low - pad, high + pad))
        every = 1 if len(part) <= 14 else 4 if len(part) > 24 else 2
        shown_ticks = [i for i in range(len(part)) if i % every == 0]
        axes.set_xticks(shown_ticks, [str(part[i].number) for i in shown_ticks])
        axes.tick_params(length=0)
        axes.grid(axis="y", color=COLOURS["grid"], linewidth=0.8)
        axes.locator_params(axis="y", nbins=5)
        axes.set_axisbelow(True)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.set_ylabel(report.rate_unit, color=COLOURS["soft"])
    all_axes[-1].set_xlabel("block", color=COLOURS["soft"])
    on, off = report.arms
    handles = [
        _dot(False, "off", off),
        _dot(True, "on", on),
    ]
    if any(not b.counted for b in blocks):
        from matplotlib.patches import Patch

        handles.append(Patch(facecolor=COLOURS["left-out"], label="left out"))
    all_axes[0].legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=3,
        frameon=False,
        handletextpad=0.4,
        borderaxespad=0.1,
        columnspacing=1.4,
    )


def _dot(filled: bool, token: str, label: str) -> Any:
    from matplotlib.lines import Line2D

    face = COLOURS[token] if filled else COLOURS["paper"]
    return Line2D(
        [],
        [],
        marker="o",
        linestyle="none",
        color=COLOURS[token],
        markerfacecolor=face,
        markeredgewidth=1.6,
        label=label,
    )


def _draw_part(axes: Axes, part: Sequence[Block], *, small: bool) -> None:
    """One panel. Points of one kind are one artist: a run may have hundreds."""
    for counts in (True, False):
        for which in ("off", "on"):
            points = [
                (_place(i, block, which), value)
                for i, block in enumerate(part)
                if block.counted is counts and (value := _rate(block.on if which == "on" else block.off)) is not None
            ]
            if not points:
                continue
            colour = COLOURS[which] if counts else COLOURS["soft"]
            axes.plot(
                *zip(*points, strict=True),
                "o",
                color=colour,
                markerfacecolor=colour if which == "on" else COLOURS["paper"],
                markeredgewidth=1.2 if small else 1.6,
                markersize=4.4 if small else 6.0,
                zorder=4,
            )
    links = [
        point
        for i, block in enumerate(part)
        if block.ratio.known
        for point in (
            (_place(i, block, "off"), _rate(block.off)),
            (_place(i, block, "on"), _rate(block.on)),
            (i, math.nan),
        )
    ]
    if links:
        axes.plot(*zip(*links, strict=True), color=COLOURS["soft"], linewidth=0.9, zorder=2, alpha=0.7)
    for i, block in enumerate(part):
        if not block.counted:
            _mark_left_out(axes, i, block)


def _place(i: int, block: Block, which: str) -> float:
    """The window that ran first stands on the left."""
    return i - 0.2 if (block.order == "on_first") == (which == "on") else i + 0.2


def _mark_left_out(axes: Axes, i: int, block: Block) -> None:
    axes.axvspan(i - 0.46, i + 0.46, color=COLOURS["left-out"], linewidth=0, zorder=0)
    axes.annotate(
        LEFT_OUT_LABELS.get(block.reason or "", "left out"),
        (i, 0.03),
        xycoords=("data", "axes fraction"),
        rotation=90,
        ha="center",
        va="bottom",
        fontsize=7.5,
        color=COLOURS["harm" if block.reason in SPEAKS else "soft"],
        zorder=5,
    )


def _rate(arm: Arm | None) -> float | None:
    return None if arm is None else arm.rate.value
