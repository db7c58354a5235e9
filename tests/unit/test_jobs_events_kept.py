"""Which jobs' events are kept after their end: those of the last ones that ended, whatever their numbers."""

from __future__ import annotations

import os
from pathlib import Path

from nodes.jobs.results import EVENTS_OF_JOBS_KEPT, events_from, put_events_away

LATER = EVENTS_OF_JOBS_KEPT + 5


def end(node_dir: Path, job: int, at_s: float | None = None) -> None:
    """The job ends; ``at_s``: as if it had been put away then."""
    source = node_dir / "jobs" / f"resume-{job}.ndjson"
    source.parent.mkdir(exist_ok=True)
    source.write_text(f'{{"of": {job}}}\n')
    os.utime(source, (1_000.0, 1_000.0))
    put_events_away(node_dir, job)
    if at_s is not None:
        os.utime(node_dir / "events" / f"{job}.ndjson", (at_s, at_s))


def told(node_dir: Path, job: int) -> list[str]:
    return events_from(node_dir, job, None, 0, 1 << 20)[0]


def test_a_job_that_waited_long_keeps_its_events_when_it_ends_after_many_later_ones(tmp_path: Path) -> None:
    for job in range(10, 10 + LATER):
        end(tmp_path, job, at_s=10_000.0 + job)
    end(tmp_path, 5)
    assert told(tmp_path, 5) == ['{"of": 5}']
    end(tmp_path, 500)
    assert told(tmp_path, 5) == ['{"of": 5}'], "nor are they the next to go"
    assert told(tmp_path, 10) == [], "those that ended longest ago are"
    assert len(list((tmp_path / "events").iterdir())) == EVENTS_OF_JOBS_KEPT


def test_a_clock_that_was_set_back_drops_no_events_that_were_just_put_away(tmp_path: Path) -> None:
    for job in range(10, 10 + LATER):
        end(tmp_path, job, at_s=9e9 + job)
    end(tmp_path, 5)
    assert told(tmp_path, 5) == ['{"of": 5}']
