"""The report as a document and as text: what each ending says, unknown figures, hostile names, places of decimals."""

from __future__ import annotations

import itertools
import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_samples import ENDINGS, NAMES, RUNS, flat, record, rendered

from policies.certificate.fingerprint import Fingerprint
from policies.harness.validity import decide_blocks
from policies.refusal import Refused
from policies.report import read_record, sections, terms
from policies.report.evidence import Figure, hours, measured, number, percent, places_for, shown, unknown
from policies.report.words import clean
from tasks.reports import build


def test_every_sample_is_one_of_the_endings_and_every_ending_has_a_sample() -> None:
    assert set(NAMES) == set(ENDINGS)
    assert {e for e in ENDINGS.values() if e} == {
        "no slowdown shown",
        "slowdown",
        "inconclusive",
        "refused",
        "no_dose",
        "harm_suspected",
        "aborted",
        "interrupted",
    }


def test_the_samples_are_what_the_script_beside_them_writes() -> None:
    sys.path.insert(0, str(RUNS))
    try:
        import make
    finally:
        sys.path.remove(str(RUNS))
    for name, sample in make.SAMPLES.items():
        assert json.loads(json.dumps(sample())) == record(name), name


def test_a_sample_has_the_shapes_that_an_agent_records() -> None:
    print_ = Fingerprint.model_validate(record("pass")["fingerprint"])
    text = flat(rendered("pass").text)
    assert print_.cpu_model is not None
    assert print_.cpu_model in text
    assert "62.7 GiB, NVIDIA GeForce RTX 4090 (driver 570.86.15)" in text
    assert "script sha256 0b9a6f2e4ddc0a9b…" in text


@pytest.mark.parametrize("name", NAMES)
def test_text_is_80_columns_of_printable_characters(name: str) -> None:
    text = rendered(name).text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert all(c.isprintable() or c == "\n" for c in text)
    assert "\x1b" not in text
    assert "None" not in text
    assert "nan" not in text.lower().split()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pass", "No slowdown shown: the program ran at 99.50 % of its speed without fleet work (90 % interval"),
        ("pass", "valid at every look), within the 2 % margin."),
        ("pass", "Certified at duty 0.33, valid until"),
        ("demonstration", "Demonstration only (windows under a minute)"),
        ("demonstration", "accept_demonstration = true"),
        ("repeat", "No certificate: run-0502 ended slowdown"),
        ("left_out_many", "No certificate: 4 of 16 blocks (25 %) were left out, more than 20 %"),
        ("slowdown", "Slower than OFF: best estimate 94.9 %"),
        ("collapse", "In block 5 the program's rate collapsed: 2.61/s in ON"),
        ("inconclusive", "Inconclusive: best estimate 98.4 %"),
        ("inconclusive", "How many more blocks"),
        ("refused", "Refused at the first look: blocks differ by"),
        ("no_dose", "No dose: the work under test hardly ran"),
        ("harm_suspected", "Harm suspected"),
        ("harm_suspected", "death of the protected program while the work ran (block 6)"),
        ("aborted", "The run was aborted before its first look, after 5 counted blocks."),
        ("interrupted", "At its last look, 8 blocks, the program ran at 98.7 %"),
        ("interrupted", "That is not a verdict."),
        ("null", "A/A over 12 blocks: the 99 % interval"),
        ("null", "an A/A run earns none"),
        ("self", "of its speed with the agent at rest"),
        ("running", "Still running"),
        ("running", "Undecided so far."),
    ],
)
def test_endings_read_as_they_should(name: str, words: str) -> None:
    assert words in flat(rendered(name).text)


@pytest.mark.parametrize("name", NAMES)
def test_only_a_kept_certificate_is_spoken_of_as_one(name: str) -> None:
    report = rendered(name).report
    kept = record(name)["certificate"] is not None
    assert (report.certificate.state != "none") is kept
    assert report.certificate.says.startswith("No certificate") is not kept


@pytest.mark.parametrize("name", NAMES)
def test_sections_keep_their_order(name: str) -> None:
    order = [
        "Speed with",
        "Each block",
        "The dose held",
        "Left out",
        "Honesty checks",
        "How many more blocks",
        "What the certificate does not cover",
        "What this run cannot show",
        "Where and with what",
        "Earlier attempts at the same thing",
    ]
    lines = rendered(name).text.splitlines()
    titles = [a for a, b in itertools.pairwise(lines) if b and set(b) == {"─"}]
    if name == "null":
        order[0] = "The two windows"
    at = [next(i for i, start in enumerate(order) if title.startswith(start)) for title in titles]
    assert at == sorted(at)
    assert {0, 1, 3, 4, 8, 9} <= set(at)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_report_cannot_do_without_is_said_before_its_first_section(name: str) -> None:
    form = rendered(name)
    first = sections(form.report)[0].title
    words = [word for word, _ in terms(form.report)]
    assert words[1:4] == ["R", "Margin", "Look"]
    assert ("Dose, duty" in words) is (form.report.kind == "ab")
    assert " ".join(words[0].split(", ")) == " ".join(form.report.arms)
    for text in (flat(form.text), form.markdown):
        for word, meaning in terms(form.report):
            assert 0 < text.index(f"{word}{'**:' if text is form.markdown else ''} {meaning}") < text.index(first)


@pytest.mark.parametrize("name", NAMES)
def test_headings_are_words_and_no_logarithm_is_named_by_its_sign(name: str) -> None:
    for section in sections(rendered(name).report):
        assert not re.search(r"\bR\b", section.title)
        assert section.table is None or "R" not in section.table.columns
    assert "ln R" not in rendered(name).text


def _judged_at(monkeypatch: pytest.MonkeyPatch, name: str, R: float, lo: float, hi: float) -> str:
    import tasks.reports

    true = tasks.reports.judge

    def judge(raw: dict[str, Any]) -> Any:
        found = true(raw)
        return replace(found, decision=replace(found.decision, R=R, lo=lo, hi=hi))

    monkeypatch.setattr(tasks.reports, "judge", judge)
    return build(record(name)).report.sentence


def test_more_than_100_percent_is_said_to_be_noise_where_the_interval_includes_100(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    note = " Above 100 % is within the noise, since the interval includes 100 %: no speed-up was shown."
    for name in ("pass", "inconclusive", "running", "interrupted"):
        with monkeypatch.context() as patched:
            assert _judged_at(patched, name, 1.021, 0.99, 1.05).endswith(note), name
        with monkeypatch.context() as patched:
            assert note not in _judged_at(patched, name, 1.021, 1.004, 1.05), "all of the interval lies above"
        with monkeypatch.context() as patched:
            assert note not in _judged_at(patched, name, 1.00004, 0.99, 1.05), "it reads 100.0 %"
        assert note not in rendered(name).report.sentence


def test_bounds_are_never_those_of_an_ordinary_t_interval() -> None:
    """The interval shown is wider than the plain one, and every mention of it names what it is."""
    from policies.statistics import analyse

    for name in ("pass", "slowdown", "inconclusive", "demonstration", "self"):
        report = rendered(name).report
        plain = analyse(decide_blocks(read_record(record(name))[1])[: report.result.n])
        assert report.result.lo.value is not None
        assert report.result.hi.value is not None
        assert plain.lo is not None
        assert plain.hi is not None
        assert report.result.hi.value - report.result.lo.value > plain.hi - plain.lo
        assert report.result.interval_label == "90 % interval, valid at every look"
        assert "90 % interval" in report.sentence
        assert "valid at every look" in report.sentence


def test_between_looks_the_report_holds_the_estimate_of_the_last_look() -> None:
    """Nine counted blocks: what is shown is the look at eight, whatever the ninth says."""
    raw = record("running")
    before = build(raw).report.result
    raw["blocks"][8]["on"]["rate"] *= 0.5
    after = build(raw).report.result
    assert before.n == after.n == 8
    assert before.counted == 9
    assert (before.R.value, before.lo.value, before.hi.value) == (after.R.value, after.lo.value, after.hi.value)


def test_a_verdict_that_the_windows_do_not_give_is_called_out() -> None:
    raw = record("slowdown")
    raw["ending"] = "no slowdown shown"
    report = build(raw).report
    assert any("'no slowdown shown', but its windows give 'slowdown'" in w for w in report.warnings)
    assert report.certificate.state == "none"
    assert not build(record("slowdown")).report.warnings


# --- unknown is never zero ----------------------------------------------------------------------------------------


def test_unknown_figures_carry_their_reason_and_no_number() -> None:
    report = rendered("unknowns").report
    assert report.dose.metered.state == "unknown"
    assert "NVML gave no per-process samples" in (report.dose.metered.unknown_reason or "")
    dead = report.blocks[-1]
    assert dead.on is not None
    assert dead.on.rate == Figure(None, "unknown", dead.on.rate.source, None, "the source could not be read")
    assert report.worst_on.known
    text = rendered("unknowns").text
    line = next(x for x in text.splitlines() if x.strip().startswith("Metered in ON"))
    assert "unknown" in line
    assert not re.search(r"\b0(\.0+)?\b", line.replace("9 of 9", ""))
    row = next(x for x in text.splitlines() if x.split()[:1] == ["10"])
    assert "unknown" in row


def test_one_unreadable_window_makes_the_mean_dose_unknown_not_smaller() -> None:
    raw = record("pass")
    assert build(raw).report.dose.metered.known
    raw["blocks"][0]["on"] |= {"dose": None, "dose_unknown_reason": "the meter was busy"}
    dose = build(raw).report.dose
    assert not dose.metered.known
    assert not dose.lowest.known
    assert "1 of 12 windows could not be metered: the meter was busy" in (dose.metered.unknown_reason or "")


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_of_the_json_is_evidence(name: str) -> None:
    figures = list(_figures(rendered(name).json))
    assert len(figures) > 20
    for figure in figures:
        assert set(figure) == {"value", "state", "source", "measured_at", "unknown_reason"}
        assert figure["source"]
        if figure["state"] == "unknown":
            assert figure["value"] is None
            assert figure["unknown_reason"]
        else:
            assert figure["state"] == "measured"
            assert math.isfinite(figure["value"])
            assert figure["unknown_reason"] is None


def _figures(part: Any) -> Any:
    if isinstance(part, dict):
        if "unknown_reason" in part:
            yield part
        else:
            for value in part.values():
                yield from _figures(value)
    elif isinstance(part, list):
        for value in part:
            yield from _figures(value)


def test_a_figure_is_either_a_value_or_a_reason() -> None:
    assert measured(None, "meter", otherwise="no reading") == unknown("no reading", "meter")
    assert measured(math.nan, "meter").state == "unknown"
    assert measured(math.inf, "meter").state == "unknown"
    assert measured(0.0, "meter").value == 0.0
    assert shown(unknown("no reading", "meter"), percent) == "unknown"
    assert shown(unknown("no reading", "meter"), percent, why=True) == "unknown (no reading)"
    with pytest.raises(ValueError, match="measured"):
        Figure(None, "measured", "meter")
    with pytest.raises(ValueError, match="unknown"):
        Figure(1.0, "unknown", "meter", None, "why")
    with pytest.raises(ValueError, match="reason"):
        Figure(None, "unknown", "meter")


# --- how numbers read ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [(12.4567, "12.46"), (0.041523, "0.04152"), (1520.4, "1,520"), (0, "0"), (99.996, "100.00"), (1.2e9, "1.200e+09")],
)
def test_number(value: float, text: str) -> None:
    assert number(value) == text


def test_hours() -> None:
    assert [hours(v) for v in (0.005, 0.5, 1.25, 30)] == ["18 s", "30 min", "1.2 h", "30.0 h"]


def test_decimals_tell_the_verdict() -> None:
    assert places_for([(0.9812, 0.98)]) == 1
    assert places_for([(0.97996, 0.98)]) == 3
    assert percent(0.97996, 3) == "97.996 %"
    assert places_for([(0.97996, 0.98), (None, 1.0)]) == 3
    assert places_for([(0.9999999, 1.0)]) == 4
    assert places_for([(1.0, 1.0)]) == 1
    assert percent(-0.00001, 1) == "0.0 %"


def test_a_bound_just_under_the_margin_never_reads_as_within_it() -> None:
    """The look at eight of this sample has its lower bound at 97.97 %: at one decimal that is 98.0 %."""
    result = rendered("pass").report.result
    assert result.looks[0].lo.value is not None
    assert 0.9795 <= result.looks[0].lo.value < 0.98
    assert result.places == 2
    assert "97.97–100.25 %" in rendered("pass").text


# --- names that others chose --------------------------------------------------------------------------------------


def test_clean_leaves_nothing_that_steers_a_terminal_or_turns_text_round() -> None:
    said = clean("a\x1b[31mb\x07\n\u202ec\u2028d\x85\ud800")
    assert said == "a\\u001b[31mb\\u0007\\n\\u202ec\\u2028d\\u0085\\ud800"
    assert clean("ø → 你") == "ø → 你"
    assert clean("x" * 500) == "x" * 240 + "…"
    assert clean(None) == ""


def test_hostile_names_stay_on_their_line() -> None:
    text = rendered("hostile").text
    assert "\u202e" not in text
    assert "\x07" not in text
    assert not any(line.startswith("# not a heading") for line in text.splitlines())
    assert "\\u001b[31mred" in flat(text)


# --- records that cannot be read ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda r: r.pop("spec"), "has no 'spec'"),
        (lambda r: r["spec"].update(margin="wide"), "margin"),
        (lambda r: r["blocks"][0].update(order="sideways"), "order"),
        (lambda r: r["blocks"].append(r["blocks"][0]), "comes twice"),
    ],
)
def test_a_record_that_cannot_be_read_is_refused_by_name(spoil: Any, why: str) -> None:
    raw = record("pass")
    spoil(raw)
    with pytest.raises(Refused) as refused:
        build(raw)
    assert why in refused.value.why
    assert "run-pass" in refused.value.what
    assert refused.value.remedy


def test_a_run_without_blocks_has_a_report() -> None:
    raw = record("aborted")
    raw["blocks"] = []
    report = build(raw)
    assert "No block was measured." in report.text
    assert report.report.left_out_share.state == "unknown"
    assert report.report.rare_harm.state == "unknown"
    assert report.html.count("<svg") == 0
    assert report.png_data_uri.startswith("data:image/png;base64,")


def test_two_hundred_blocks_fit_every_form() -> None:
    raw = record("inconclusive")
    raw["spec"]["max_hours"] = 40.0
    one = raw["blocks"]
    raw["blocks"] = [{**b, "number": i * len(one) + b["number"], "reason": None} for i in range(5) for b in one]
    report = build(raw)
    assert report.report.result.counted == 200
    assert len(report.markdown.encode()) < 100_000
    assert len(report.table) == 200
    assert len(report.png_data_uri) < 250_000
    assert report.html.count("<svg") == 4


def test_the_samples_lie_where_the_tests_look() -> None:
    assert Path(RUNS).is_dir()
