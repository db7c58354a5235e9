"""A runner of protocol 1: one job a process, ``run`` and ``doctor``. Replace ``Chain`` and ``checked`` with your work."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from typing import Any, Literal

from cotenant.sdk.control import Control, Stopped
from cotenant.sdk.duty import Duty

SHORT, VERSION = "skeleton", "0.1.0"
CAPABILITIES = ["cancellable", "cooperative_pause", "cooperative_throttle", "progress_events"]
LINKS_PER_UNIT = 5000


class Chain:
    """The stand-in for a model: each unit is a few milliseconds of hashing on the CPU."""

    device: Literal["gpu", "cpu"] = "cpu"  # "gpu" once a unit is work of a GPU

    def __init__(self, seed: str) -> None:
        self.last = hashlib.sha256(seed.encode()).digest()

    def unit(self) -> None:
        """One unit of device work; it returns when the device has finished it."""
        for _ in range(LINKS_PER_UNIT):
            self.last = hashlib.sha256(self.last).digest()


class BadSpec(ValueError):
    """A spec that can never succeed."""


def checked(payload: Any) -> tuple[str, int]:
    if not isinstance(payload, dict) or set(payload) - {"seed", "units"}:
        raise BadSpec("the payload is an object with seed and units")
    seed, units = payload.get("seed", ""), payload.get("units", 1)
    if not isinstance(seed, str) or not isinstance(units, int) or isinstance(units, bool) or units < 1:
        raise BadSpec("seed is a text and units a number from 1")
    return seed, units


def run(args: argparse.Namespace) -> int:
    ctl = Control(args.workdir)  # first: it installs the nudge's handler
    try:
        with open(args.spec, encoding="utf-8") as file:
            spec = json.load(file)
        seed, units = checked(spec.get("payload"))
        chain = Chain(seed)
        with Duty(ctl, events=args.events, device=chain.device) as duty:
            ctl.phase("work")
            for _ in range(units):
                ctl.safe_point()  # waits while paused; raises Stopped on a stop
                with duty.unit():  # waits until the duty allows a unit
                    chain.unit()
    except Stopped:
        return ctl.acknowledge_stop()
    except BadSpec as error:
        replace(
            os.path.join(args.workdir, "failure.json"),
            {"reason": f"{SHORT}/bad-spec", "detail": str(error), "fault": "job"},
        )
        return 2
    replace(
        args.out,
        {
            "envelope": 1,
            "schema": f"{SHORT}/result@1",
            "module_version": VERSION,
            "protocol": 1,
            "effective": {"units": units},
            "provenance": {},
            "artifacts": [],
            "payload": {"last": chain.last.hex()},
        },
    )
    return 0


def replace(path: str, document: dict[str, Any]) -> None:
    """Whole or not at all."""
    with open(path + ".tmp", "w", encoding="utf-8") as file:
        json.dump(document, file)
    os.replace(path + ".tmp", path)


def doctor() -> int:
    """Can this node run the module? Name each thing that it needs and whether it is there."""
    data = os.environ.get("OARBANK_MODULE_DATA", os.getcwd())
    checks = [{"name": "data folder", "ok": os.access(data, os.W_OK), "detail": data}]
    healthy = all(check["ok"] for check in checks)
    report = {
        "runner_protocol": {"supported": [1]},
        "health": "healthy" if healthy else "unhealthy",
        "capabilities": CAPABILITIES,
        "attrs": {},
        "checks": checks,
    }
    print(json.dumps(report))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers(dest="verb", required=True)
    runner = verbs.add_parser("run")
    for option in ("--spec", "--workdir", "--out"):
        runner.add_argument(option, required=True)
    runner.add_argument("--events")
    verbs.add_parser("doctor").add_argument("--json", action="store_true")
    args = parser.parse_args()
    return run(args) if args.verb == "run" else doctor()


if __name__ == "__main__":
    sys.exit(main())
