"""How a benchmark speaks, and that its simulation is the one it says it is."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from benchmarks import _figures
from benchmarks._noise_models import DEFAULT_MODELS, HARD_MODELS, drift, iid, simulate
from benchmarks.harness_power import fixed_t, peeking_t


def test_the_last_line_is_one_object(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "--json", "--quick"])
    seen = []

    def measure(quick: bool):
        seen.append(quick)
        return [_figures.figure("a", 1.0, "%", ("<=", 2.0), "b 3"), _figures.figure("c", 2.0, "s")]

    assert _figures.run("name", "doc", measure) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(said) == {"name", "figures", "load", "machine", "at"}
    assert said["figures"] == [
        {"what": "a", "value": 1.0, "unit": "%", "budget": "<= 2", "reference": "b 3", "holds": True},
        {"what": "c", "value": 2.0, "unit": "s", "budget": None, "reference": None, "holds": None},
    ]
    assert seen == [True]


@pytest.mark.parametrize(("value", "holds"), [(2.0, True), (2.1, False), (None, False)])
def test_an_unknown_figure_does_not_hold(value, holds, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["x"])
    figure = _figures.figure("a", value, "%", ("<=", 2.0))
    assert figure.holds is holds
    assert _figures.run("name", "doc", lambda _quick: [figure]) == (0 if holds else 1)
    assert ("OVER" in capsys.readouterr().out) is not holds


def test_there_are_sixteen_default_models_with_names_of_their_own() -> None:
    assert len(DEFAULT_MODELS) == 16
    assert len({model.name for model in (*DEFAULT_MODELS, *HARD_MODELS)}) == 20


@pytest.mark.parametrize("model", [m for m in DEFAULT_MODELS if m.windows is not None], ids=lambda m: m.name)
def test_every_model_has_the_effect_that_is_asked_for(model) -> None:
    """The coin makes the noise symmetric: whatever the program does by itself, the median of d is ln R."""
    o, d = simulate(model, 0.98, 2_000, 8, np.random.default_rng(1))
    assert set(np.unique(o)) == {-1.0, 1.0}
    assert float(np.median(d)) == pytest.approx(np.log(0.98), abs=4 * 1.2533 * float(d.std()) / np.sqrt(d.size))


@pytest.mark.parametrize("sd", [0.005, 0.01, 0.02, 0.05])
def test_sd_is_that_of_d(sd: float) -> None:
    _, d = simulate(iid(sd), 1.0, 1_000, 40, np.random.default_rng(2))
    assert float(d.std()) == pytest.approx(sd, rel=0.02)


def test_drift_is_half_a_percent_a_block_at_five_percent_an_hour() -> None:
    o, d = simulate(drift(0.05), 1.0, 1_000, 8, np.random.default_rng(3))
    # ON first runs on the slower side of a rising rate
    assert float(d[o > 0].mean()) == pytest.approx(-0.005, abs=6e-4)
    assert float(d[o < 0].mean()) == pytest.approx(0.005, abs=6e-4)


def test_the_slow_program_runs_at_the_ratio_asked_for() -> None:
    slow = next(model for model in DEFAULT_MODELS if model.windows is None)
    _, d = simulate(slow, 0.9, 60, 8, np.random.default_rng(4))
    assert float(np.exp(d.mean())) == pytest.approx(0.9, abs=0.005)
    assert float(np.abs(d - np.log(0.9)).max()) < 0.10


def test_the_references_do_what_they_are_known_for() -> None:
    """Fixed 12 keeps 5 % at the margin; looking at the same t after every block does not."""
    _, d = simulate(iid(0.01), 0.98, 4_000, 40, np.random.default_rng(5))
    assert fixed_t(d) == pytest.approx(5.0, abs=1.4)
    assert 14.0 <= peeking_t(d) <= 22.0
