"""A program of the owner's that prints the rate: run in a thread, as the section's owner, with a clean environment, 10 s at most.

The loop only asks whether an answer is there; a program that hangs, even in the kernel, hangs a thread.
"""

from __future__ import annotations

import math
import os
import pwd
import select
import shlex
import subprocess
import threading
import time
from dataclasses import dataclass

from nodes.child import end_group, ended_within
from nodes.sources.unreadable import Unreadable
from nodes.sources.views import ProgressView
from policies.sources.progress import ProgressTrack

__all__ = ["Answer", "Owner", "Probe", "run_probe"]

LIMIT_S = 10.0
MAX_OUTPUT_BYTES = 64 * 1024
SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"
_CODE = "PROTECTION_SOURCE_UNREADABLE"


@dataclass(frozen=True, slots=True)
class Owner:
    """The account that a section is of: its probes run as it, ``~`` is its home."""

    uid: int
    home: str

    @classmethod
    def of(cls, uid: int) -> Owner:
        """A uid without an entry has no home: ``~`` then names a place that is not there."""
        try:
            return cls(uid, pwd.getpwuid(uid).pw_dir)
        except KeyError:
            return cls(uid, f"/nonexistent/home-of-uid-{uid}")


@dataclass(frozen=True, slots=True)
class Answer:
    """What one run of a probe gave: a rate per second, or why none."""

    rate: float | None
    bad: Unreadable | None


class Probe:
    """One rule's probe: at most one run at a time, the next no sooner than ``every_s`` after the last began."""

    def __init__(self, rule_id: str, argv: tuple[str, ...], every_s: float, owner: Owner) -> None:
        self.rule_id = rule_id
        self.argv = argv
        self.every_s = every_s
        self.owner = owner
        self.track = ProgressTrack()
        self.unreadable: Unreadable | None = Unreadable(_CODE, "the probe has not answered yet", "wait for its answer")
        self._thread: threading.Thread | None = None
        self._answer: Answer | None = None
        self._began_s = -math.inf

    @property
    def path(self) -> str:
        return shlex.join(self.argv)

    def view(self) -> ProgressView:
        bad = self.unreadable
        why = (
            bad.why
            if bad is not None
            else ""
            if self.track.points
            else "nothing was read yet: waiting for the first rate"
        )
        code, remedy = (bad.code, bad.remedy) if bad is not None else ("", "")
        return ProgressView(self.track, bad is None, why, code, remedy, self.path, "exec", "rate")

    def poll(self, now_s: float) -> None:
        """Take an answer that has come; begin the next run where it is time. Never waits."""
        if self._thread is not None:
            if self._thread.is_alive():
                return
            self._thread = None
            answer, self._answer = self._answer, None
            self._take(answer or Answer(None, _bad("its run failed", self.argv)), now_s)
        if now_s - self._began_s >= self.every_s:
            self._began_s = now_s
            self._thread = threading.Thread(target=self._run, name=f"probe of {self.rule_id}", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        self._answer = run_probe(self.argv, self.owner)

    def _take(self, answer: Answer, now_s: float) -> None:
        self.unreadable = answer.bad
        if answer.rate is None:
            self.track.break_here()
        else:
            self.track.add_rate(now_s, answer.rate)


def run_probe(argv: tuple[str, ...], owner: Owner, limit_s: float = LIMIT_S) -> Answer:
    """Run it and read the last line that it printed. Blocks for ``limit_s`` at most (and as long as its start and its end take)."""
    as_owner = {} if owner.uid == os.geteuid() else _as_owner(owner)
    if as_owner is None:
        why = f"it must run as uid {owner.uid}, and the agent (uid {os.geteuid()}) may not start processes of others"
        return Answer(None, _bad(why, argv, "run the agent as that account or as root, or use a jsonl or log source"))
    name = _name(owner.uid)
    env = {"PATH": SEARCH_PATH, "HOME": owner.home, "LANG": "C.UTF-8", "USER": name, "LOGNAME": name}
    try:
        process = subprocess.Popen(
            argv,
            cwd="/",
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            umask=0o077,
            **as_owner,  # type: ignore[call-overload]
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return Answer(None, _bad(f"it cannot be started: {error}", argv))
    try:
        printed, whole = _read(process, limit_s)
    finally:
        gone = end_group(process)
        assert process.stdout is not None
        process.stdout.close()
    if not gone:
        return Answer(
            None, _bad(f"process {process.pid} survives SIGKILL", argv, "see what it waits for in the kernel")
        )
    if not whole:
        return Answer(None, _bad(f"it did not end within {limit_s:g} s, or printed without end", argv))
    if process.returncode != 0:
        return Answer(None, _bad(f"it ended with status {process.returncode}", argv))
    return _rate(printed, argv)


def _read(process: subprocess.Popen[bytes], limit_s: float) -> tuple[bytes, bool]:
    """What it printed until it ended, and whether that is all."""
    assert process.stdout is not None
    fd, printed, until_s = process.stdout.fileno(), b"", time.monotonic() + limit_s
    while len(printed) <= MAX_OUTPUT_BYTES:
        left_s = until_s - time.monotonic()
        if left_s <= 0.0 or not select.select([fd], [], [], left_s)[0]:
            return printed, False
        more = os.read(fd, 4096)
        if not more:
            return printed, ended_within(process, until_s - time.monotonic())
        printed += more
    return printed, False


def _rate(printed: bytes, argv: tuple[str, ...]) -> Answer:
    lines = printed.decode("utf-8", "replace").split()
    try:
        rate = float(lines[-1])
    except (IndexError, ValueError):
        return Answer(None, _bad("the last word that it printed is no number", argv))
    if not math.isfinite(rate) or rate < 0.0:
        return Answer(None, _bad(f"it printed {rate}, which is no rate", argv))
    return Answer(rate, None)


def _bad(why: str, argv: tuple[str, ...], remedy: str = "") -> Unreadable:
    return Unreadable(_CODE, f"probe {shlex.join(argv)}: {why}", remedy or f"try it: env -i {shlex.join(argv)}")


def _as_owner(owner: Owner) -> dict[str, object] | None:
    """Arguments that start a process as the owner; None where this process may not."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwuid(owner.uid)
    except KeyError:
        return {"user": owner.uid, "group": owner.uid, "extra_groups": []}
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return {"user": owner.uid, "group": entry.pw_gid, "extra_groups": groups}


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
