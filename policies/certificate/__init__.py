"""Co-tenancy certificates: what one names, whether it still holds, what it covers, and what repetition costs."""

from policies.certificate.coverage import Coverage, admits, covers
from policies.certificate.fingerprint import Fingerprint, Gpu, Program, differences, other_program
from policies.certificate.issue import issue
from policies.certificate.model import (
    FILE_UNKNOWN,
    VALID_FOR,
    Certificate,
    CertifiedWork,
    Companion,
    Earlier,
    check_digest,
    rule_digest,
    sign,
)
from policies.certificate.repetition import (
    Forgotten,
    PastRun,
    Standing,
    check_when,
    comes_after,
    revocations,
    standing,
    unreadable_runs,
)
from policies.certificate.validity import Validity, validity

__all__ = [
    "FILE_UNKNOWN",
    "VALID_FOR",
    "Certificate",
    "CertifiedWork",
    "Companion",
    "Coverage",
    "Earlier",
    "Fingerprint",
    "Forgotten",
    "Gpu",
    "PastRun",
    "Program",
    "Standing",
    "Validity",
    "admits",
    "check_digest",
    "check_when",
    "comes_after",
    "covers",
    "differences",
    "issue",
    "other_program",
    "revocations",
    "rule_digest",
    "sign",
    "standing",
    "unreadable_runs",
    "validity",
]
