"""Thirty nights on a clock of the test's own: sweeps, expiries, renewals, a changing program, and everything that can die, dying.

The flows' own code runs against the agent's own verbs, journal and certificates and the real store (``nights_rig``). No run may be
lost, no block or answer counted twice, and nothing may hold the node once nobody measures.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from prefect.exceptions import TerminationSignal
from sqlalchemy.exc import OperationalError

import flows.ab_run as ab_run
import flows.duty_sweep as duty_sweep
from cotenant import store
from nodes.client import AgentUnreachable
from nodes.identity import ProcessId
from nodes.mirror import Mirror
from nodes.worker_admission import outside_hours
from policies.certificate.expiry import due, renewals
from policies.harness.hours import parse_hours
from policies.harness.rows import BlockRow
from policies.harness.schedule import coin, longest_s, run_looks
from policies.harness.spec import RunSpec
from policies.harness.sweep import PastLevel
from policies.harness.validity import decide_blocks
from policies.put_back import WAITS_S
from policies.statistics import decide
from tasks import artifacts
from tasks.agent_link import Link
from tasks.keep import Keeper
from tests.flows.nights_agent import NODE, ScriptedBlock
from tests.flows.nights_rig import Chances, Clock, Died, Node, utc

ZONE, HOURS_TEXT = ZoneInfo("Europe/Berlin"), "22:00-06:30"
HOURS = parse_hours(HOURS_TEXT)
FIRST, NIGHTS = date(2026, 10, 10), 30  # the clocks go back on the 25th
LEVELS = [0.1, 0.2, 0.35, 0.5]
HARMFUL = 0.5
PASS = "no slowdown shown"
# Sweeps at first and at the end; in between what was earned runs out, is seen to, and is renewed by itself.
SWEEP_NIGHTS = {0, 1, 2, 3, 22, 23, 25, 27, 28}
RENEW_FROM = 18
PROGRAM_CHANGES = {24}
SWEEP = {"node": NODE, "rule": "trainer", "work": "cpu", "levels": LEVELS, "window": HOURS_TEXT, "reviewed": True}


class Queued(NamedTuple):
    """A flow run that waits for the node."""

    function: Callable[..., Any]
    parameters: Mapping[str, Any]
    name: str


class Nights:
    def __init__(self, home: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        rng = random.Random(seed)
        self.home, self.rng = home, rng
        self.clock = Clock(datetime.combine(FIRST, time(12), ZONE).astimezone(UTC))
        self.chances = Chances(rng)
        _patch(monkeypatch, self)
        self.node = Node(home, self.clock, self.chances, lambda duty: 1.0 if duty < HARMFUL else 0.93)
        monkeypatch.setattr("nodes.journal.boot_id", lambda: self.node.boot)
        self.url = store.default_url(home)
        self.engine = store.open(self.url)
        self.store_away: list[tuple[datetime, datetime]] = []
        self.events: list[int] = []
        self.mirror = Mirror(_Calm(self.node), self.url, NODE, mark=home / "mark.json", send=self._send)
        self.calls = 0
        self.flow_run_id = ""
        self.ended: Counter[str] = Counter()
        self.seen_states: Counter[str] = Counter()

    # -- what the patched edges ask -----------------------------------------------------------------------------------

    def call(self, method: str, /, _timeout_s: float = 30.0, **params: Any) -> Any:
        self.calls += 1
        if self.calls % 40 == 0:
            self.copy()
        answer = self.node.call(method, _timeout_s, **params)
        if self.node.signalled:
            self.node.signalled = False
            raise TerminationSignal(signal=15)
        return answer

    def check_store(self) -> None:
        if any(begin <= self.clock.now < end for begin, end in self.store_away):
            raise OperationalError("the store", None, Exception("it is away"))

    def _send(self, node: str, entries: list[dict[str, Any]]) -> None:
        if self.rng.random() < 0.05:
            raise ConnectionError("the server is away")
        self.events += [int(entry["seq"]) for entry in entries]

    def copy(self) -> None:
        """One turn of the mirror; whatever is away, the next one goes on."""
        try:
            self.mirror.step()
        except (OperationalError, ConnectionError, AgentUnreachable):
            pass

    # -- the worker ---------------------------------------------------------------------------------------------------

    def flow(self, function: Callable[..., Any], parameters: Mapping[str, Any], name: str) -> str:
        """One flow run from its first process to its end, or until it waits for the next hours."""
        self.flow_run_id = name
        for attempt in itertools.count():
            if outside_hours(dict(parameters), True, self.clock.now) is not None:
                return "AwaitingNode"
            self.node.cancelled = False
            self.node.await_agent()  # until it answers, no flow is admitted
            self.node.spawn()
            try:
                state = str(function(**parameters).name)
            except Died:
                state = "put back" if attempt < len(WAITS_S) else "Crashed"
            except TerminationSignal:
                state = "Cancelled"
            self.node.kill_flow()
            self.clock.advance(2.0)
            self.node.tick()
            self.nobody_measures()
            if state != "put back":
                self.ended[state] += 1
                return state
            self.clock.advance(self.rng.uniform(20.0, 300.0))
        raise AssertionError

    def nobody_measures(self) -> None:
        """No hold left: the run lock and the sweep's claim went with the process that had them."""
        runs = self.node.agent.runs
        assert runs.active is None
        assert runs.reserved is None
        runs.check_free(holder=ProcessId(1, 1, "a stranger"))

    # -- the calendar -------------------------------------------------------------------------------------------------

    def days(self) -> None:
        waiting: list[Queued] = []
        for number in range(NIGHTS):
            day = FIRST + timedelta(days=number)
            evening = datetime.combine(day, time(22), ZONE).astimezone(UTC)
            if number in PROGRAM_CHANGES:
                self.node.program_version += 1
            if self.rng.random() < 0.3:
                begin = evening + timedelta(hours=self.rng.uniform(0, 7))
                self.store_away.append((begin, begin + timedelta(minutes=self.rng.uniform(1, 90))))
            self.clock.until(evening + timedelta(seconds=5))
            if number in SWEEP_NIGHTS:
                waiting.append(Queued(duty_sweep.duty_sweep.fn, SWEEP, f"sweep-flow-{number}"))
            waiting = [each for each in waiting if self.flow(*each) == "AwaitingNode"]
            # the daily look comes in the morning; what it queues runs in the next hours
            self.clock.until(datetime.combine(day + timedelta(days=1), time(9, 10), ZONE).astimezone(UTC))
            self.node.tick()
            self.copy()
            waiting += self.morning(number, waiting)
        self.store_away.clear()

    def morning(self, number: int, waiting: list[Queued]) -> list[Queued]:
        """The flow ``certificate-expiry``, but for its server: what it would queue."""
        self.node.await_agent()
        dues = due(_Calm(self.node).call("certificates"), self.clock.now)
        self.seen_states.update(each.state for each in dues)
        if waiting or number < RENEW_FROM:
            return []
        found = []
        for renewal in renewals(dues, self.clock.now, HOURS, ZONE):
            assert renewal.spec is not None, renewal.why
            parameters = {key: value for key, value in renewal.spec.items() if key != "seed"}
            parameters |= {"window": HOURS_TEXT, "reviewed": True, "reviewed_by": "certificate-expiry"}
            found.append(Queued(ab_run.ab_run.fn, parameters, f"renew-{renewal.of}-{number}"))
        return found


class _Calm:
    """The worker's own line to the agent: nothing strikes on it."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def call(self, method: str, /, _timeout_s: float = 30.0, **params: Any) -> Any:
        return self.node._carry_out(method, params)


def _patch(monkeypatch: pytest.MonkeyPatch, nights: Nights) -> None:
    """Every clock, process and server that the flows and the agent's verbs would ask."""
    clock, log = nights.clock, logging.getLogger("nights")
    monkeypatch.setenv("COTENANT_HOME", str(nights.home))
    for place in ("active_run", "measure", "verbs"):
        monkeypatch.setattr(f"nodes.agent.{place}.monotonic_s", lambda: clock.mono_s)
    for place in ("runs", "measure", "verbs"):
        monkeypatch.setattr(f"nodes.agent.{place}.liveness", lambda who: nights.node.liveness(who))
    for place in ("agent.runs", "agent.measure", "journal"):
        monkeypatch.setattr(f"nodes.{place}.utc_iso", clock.iso)
    monkeypatch.setattr("nodes.journal.monotonic_s", lambda: clock.mono_s)
    for place in ("runs", "certify"):
        monkeypatch.setattr(f"nodes.agent.{place}.utc_now", lambda: clock.now)
    monkeypatch.setattr("nodes.agent.measure.BlockRunner", ScriptedBlock)
    monkeypatch.setattr("nodes.worker_admission.local_zone", lambda: ZONE)

    link = functools.partial(Link, sleep=clock.advance, clock=lambda: clock.mono_s)
    keeper = functools.partial(Keeper, sleep=clock.advance, clock=lambda: clock.mono_s)
    for flow in (ab_run, duty_sweep):
        monkeypatch.setattr(flow, "get_run_logger", lambda: log)
        monkeypatch.setattr(flow, "flow_run", _FlowRun(nights))
        monkeypatch.setattr(flow, "connect", lambda node: nights)
        monkeypatch.setattr(flow, "own_id", lambda: nights.node.flow)
        monkeypatch.setattr(flow, "Link", link)
        monkeypatch.setattr(flow, "Keeper", keeper)
        monkeypatch.setattr(flow, "local_zone", lambda: ZONE)
        monkeypatch.setattr(flow, "datetime", SimpleNamespace(now=lambda zone: clock.now.astimezone(zone)))
        monkeypatch.setattr(flow, "publish_report", lambda record, folder: {})
        for name in ("take_reference", "take_block"):
            monkeypatch.setattr(flow, name, getattr(flow, name).fn)
    for name in ("begin_run", "end_run", "plan_run"):
        monkeypatch.setattr(ab_run, name, getattr(ab_run, name).fn)
    monkeypatch.setattr(artifacts, "temporary_settings", lambda settings: contextlib.nullcontext())
    for flow in (ab_run, duty_sweep):
        monkeypatch.setattr(flow, "show_progress", lambda key, at, words, shown: shown)
    monkeypatch.setattr(ab_run, "is_cancelled", lambda flow_run_id: nights.node.cancelled)
    monkeypatch.setattr(duty_sweep, "plan_sweep", duty_sweep.plan_sweep.fn)
    monkeypatch.setattr(duty_sweep, "publish_sweep", lambda report, folder: {})
    monkeypatch.setattr(duty_sweep, "sweep_level", _Level())

    monkeypatch.setattr(store, "open", functools.cache(store.open))
    for name in ("sync_run", "put_certificate", "put_timeline", "last_seq", "timeline_entries"):
        monkeypatch.setattr(store, name, _guarded(nights, getattr(store, name)))


class _FlowRun:
    def __init__(self, nights: Nights) -> None:
        self.nights = nights

    @property
    def id(self) -> str:
        return self.nights.flow_run_id


class _Level:
    """A subflow without a server: its body."""

    def with_options(self, **_: Any) -> Callable[..., Any]:
        return lambda run, level, return_state: duty_sweep.drive_level(*duty_sweep._LINKS[run])


def _guarded(nights: Nights, real: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*words: Any, **more: Any) -> Any:
        nights.check_store()
        return real(*words, **more)

    return guarded


@pytest.fixture
def nights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Nights]:
    found = Nights(tmp_path, request.param, monkeypatch)
    yield found
    found.node.close()
    found.engine.dispose()


SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))]


@pytest.mark.parametrize("nights", SEEDS, indirect=True)
def test_no_run_is_lost_none_counted_twice_and_nothing_holds_on(nights: Nights) -> None:
    nights.days()
    journal, runs = nights.node.journal, nights.node.agent.runs
    nights.nobody_measures()

    # everything that was begun is there, and the store has it as the agent has it
    told = [entry for entry in all_entries(nights) if entry["code"] == "RUN_STARTED"]
    records = {record["run"]: runs.record(record["run"]) for record in journal.runs()}
    assert Counter(entry["data"]["run"] for entry in told) == Counter(dict.fromkeys(records, 1))
    for _ in range(400):
        nights.copy()
    kept = {run: store.load_run(nights.engine, run) for run in records}
    for run, record in records.items():
        copy = kept[run]
        assert copy is not None, f"{run} is lost"
        assert (copy["state"], copy["ending"]) == (record["state"], record["ending"])
        assert copy["blocks"] == record["blocks"]
    entries = all_entries(nights)
    mirrored: list[dict[str, Any]] = []
    while more := store.timeline_entries(nights.engine, NODE, mirrored[-1]["seq"] if mirrored else 0):
        mirrored += more
    assert [each["seq"] for each in mirrored] == [each["seq"] for each in entries]
    assert set(nights.events) == {each["seq"] for each in entries}, "each told at least once"
    assert journal.lost == 0

    # no block is counted twice, and each verdict follows from the windows that stand there
    counted = Counter(nights.node.measured)
    assert set(counted.values()) == {1}
    for run, record in records.items():
        blocks_are_sound(run, record, counted)
    assert sum(len(of_state(record, "counted")) for record in records.values()) == sum(counted.values())
    assert one_at_a_time(records.values())
    assert kept_to_the_hours(records.values())
    certificates_are_sound(nights, records)
    sweeps_are_sound(records.values())

    # and it was the month that it should have been
    assert nights.ended["Completed"] >= 3, nights.ended
    assert sum(nights.chances.count.values()) >= 10, nights.chances.count
    assert {"expires soon", "stale"} <= set(nights.seen_states), nights.seen_states
    print(f"runs {len(records)}, blocks {sum(counted.values())}, flow runs {dict(nights.ended)}")
    print(f"struck {nights.chances.count}; daily looks {dict(nights.seen_states)}; entries {len(entries)}")


def all_entries(nights: Nights) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while more := nights.node.journal.entries(found[-1]["seq"] if found else 0, 5000):
        found += more
    return found


def of_state(record: Mapping[str, Any], state: str) -> list[dict[str, Any]]:
    return [row for row in record["blocks"] if row["state"] == state]


def blocks_are_sound(run: str, record: Mapping[str, Any], counted: Counter[tuple[str, int]]) -> None:
    spec = RunSpec.model_validate(record["spec"])
    numbers = [row["number"] for row in record["blocks"]]
    assert numbers == sorted(set(numbers))
    assert all(row["order"] == coin(spec.seed, row["number"]) for row in record["blocks"]), "the coin decides"
    rows = of_state(record, "counted")
    assert {(run, row["number"]) for row in rows} <= set(counted)
    looks = [look["n"] for look in record["looks"]]
    assert looks == sorted(set(looks)), "a look is taken once"
    assert len(rows) <= spec.n_max
    if record["verdict"] is not None:
        blocks = decide_blocks([BlockRow.model_validate(row) for row in record["blocks"]], None)
        found = decide(blocks, spec.margin, run_looks(spec)[-1], run_looks(spec)[0]).as_dict()
        assert record["verdict"] == json.loads(json.dumps(found))


def one_at_a_time(records: Any) -> bool:
    """The windows of different runs never overlap."""
    spans = []
    for record in records:
        for row in record["blocks"]:
            for window in (row["on"], row["off"]):
                if window is not None:
                    begun = window["started_mono_s"]
                    spans.append((begun, begun + window["length_s"]))
    spans.sort()
    return all(first[1] <= second[0] + 1e-6 for first, second in itertools.pairwise(spans))


def certificates_are_sound(nights: Nights, records: Mapping[str, Mapping[str, Any]]) -> None:
    rows = [row for row, _ in nights.node.journal.certificates()]
    assert len({row["run"] for row in rows}) == len(rows), "a run earns one certificate"
    passed = {run for run, record in records.items() if record["ending"] == PASS}
    settled = {run for run in passed if records[run]["certificate"] or records[run].get("certificate_refused")}
    assert {row["run"] for row in rows} == {run for run in passed if records[run]["certificate"]}
    assert len(passed - settled) <= 1, "a pass that was not offered yet is the newest run's"
    assert {each["certificate"] for each in store.list_certificates(nights.engine)} == {
        row["certificate"] for row in rows
    }
    for row in rows:
        assert row["certified_duty"] < HARMFUL
        assert utc(row["expires_at"]) - utc(row["issued_at"]) == timedelta(days=14)


def sweeps_are_sound(records: Any) -> None:
    sweeps: dict[str, list[PastLevel]] = {}
    for record in records:
        if (level := PastLevel.of(record)) is not None:
            sweeps.setdefault(level.sweep, []).append(level)
    assert len(sweeps) >= 2
    for levels in sweeps.values():
        levels.sort(key=lambda each: each.index)
        assert [each.index for each in levels] == list(range(len(levels))), "none left out, none run twice"
        assert all(each.passed for each in levels[:-1]), "nothing is run after a level that did not pass"


def kept_to_the_hours(records: Any) -> bool:
    """Every window lies in the owner's hours, or in what switching may add to a run in them."""
    for record in records:
        spec = RunSpec.model_validate(record["spec"])
        slack = timedelta(seconds=longest_s(spec) - 3600.0 * spec.max_hours)
        for row in record["blocks"]:
            for window in (row["on"], row["off"]):
                if window is not None and HOURS.span(utc(window["started_at"]), ZONE) is None:
                    assert HOURS.span(utc(window["started_at"]) - slack, ZONE) is not None, (record["run"], window)
    return True
