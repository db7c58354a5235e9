"""The report of a run where people look for it: files under the home's ``reports``, artifacts on the flow run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect.artifacts import create_image_artifact, create_markdown_artifact, create_table_artifact

from tasks import reports
from tasks.artifacts import artifact_key

__all__ = ["publish", "write_files"]


def write_files(record: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """``RUN.html``, ``RUN.csv`` (raw windows) and ``RUN.json``, each whole or not at all."""
    report = reports.build(record)
    forms = {
        "html": report.html,
        "csv": report.csv,
        "json": json.dumps(report.json, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
    }
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    written = {}
    for form, text in forms.items():
        written[form] = folder / f"{record['run']}.{form}"
        draft = written[form].with_name(written[form].name + ".new")
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, written[form])
    return written


def publish(record: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Files and artifacts. Inside a flow run.

    Returns:
        Where the files are.
    """
    files = write_files(record, folder)
    report = reports.build(record)
    run = str(record["run"])
    create_markdown_artifact(
        key=artifact_key("ab", run, "report"),
        markdown=f"{report.markdown}\n\nThe whole report, with the raw windows: `{files['html']}`\n",
        description=f"Report of run {run}",
    )
    create_table_artifact(key=artifact_key("ab", run, "blocks"), table=report.table, description=f"Blocks of run {run}")
    create_image_artifact(
        key=artifact_key("ab", run, "picture"),
        image_url=report.png_data_uri,
        description=f"R and the blocks of run {run}",
    )
    return {form: str(path) for form, path in files.items()}
