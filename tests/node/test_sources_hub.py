"""All sources of a section together: phases, shared readings, events, and what a new section keeps."""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodes.sources.hub import SourceHub
from nodes.sources.views import PhaseUpdate
from policies.section.models import Section

STEP = b'{"event":"step_done"}\n'
WAIT_S = 60.0


def line(**fields: object) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def section(
    path: Path | str, *, rules: int = 1, phase: dict[str, Any] | None = None, step: str = "step_done"
) -> Section:
    during = {
        "source": {"jsonl": str(path), **(phase or {"enter": "begin", "exit": "end", "enter_soon": "soon"})},
        "pause_fleet": {"scope": "gpu"},
    }
    protect = {"metric": "progress_rate", "max_slowdown": 0.05, "source": {"jsonl": str(path), "event": step}}
    return Section.model_validate(
        {
            "rule": [
                {"id": f"r{index}", "match": {"name": "x"}, "protect": protect, "during": [during]}
                for index in range(rules)
            ]
        }
    )


@pytest.fixture
def hub() -> Iterator[SourceHub]:
    hub = SourceHub()
    yield hub
    hub.close()


def wait_for(hub: SourceHub, holds: Callable[[], bool]) -> list[PhaseUpdate]:
    """Runs the hub on its descriptor alone, without ticks, until something holds."""
    updates: list[PhaseUpdate] = []
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        if select.select([hub.fileno()], [], [], 0.5)[0]:
            updates += hub.poll("event")
    return updates


def test_phases_change_on_events_and_say_how(hub: SourceHub, tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_bytes(b"")
    hub.configure(section(path), "/nowhere")
    assert hub.phase("r0", 0).state == "off"
    wall = time.time()
    append(path, line(event="soon") + line(event="begin", time=wall))
    updates = wait_for(hub, lambda: hub.phase("r0", 0).state == "on")
    assert [(update.old, update.new) for update in updates] == [("off", "soon"), ("soon", "on")]
    assert updates[-1].how == "event"
    assert updates[-1].line_time_s == wall
    assert updates[-1].source_mtime_s == pytest.approx(wall, abs=5.0)
    append(path, line(event="end"))
    wait_for(hub, lambda: hub.phase("r0", 0).state == "off")


def test_a_tick_sees_what_no_event_told(hub: SourceHub, tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_bytes(b"")
    hub.configure(section(path), "/nowhere")
    append(path, line(event="begin"))
    assert [update.how for update in hub.poll("tick")] == ["tick"]
    assert hub.poll("tick") == []


def test_the_newest_phase_is_found_in_what_was_written_before(hub: SourceHub, tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_bytes(line(event="begin") + line(event="end") + line(event="begin") + STEP * 1000)
    hub.configure(section(path), "/nowhere")
    assert hub.phase("r0", 0).state == "on"
    assert hub.phase("r0", 0).readable
    assert hub.progress("r0").track.points == 0, "old steps are no progress of now"


def test_a_phase_older_than_the_scan_counts_as_on(hub: SourceHub, tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_bytes(line(event="begin") + STEP * 60_000)
    hub.configure(section(path), "/nowhere")
    view = hub.phase("r0", 0)
    assert (view.state, view.readable) == ("on", True)
    assert "1 MiB" in view.why
    append(path, line(event="end"))
    hub.poll("tick")
    assert hub.phase("r0", 0).state == "off"


def test_a_phase_that_cannot_be_read_counts_as_on(hub: SourceHub, tmp_path: Path) -> None:
    path = tmp_path / "later" / "e.jsonl"
    hub.configure(section(path), "/nowhere")
    view = hub.phase("r0", 0)
    assert (view.state, view.readable, view.code) == ("on", False, "PROTECTION_SOURCE_UNREADABLE")
    assert not hub.progress("r0").readable
    path.parent.mkdir()
    path.write_bytes(b"")
    updates = wait_for(hub, lambda: hub.phase("r0", 0).state == "off")
    assert [(update.old, update.new) for update in updates] == [("on", "off")]
    path.unlink()
    path.mkdir()
    updates = wait_for(hub, lambda: hub.phase("r0", 0).state == "on")
    assert updates[-1].code == "PROTECTION_SOURCE_UNREADABLE"
    assert "directory" in updates[-1].why


def test_a_phase_stays_through_rotation_and_ends_with_another_file(hub: SourceHub, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(line(event="begin"))
    hub.configure(section(tmp_path / "*.jsonl"), "/nowhere")
    path.rename(tmp_path / "a.jsonl.1")
    path.write_bytes(STEP)
    hub.poll("tick")
    assert hub.phase("r0", 0).state == "on"
    path.write_bytes(b"")
    hub.poll("tick")
    assert hub.phase("r0", 0).state == "on"
    other = tmp_path / "b.jsonl"
    other.write_bytes(STEP)
    os.utime(other, (2e9, 2e9))
    hub.poll("tick")
    assert hub.progress("r0").path == str(other)
    assert hub.phase("r0", 0).state == "off"


def test_a_field_phase(hub: SourceHub, tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_bytes(line(event="status", state={"phase": "training"}))
    phase = {"event": "status", "field": "state.phase", "on": ["uploading"], "soon": ["packing"]}
    hub.configure(section(path, phase=phase), "/nowhere")
    states = [hub.phase("r0", 0).state]
    for name in ("packing", "uploading", "training"):
        append(path, line(event="status", state={"phase": name}))
        hub.poll("tick")
        states.append(hub.phase("r0", 0).state)
    assert states == ["off", "soon", "on", "off"]


def test_a_file_that_appears_in_a_directory_made_later_is_picked_up_by_events(hub: SourceHub, tmp_path: Path) -> None:
    hub.configure(section(tmp_path / "runs" / "*" / "e-*.jsonl"), "/nowhere")
    for name in ("one", "two"):
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        (run / "e-1.jsonl").write_bytes(STEP + line(event="begin"))
        wait_for(hub, lambda run=run: hub.phase("r0", 0).path == str(run / "e-1.jsonl"))
        assert hub.phase("r0", 0).state == "on"


def descriptors_of(path: Path) -> list[str]:
    """This process's own on that file; how many it has of others changes with what other tests left to be collected."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [name for name in found if name == str(path)]


def test_rules_that_name_one_file_share_one_reading(hub: SourceHub, tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_bytes(b"")
    hub.configure(section(path, rules=8), "/nowhere")
    assert len(descriptors_of(path)) == 1
    append(path, STEP)
    hub.poll("tick")
    append(path, STEP + STEP)
    hub.poll("tick")
    assert [hub.progress(f"r{index}").track.total for index in range(8)] == [2.0] * 8


def test_a_new_section_keeps_what_it_has_in_common(hub: SourceHub, tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_bytes(line(event="begin"))
    hub.configure(section(path), "/nowhere")
    for _ in range(3):
        append(path, STEP)
        hub.poll("tick")
    track = hub.progress("r0").track
    hub.configure(section(path, rules=2), "/nowhere")
    assert hub.progress("r0").track is track
    assert hub.phase("r0", 0).state == "on"
    assert hub.phase("r1", 0).state == "on", "a phase added later looks back too"
    hub.configure(section(path, step="other"), "/nowhere")
    assert hub.progress("r0").track is not track
    with pytest.raises(KeyError):
        hub.progress("r1")
    hub.configure(Section(), "/nowhere")
    assert hub.describe() == []


def test_the_home_of_the_owner_is_meant(hub: SourceHub, tmp_path: Path) -> None:
    (tmp_path / "e.jsonl").write_bytes(b"")
    hub.configure(section("~/e.jsonl"), str(tmp_path))
    assert hub.progress("r0").readable


def test_a_source_that_switches_like_mad_is_told_in_bounds(hub: SourceHub, tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_bytes(b"")
    hub.configure(section(path), "/nowhere")
    append(path, (line(event="begin") + line(event="end")) * 5000 + line(event="begin"))
    updates = hub.poll("tick")
    assert 1 <= len(updates) <= 64
    assert updates[-1].new == "on"


def test_a_flood_loses_nothing_and_does_not_wake_the_loop_for_each_line(hub: SourceHub, tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_bytes(b"")
    hub.configure(section(path), "/nowhere")
    append(path, STEP)
    wait_for(hub, lambda: hub.progress("r0").track.points == 1)
    writer = path.open("ab", buffering=0)
    polls, done = 0, 0
    deadline = time.monotonic() + WAIT_S
    while hub.progress("r0").track.total < 20_000:
        assert time.monotonic() < deadline
        for _ in range(10):
            if done < 20_000:
                writer.write(STEP)
                done += 1
        if select.select([hub.fileno()], [], [], 0.0 if done < 20_000 else 0.5)[0]:
            hub.poll("event")
            polls += 1
    writer.close()
    assert hub.progress("r0").track.total == 20_000
    assert polls < 2_000


def test_a_backlog_is_read_on_without_further_events(hub: SourceHub, tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_bytes(b"")
    hub.configure(section(path), "/nowhere")
    append(path, STEP)
    hub.poll("tick")
    append(path, STEP * 200_000)
    wait_for(hub, lambda: hub.progress("r0").track.total == 200_000)


def test_describe_has_the_fields_of_the_verb(hub: SourceHub, tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_bytes(b"")
    hub.configure(section(path), "/nowhere")
    append(path, b"no json\n")
    hub.poll("tick")
    rows = hub.describe()
    assert [row["role"] for row in rows] == ["progress", "phase"]
    wanted = {"rule", "role", "index", "kind", "path", "state", "rate", "phase", "reader", "watch", "why", "timed"}
    for row in rows:
        assert wanted | {"latency_p50_ms", "latency_p99_ms"} <= row.keys()
    assert rows[0]["skipped"] == {"no_json": 1}
    assert rows[0]["rate"] is None
    json.dumps(rows)


def test_a_source_that_has_brought_nothing_waits_and_is_not_ok(hub: SourceHub, tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_bytes(STEP)  # of before the agent's time: rates begin at the end of the file
    hub.configure(section(path), "/nowhere")
    hub.poll("tick")
    progress, phase = hub.describe()
    assert (progress["state"], progress["rate"]) == ("waiting", None)
    assert "nothing was read yet: waiting for the first event" in progress["why"]
    assert progress["remedy"]
    assert (phase["state"], phase["phase"]) == ("ok", "off"), "a phase was looked for in what stood there before"
    append(path, STEP)
    hub.poll("tick")
    assert hub.describe()[0]["state"] == "ok"
    path.rename(tmp_path / "gone")
    path.mkdir()
    hub.poll("tick")
    assert hub.describe()[0]["state"] == "unreadable"
