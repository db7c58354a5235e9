"""What an owner copies from a table (an id, a code, a command) is in one piece, whatever the width of the terminal."""

from __future__ import annotations

import io
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from cotenant.cli import ab, certificates, doctor, explain, job, node, protection
from cotenant.cli.render import console, fields, show, table
from cotenant.cli.rows import column_widths

RUN = "run-0a1b2c3d4e"
RENEW = "cotenant protection ab start local --rule trainer --work llmserve/batch --feed llmserve/batch --duty 0.3"
SWEEP = "cotenant protection ab sweep local --rule trainer"
WHY = "device work waits: no valid certificate beside the protected program of rule trainer, which holds the device now"
AT = "2026-11-29T18:43:53.1+00:00"
STALE = "program /opt/trainer/bin/train.py sha256 1f2e3d4c5b6a → 9f8e7d6c5b4a"
SOCKET = "/home/somebody/.local/share/cotenant/nodes/workstation-01/agent.sock"

JOBS = [
    {"job": 812, "module": "dev.cotenant.llmserve", "stage": "selftest", "state": "waiting", "code": "GPU_NOT_CERTIFIED",
     "reason": WHY, "duty": None, "share": None, "queued_at": AT},
    {"job": 811, "module": "dev.cotenant.llmserve", "stage": "selftest", "state": "ended", "outcome": "succeeded",
     "code": "OLD", "reason": None, "duty": 0.15, "share": 0.1432, "queued_at": AT},
]  # fmt: skip
REASON = {"code": "GPU_NOT_CERTIFIED", "why": WHY, "remedy": SWEEP, "severity": "notice", "means": "m"}
EXPLAINED = {
    "node": "local", "mode": "moderate", "gpu_jobs": "certified", "pause": False, "memory": {"level": "clear", "why": "ok"},
    "admits": True, "limits": [], "rules": [{"rule": "trainer", "state": "active", "does": [f"holds: {WHY}"]}],
    "jobs": [{"job": 812, "module": "dev.cotenant.llmserve", "stage": "batch", "state": "waiting", "words": "waits",
              "reasons": [REASON, REASON | {"code": "JOB_NO_SLOT", "remedy": "wait until a job ends"}]}],
}  # fmt: skip
CERTIFICATES = [
    {"rule": "trainer", "work": [{"short": "llmserve", "stage": "batch"}], "certified_duty": 0.29, "R": 0.994, "run": RUN,
     "issued_at": AT, "expires_at": AT, "validity": {"state": "stale", "why": STALE, "renew": RENEW}},
]  # fmt: skip
RUNS = [
    {"run": RUN, "node": "workstation-01", "rule": "trainer", "work": "llmserve/selftest", "duty": 0.3, "kind": "ab",
     "state": "ended", "ending": "no slowdown shown", "started_at": AT, "ended_at": AT},
]  # fmt: skip
NODES = [
    {"node": "workstation-01", "state": "not running", "why": f"no agent answers on {SOCKET}: it is not running",
     "remedy": "cotenant up --node workstation-01"},
]  # fmt: skip
SOURCES = [
    {"rule": "trainer", "role": "progress", "state": "unreadable", "path": SOCKET, "why": "this account may not read it",
     "remedy": "in the login of that account: cotenant session-helper"},
]  # fmt: skip
CHECKS = {"checks": [
    {"name": "freezer", "state": "falls_back", "what": "no cgroup2 mount that can be written", "fallback": "SIGSTOP to the tree",
     "remedy": "sudo mount -t cgroup2 none /sys/fs/cgroup/unified"},
]}  # fmt: skip
DUE = [{"node": "local", "rule": "trainer", "work": "llmserve/batch", "certified_duty": 0.29, "state": "stale", "days_left": 3.0,
        "why": STALE, "renew": RENEW}]  # fmt: skip

SHOWN: dict[str, tuple[Iterable[RenderableType], list[str]]] = {
    "job list": (list(job.jobs_view(JOBS)), ["812", "GPU_NOT_CERTIFIED", "dev.cotenant.llmserve/selftest", "2026-11-29T18:43:53Z"]),
    "explain": (list(explain._node(EXPLAINED)), ["812", "GPU_NOT_CERTIFIED", "JOB_NO_SLOT", "llmserve/batch", SWEEP]),
    "certificates": (list(protection._certificates(CERTIFICATES)), [RUN, RENEW, "1f2e3d4c5b6a", "/opt/trainer/bin/train.py"]),
    "certificates check": (list(certificates._view(DUE)), [RENEW, "llmserve/batch"]),
    "ab list": (list(ab._list(RUNS)), [RUN, "workstation-01", "llmserve/selftest"]),
    "sources": (list(protection.sources_view(SOURCES)), [SOCKET, "in the login of that account: cotenant session-helper"]),
    "node list": (list(node._list(NODES)), ["workstation-01", SOCKET, "cotenant up --node workstation-01"]),
    "doctor": (list(doctor._view(CHECKS)), ["freezer", "sudo mount -t cgroup2 none /sys/fs/cgroup/unified"]),
}  # fmt: skip


def on_terminal(parts: Iterable[RenderableType], width: int) -> list[str]:
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=True, width=width, color_system=None, highlight=False)
    for part in parts:
        show(terminal, part)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 132, 200])
@pytest.mark.parametrize("what", SHOWN)
def test_nothing_that_is_copied_is_broken_or_cut(what: str, width: int) -> None:
    parts, copied = SHOWN[what]
    lines = on_terminal(parts, width)
    for each in copied:
        assert any(each in line for line in lines), (each, lines)


@pytest.mark.parametrize("width", [40, 60, 80])
@pytest.mark.parametrize("what", SHOWN)
def test_a_line_is_longer_than_the_terminal_only_where_one_field_is(what: str, width: int) -> None:
    parts, _ = SHOWN[what]
    whole = {line.strip() for part in parts for line in on_terminal([part], 10_000)}
    for line in on_terminal([part for part in parts if not isinstance(part, str)], width):
        assert len(line.rstrip()) <= width or "  " not in line.strip() or line.strip() in whole, line


def test_a_rate_that_is_not_known_reads_as_unknown() -> None:
    nothing = {
        "rule": "trainer",
        "role": "progress",
        "state": "waiting",
        "path": "/e.jsonl",
        "rate": None,
        "why": "no event",
    }
    assert [line.split()[:4] for line in on_terminal(protection.sources_view([nothing]), 200)][1] == [
        "trainer", "progress", "waiting", "unknown",
    ]  # fmt: skip
    still = nothing | {"state": "ok", "rate": 0.0}
    assert "0/s" in on_terminal(protection.sources_view([still]), 200)[1]


def test_why_a_source_is_only_looked_at_every_250_ms_is_told() -> None:
    polled = SOURCES[0] | {
        "why": "",
        "watch": "poll",
        "watch_why": "a check every 250 ms: raise fs.inotify.max_user_watches",
    }
    assert "fs.inotify.max_user_watches" in "\n".join(on_terminal(protection.sources_view([polled]), 200))


@pytest.mark.parametrize("what", SHOWN)
def test_in_a_pipe_a_row_is_a_line(what: str) -> None:
    parts, copied = SHOWN[what]
    out = io.StringIO()
    for part in parts:
        show(console(out), part)
    said = out.getvalue()
    for each in copied:
        assert each in said
    assert all(line == line.rstrip() for line in said.splitlines())
    if what == "job list":
        assert len(said.splitlines()) == 1 + len(JOBS)


def test_a_table_that_fits_stays_a_table() -> None:
    lines = on_terminal(ab._list(RUNS), 160)
    assert lines[0].split() == ["run", "node", "rule", "work", "duty", "kind", "ending", "started", "ended"]
    assert len(lines) == 2


def test_one_that_does_not_fit_is_its_fields_and_each_has_its_name() -> None:
    made = table(("run", "why", "next"), [(RUN, "it waits\nand waits", "cotenant up"), ("r", "", None)], keep=["next"])
    assert on_terminal([made], 33) == [
        f"run {RUN}  why it waits",
        "    and waits  next cotenant up",
        "",
        "run r  next –",
    ]


def test_a_long_value_of_a_field_is_one_line() -> None:
    lines = on_terminal([fields([("remedy", RENEW), ("why", None)])], 40)
    assert lines == [f"remedy  {RENEW}", "why     –"]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=8), st.integers(-5, 200))
def test_widths_are_between_the_least_and_the_whole_and_fit(columns: list[tuple[int, int]], room: int) -> None:
    least, whole = [min(pair) for pair in columns], [max(pair) for pair in columns]
    widths = column_widths(whole, least, room)
    if sum(least) > room:
        assert widths is None
        return
    assert widths is not None
    assert all(low <= width <= high for low, width, high in zip(least, widths, whole, strict=True))
    assert sum(widths) == min(room, sum(whole)), "nothing is given away"
