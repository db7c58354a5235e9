"""The governor's states and transitions as Markdown, for the documentation.

``python -m policies.governor.table`` prints what ``docs`` shows, from the rows that the step function runs on.
"""

from __future__ import annotations

from policies.governor.causes import CAUSES
from policies.governor.states import STATES
from policies.governor.transitions import BUDGETS, TRANSITIONS

__all__ = ["diagram", "markdown"]


def markdown() -> str:
    """Two tables: the states with their budgets, and the transitions in the order in which they are asked."""
    lines = ["| state | budget |", "|---|---|"]
    lines += [f"| `{state}` | {BUDGETS[state]} |" for state in STATES]
    lines += ["", "| from | when | to | journaled |", "|---|---|---|---|"]
    for row in TRANSITIONS:
        source = "any" if row.source == "any" else f"`{row.source}`"
        codes = ", ".join(f"`{code}`" for code in row.codes)
        lines.append(f"| {source} | {CAUSES[row.cause].words} | `{row.target}` | {codes} |")
    return "\n".join(lines) + "\n"


def diagram() -> str:
    """The states' own transitions as a Mermaid state diagram (the rows from *any* would hide them)."""
    lines = ["stateDiagram-v2", "    [*] --> free"]
    lines += [f"    {row.source} --> {row.target}: {row.cause}" for row in TRANSITIONS if row.source != "any"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown())
    print("```mermaid")
    print(diagram(), end="")
    print("```")
