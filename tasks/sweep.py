"""A duty sweep's dealings with the agent and the server: what was done so far, what comes next, the report."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect.artifacts import create_image_artifact, create_markdown_artifact, create_table_artifact

from policies.harness.kept import WHY_DAMAGED
from policies.harness.sweep import Asked, Finished, Level, PastLevel, next_step
from policies.refusal import Refused
from policies.report.sweep import SweepReport, sweep_markdown, sweep_report
from tasks.agent_link import Agent
from tasks.artifacts import artifact_key
from tasks.sweep_picture import sweep_png, sweep_png_data_uri

__all__ = ["RUNS_LOOKED_AT", "ask_next", "level_seed", "publish_sweep", "report_of"]

# A sweep has at most a few dozen levels; what lies further back than this many runs does not go on.
RUNS_LOOKED_AT = 1000


def level_seed(sweep: str, index: int, seed: int) -> int:
    """A seed for the coins of one level; each has its own."""
    digest = hashlib.sha256(f"seed {sweep} {index} {seed or ''}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


def ask_next(agent: Agent, asked: Asked, flow_run_id: str) -> Level | Finished:
    """What comes next, by the agent's journal and by what of the passed levels still stands."""
    past = [level for row in agent.call("run_list", limit=RUNS_LOOKED_AT) if (level := PastLevel.of(row)) is not None]
    section = agent.call("section_show")
    return next_step(
        asked, past, section_digest=section["in_force_digest"], standing=_fallen(agent), flow_run_id=flow_run_id
    )


def _fallen(agent: Agent) -> dict[str, str]:
    """Run -> why its certificate does not stand."""
    return {
        str(row["run"]): f"{row['validity']['state']}: {row['validity']['why']}"
        for row in agent.call("certificates", _timeout_s=120.0)
        if row["validity"]["state"] != "valid"
    }


def report_of(agent: Agent, sweep: str, notes: Sequence[str] = ()) -> SweepReport:
    """The report of a sweep that has at least one level.

    Raises:
        Refused: the agent knows no level of it.
    """
    rows = agent.call("run_list", limit=RUNS_LOOKED_AT)
    of_it = [row for row in rows if isinstance(row.get("sweep"), Mapping) and row["sweep"].get("sweep") == sweep]
    runs = [row["run"] for row in of_it if not row.get("damaged")]
    left_out = [f"run {row['run']} is left out: {WHY_DAMAGED}" for row in of_it if row.get("damaged")]
    if not runs:
        raise Refused(
            "SWEEP_UNKNOWN", f"sweep {sweep}", "this node has run no level of it", "cotenant protection ab list"
        )
    return sweep_report([agent.call("run_show", run=run) for run in runs], [*notes, *left_out])


def publish_sweep(report: SweepReport, folder: Path) -> dict[str, str]:
    """Artifacts on the flow run, and files under ``folder``: ``SWEEP.md``, ``SWEEP.json``, ``SWEEP.png``."""
    files: dict[str, Any] = {
        "md": sweep_markdown(report).encode(),
        "json": (json.dumps(report.as_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode(),
        "png": sweep_png(report),
    }
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    written = {}
    for form, content in files.items():
        path = folder / f"{report.sweep}.{form}"
        draft = path.with_name(path.name + ".new")
        draft.write_bytes(content)
        os.replace(draft, path)
        written[form] = str(path)
    name = f"of sweep {report.sweep}"
    create_markdown_artifact(
        key=artifact_key("ab", report.sweep, "report"), markdown=sweep_markdown(report), description=f"Report {name}"
    )
    create_table_artifact(
        key=artifact_key("ab", report.sweep, "levels"),
        table=list(report.as_dict()["rows"]),
        description=f"Levels {name}",
    )
    create_image_artifact(
        key=artifact_key("ab", report.sweep, "picture"),
        image_url=sweep_png_data_uri(report),
        description=f"R with its interval against duty, {name}",
    )
    return written
