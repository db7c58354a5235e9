"""The Prefect side of a machine: the embedded server, pool, queues, deployments, workers and flow runs.

Imported by the command line only; nothing here is needed to protect a program.
"""

from __future__ import annotations

from cotenant.fleet.deployments import deploy, ensure_pool, ensure_queue
from cotenant.fleet.runs import approve, cancel_flow, flow_state, run_flow, ui_link
from cotenant.fleet.server import PrefectServer
from cotenant.fleet.worker_process import WorkerProcess

__all__ = [
    "PrefectServer",
    "WorkerProcess",
    "approve",
    "cancel_flow",
    "deploy",
    "ensure_pool",
    "ensure_queue",
    "flow_state",
    "run_flow",
    "ui_link",
]
