"""``python -m tests.mutants [WORD…]``: every mutant, or those of the subjects named, or whose name holds one of the words.

Exit status 1 where one survives.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.mutants.catalogue import SUBJECTS
from tests.mutants.runner import Tree, run


def main(words: list[str]) -> int:
    if any(word.startswith("-") for word in words):
        print(f"{__doc__}\nSubjects: {', '.join(SUBJECTS)}.")
        return 0 if words in (["-h"], ["--help"]) else 2
    chosen = [
        mutant
        for subject, mutants in SUBJECTS.items()
        for mutant in mutants
        if not words or subject in words or any(word in mutant.name for word in words)
    ]
    if not chosen:
        print(f"no mutant has {' or '.join(words)} in its name; subjects: {', '.join(SUBJECTS)}", file=sys.stderr)
        return 2
    with (
        tempfile.TemporaryDirectory(prefix="cotenant-mutants-") as folder,
        contextlib.closing(Tree(Path(folder))) as tree,
    ):
        if not tree.imports_itself():
            print("the copy does not import itself: an installed tree is in the way", file=sys.stderr)
            return 2
        code, said = tree.test(sorted({test for mutant in chosen for test in mutant.tests}))
        if code != 0:
            print(f"not green without a mutant: {said}", file=sys.stderr)
            return 2
        bad = 0
        for mutant in chosen:
            began_s = time.monotonic()
            outcome = run(tree, mutant)
            bad += outcome.state != "killed"
            print(
                f"{outcome.state:<9} {time.monotonic() - began_s:5.1f} s  {mutant.name}"
                + ("" if outcome.state == "killed" else f": {outcome.said}"),
                flush=True,
            )
    print(f"{len(chosen) - bad} of {len(chosen)} mutants killed")
    return 1 if bad else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that copy and children go, too
    sys.exit(main(sys.argv[1:]))
