"""A source as a row, as the verb ``sources`` gives it: where it is, whether it reads, and what it says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from nodes.sources.views import PhaseView, ProgressView
from policies.sources.timed import check_timed
from policies.sources.windows import live_rate

__all__ = ["phase_row", "progress_row"]


def phase_row(rule: str, index: int, view: PhaseView, more: Mapping[str, Any]) -> dict[str, Any]:
    """``more``: what its kind of source has beside."""
    return _row(rule, "phase", index, view) | {"phase": view.state, **more}


def progress_row(
    rule: str, view: ProgressView, window_s: float, now_s: float, more: Mapping[str, Any]
) -> dict[str, Any]:
    """With its rate over ``window_s`` (or what its cadence needs) and whether it looks timed. ``more``: as for a phase.

    It is "waiting" while it could be read and nothing has come yet: no rate is known then, which is not a rate of zero.
    """
    rate = live_rate(view.track, now_s, window_s)
    timed = check_timed([] if view.kind == "exec" else view.track.recent_reads())
    waits = view.readable and view.track.points == 0
    return _row(rule, "progress", 0, view) | {
        # a file that opens says nothing of the program until it has brought an event
        "state": "waiting" if waits else "ok" if view.readable else "unreadable",
        "rate": rate.per_s if view.readable else None,
        "rate_window_s": rate.window_s,
        "why": view.why or rate.why,
        "remedy": view.remedy or ("see that the program runs and writes what the section counts" if waits else ""),
        "counts": view.counts,
        "timed": timed.looks_timed,
        "timed_why": timed.words,
        **more,
    }


def _row(rule: str, role: str, index: int, view: ProgressView | PhaseView) -> dict[str, Any]:
    return {
        "rule": rule,
        "role": role,
        "index": index,
        "kind": view.kind,
        "path": view.path,
        "pattern": view.path,
        "state": "ok" if view.readable else "unreadable",
        "code": view.code,
        "why": view.why,
        "remedy": view.remedy,
        "rate": None,
        "phase": None,
        "reader": view.reader,
        "uid": os.geteuid(),
        "watch": "",
        "watch_why": "",
        "timed": None,
        "damage": {},
        "skipped": {},
        "latency_p50_ms": None,
        "latency_p99_ms": None,
    }
