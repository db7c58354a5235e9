"""The runner of llmserve: ``run`` and ``doctor`` of runner protocol 1."""

from __future__ import annotations

import os
import sys

# `python -I` keeps the script's own folder off the path
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import argparse

import batch
import doctor
import selftest
from envelope import BadSpec, Failed, fail, read_spec, succeed

from cotenant.sdk.control import Control, Stopped

STAGES = {"selftest": selftest.run, "batch": batch.run}


def run(args: argparse.Namespace) -> int:
    ctl = Control(args.workdir)  # first: it installs the nudge's handler
    try:
        spec = read_spec(args.spec)
        stage = STAGES.get(spec["stage"])
        if stage is None:
            raise BadSpec(f"there is no stage {spec['stage']!r}; there is: {', '.join(STAGES)}")
        payload, effective, provenance = stage(ctl, spec.get("payload"), args.events)
    except Stopped:
        return ctl.acknowledge_stop()
    except BadSpec as error:
        return fail(args.workdir, "llmserve/bad-spec", str(error), fault="job", code=2)
    except Failed as error:
        return fail(args.workdir, error.reason, error.detail, fault=error.fault, code=error.code)
    return succeed(args.out, payload, effective, provenance)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="llmserve")
    verbs = parser.add_subparsers(dest="verb", required=True)
    runner = verbs.add_parser("run")
    runner.add_argument("--spec", required=True)
    runner.add_argument("--workdir", required=True)
    runner.add_argument("--out", required=True)
    runner.add_argument("--events")
    checker = verbs.add_parser("doctor")
    checker.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    return run(args) if args.verb == "run" else doctor.main()


if __name__ == "__main__":
    sys.exit(main())
