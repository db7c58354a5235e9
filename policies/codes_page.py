"""``docs/codes.md`` from the table of codes: ``python -m policies.codes_page > docs/codes.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from policies.codes import CODES, Code

__all__ = ["page"]

# Beginning of a code -> what its group is called; the first that fits counts.
GROUPS = (
    ("AGENT_", "The agent"),
    ("PROTECTION_", "Protection"),
    ("SOURCE_", "Protection"),
    ("S16_", "Protection"),
    ("MEMORY_", "Memory"),
    ("JOB_", "Jobs"),
    ("WORKLOAD_", "Workloads"),
    ("MODULE_", "Modules"),
    ("SWEEP_", "Runs"),
    ("RUN_", "Runs"),
    ("FLOW_", "Flow runs"),
    ("CERT_", "Certificates"),
    ("GPU_", "Device work and its duty"),
)
OTHER = "Other"

HEAD = """# Codes

Each entry of a node's timeline (`cotenant timeline NODE`), each reason why work waits (`cotenant explain NODE`), and why a flow
run is `AwaitingNode`, has one of these codes. A remedy is the next step; NODE, JOB, MODULE and RULE in it stand for a name. This
page is made from the table in `policies/codes.py`.
"""


def group_of(name: str) -> str:
    return next((title for prefix, title in GROUPS if name.startswith(prefix)), OTHER)


def _rows(codes: list[Code]) -> Iterator[str]:
    yield "| code | severity | what it says | remedy |"
    yield "|---|---|---|---|"
    for code in codes:
        remedy = f"`{code.remedy}`" if code.remedy.startswith("cotenant ") else code.remedy
        cells = (f"`{code.name}`", code.severity, code.meaning, remedy)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def page() -> str:
    """The whole page, in the order of the table within each group."""
    titles = list(dict.fromkeys([*(title for _, title in GROUPS), OTHER]))
    parts = [HEAD]
    for title in titles:
        codes = [code for code in CODES.values() if group_of(code.name) == title]
        if codes:
            parts.append("\n".join([f"## {title}", "", *_rows(codes)]) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page())
