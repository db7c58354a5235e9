"""The few words that a report cannot do without, each said once, beside where it first stands."""

from __future__ import annotations

from policies.harness.plan_text import looks_words
from policies.harness.spec import RunSpec
from policies.report.document import Report

__all__ = ["terms"]


def terms(report: Report) -> tuple[tuple[str, str], ...]:
    """(word, meaning) pairs in the order in which a reader meets them."""
    on, off = report.arms
    a_block = "A block is one of each; a coin says which comes first"
    windows, compared = {
        "null": (
            "without fleet work, both: what they differ by is noise",
            f"in one window ÷ in the other ({on} ÷ {off}): 100 % where nothing differs",
        ),
        "self": (
            "with the agent as usual, and with the agent at rest",
            f"with the agent ÷ with the agent at rest ({on} ÷ {off}): 100 % is as fast",
        ),
    }.get(
        report.kind,
        (
            "with fleet work beside the program, and with that work held",
            f"with fleet work ÷ without ({on} ÷ {off}): 100 % is as fast",
        ),
    )
    looks = looks_words(RunSpec.model_validate(report.spec))
    said = [
        (f"{on}, {off}", f"Counted stretches of time (windows) {windows}. {a_block}"),
        ("R", f"The program's speed {compared}"),
        ("Margin", "The slowdown that counts"),
        ("Look", f"A moment at which the run may be judged, after {looks} counted blocks; between looks nobody judges"),
    ]
    if report.dose.applies:
        said.append(
            (
                "Dose, duty",
                f"What the work held of the device in {on} windows, by the agent's meter; and the share of each second "
                "that it was asked to keep the device busy",
            )
        )
    return tuple((word, f"{meaning}.") for word, meaning in said)
