"""Why a source cannot be read, and what its owner can do about it."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass

__all__ = [
    "Unreadable",
    "because_denied",
    "because_failed",
    "because_fault",
    "because_missing",
    "because_odd",
    "because_slow",
]

_HOMES = ("/home/", "/Users/", "/root/")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """``code`` is a timeline code; ``remedy`` a command or the next step."""

    code: str
    why: str
    remedy: str


def because_missing(pattern: str, was: str | None = None) -> Unreadable:
    why = f"no file matches {pattern}" if was is None else f"{was} was deleted or moved away, and no other file matches"
    return Unreadable(
        "PROTECTION_SOURCE_UNREADABLE", why, "start the program that writes it, or correct the path in the section"
    )


def because_odd(path: str, kind: str) -> Unreadable:
    return Unreadable(
        "PROTECTION_SOURCE_UNREADABLE",
        f"{path} is {kind}, not a regular file",
        "name a regular file that lines are added to",
    )


def because_fault(path: str, why: str) -> Unreadable:
    return Unreadable("PROTECTION_SOURCE_UNREADABLE", f"{path}: {why}", "have the program write UTF-8")


def because_failed(words: str) -> Unreadable:
    return Unreadable("PROTECTION_SOURCE_UNREADABLE", words, "see that the file system is mounted and answers")


def because_slow(lines: int) -> Unreadable:
    return Unreadable(
        "PROTECTION_SOURCE_UNREADABLE",
        f"log_regex took too long and was given up on {lines} lines, so what it counts is too little",
        "write log_regex without repetitions inside repetitions, such as (a+)+, and set the section anew",
    )


def because_denied(
    path: str, owner_home: str | None, helper_socket: str | None = None, owner_uid: int | None = None
) -> Unreadable:
    """``path``: the file that may not be read or the directory that may not be searched.

    ``helper_socket``: where a session helper could report it; None where this agent serves none. ``owner_uid``: the
    account that may not, where that is the section's owner and not this one.
    """
    if owner_uid is not None:
        return Unreadable(
            "PROTECTION_SOURCE_UNREADABLE",
            f"the section's owner (uid {owner_uid}) may not read {path}, so it is not read for them",
            f"let that account read it: setfacl does not count; chmod o+r {shlex.quote(path)} or chown",
        )
    homes = (*((owner_home.rstrip("/") + "/",) if owner_home else ()), *_HOMES)
    if any((path + "/").startswith(home) for home in homes):
        why = f"{path} lies in a home that the agent's account (uid {os.geteuid()}) may not read"
        if helper_socket is not None:
            remedy = f"in that account's login: cotenant session-helper --socket {shlex.quote(helper_socket)}"
            return Unreadable("PROTECTION_SOURCE_NEEDS_HELPER", f"{why}, and no session helper reports it", remedy)
        return Unreadable(
            "PROTECTION_SOURCE_NEEDS_HELPER",
            why,
            f"run the agent as that account, or let it read the file: setfacl -m u:{os.geteuid()}:rX {shlex.quote(path)}",
        )
    mode = "a+rx" if os.path.isdir(path) else "a+r"
    return Unreadable(
        "PROTECTION_SOURCE_UNREADABLE",
        f"the agent's account (uid {os.geteuid()}) may not read {path}",
        f"chmod {mode} {shlex.quote(path)}",
    )
