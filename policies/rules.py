"""Which processes a rule is about, and when it is active (protection.md).

A process that cannot be judged is never quietly left out: where no readable fact rules it out it counts for holding
fleet work, and for nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import PurePath
from typing import Literal

from policies import patterns
from policies.section.models import Cooldown, Match, Rule, Tree

__all__ = [
    "Group",
    "PidStart",
    "ProcInfo",
    "RuleEvent",
    "RuleState",
    "Verdict",
    "Verdicts",
    "expand_home",
    "group",
    "groups",
    "matches",
    "start_rule",
    "step_rule",
]

Verdict = Literal["yes", "no", "unreadable"]

# Linux keeps 15 bytes of a process name (TASK_COMM_LEN less its NUL).
COMM_BYTES = 15


# A pid and its start, in clock ticks after boot; None: the start could not be read.
PidStart = tuple[int, int | None]


@dataclass(frozen=True, slots=True)
class ProcInfo:
    """One process of a snapshot. Every fact may be None: it could not be read, which says nothing about it.

    ``start_ticks`` are clock ticks after boot (field 22 of /proc/PID/stat), untouched by clock changes. ``exe`` is the
    executable's path, ``name`` the kernel's (at most 15 bytes on Linux), ``argv`` the arguments as they stand now.
    """

    pid: int
    start_ticks: int | None
    ppid: int | None
    name: str | None = None
    exe: str | None = None
    argv: tuple[str, ...] | None = None
    uid: int | None = None
    kernel_thread: bool = False

    @property
    def pid_start(self) -> PidStart:
        """Which process it is, within one boot."""
        return self.pid, self.start_ticks

    def same_program(self, other: ProcInfo) -> bool:
        """Whether both are known to run one executable with the same arguments (a fork without exec)."""
        known = self.exe is not None and self.argv is not None
        return known and self.exe == other.exe and self.argv == other.argv


@dataclass(frozen=True, slots=True)
class Group:
    """The processes of a rule, each ordered by pid.

    ``roots`` match by themselves, without forks of one of them: their fingerprint and their deaths are the program's.
    ``members`` are the program: every match, and with ``descendants`` the children. ``unreadable`` could not be judged.
    ``holding`` counts for holding fleet work: members, unreadable ones and what may descend from either.
    """

    roots: tuple[ProcInfo, ...] = ()
    members: tuple[ProcInfo, ...] = ()
    unreadable: tuple[ProcInfo, ...] = ()
    holding: tuple[ProcInfo, ...] = ()

    @property
    def running(self) -> bool:
        """Whether the program certainly runs."""
        return bool(self.roots)

    @property
    def present(self) -> bool:
        """Whether the rule's condition holds: the program runs, or a process that may be it does."""
        return bool(self.holding)

    @property
    def doubted(self) -> tuple[ProcInfo, ...]:
        """Unreadable processes for which it cannot be told what the program is: none is certain, or nothing that can be
        read sets them apart from those that are. One of another account and another name counts for holding alone.
        """
        names, uids = {proc.name for proc in self.roots}, {proc.uid for proc in self.roots}
        if not self.roots or None in names or None in uids:
            return self.unreadable
        return tuple(proc for proc in self.unreadable if proc.name in {None, *names} or proc.uid in {None, *uids})


def expand_home(match: Match, home: str) -> Match:
    """``match`` with a leading ``~/`` of its paths in ``home``, the home of the section's owner."""

    def expanded(text: str | None) -> str | None:
        return home.rstrip("/") + text[1:] if text is not None and text.startswith("~/") else text

    return match.model_copy(
        update={"path_prefix": expanded(match.path_prefix), "path_contains": expanded(match.path_contains)}
    )


def matches(match: Match, proc: ProcInfo) -> Verdict:
    """Whether every given key of ``match`` holds for ``proc``. Kernel threads match nothing.

    One readable fact that fails says "no", whatever else could not be read.
    """
    if proc.kernel_thread:
        return "no"
    verdicts = set(_each(match, proc))
    if "no" in verdicts or not verdicts:
        return "no"
    return "unreadable" if "unreadable" in verdicts else "yes"


def _each(match: Match, proc: ProcInfo) -> Iterator[Verdict]:
    if match.path_prefix is not None:
        yield _verdict(None if proc.exe is None else proc.exe.startswith(match.path_prefix))
    if match.path_contains is not None:
        yield _contains(match.path_contains, proc)
    if match.argv_regex is not None:
        joined = None if proc.argv is None else " ".join(proc.argv)
        yield _verdict(None if joined is None else _found(match.argv_regex, joined))
    if match.name is not None:
        yield _named(match.name, proc)


def _verdict(holds: bool | None) -> Verdict:
    return "unreadable" if holds is None else "yes" if holds else "no"


def _found(pattern: str, text: str) -> bool | None:
    """None where the search was given up: that process cannot be judged by this key."""
    try:
        return patterns.search(_compiled(pattern), text) is not None
    except patterns.TooLong:
        return None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _contains(text: str, proc: ProcInfo) -> Verdict:
    where = (proc.exe, None if proc.argv is None else " ".join(proc.argv))
    if any(text in readable for readable in where if readable is not None):
        return "yes"
    return "unreadable" if None in where else "no"


def _named(name: str, proc: ProcInfo) -> Verdict:
    """A kernel name of 15 bytes may be the beginning of a longer one, which the path and the arguments complete."""
    if proc.name is None:
        return "unreadable"
    if proc.name == name:
        return "yes"
    kept = proc.name.encode(errors="surrogateescape")
    if len(kept) != COMM_BYTES or not name.encode(errors="surrogateescape").startswith(kept):
        return "no"
    # argv[1] is the script's name where an interpreter runs it
    texts = [proc.exe, *(proc.argv[:2] if proc.argv is not None else [None])]
    longer = {PurePath(text).name for text in texts if text is not None}
    if name in longer:
        return "yes"
    if None in texts:
        return "unreadable"
    # all is readable: another long name completes this one, or none does and the 15 bytes are all there is to compare
    return "no" if any(each.startswith(proc.name) and each != proc.name for each in longer) else "yes"


class Verdicts:
    """What each rule's ``match`` said of each process, kept from one look to the next: a process whose facts are the same
    object as before is not matched again. Only for speed: the answers are those of ``matches``.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[Match, Mapping[int, ProcInfo], dict[int, Verdict]]] = {}
        self._changed: tuple[Mapping[int, ProcInfo], Mapping[int, ProcInfo], list[ProcInfo]] | None = None

    def of(self, rule: Rule, table: Mapping[int, ProcInfo]) -> dict[int, Verdict]:
        """Verdict by pid, of those processes alone of which it is not "no".

        What is no longer in ``table`` is forgotten, and all of a rule whose ``match`` is another. ``table`` is kept, and must
        stay as it is.
        """
        nothing: tuple[Match, Mapping[int, ProcInfo], dict[int, Verdict]] = (rule.match, {}, {})
        match, before, told = self._known.get(rule.id, nothing)
        if match != rule.match:
            before, told = {}, {}
        now = {pid: verdict for pid, verdict in told.items() if table.get(pid) is before[pid]}
        for proc in self._new_in(before, table):
            verdict = matches(rule.match, proc)
            if verdict != "no":
                now[proc.pid] = verdict
        self._known[rule.id] = (rule.match, table, now)
        return now

    def _new_in(self, before: Mapping[int, ProcInfo], table: Mapping[int, ProcInfo]) -> list[ProcInfo]:
        """Found once for all rules that look from one table to the next."""
        if self._changed is None or self._changed[0] is not before or self._changed[1] is not table:
            self._changed = (before, table, [proc for pid, proc in table.items() if before.get(pid) is not proc])
        return self._changed[2]


def group(
    rule: Rule, procs: Iterable[ProcInfo], exclude_pids: Collection[int] = (), known: Verdicts | None = None
) -> Group:
    """The processes of ``rule`` in one snapshot.

    ``exclude_pids`` (fleet processes, agent, worker, flows; identities judged against the same snapshot) belong to no
    rule, and neither does what descends from a rule's process only through one of them. ``rule.match`` has its ``~``
    expanded. A child belongs only if it started after its parent (in its clock tick at the earliest): a pid used again
    drags no stranger in.
    """
    return _group(rule, _candidates(procs, exclude_pids), known)


def _candidates(procs: Iterable[ProcInfo], exclude_pids: Collection[int]) -> dict[int, ProcInfo]:
    return {proc.pid: proc for proc in procs if proc.pid not in exclude_pids and not proc.kernel_thread}


def _group(rule: Rule, table: Mapping[int, ProcInfo], known: Verdicts | None) -> Group:
    verdicts = (known or Verdicts()).of(rule, table)
    if not verdicts:
        return Group()
    certain = {pid for pid, verdict in verdicts.items() if verdict == "yes"}
    doubtful = {pid for pid, verdict in verdicts.items() if verdict == "unreadable"}
    roots = {pid for pid in certain if not _fork_of_match(table[pid], table, certain)}
    members = _tree(rule.tree, certain, table, certainly=True)
    holding = _tree(rule.tree, certain | doubtful, table, certainly=False)

    def listed(pids: Iterable[int]) -> tuple[ProcInfo, ...]:
        return tuple(table[pid] for pid in sorted(pids))

    return Group(listed(roots), listed(members), listed(doubtful - members), listed(holding | members))


def groups(
    rules: Sequence[Rule],
    procs: Iterable[ProcInfo],
    exclude_pids: Collection[int] = (),
    known: Verdicts | None = None,
) -> dict[str, Group]:
    """Rule id -> group, for the rules in force. Processes of an ``ignore`` rule are seen by no other rule of its scope.

    Only certain matches are ignored: a process that cannot be judged still counts for holding. What one scope ignores
    the other may protect, and then it is protected: the stricter of both wins.
    """
    table = _candidates(procs, exclude_pids)
    ignoring = {rule.id: _group(rule, table, known) for rule in rules if rule.ignore}
    hidden: dict[bool, set[int]] = {False: set(), True: set()}
    for name, found in ignoring.items():
        hidden[_is_fleets(name)] |= {proc.pid for proc in found.members}
    left = {fleets: _candidates(table.values(), pids) if pids else table for fleets, pids in hidden.items()}
    return {
        rule.id: ignoring[rule.id] if rule.ignore else _group(rule, left[_is_fleets(rule.id)], known) for rule in rules
    }


def _is_fleets(rule_id: str) -> bool:
    """Whether the rule is of the fleet's section: its key says so (``policies.section.strictest``), and no id has a colon."""
    return rule_id.startswith("fleet:")


def _fork_of_match(proc: ProcInfo, table: Mapping[int, ProcInfo], certain: Collection[int]) -> bool:
    """Whether ``proc`` is its matching parent once more. Parents come strictly first, so no cycle is all forks."""
    parent = table.get(proc.ppid) if proc.ppid is not None else None
    if parent is None or parent.pid not in certain or parent.start_ticks is None or proc.start_ticks is None:
        return False
    return (parent.start_ticks, parent.pid) < (proc.start_ticks, proc.pid) and proc.same_program(parent)


def _started_after(child: ProcInfo, parent: ProcInfo) -> bool | None:
    if child.start_ticks is None or parent.start_ticks is None:
        return None
    return child.start_ticks >= parent.start_ticks


def _tree(tree: Tree, tops: Collection[int], table: Mapping[int, ProcInfo], *, certainly: bool) -> set[int]:
    """``tops`` and, with ``descendants``, all below them. A start time that is not known counts unless ``certainly``."""
    found = set(tops)
    if tree == "self" or not found:
        return found
    children: dict[int, list[ProcInfo]] = {}
    for proc in table.values():
        if proc.ppid is not None and proc.ppid in table:
            children.setdefault(proc.ppid, []).append(proc)
    waiting = list(tops)
    while waiting:
        parent = table[waiting.pop()]
        for child in children.get(parent.pid, ()):
            after = _started_after(child, parent)
            if child.pid not in found and (after or (after is None and not certainly)):
                found.add(child.pid)
                waiting.append(child.pid)
    return found


@dataclass(frozen=True, slots=True)
class RuleEvent:
    """A change of a rule. ``wait_s``: how long held work still waits when the rule is cleared."""

    code: Literal["PROTECTION_ACTIVE", "PROTECTION_CLEARED", "PROTECTION_RESUME"]
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RuleState:
    """Timing of one rule. Times are seconds on one clock that does not go back (monotonic).

    ``since_s`` is when the condition last came (inactive rule) or went (active rule); None: it is not on its way.
    ``activations`` are the times of the activations that still count for the cooldown, ``resume_at_s`` when work that
    was held goes on; None: the rule is active or nothing waits.
    """

    active: bool = False
    since_s: float | None = None
    activations: tuple[float, ...] = ()
    resume_at_s: float | None = None
    now_s: float = float("-inf")

    @property
    def holds(self) -> bool:
        """Whether work that the rule holds stays held: while it is active, and in its cooldown."""
        return self.active or self.resume_at_s is not None


def start_rule(present: bool, now_s: float) -> tuple[RuleState, tuple[RuleEvent, ...]]:
    """The state of a rule when its agent starts: a program that runs already is protected at once.

    How long it has been running is not known, and ``enter_for_s`` is there for programs that come and go, not to give
    fleet work its first seconds beside one that was there before.
    """
    if not present:
        return RuleState(now_s=now_s), ()
    return RuleState(active=True, activations=(now_s,), now_s=now_s), (RuleEvent("PROTECTION_ACTIVE"),)


def step_rule(
    state: RuleState, present: bool, now_s: float, enter_for_s: float, exit_after_s: float, cooldown: Cooldown
) -> tuple[RuleState, tuple[RuleEvent, ...]]:
    """One tick: the condition holds now (``present``) or not. A clock that went back stands still instead.

    Active once the condition held ``enter_for_s`` without a break, inactive once it was away ``exit_after_s`` without
    a break. Work that was held then waits for the cooldown: ``base_s``, times ``backoff`` for each further activation
    within ``window_s``, at most ``max_s``.
    """
    now_s = max(now_s, state.now_s)
    state = replace(state, now_s=now_s)
    if present == state.active:
        state = replace(state, since_s=None)
        return _cool_down(state, now_s)
    since_s = now_s if state.since_s is None else state.since_s
    state = replace(state, since_s=since_s)
    if now_s - since_s < (exit_after_s if state.active else enter_for_s):
        return _cool_down(state, now_s)
    if not state.active:
        counting = tuple(at for at in state.activations if now_s - at <= cooldown.window_s)
        state = replace(state, active=True, since_s=None, resume_at_s=None, activations=(*counting, now_s))
        return state, (RuleEvent("PROTECTION_ACTIVE"),)
    wait_s = _wait_s(len(state.activations), cooldown)
    state = replace(state, active=False, since_s=None, resume_at_s=now_s + wait_s)
    state, resumed = _cool_down(state, now_s)
    return state, (RuleEvent("PROTECTION_CLEARED", wait_s), *resumed)


def _cool_down(state: RuleState, now_s: float) -> tuple[RuleState, tuple[RuleEvent, ...]]:
    if state.resume_at_s is None or now_s < state.resume_at_s:
        return state, ()
    return replace(state, resume_at_s=None), (RuleEvent("PROTECTION_RESUME"),)


def _wait_s(activations: int, cooldown: Cooldown) -> float:
    wait_s = cooldown.base_s
    for _ in range(activations - 1):
        if wait_s >= cooldown.max_s or cooldown.backoff == 1.0:
            break
        wait_s *= cooldown.backoff
    return min(wait_s, cooldown.max_s)
