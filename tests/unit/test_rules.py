"""Which processes are a rule's: what is readable decides, what is not counts for holding, and no stranger is drawn in."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.rules import Group, ProcInfo, Verdicts, expand_home, group, groups, matches
from policies.section.models import Match, Rule

TRAINER = ProcInfo(
    pid=100,
    start_ticks=5000,
    ppid=1,
    name="python3",
    exe="/opt/trainer/bin/python3",
    argv=("python3", "train.py", "--lr", "0.1"),
    uid=1000,
)


def rule(tree: str = "descendants", rule_id: str = "x", **match: str) -> Rule:
    return Rule.model_validate(
        {"id": rule_id, "match": match or {"name": "python3"}, "tree": tree, "pause_fleet": {"scope": "all"}}
    )


def pids(procs: tuple[ProcInfo, ...]) -> list[int]:
    return [proc.pid for proc in procs]


def proc(pid: int, ppid: int, start_ticks: int | None, name: str | None = "sh", **facts: object) -> ProcInfo:
    made = ProcInfo(pid, start_ticks, ppid, name=name, exe=f"/bin/{name}", argv=(f"{name}", str(pid)))
    return replace(made, **facts)  # type: ignore[arg-type]


# -- one process ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("match", "verdict"),
    [
        ({"path_prefix": "/opt/trainer/"}, "yes"),
        ({"path_prefix": "/opt/train"}, "yes"),
        ({"path_prefix": "/opt/other/"}, "no"),
        ({"path_contains": "trainer/bin"}, "yes"),
        ({"path_contains": "--lr 0.1"}, "yes"),
        ({"path_contains": "val.py"}, "no"),
        ({"argv_regex": r"train\.py --lr 0\.\d$"}, "yes"),
        ({"argv_regex": r"^train"}, "no"),
        ({"name": "python3"}, "yes"),
        ({"name": "python"}, "no"),
        ({"name": "python3", "path_prefix": "/opt/trainer/", "argv_regex": "train"}, "yes"),
        ({"name": "python3", "path_prefix": "/opt/trainer/", "argv_regex": "eval"}, "no"),
    ],
)
def test_all_given_keys_must_hold(match: dict[str, str], verdict: str) -> None:
    assert matches(Match(**match), TRAINER) == verdict


@pytest.mark.parametrize(
    ("match", "unread", "verdict"),
    [
        ({"path_prefix": "/opt/trainer/"}, ["exe"], "unreadable"),
        ({"path_prefix": "/opt/trainer/", "name": "bash"}, ["exe"], "no"),
        ({"path_prefix": "/opt/trainer/", "name": "python3"}, ["exe"], "unreadable"),
        ({"path_prefix": "/opt/other/", "argv_regex": "train"}, ["argv"], "no"),
        ({"argv_regex": "train"}, ["argv"], "unreadable"),
        ({"path_contains": "train.py"}, ["exe"], "yes"),
        ({"path_contains": "nothing"}, ["exe"], "unreadable"),
        ({"path_contains": "trainer/bin"}, ["argv"], "yes"),
        ({"path_contains": "nothing"}, ["argv"], "unreadable"),
        ({"name": "python3"}, ["name"], "unreadable"),
        ({"name": "python3"}, ["exe", "argv"], "yes"),
        ({"name": "bash"}, ["exe", "argv"], "no"),
    ],
)
def test_one_readable_fact_rules_out_and_the_rest_stays_open(
    match: dict[str, str], unread: list[str], verdict: str
) -> None:
    assert matches(Match(**match), replace(TRAINER, **dict.fromkeys(unread))) == verdict  # type: ignore[arg-type]


@given(unread=st.sets(st.sampled_from(["name", "exe", "argv"])), key=st.sampled_from(["name", "exe", "argv"]))
def test_reading_less_never_turns_a_match_into_none(unread: set[str], key: str) -> None:
    """Unknown is never a reason to leave the program unprotected, and never proof that something is the program."""
    mine = Match(name="python3", path_prefix="/opt/trainer/", argv_regex="train")
    other = Match(**{"name": {"name": "x"}, "exe": {"path_prefix": "/x"}, "argv": {"argv_regex": "x"}}[key])
    less = replace(TRAINER, **dict.fromkeys(unread))  # type: ignore[arg-type]
    assert matches(mine, less) == ("unreadable" if unread else "yes")
    assert matches(other, less) == ("unreadable" if key in unread else "no")


def test_kernel_threads_are_no_candidates() -> None:
    thread = ProcInfo(2, 0, 0, name="kthreadd", kernel_thread=True)
    assert matches(Match(path_prefix="/"), thread) == "no"
    assert group(rule(path_prefix="/"), [thread]) == Group()


LONG = "render-supervisor"  # the kernel keeps "render-supervis"


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        ({"exe": f"/opt/{LONG}", "argv": (LONG,)}, "yes"),
        ({"exe": "/usr/bin/python3", "argv": ("python3", f"./{LONG}")}, "yes"),
        ({"exe": "/usr/bin/python3", "argv": None}, "unreadable"),
        ({"exe": None, "argv": None}, "unreadable"),
        ({"exe": "/opt/render-supervisory", "argv": ("render-supervisory",)}, "no"),
        ({"exe": "/opt/x", "argv": ("x",)}, "yes"),
        ({"name": "render-supervi", "exe": f"/opt/{LONG}"}, "no"),
        ({"name": "render", "exe": None, "argv": None}, "no"),
    ],
)
def test_a_name_longer_than_the_kernel_keeps(facts: dict[str, object], verdict: str) -> None:
    found = replace(TRAINER, **{"name": LONG[:15], **facts})  # type: ignore[arg-type]
    assert matches(Match(name=LONG), found) == verdict


def test_a_name_is_cut_in_bytes_not_in_letters() -> None:
    name = "größenrechner-x"  # 15 letters, 17 bytes
    cut = name.encode()[:15].decode()
    assert matches(Match(name=name), replace(TRAINER, name=cut, exe=f"/opt/{name}", argv=(name,))) == "yes"


def test_home_is_expanded_at_the_front_only() -> None:
    match = expand_home(Match(path_prefix="~/runs/", path_contains="a~/b"), "/home/mo")
    assert (match.path_prefix, match.path_contains) == ("/home/mo/runs/", "a~/b")
    assert expand_home(Match(path_prefix="~/x"), "/").path_prefix == "/x"


# -- groups -----------------------------------------------------------------------------------------------------------


def test_children_belong_with_descendants_and_not_with_self() -> None:
    procs = [TRAINER, proc(101, 100, 5010), proc(102, 101, 5020), proc(103, 1, 5030)]
    assert pids(group(rule("descendants"), procs).members) == [100, 101, 102]
    assert pids(group(rule("self"), procs).members) == [100]


def test_a_pid_used_again_drags_no_stranger_in() -> None:
    """102 was the child of an earlier 100: it started before the process that bears the pid now."""
    procs = [TRAINER, proc(101, 100, 5000), proc(102, 100, 4999), proc(103, 102, 6000)]
    assert pids(group(rule(), procs).members) == [100, 101]


def test_a_child_whose_start_is_not_known_counts_for_holding_only() -> None:
    found = group(rule(), [TRAINER, proc(101, 100, None)])
    assert pids(found.members) == [100]
    assert pids(found.holding) == [100, 101]


def test_fleet_processes_belong_to_no_rule_and_cut_the_tree() -> None:
    """The agent was started from a protected shell: neither it nor its jobs are the protected program."""
    procs = [TRAINER, proc(200, 100, 5010, "agent"), proc(201, 200, 5020, "runner"), proc(202, 201, 5030, "python3")]
    assert pids(group(rule(), procs, exclude_pids={200, 201, 202}).holding) == [100]
    assert pids(group(rule("self"), procs, exclude_pids={202}).roots) == [100]


def test_a_fork_of_a_match_is_no_root_of_its_own_and_another_program_is() -> None:
    worker = replace(TRAINER, pid=101, ppid=100, start_ticks=5001)
    rank = replace(TRAINER, pid=102, ppid=100, start_ticks=5001, argv=("python3", "train.py", "--rank", "1"))
    found = group(rule(), [TRAINER, worker, rank])
    assert pids(found.roots) == [100, 102]
    assert pids(found.members) == [100, 101, 102]


def test_what_cannot_be_judged_holds_with_its_children_and_is_counted_apart() -> None:
    hidden = ProcInfo(300, 7000, 1, name="python3", exe=None, argv=None)
    child = proc(301, 300, 7001)
    found = group(rule(path_prefix="/opt/trainer/"), [hidden, child])
    assert (pids(found.roots), pids(found.members), pids(found.unreadable)) == ([], [], [300])
    assert pids(found.holding) == [300, 301]
    assert found.present
    assert not found.running


def test_an_unreadable_child_of_the_program_is_a_member_and_not_counted_apart() -> None:
    child = ProcInfo(101, 5001, 100, name="python3", exe=None, argv=None)
    found = group(rule(path_prefix="/opt/trainer/"), [TRAINER, child])
    assert pids(found.members) == [100, 101]
    assert found.unreadable == ()


@pytest.mark.parametrize(
    ("facts", "doubted"),
    [
        ({}, True),
        ({"name": "python3", "uid": 0}, True),
        ({"name": "sshd", "uid": 1000}, True),
        ({"name": "sshd"}, True),
        ({"uid": 0}, True),
        ({"name": "sshd", "uid": 0}, False),
    ],
)
def test_beside_a_known_program_an_unreadable_process_is_it_too_unless_owner_and_name_say_no(
    facts: dict[str, object], doubted: bool
) -> None:
    """Unknown is never the same; but another account's daemon, whose path cannot be read, is no doubt about the program."""
    program = ProcInfo(10, 5, 1, name="python3", exe="/opt/trainer/bin/python3", argv=("python3", "train.py"), uid=1000)
    other = ProcInfo(11, 6, 1, **{"name": None, "uid": None, **facts})  # type: ignore[arg-type]
    found = group(rule(path_prefix="/opt/trainer/"), [program, other])
    assert pids(found.unreadable) == [11], "it holds in any case"
    assert bool(found.doubted) is doubted
    assert group(rule(path_prefix="/opt/trainer/"), [other]).doubted == (other,)


def test_ignored_processes_are_seen_by_no_other_rule_but_doubt_is_not_ignored() -> None:
    updater = Rule.model_validate({"id": "i", "match": {"path_prefix": "/games/updater/"}, "ignore": True})
    games = rule("self", "g", path_prefix="/games/")
    procs = [
        proc(1, 0, 1, exe="/games/chess"),
        proc(2, 0, 1, exe="/games/updater/run"),
        proc(3, 0, 1, exe=None),
    ]
    found = groups([games, updater], procs)
    assert pids(found["g"].roots) == [1]
    assert pids(found["g"].unreadable) == [3]
    assert pids(found["i"].roots) == [2]


def test_case_042_what_became_unreadable_stays_protected() -> None:
    """The same process, its executable and arguments denied on the second read: unknown is not different."""
    denied = replace(TRAINER, exe=None, argv=None, uid=None)
    found = group(rule(path_prefix="/opt/trainer/"), [denied])
    assert found.present
    assert found.holding == (denied,)
    assert not found.running  # and it is no ground for calling it the program, restarted


snapshot = st.lists(
    st.tuples(st.integers(1, 8), st.integers(0, 8), st.one_of(st.none(), st.integers(0, 4)), st.sampled_from("pqr")),
    max_size=8,
    unique_by=lambda each: each[0],
)


@settings(max_examples=80, deadline=None)
@given(
    raw=snapshot,
    tree=st.sampled_from(["self", "descendants"]),
    hidden=st.sets(st.integers(1, 8)),
    out=st.sets(st.integers(1, 8)),
)
def test_any_snapshot_gives_a_group_that_adds_up(
    raw: list[tuple[int, int, int | None, str]], tree: str, hidden: set[int], out: set[int]
) -> None:
    """Parent cycles, unknown starts, missing parents: roots are members, members hold, excluded ones never appear."""
    procs = [proc(pid, ppid, start, None if pid in hidden else name) for pid, ppid, start, name in raw]
    found = group(rule(tree, name="p"), procs, out)
    certain = {each.pid for each in procs if each.name == "p" and each.pid not in out}
    members, holding = set(pids(found.members)), set(pids(found.holding))
    assert set(pids(found.roots)) <= certain <= members <= holding
    assert bool(found.roots) == bool(certain)
    assert not holding & out
    assert set(pids(found.unreadable)) == {each.pid for each in procs if each.name is None} - out - members
    if tree == "self":
        assert members == certain
    by_pid = {each.pid: each for each in procs}
    for pid in members - certain:
        parent = by_pid[by_pid[pid].ppid or 0]
        assert parent.pid in members
        assert (by_pid[pid].start_ticks or 0) >= (parent.start_ticks or 0)


@pytest.mark.parametrize("ignoring", ["node", "fleet"])
def test_what_one_scope_ignores_the_other_still_protects(ignoring: str) -> None:
    """Across scopes the strictest wins: nobody takes the other's protection away by ignoring its program."""
    program = ProcInfo(pid=10, start_ticks=5, ppid=1, name="t", exe="/opt/t", argv=("t",))
    match = {"path_prefix": "/opt/"}
    quiet = Rule.model_validate({"id": "i", "match": match, "ignore": True})
    trainer = Rule.model_validate({"id": "t", "match": match, "pause_fleet": {"scope": "all"}})
    prefixes = {"node": "", "fleet": "fleet:"}
    other = "fleet" if ignoring == "node" else "node"
    quiet = quiet.model_copy(update={"id": prefixes[ignoring] + "i"})
    same = trainer.model_copy(update={"id": prefixes[ignoring] + "t"})
    others = trainer.model_copy(update={"id": prefixes[other] + "t"})
    found = groups([quiet, same, others], [program])
    assert found[others.id].members == (program,)
    assert found[same.id].members == ()


looks = st.lists(
    st.tuples(snapshot, st.sets(st.integers(1, 8), max_size=2), st.sampled_from("pq"), st.booleans()),
    min_size=2,
    max_size=5,
)


@settings(max_examples=80, deadline=None)
@given(looks)
def test_what_is_kept_between_looks_changes_no_answer(seen: list[tuple]) -> None:
    """Processes that stay are the same objects, as the table gives them; pids are used again, rules change, fleet comes and goes."""
    known, kept = Verdicts(), {}
    for raw, fleet, name, ignores in seen:
        kept = {made: kept.get(made, made) for made in (proc(*each) for each in raw)}
        quiet = [Rule.model_validate({"id": "i", "match": {"name": "r"}, "ignore": True})] if ignores else []
        rules = [*quiet, rule(name=name), rule("self", "y", path_contains="q")]
        assert groups(rules, kept.values(), fleet, known) == groups(rules, kept.values(), fleet)
