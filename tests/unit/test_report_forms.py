"""Text, page, markdown, table, pictures, JSON and CSV of one report: the same numbers, and nothing that escapes."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest
from report_samples import NAMES, flat, record, rendered

from policies.harness.schedule import run_looks
from policies.harness.validity import decide_blocks
from policies.refusal import Refused
from policies.report import read_record, sections, terms, windows_csv
from policies.report.evidence import interval, number, percent
from policies.statistics import decide
from tasks.html import _hero
from tasks.markdown import escape
from tasks.pictures import blocks_svg, interval_svg
from tasks.reports import build, compare_html

# Samples that are drawn: every kind of picture and of hero. Drawing takes a second each, words do not.
DRAWN = ("pass", "slowdown", "inconclusive", "harm_suspected", "unknowns", "hostile", "null")
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """Elements, attributes and texts of a page as a browser would find them; complains where tags do not nest."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.svg_texts: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(data)
            if "svg" in self.open:
                self.svg_texts.append(data)

    @property
    def text(self) -> str:
        return flat("".join(self.texts))


# --- the same numbers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DRAWN)
def test_estimate_and_interval_are_the_same_everywhere(name: str) -> None:
    form = rendered(name)
    result = form.json["result"]
    if result["R"]["value"] is None:
        assert result["lo"]["value"] is None
        assert "R (" not in form.text or "unknown (" in form.text
        return
    places = result["places"]
    R, bounds = percent(result["R"]["value"], places), interval(result["lo"]["value"], result["hi"]["value"], places)
    page = Page(form.html)
    for where in (flat(form.text), page.text, _plain(form.markdown), flat(" ".join(page.svg_texts))):
        assert R in where
        assert bounds in where
    if form.report.kind != "null" and form.report.ending != "refused":
        assert R in form.report.sentence
        assert bounds in form.report.sentence


def test_the_page_says_what_its_words_mean_before_its_first_section_and_counts_blocks_by_name() -> None:
    form = rendered("pass")
    text = Page(form.html).text
    for word, meaning in terms(form.report):
        assert text.index(word + meaning) < text.index(sections(form.report)[0].title)
    assert "blocks counted, 2 left out12" in text
    assert "speed, ON ÷ OFF (R)99.50 %" in text
    running = "".join(_hero(rendered("running").report).itertext())
    assert "blocks counted so far, at most 409" in running


@pytest.mark.parametrize("name", NAMES)
def test_rates_of_every_block_are_the_same_everywhere(name: str) -> None:
    form = rendered(name)
    places = [flat(form.text), _plain(form.markdown)] + ([Page(form.html).text] if name in DRAWN else [])
    on, off = form.report.arms
    assert len(form.table) == len(form.json["blocks"]) == len(record(name)["blocks"])
    for row, block, raw in zip(form.table, form.json["blocks"], record(name)["blocks"], strict=True):
        for arm, column in (("on", on), ("off", off)):
            rate = None if raw[arm] is None else raw[arm]["rate"]
            if rate is None:
                assert row[column] in ("–", "unknown")
                continue
            assert block[arm]["rate"]["value"] == rate
            assert row[column] == number(rate)
            assert all(row[column] in where for where in places)


def _axes(svg: ET.Element) -> ET.Element:
    return next(g for g in svg.iter("g") if g.attrib.get("id", "").endswith("axes_1"))


def _ticks(svg: ET.Element, axis: str) -> tuple[float, float]:
    """(offset, scale) of the axis that the picture prints: position = offset + scale * value."""
    labels = [
        (float((t.text or "").removesuffix(" %").replace("−", "-")), float(t.attrib["x" if axis == "x" else "y"]))
        for g in svg.iter("g")
        if re.search(rf"-{axis}tick_\d+$", g.attrib.get("id", ""))
        for t in g.iter("text")
    ]
    (v0, p0), (v1, p1) = min(labels), max(labels)
    scale = (p1 - p0) / (v1 - v0)
    return p0 - scale * v0, scale


@pytest.mark.parametrize("name", ["pass", "inconclusive", "harm_suspected"])
def test_points_of_the_picture_stand_where_the_rates_are(name: str) -> None:
    """Read the picture back by its own axes: every rate has its point, in its block, on the side of its turn."""
    report = rendered(name).report
    svg = blocks_svg(report)
    x0, per_block = _ticks(svg, "x")
    y0, per_rate = _ticks(svg, "y")
    # a label of the y axis stands a little lower than its tick, all of them by the same
    want = {}
    for block in report.blocks:
        for arm, kind in ((block.off, "off"), (block.on, "on")):
            if arm is not None and arm.rate.value is not None:
                left = x0 + per_block * (block.number + (-0.2 if arm.position == 1 else 0.2))
                colour = f"--{kind}" if block.counted else "--soft"
                want[round(left, 1), colour] = y0 + per_rate * arm.rate.value
    seen = {}
    for line in _axes(svg):
        for use in line.iter("use") if "-line2d_" in line.attrib.get("id", "") else ():
            colour = re.search(r"stroke: var\((--[a-z-]+)", use.attrib["style"])
            assert colour is not None
            seen[round(float(use.attrib["x"]), 1), colour.group(1)] = float(use.attrib["y"])
    assert set(seen) == set(want)
    shift = seen[next(iter(want))] - want[next(iter(want))]
    assert abs(shift) < 6
    for place, height in want.items():
        assert seen[place] - height == pytest.approx(shift, abs=0.05)


def test_the_dot_and_the_bar_of_the_interval_stand_where_the_figures_are() -> None:
    report = rendered("slowdown").report
    r = report.result
    svg = interval_svg(report)
    x0, per_percent = _ticks(svg, "x")
    marks = sorted(float(use.attrib["x"]) for use in _axes(svg).iter("use"))
    assert r.R.value is not None
    assert r.lo.value is not None
    assert r.hi.value is not None
    want = [x0 + per_percent * 100.0 * v for v in (r.lo.value, r.R.value, r.hi.value)]
    assert marks == pytest.approx(want, abs=0.05)
    (margin,) = [
        p for p in svg.iter("path") if "stroke: var(--harm" in p.attrib["style"] and "square" in p.attrib["style"]
    ]
    assert float(margin.attrib["d"].split()[1]) == pytest.approx(x0 + per_percent * 98.0, abs=0.05)


def test_dose_and_noise_are_the_same_in_text_page_and_json() -> None:
    form = rendered("pass")
    doses = [b["on"]["dose"] for b in record("pass")["blocks"] if b["state"] == "counted"]
    assert form.json["dose"]["metered"]["value"] == pytest.approx(sum(doses) / len(doses), abs=1e-12)
    assert form.json["dose"]["lowest"]["value"] == min(doses)
    said = f"{sum(doses) / len(doses):.3f} of the device"
    assert said in flat(form.text)
    assert said in Page(form.html).text
    assert said in _plain(form.markdown)


def _plain(markdown: str) -> str:
    return flat(re.sub(r"\\(.)", r"\1", markdown).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


# --- the page -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DRAWN)
def test_the_page_needs_nothing_from_outside(name: str) -> None:
    page = Page(rendered(name).html)
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "iframe", "object", "embed", "img", "base", "form", "image")
        for key, value in attributes.items():
            assert not key.startswith("on")
            assert "http:" not in (value or "")
            assert "https:" not in (value or "")
            assert "url(" not in (value or "") or re.search(r"url\(#", value or "")
            if key in ("href", "src", "action", "xlink:href"):
                assert (value or "").startswith(("#", "data:text/csv;"))
    style = re.findall(r"<style>(.*?)</style>", rendered(name).html, re.DOTALL)
    assert len(style) == 1
    assert "url(" not in style[0]
    assert "@import" not in style[0]


@pytest.mark.parametrize("name", DRAWN)
def test_ids_are_unique_and_what_points_to_them_exists(name: str) -> None:
    page = Page(rendered(name).html)
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    for _, attributes in page.tags:
        for key in ("href", "xlink:href"):
            if (attributes.get(key) or "").startswith("#"):
                assert (attributes[key] or "")[1:] in ids
        for target in re.findall(r"url\(#([^)]+)\)", " ".join(v or "" for v in attributes.values())):
            assert target in ids
        for target in (attributes.get("aria-labelledby") or "").split():
            assert target in ids


def test_pictures_are_named_for_readers_who_do_not_see_them() -> None:
    page = Page(rendered("pass").html)
    pictures = [a for tag, a in page.tags if tag == "svg"]
    assert len(pictures) == 4
    assert all(a["role"] == "img" and a["aria-labelledby"] for a in pictures)
    described = [t for t in page.svg_texts if "12 blocks" in t]
    assert any("99.50 % (98.78–100.22 %)" in t for t in described)


def test_hostile_names_are_text_and_nothing_else() -> None:
    form = rendered("hostile")
    page = Page(form.html)
    assert not [tag for tag, _ in page.tags if tag == "script"]
    assert "<script>alert('x')</script>" in page.text
    assert "\u202e" not in form.html
    assert "<script" not in form.html
    # the ending of a CDATA section and of a comment are texts too
    assert "]]>" not in form.html
    assert "\x1b" not in json.dumps(form.json, ensure_ascii=False)


def test_hostile_names_are_text_in_markdown() -> None:
    text = rendered("hostile").markdown
    assert "<script" not in text
    assert "\n# not a heading" not in text
    assert not re.search(r"(?<!\\)\]\(", text)
    assert not re.search(r"(?<!\\)`code", text)
    assert not re.search(r"https?:", text)
    for line in text.splitlines():
        if line.startswith("|") and not set(line) <= set("|:- "):
            assert re.search(r"(?<!\\)\|$", line), line


@pytest.mark.parametrize(
    "text",
    [
        "a|b",
        "*b*",
        "_x_",
        "`c`",
        "[a](b)",
        "<b>",
        "&amp;",
        "# h",
        "www.evil.example",
        "http://a.b",
        "~~s~~",
        "$x$",
        "\\",
    ],
)
def test_escape_takes_the_meaning_out_of_markdown(text: str) -> None:
    said = escape(text)
    assert _plain(said) == text
    assert not re.search(r"(?<!\\)[|*_`\[\]#~$]|<|https?:|(?<!\\)www\.(?!\\)", said.replace("&#", ""))


# --- other forms --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_markdown_and_table_fit_an_artifact(name: str) -> None:
    form = rendered(name)
    assert len(form.markdown.encode()) < 100_000
    assert all(isinstance(v, str) for row in form.table for v in row.values())
    json.dumps(form.table)


@pytest.mark.parametrize("name", ["pass", "collapse", "inconclusive"])
def test_the_picture_is_a_png_of_some_size(name: str) -> None:
    raw = base64.b64decode(rendered(name).png_data_uri.removeprefix("data:image/png;base64,"))
    assert raw.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = int.from_bytes(raw[16:20], "big"), int.from_bytes(raw[20:24], "big")
    assert width > 600
    assert height > 200
    assert len(rendered(name).png_data_uri) < 100_000


@pytest.mark.parametrize("name", NAMES)
def test_the_csv_gives_the_same_verdict(name: str) -> None:
    spec, rows = read_record(record(name))
    looks = run_looks(spec)
    back = windows_csv.read_blocks(rendered(name).csv)
    assert back == [tuple(b) for b in decide_blocks(rows)]
    again = decide(back, spec.margin, looks[-1], looks[0])
    assert again == decide(decide_blocks(rows), spec.margin, looks[-1], looks[0])


@pytest.mark.parametrize("name", NAMES)
def test_the_csv_holds_every_window_and_no_invented_figure(name: str) -> None:
    lines = list(csv.DictReader(io.StringIO(rendered(name).csv)))
    raw = [w for b in record(name)["blocks"] for w in (b["on"], b["off"]) if w is not None]
    assert len([line for line in lines if line["arm"]]) == len(raw)
    assert {line["block"] for line in lines} == {str(b["number"]) for b in record(name)["blocks"]}
    for window in raw:
        (line,) = [x for x in lines if x["block"] == str(window["block"]) and x["arm"] == window["arm"]]
        for column, key in (("rate_per_s", "rate"), ("dose", "dose"), ("length_s", "length_s"), ("events", "events")):
            assert line[column] == ("" if window[key] is None else repr(window[key]))


def test_a_cell_of_the_csv_is_no_formula() -> None:
    raw = record("no_dose")
    for block in raw["blocks"]:
        block["run"] = '=HYPERLINK("http://evil")'
    assert "\n'=HYPER" in build(raw).csv.replace('"', "")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a,b\n1,2\n", "no column 'block'"),
        ("block,order,state,arm,rate_per_s\n1,on_first,counted,on,fast\n", "'fast' is not a number"),
        ("block,order,state,arm,rate_per_s\n1,on_first,counted,on,2.0\n", "no ON and OFF window"),
    ],
)
def test_a_csv_that_cannot_be_read_is_refused(text: str, why: str) -> None:
    with pytest.raises(Refused) as refused:
        windows_csv.read_blocks(text)
    assert why in f"{refused.value.what}: {refused.value.why}"


def test_two_runs_on_one_page() -> None:
    html = compare_html([record("pass"), record("slowdown")], ["capped at 0.35", "uncapped <b>"])
    page = Page(html)
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert "capped at 0.35" in page.text
    assert "uncapped <b>" in page.text
    one, two = (rendered(n).report.result for n in ("pass", "slowdown"))
    shown = flat(" ".join(page.svg_texts))
    for r in (one, two):
        assert r.R.value is not None
        assert percent(r.R.value, r.places) in shown
    with pytest.raises(ValueError, match="nothing to compare"):
        compare_html([])
    with pytest.raises(ValueError, match="labels"):
        compare_html([record("pass")], ["a", "b"])
    wide = record("slowdown")
    wide["spec"]["margin"] = 0.05
    with pytest.raises(ValueError, match="different margins"):
        compare_html([record("pass"), wide])


def test_the_svg_is_well_formed_by_itself() -> None:
    again = ET.fromstring(ET.tostring(interval_svg(rendered("pass").report), encoding="unicode"))
    assert again.tag == "svg"
    assert [child.tag for child in again][:2] == ["title", "desc"]


def test_text_alone_draws_nothing() -> None:
    """The text of a report comes without matplotlib, which takes a second to load; drawing leaves its settings alone."""
    code = (
        "import json, sys; from tasks.reports import build\n"
        "r = build(json.load(open('tests/data/runs/pass.json'))); r.text; r.markdown; r.json; r.csv\n"
        "assert 'matplotlib' not in sys.modules\n"
        "import matplotlib; before = matplotlib.rcParams.copy()\n"
        "r.html; r.png_data_uri\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "assert matplotlib.rcParams.copy() == before\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
