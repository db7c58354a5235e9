"""Stands in for a flow's process: begins (or resumes) a run and asks for blocks until it is ended. Prints what it gets."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from nodes.client import AgentClient, socket_path
from nodes.identity import own_id
from policies.harness.schedule import coin

if __name__ == "__main__":
    home, run, spec = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    client = AgentClient(socket_path(home, "local"))
    begun = client.call("run_begin", run=run, spec=spec, holder=own_id().as_dict(), reviewed_by="test")
    rows = begun["run"]["blocks"]
    print(json.dumps({"resumed": begun["resumed"], "blocks": [row["number"] for row in rows]}), flush=True)
    number = max((row["number"] for row in rows), default=0)
    while True:
        number += 1
        row = client.call("run_block", run=run, number=number, order=coin(spec["seed"], number), _timeout_s=600)
        print(json.dumps({"number": row["number"], "state": row["state"], "reason": row["reason"]}), flush=True)
