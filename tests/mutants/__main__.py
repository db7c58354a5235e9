"""``python -m tests.mutants [NAME…]``: every mutant, or those whose name holds one of the words; exit status 1 where one survives."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.mutants.catalogue import ALL
from tests.mutants.runner import Tree, run


def main(words: list[str]) -> int:
    chosen = [mutant for mutant in ALL if not words or any(word in mutant.name for word in words)]
    with tempfile.TemporaryDirectory(prefix="cotenant-mutants-") as folder:
        tree = Tree(Path(folder))
        if not tree.imports_itself():
            print("the copy does not import itself: an installed tree is in the way", file=sys.stderr)
            return 2
        code, said = tree.test(sorted({test for mutant in chosen for test in mutant.tests}))
        if code != 0:
            print(f"not green without a mutant: {said}", file=sys.stderr)
            return 2
        bad = 0
        for mutant in chosen:
            outcome = run(tree, mutant)
            bad += outcome.state != "killed"
            print(
                f"{outcome.state:<9} {mutant.name}" + ("" if outcome.state == "killed" else f": {outcome.said}"),
                flush=True,
            )
    print(f"{len(chosen) - bad} of {len(chosen)} mutants killed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
