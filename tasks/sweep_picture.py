"""The picture of a duty sweep: R with its interval against duty, and the margin."""

from __future__ import annotations

import base64
import io
import textwrap

from policies.report.sweep import SweepReport
from tasks.drawing import COLOURS, few_colours, new_figure, style

__all__ = ["sweep_png", "sweep_png_data_uri"]

TONES = {"passed": "good", "not passed": "harm", "open": "open"}


def sweep_png(report: SweepReport) -> bytes:
    """A level that was not run is marked on the axis and has no point; one without an estimate says so."""
    with style():
        figure = new_figure(False, 4.2)
        axes = figure.add_subplot()
        bound = 100.0 * (1.0 - report.margin)
        known = [row for row in report.rows if row.R is not None and row.lo is not None and row.hi is not None]
        ends = [100.0, bound, *(100.0 * end for row in known for end in (row.lo or 0.0, row.hi or 0.0))]
        pad = (max(ends) - min(ends)) * 0.15
        low, high = min(ends) - pad, max(ends) + pad
        axes.axhspan(low, bound, color=COLOURS["beyond"], linewidth=0, zorder=0)
        axes.axhline(bound, color=COLOURS["harm"], linewidth=1.2, zorder=1)
        axes.axhline(100.0, color=COLOURS["soft"], linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
        axes.annotate(
            f"{100 * report.margin:g} % margin",
            (1.0, bound),
            xycoords=("axes fraction", "data"),
            xytext=(-4, -3),
            textcoords="offset points",
            ha="right",
            va="top",
            color=COLOURS["harm"],
            fontsize=8.5,
        )
        for row in report.rows:
            colour = COLOURS[TONES.get(row.state, "soft")]
            if row in known:
                lower, mid, upper = (100.0 * (value or 0.0) for value in (row.lo, row.R, row.hi))
                axes.plot([row.level] * 2, [lower, upper], color=colour, linewidth=3.0, solid_capstyle="butt", zorder=3)
                axes.plot([row.level] * 2, [lower, upper], "_", color=colour, markersize=9, zorder=3)
                axes.plot([row.level], [mid], "o", color=colour, markersize=7, zorder=4)
            label = row.state if row.ending is None else "passed" if row.passed else row.ending
            axes.annotate(
                label,
                (row.level, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(0, -2),
                textcoords="offset points",
                rotation=90,
                ha="center",
                va="top",
                fontsize=8,
                color=colour,
            )
        levels = [row.level for row in report.rows]
        axes.set(xlim=(0.0, max(levels) + 0.08), ylim=(low, high + (high - low) * 0.5))
        axes.set_xticks(levels, [f"{level:g}" for level in levels])
        axes.set_xlabel("duty")
        axes.set_ylabel("speed with fleet work, of its speed without", color=COLOURS["soft"], fontsize=8.5)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        tone = "good" if report.certified is not None else "harm" if report.state == "stopped" else "open"
        figure.suptitle(
            "\n".join(textwrap.wrap(report.sentence, 80)),
            x=0.012,
            ha="left",
            fontsize=10.5,
            fontweight="bold",
            color=COLOURS[tone],
        )
        out = io.BytesIO()
        figure.savefig(out, format="png", dpi=110, facecolor=COLOURS["paper"])
        return few_colours(out)


def sweep_png_data_uri(report: SweepReport) -> str:
    return "data:image/png;base64," + base64.b64encode(sweep_png(report)).decode("ascii")
