"""What the end of an attempt means for its job. Pure: facts in, decision out.

Source: ``runner-protocol.md`` ("Exit codes") and ``protection.md`` (our own holds and evictions cost a job no attempt).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = [
    "SOFT_RETRIES_MAX",
    "ExitFacts",
    "Failure",
    "JobState",
    "Stop",
    "Verdict",
    "backoff_s",
    "judge_exit",
    "parse_failure",
]

JobState = Literal["waiting", "running", "held", "stopping", "ended"]
Fault = Literal["job", "host", "transient", "module", "none"]
Outcome = Literal["done", "failed", "cancelled", "thrown_away"]

EXIT_NEVER = 2
EXIT_HOST = 3
EXIT_TRANSIENT = 75
# A runner that answers "again later" for ever must not go round for ever: with the longest wait this is most of a day.
SOFT_RETRIES_MAX = 200
BACKOFF_BASE_S = 1.0
BACKOFF_MAX_S = 300.0


@dataclass(frozen=True, slots=True)
class Failure:
    """``failure.json``. ``retryable`` None: not said."""

    reason: str
    detail: str = ""
    fault: Literal["job", "host", "transient"] | None = None
    retryable: bool | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """The agent (or the launcher in its stead) ended the attempt."""

    reason: str
    requeue: bool
    fault: bool
    by: Literal["agent", "launcher"] = "agent"


@dataclass(frozen=True, slots=True)
class ExitFacts:
    """How an attempt ended.

    ``exit_code`` and ``signal`` are both None where nobody saw the end (the launcher was lost, the machine restarted).
    ``result`` says what lay in ``result.json``; ``result_why`` why it was not accepted. ``by_nudge``: the signal was the
    nudge of a control document, which no runner dies of while it works: it was leaving and had let go of its handler.
    """

    exit_code: int | None
    signal: int | None
    result: Literal["ok", "missing", "invalid"]
    failure: Failure | None
    stop: Stop | None = None
    result_why: str = ""
    by_nudge: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of the job.

    ``next`` "end" with ``outcome``, or "requeue". ``counts``: this attempt is one of ``retry.max_attempts``.
    """

    next: Literal["end", "requeue"]
    outcome: Outcome | None
    fault: Fault
    counts: bool
    reason: str
    wait: bool = False


def parse_failure(raw: object) -> Failure | None:
    """A ``failure.json`` document, or None where it is none (no object, or without a reason)."""
    if not isinstance(raw, Mapping):
        return None
    reason = raw.get("reason")
    if not isinstance(reason, str) or not reason:
        return None
    fault: Any = raw.get("fault")
    retryable = raw.get("retryable")
    detail = raw.get("detail", "")
    return Failure(
        reason=reason,
        detail=detail if isinstance(detail, str) else str(detail),
        fault=fault if fault in ("job", "host", "transient") else None,
        retryable=retryable if isinstance(retryable, bool) else None,
    )


def backoff_s(soft_retries: int) -> float:
    """Wait before the next attempt after the n-th retry without fault, in seconds: 1, 2, 4, … 300."""
    return float(min(BACKOFF_MAX_S, BACKOFF_BASE_S * 2.0 ** min(max(soft_retries - 1, 0), 20)))


def judge_exit(facts: ExitFacts, *, counted_before: int, max_attempts: int, soft_retries: int = 0) -> Verdict:
    """Decide what an ended attempt means.

    Args:
        facts: how it ended.
        counted_before: earlier attempts that count against ``max_attempts``.
        max_attempts: the stage's ``retry.max_attempts``.
        soft_retries: retries without fault in a row before this one (transient, host).
    """
    # the result is a runner's last word, so one that a nudge met on its way out after it has finished
    finished = facts.result == "ok" and (facts.exit_code == 0 or (facts.by_nudge and facts.failure is None))
    if finished:
        return Verdict("end", "done", "none", True, "result written")
    if facts.stop is not None:
        return _after_our_stop(facts.stop, counted_before, max_attempts)
    if facts.exit_code is None and facts.signal is None:
        return _softly("transient", "nobody saw the attempt end (launcher lost or machine restarted)", soft_retries)
    told = facts.failure
    if told is not None and facts.exit_code == EXIT_NEVER:
        return Verdict("end", "failed", "job", True, told.reason)
    if told is not None and facts.exit_code == EXIT_HOST:
        return _softly("host", told.reason, soft_retries)
    if told is not None and facts.exit_code == EXIT_TRANSIENT:
        return _softly("transient", told.reason, soft_retries)
    if facts.by_nudge:
        return _after_a_nudge(facts, counted_before, max_attempts, soft_retries)
    return _after_failure(facts, counted_before, max_attempts)


def _after_a_nudge(facts: ExitFacts, counted_before: int, max_attempts: int, soft_retries: int) -> Verdict:
    """Its exit code is lost, and through us: what it left is all there is to go by."""
    told = facts.failure
    if told is None:
        return _softly("transient", "a nudge (SIGUSR1) ended it: its handler was not installed any more", soft_retries)
    if told.fault in ("host", "transient"):
        return _softly(told.fault, told.reason, soft_retries)
    return _after_failure(facts, counted_before, max_attempts)


def _after_our_stop(stop: Stop, counted_before: int, max_attempts: int) -> Verdict:
    if not stop.fault:
        if stop.requeue:
            return Verdict("requeue", None, "none", False, stop.reason)
        return Verdict("end", "cancelled", "none", False, stop.reason)
    if stop.requeue and counted_before + 1 < max_attempts:
        return Verdict("requeue", None, "job", True, stop.reason)
    return Verdict("end", "failed", "job", True, stop.reason)


def _softly(fault: Fault, reason: str, soft_retries: int) -> Verdict:
    if soft_retries >= SOFT_RETRIES_MAX:
        return Verdict("end", "failed", fault, True, f"{reason} (given up after {soft_retries} retries)")
    return Verdict("requeue", None, fault, False, reason, wait=True)


def _after_failure(facts: ExitFacts, counted_before: int, max_attempts: int) -> Verdict:
    told = facts.failure
    fault: Fault = told.fault if told is not None and told.fault is not None else "module"
    if told is not None:
        reason = told.reason
    elif facts.signal is not None:
        reason = f"crashed with signal {facts.signal}"
    elif facts.exit_code == 0:
        reason = f"exit 0 without a usable result.json ({facts.result_why or facts.result})"
    else:
        reason = f"exit {facts.exit_code} without failure.json"
    if told is not None and told.retryable is False:
        return Verdict("end", "failed", fault, True, reason)
    if counted_before + 1 < max_attempts:
        return Verdict("requeue", None, fault, True, reason, wait=True)
    return Verdict("end", "failed", fault, True, reason)
