"""A report as one page that needs nothing from outside: no script, font, style sheet or picture is fetched.

The page is built as a tree of elements and written out by the standard library's serialiser, so every text that comes
from a record is escaped; there is no template that could forget it.
"""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

from policies.report import Report, Section, Table, sections, terms
from policies.report.evidence import interval, percent, shown
from tasks.drawing import COLOURS
from tasks.pictures import blocks_svg, compare_svg, interval_svg

__all__ = ["compare_page", "page"]

STYLE = Path(__file__).with_name("report.css")
SHOWN_ROWS = 14
MARKS = {"good": "✓", "harm": "✕"}
# A figure with its sign, an interval: not to be broken over two lines.
_UNBROKEN = re.compile(r"(\d[\d.,]*(?:–[\d.,]+)? %)")

Child = ET.Element | str | None


def page(report: Report, csv_text: str) -> str:
    """The whole report as an HTML document."""
    body = el("main", {}, _hero(report), *_parts(report, csv_text, ""), _foot(report))
    return _document(f"{report.title}: {_where(report)}", body)


def compare_page(reports: Sequence[Report], labels: Sequence[str], csv_texts: Sequence[str]) -> str:
    """Several reports on one page: their results on one axis, then each in full."""
    cards = [
        el(
            "div",
            {"class": f"card {report.tone}"},
            el("p", {"class": "over"}, label),
            el("h2", {}, _mark(report), report.title),
            el("p", {}, *_flowing(report.lead)),
        )
        for report, label in zip(reports, labels, strict=True)
    ]
    top = el(
        "header",
        {"class": "hero"},
        el("p", {"class": "over"}, "cotenant · harness runs compared"),
        el("h1", {}, _heading(labels)),
        el("div", {"class": "cards"}, *cards),
    )
    picture = el("figure", {}, *(compare_svg(reports, labels, narrow=narrow) for narrow in (False, True)))
    full = []
    for i, (report, label, csv_text) in enumerate(zip(reports, labels, csv_texts, strict=True)):
        parts = _parts(report, csv_text, f"r{i}-")
        full.append(
            el("article", {"class": "run"}, el("p", {"class": "over"}, label), _hero(report, level="h2"), *parts)
        )
    body = el("main", {}, top, picture, *full, _foot(reports[0]))
    return _document("Harness runs compared: " + ", ".join(labels), body)


# --- parts --------------------------------------------------------------------------------------------------------


def _heading(labels: Sequence[str]) -> str:
    text = " against ".join(labels)
    return text[:1].upper() + text[1:]


def _hero(report: Report, level: str = "h1") -> ET.Element:
    kind = {"null": "A/A test", "self": "self-cost"}.get(report.kind, "harness report")
    notes = [el("p", {"class": "warning", "role": "note"}, el("strong", {}, "Note. "), w) for w in report.warnings]
    certificate = el(
        "div",
        {"class": f"certificate {report.certificate.state}"},
        el("p", {}, report.certificate.says),
        el("p", {}, el("code", {}, report.certificate.remedy)) if report.certificate.remedy else None,
    )
    return el(
        "header",
        {"class": f"hero {report.tone}"},
        el("p", {"class": "over"}, f"cotenant · {kind} · {_where(report)}"),
        el(level, {}, _mark(report), report.title),
        el("p", {"class": "lead"}, *_flowing(report.lead)),
        el("p", {}, report.reason) if report.reason else None,
        *notes,
        certificate,
        _numbers(report),
        _terms(report),
    )


def _where(report: Report) -> str:
    if report.kind != "ab":
        return f"{report.rule} on {report.node}"
    return f"{report.rule} beside {report.work} on {report.node}"


def _mark(report: Report) -> ET.Element | None:
    mark = MARKS.get(report.tone)
    return el("span", {"class": "mark", "aria-hidden": "true"}, mark) if mark else None


def _flowing(text: str) -> list[Child]:
    parts = _UNBROKEN.split(text)
    return [el("span", {"class": "whole"}, part) if i % 2 else part for i, part in enumerate(parts) if part]


def _numbers(report: Report) -> ET.Element:
    """The few figures that a reader looks for first."""
    r, (on, off) = report.result, report.arms
    bounds = "unknown"
    if r.lo.value is not None and r.hi.value is not None:
        bounds = interval(r.lo.value, r.hi.value, r.places)
    pairs = [
        (f"speed, {on} ÷ {off} (R)", shown(r.R, lambda v: percent(v, r.places))),
        (r.interval_label, bounds),
        (_counted_label(report), str(r.counted)),
    ]
    if report.dose.applies:
        pairs.append(("dose, share of the device", shown(report.dose.metered, lambda v: f"{v:.2f}")))
    return el("dl", {"class": "numbers"}, *(el("div", {}, el("dt", {}, k), el("dd", {}, v)) for k, v in pairs))


def _counted_label(report: Report) -> str:
    """What the number of counted blocks is to be read beside: those left out; while the run goes on, how many it may reach."""
    label = "blocks counted" if report.ending is not None else f"blocks counted so far, at most {report.result.n_max}"
    return label + (f", {len(report.left_out)} left out" if report.left_out else "")


def _terms(report: Report) -> ET.Element:
    """What the words above mean, where they first stand."""
    rows = (el("div", {}, el("dt", {}, word), el("dd", {}, meaning)) for word, meaning in terms(report))
    return el("dl", {"class": "terms"}, *rows)


def _parts(report: Report, csv_text: str, prefix: str) -> list[ET.Element]:
    parts = [_section(section, report, prefix) for section in sections(report)]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", report.run)[:80] or "run"
    href = "data:text/csv;charset=utf-8;base64," + base64.b64encode(csv_text.encode()).decode("ascii")
    link = el("a", {"href": href, "download": f"{name}-windows.csv"}, f"{name}-windows.csv")
    verify = el("code", {}, f"cotenant protection ab verify {report.run}")
    words = el("p", {}, link, " holds every window, left-out ones too. ", verify, " recomputes the verdict from them.")
    raw = el("section", {"id": prefix + "raw"}, el("h2", {}, "Raw windows"), words)
    return [*parts, raw]


def _section(section: Section, report: Report, prefix: str) -> ET.Element:
    out = el("section", {"id": prefix + section.key}, el("h2", {}, section.title))
    for paragraph in section.paragraphs:
        out.append(el("p", {}, paragraph))
    if section.picture is not None:
        draw = interval_svg if section.picture == "interval" else blocks_svg
        pictures = (draw(report, narrow=narrow, prefix=prefix) for narrow in (False, True))
        caption = section.caption or ""
        out.append(el("figure", {}, *pictures, el("figcaption", {}, caption)))
    if section.facts:
        rows = (el("div", {}, el("dt", {}, name), el("dd", {}, value)) for name, value in section.facts)
        out.append(el("dl", {"class": "facts"}, *rows))
    if section.table is not None:
        table = _table(section.table, section.title, section.key)
        if section.picture is not None and len(section.table.rows) > SHOWN_ROWS:
            summary = el("summary", {}, f"The {len(section.table.rows)} blocks as numbers")
            table = el("details", {}, summary, table)
        out.append(table)
    if section.items:
        out.append(el("ul", {}, *(_item(text) for text in section.items)))
    return out


def _item(text: str) -> ET.Element:
    """A list item; a leading "Rare harm:" is set strong."""
    head, colon, rest = text.partition(": ")
    if colon and len(head) <= 40 and "." not in head:
        return el("li", {}, el("strong", {}, head + "."), " " + rest[:1].upper() + rest[1:])
    return el("li", {}, text)


def _table(table: Table, title: str, key: str) -> ET.Element:
    cells = {"r": {"class": "num"}, "l": {}}
    head = el(
        "tr", {}, *(el("th", {"scope": "col", **cells[a]}, c) for c, a in zip(table.columns, table.align, strict=True))
    )
    body = el("tbody", {})
    for i, row in enumerate(table.rows):
        attributes = {"class": "muted"} if i in table.muted else {}
        body.append(el("tr", attributes, *(el("td", cells[a], c) for c, a in zip(row, table.align, strict=True))))
    inner = el("table", {"class": key}, el("caption", {"class": "unseen"}, title), el("thead", {}, head), body)
    return el("div", {"class": "scroll", "tabindex": "0", "role": "region", "aria-label": f"Table: {title}"}, inner)


def _foot(report: Report) -> ET.Element:
    version = next((f.value for f in report.facts if f.label == "Agent"), None)
    made = f"Measured by cotenant {version}. " if version else ""
    return el("footer", {}, made + "All figures on this page come from the windows in the raw data.")


# --- the document -------------------------------------------------------------------------------------------------


def el(tag: str, attributes: dict[str, str], *children: Child) -> ET.Element:
    """An element with these children; texts are escaped when it is written, None is skipped."""
    out = ET.Element(tag, attributes)
    for child in children:
        if child is None:
            continue
        if isinstance(child, ET.Element):
            out.append(child)
        elif len(out):
            out[-1].tail = (out[-1].tail or "") + child
        else:
            out.text = (out.text or "") + child
    return out


def _document(title: str, body: ET.Element) -> str:
    light = "".join(f"--{name}: {colour}; " for name, colour in COLOURS.items())
    style = el("style", {}, f":root {{ {light}}}\n" + STYLE.read_text(encoding="utf-8"))
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    head = el(
        "head",
        {},
        el("meta", {"charset": "utf-8"}),
        el("meta", {"http-equiv": "Content-Security-Policy", "content": policy}),
        el("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        el("meta", {"name": "color-scheme", "content": "light dark"}),
        el("title", {}, title),
        style,
    )
    root = el("html", {"lang": "en"}, head, el("body", {}, body))
    return "<!doctype html>\n" + ET.tostring(root, encoding="unicode", method="html") + "\n"
