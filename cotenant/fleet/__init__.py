"""The Prefect side of a machine: the embedded server, pool, queues, deployments, workers and flow runs.

Imported by the command line only; nothing here is needed to protect a program. Names are looked up when they are first used
(PEP 562): who starts an agent must not wait for the import of Prefect, which takes seconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_WHERE = {
    "PrefectServer": "server",
    "WorkerProcess": "worker_process",
    "approve": "runs",
    "cancel_ended": "runs",
    "cancel_flow": "runs",
    "deploy": "deployments",
    "ensure_daily_check": "deployments",
    "ensure_pool": "deployments",
    "ensure_queue": "deployments",
    "flow_answer": "runs",
    "flow_state": "runs",
    "keep_house": "house",
    "queues": "deployments",
    "review_text": "runs",
    "run_flow": "runs",
    "ui_link": "runs",
    "workers": "deployments",
}

__all__ = [*_WHERE]


def __getattr__(name: str) -> Any:
    try:
        module = _WHERE[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(import_module(f"{__name__}.{module}"), name)
