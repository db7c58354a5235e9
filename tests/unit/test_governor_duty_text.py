"""The text of ``protection duty``, whole, against the reference's."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from policies.compliance import Verdict
from policies.duty_text import UnitName, duty_row, duty_text, duty_view
from policies.governor import INITIAL, Baseline, Holding, Inputs, Outputs

HOLDING = Holding("trainer", 0.35, True, 9.8, 9.8, 9.9, 0.1, certified_off_rate=10.0)
RUNNING = replace(
    INITIAL,
    name="running",
    budget=0.3,
    baselines=(Baseline("trainer", 9.94, 9.94, 1000.0, low=False),),
    pressures=(("trainer", 0.21),),
)
NAMES = [
    UnitName("812", "dev.cotenant.llmserve", "batch", "812"),
    UnitName("813", "dev.cotenant.llmserve", "batch", "813"),
]
INPUTS = Inputs(holding=(HOLDING,), units=("812", "813"))
OUTPUTS = Outputs(0.3, {"812": 0.15, "813": 0.15}, (), 0.35)


def test_a_running_budget_reads_as_the_reference_prints_it() -> None:
    verdicts = {"812": Verdict("holds", "", 0.15, 0.14), "813": Verdict("holds", "", 0.15, 0.16)}
    view = duty_view("mac-01", RUNNING, INPUTS, OUTPUTS, NAMES, verdicts, 1312.0)
    assert duty_text(json.loads(json.dumps(view))) == (
        "mac-01: gpu_duty budget 0.3 of ceiling 0.35 (running) beside trainer; 2 unit(s) at 0.15 each\n"
        "  baseline trainer: 9.94/s, 312 s old, last pressure 0.21\n"
        "  dev.cotenant.llmserve/batch attempt 812 duty 0.15 measured 0.14 ok\n"
        "  dev.cotenant.llmserve/batch attempt 813 duty 0.15 measured 0.16 ok\n"
    )


def test_unknown_is_said_and_never_printed_as_zero() -> None:
    state = replace(RUNNING, pressures=(), baselines=(Baseline("trainer", 5123.4, 5123.4, 1000.0, low=True),))
    verdicts = {
        "812": Verdict("held", "its device time cannot be read: permission denied", 0.15, None),
        "813": Verdict("stopped", "over its duty 3 times within an hour", 0.15, 0.9),
    }
    assert duty_text(duty_view("mac-01", state, INPUTS, OUTPUTS, NAMES, verdicts, 1312.0)).splitlines()[1:] == [
        "  baseline trainer: 5123/s, 312 s old, last pressure unknown"
        "; over 10 % under the certificate's OFF rate: no growth",
        "  dev.cotenant.llmserve/batch attempt 812 duty 0.15 measured unknown held"
        ": its device time cannot be read: permission denied",
        "  dev.cotenant.llmserve/batch attempt 813 duty 0.15 measured 0.90 stopped: over its duty 3 times within an hour",
    ]


@pytest.mark.parametrize(
    ("rate", "shown"), [(0.01234, "0.0123"), (9.94, "9.94"), (12.34, "12.3"), (99.94, "99.9"), (123.4, "123"), (5e6, "5000000")]
)  # fmt: skip
def test_a_rate_has_three_figures_and_never_an_exponent(rate: float, shown: str) -> None:
    state = replace(RUNNING, baselines=(Baseline("trainer", rate, rate, 1000.0, low=False),))
    line = duty_text(duty_view("mac-01", state, INPUTS, OUTPUTS, [], {}, 1312.0)).splitlines()[1]
    assert line.startswith(f"  baseline trainer: {shown}/s, ")


@pytest.mark.parametrize(
    ("budget", "count", "shown"),
    [(0.35, 3, "budget 0.35 of ceiling 0.35 (running) beside trainer; 3 unit(s) at 0.117 each"),
     (0.0, 1, "budget 0 of ceiling 0.35 (running) beside trainer; 1 unit(s) at 0 each")],
)  # fmt: skip
def test_duties_have_three_decimals_at_most_and_no_trailing_zeros(budget: float, count: int, shown: str) -> None:
    outputs = Outputs(budget, {str(n): budget / count for n in range(count)}, (), 0.35)
    first = duty_text(duty_view("mac-01", RUNNING, INPUTS, outputs, [], {}, 1312.0)).splitlines()[0]
    assert first == f"mac-01: gpu_duty {shown}"


def test_in_the_fleets_table_the_worst_rule_counts() -> None:
    both = replace(INPUTS, holding=(HOLDING, replace(HOLDING, rule="renderer")))
    for pressures in ((("trainer", 0.21), ("renderer", 0.8)), (("trainer", 0.8), ("renderer", 0.21))):
        view = duty_view("mac-01", replace(RUNNING, pressures=pressures), both, OUTPUTS, NAMES, {}, 1312.0)
        assert duty_row(view)[4:6] == ("trainer, renderer", "0.80")


def test_a_node_without_a_certificate_says_what_to_do() -> None:
    inputs = replace(INPUTS, holding=(replace(HOLDING, certified_duty=None),), units=())
    view = duty_view("mac-01", replace(INITIAL, name="closed", budget=0.0), inputs, Outputs(0.0), [], {}, 5.0)
    assert duty_text(view) == (
        "mac-01: gpu_duty budget 0 of ceiling none (closed) beside trainer; 0 unit(s)\n"
        "  GPU_NOT_CERTIFIED trainer: cotenant protection ab sweep mac-01 --rule trainer\n"
        "  baseline trainer: not measured yet\n"
    )


def test_free_and_stood_down_are_no_budget_of_the_governor() -> None:
    free = duty_view("n", INITIAL, Inputs(), Outputs(None, decides="nobody"), [], {}, 5.0)
    assert duty_text(free) == "n: no gpu_duty budget (free): no rule holds device work back\n"
    run = Outputs(0.5, decides="run")
    state = replace(RUNNING, name="stood_down")
    first = duty_text(duty_view("n", state, INPUTS, run, [], {}, 1312.0)).splitlines()[0]
    assert first == "n: gpu_duty set by a harness run, duty 0.5 (stood_down) beside trainer"
