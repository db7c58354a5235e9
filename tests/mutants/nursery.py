"""A process that has the libraries loaded and runs pytest in a child for each line it is sent.

A fresh Python needs longer for its imports than most mutants' tests run. Nothing of the project is imported before the fork:
each child reads the code as it lies there then. Lines are JSON: pytest's arguments in; exit code and output out.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile

import pytest
from hypothesis import HealthCheck, Phase, settings

LIBRARIES = ("hypothesis.strategies", "psutil", "pydantic", "pydantic_core", "scipy.special", "scipy.stats")


def main() -> None:
    for name in LIBRARIES:
        importlib.import_module(name)
    # The same inputs each time, and no search for the smallest one that fails: red is red.
    settings.register_profile(
        "mutants",
        derandomize=True,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("mutants")
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        with tempfile.TemporaryFile("w+", errors="replace") as said:
            child = os.fork()
            if child == 0:
                for number in (1, 2):
                    os.dup2(said.fileno(), number)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                code = pytest.main(json.loads(line))
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            said.seek(0)
            answers.write(json.dumps([code, said.read()]) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
