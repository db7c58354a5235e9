"""How old certificates are at least, on a clock that nobody sets: the wall clock that is set back makes none of them younger.

While the agent runs a certificate ages by the time since boot, which is kept for the agent's next process every few minutes and at its
end. What the wall clock says is taken over once an hour: a clock that was far ahead for a moment so ends no certificate.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Iterable
from datetime import datetime, timedelta

from nodes.clock import boottime_s, utc_iso, utc_now
from nodes.journal import Journal
from policies.certificate import Certificate
from policies.instants import aware_utc

__all__ = ["CertificateAges"]

log = logging.getLogger(__name__)

FACT = "certificates_seen"
TAKE_OVER_EVERY_S = 3600.0
KEEP_EVERY_S = 300.0


class CertificateAges:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        now_s = self._taken_over_s = self._kept_s = boottime_s()
        self._since: dict[str, tuple[datetime, float]] = {}
        try:
            for name, at in (journal.fact(FACT) or {}).items():
                self._since[name] = (aware_utc(datetime.fromisoformat(at)), now_s)
        except (ValueError, TypeError, AttributeError, sqlite3.Error) as error:
            log.warning("how old certificates are cannot be read (%s): it is what the wall clock says", error)

    def seen(self, certificate: Certificate) -> datetime:
        """The latest time at which it is known to have been there."""
        now_s = boottime_s()
        at, since_s = self._since.setdefault(certificate.certificate, (certificate.issued_at, now_s))
        return at + timedelta(seconds=now_s - since_s)

    def take_over(self, certificates: Iterable[Certificate]) -> None:
        """Believe the wall clock, where it is time to; keep what is known, where it is time to."""
        now_s = boottime_s()
        if now_s - self._taken_over_s >= TAKE_OVER_EVERY_S:
            self._taken_over_s = now_s
            for certificate in certificates:
                self._since[certificate.certificate] = (max(utc_now(), self.seen(certificate)), now_s)
            self.keep()
        elif now_s - self._kept_s >= KEEP_EVERY_S:
            self.keep()

    def keep(self) -> None:
        now_s = self._kept_s = boottime_s()
        known = {name: utc_iso(at + timedelta(seconds=now_s - since_s)) for name, (at, since_s) in self._since.items()}
        with contextlib.suppress(sqlite3.Error):  # it is kept again soon
            self._journal.set_fact(FACT, known)
