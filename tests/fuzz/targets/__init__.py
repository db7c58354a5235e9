"""What strangers and owners may hand us, in any shape: a strategy for each kind of input, and what must hold of each.

``check`` of a target takes one input, calls the code that reads it, and raises where an answer is not among those that the
code may give. A crash is any other exception.
"""

from __future__ import annotations

from tests.fuzz.targets.files import FILES
from tests.fuzz.targets.owners import OWNERS
from tests.fuzz.targets.protocol import PROTOCOL
from tests.fuzz.targets.shapes import Target
from tests.fuzz.targets.state import STATE

__all__ = ["TARGETS", "Target"]

TARGETS: dict[str, Target] = {**OWNERS, **PROTOCOL, **FILES, **STATE}
