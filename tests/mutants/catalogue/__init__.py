"""The mutants, one module a subject. ``ALL`` joins them."""

from __future__ import annotations

from tests.mutants.catalogue.ahead import AHEAD
from tests.mutants.catalogue.batches import BATCHES
from tests.mutants.catalogue.certificates import CERTIFICATES
from tests.mutants.catalogue.conformance import CONFORMANCE
from tests.mutants.catalogue.governor import GOVERNOR
from tests.mutants.catalogue.harness import HARNESS
from tests.mutants.catalogue.jobs import JOBS
from tests.mutants.catalogue.meters import METERS
from tests.mutants.catalogue.protection import PROTECTION
from tests.mutants.catalogue.sdk import SDK
from tests.mutants.catalogue.sources import SOURCES
from tests.mutants.runner import Mutant

__all__ = ["ALL", "SUBJECTS"]

SUBJECTS: dict[str, list[Mutant]] = {
    "harness": HARNESS,
    "governor": GOVERNOR,
    "protection": PROTECTION,
    "certificates": CERTIFICATES,
    "meters": METERS,
    "sources": SOURCES,
    "jobs": JOBS,
    "ahead": AHEAD,
    "batches": BATCHES,
    "sdk": SDK,
    "conformance": CONFORMANCE,
}
ALL: list[Mutant] = [mutant for mutants in SUBJECTS.values() for mutant in mutants]
