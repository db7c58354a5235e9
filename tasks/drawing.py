"""matplotlib's edges: its settings, a new figure, and a drawn figure as an SVG element for a page.

SVG text stays text and colours become CSS variables, so that a page can show one picture in light and in dark and a
reader can search it. matplotlib is imported on first use (it takes a second); its settings are changed only under a lock
and put back, so that flows may render in threads. No pyplot, so no figure outlives its drawing.
"""

from __future__ import annotations

import io
import re
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

__all__ = ["COLOURS", "as_element", "few_colours", "new_figure", "style"]

# Each token has a hex value of its own, so that SVG can be recoloured by name. Light values; the page holds the dark ones.
COLOURS = {
    "ink": "#24292f",
    "soft": "#6a727c",
    "grid": "#e3e1db",
    "paper": "#fffffe",
    "off": "#2f6194",
    "on": "#c05a12",
    "good": "#2c7050",
    "harm": "#b3372c",
    "open": "#7a6420",
    "beyond": "#f8e6e0",
    "left-out": "#eceae5",
}
WIDE_IN, NARROW_IN = 7.4, 3.7
SVG = "http://www.w3.org/2000/svg"
XLINK = "{http://www.w3.org/1999/xlink}href"
_settings = threading.RLock()


@contextmanager
def style() -> Iterator[None]:
    import matplotlib

    with (
        _settings,
        matplotlib.rc_context(
            {
                "svg.fonttype": "none",
                "svg.hashsalt": "cotenant",
                "font.family": "DejaVu Sans",
                "font.size": 9.5,
                "text.parse_math": False,
                "text.color": COLOURS["ink"],
                "axes.edgecolor": COLOURS["soft"],
                "xtick.color": COLOURS["soft"],
                "ytick.color": COLOURS["soft"],
                "axes.labelsize": 9.5,
            }
        ),
    ):
        yield


def new_figure(narrow: bool, height_in: float) -> Canvas:
    from matplotlib.figure import Figure as Canvas

    return Canvas(figsize=(NARROW_IN if narrow else WIDE_IN, height_in), layout="constrained")


def as_element(figure: Canvas, name: str, narrow: bool, title: str, description: str) -> ET.Element:
    """The figure as an SVG element to stand inline in a page: no prolog, no metadata, ids of its own, named for readers."""
    raw = io.StringIO()
    figure.savefig(raw, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    root = ET.fromstring(raw.getvalue())
    prefix = f"{name}-{'n' if narrow else 'w'}-"
    for parent in list(root.iter()):
        # matplotlib's style sheet would reach the whole page; what it says stands in the page's own
        for child in [c for c in parent if c.tag in (f"{{{SVG}}}metadata", f"{{{SVG}}}style")]:
            parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.removeprefix(f"{{{SVG}}}")
        if XLINK in element.attrib:
            element.set("href", "#" + prefix + element.attrib.pop(XLINK).removeprefix("#"))
        if "id" in element.attrib:
            element.set("id", prefix + element.attrib["id"])
        for key in ("style", "fill", "stroke", "clip-path"):
            if key in element.attrib:
                element.set(key, _themed(element.attrib[key], prefix))
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.set("class", f"picture {'narrow' if narrow else 'wide'}")
    root.set("role", "img")
    root.set("aria-labelledby", f"{prefix}title {prefix}desc")
    for at, (tag, text) in enumerate((("title", title), ("desc", description))):
        label = ET.Element(tag, {"id": prefix + tag})
        label.text = text
        root.insert(at, label)
    return root


def _themed(value: str, prefix: str) -> str:
    for token, colour in COLOURS.items():
        value = value.replace(colour, f"var(--{token}, {colour})")
    value = re.sub(r"url\(#", f"url(#{prefix}", value)
    return re.sub(r"font-family: [^;]*", "font-family: var(--font, sans-serif)", value)


def few_colours(drawn: io.BytesIO) -> bytes:
    """The same picture with a palette: a third of the size, for a server that stores each artifact twice."""
    from PIL import Image

    out = io.BytesIO()
    Image.open(drawn).convert("RGB").quantize(96).save(out, format="png", optimize=True)
    return out.getvalue()
