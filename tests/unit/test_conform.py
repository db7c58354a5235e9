"""The kit's judgements by arithmetic, and its meter against what children count of themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cotenant.conform import judge
from cotenant.conform.check import Check, summary
from cotenant.conform.duty import Measured, compared, verdicts, whole
from cotenant.conform.goldens import GoldenError, difference, digest, read_goldens
from cotenant.conform.gpu import GpuMeter
from cotenant.conform.host import probe
from cotenant.conform.meter import TreeMeter
from cotenant.conform.specs import DutySpec, SpecError, read_specs
from nodes.jobs.proctree import ProcSystem, walk
from nodes.meters.reading import Unreadable
from policies.manifest import Manifest, parse_manifest

# Process and child each use at least EACH_S in the kernel and at least that outside it, by the kernel's own count: it samples
# which of the two a tick goes to, so a loop that mixes them may be charged to one alone.
EACH_S = 0.3
SPIN = f"""
import os, sys
source = os.open("/dev/zero", os.O_RDONLY)
def spin():
    while os.times().system < {EACH_S}:
        os.read(source, 1 << 24)
    while os.times().user < {EACH_S}:
        sum(range(100000))
spin()
child = os.fork()
if child == 0:
    spin()
    os._exit(0)
os.waitpid(child, 0)
times = os.times()
print(times.user, times.system, times.children_user, times.children_system, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def spinner() -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen([sys.executable, "-c", SPIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield child
    child.communicate(timeout=60)


def test_the_tree_meter_counts_what_the_tree_counts_of_itself(spinner: subprocess.Popen[str]) -> None:
    system, meter = ProcSystem(), TreeMeter()
    me = system.stat(spinner.pid)
    assert me is not None
    assert spinner.stdout is not None
    root = (spinner.pid, me.start_ticks)
    meter.read(walk(system, [root]))
    parts_s = [float(part) for part in spinner.stdout.readline().split()]
    meter.read(walk(system, [root]))
    assert min(parts_s) >= EACH_S, "what is less than this could be dropped unseen"
    assert meter.total_s == pytest.approx(sum(parts_s), abs=EACH_S / 3.0)
    began, ended = meter.at_s
    assert meter.used_s(began, ended) == pytest.approx(meter.cpu_s[1] - meter.cpu_s[0])
    assert meter.used_s(began, (began + ended) / 2.0) == pytest.approx((meter.cpu_s[1] - meter.cpu_s[0]) / 2.0)


def test_the_probe_finds_its_meter_right_and_the_host_gives_something() -> None:
    host = probe(1.0)
    assert host.meter[0] == "ok", host.meter
    assert 0.0 < host.share <= 1.0
    assert host.late_s >= 0.0


def test_a_probe_that_does_not_answer_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cotenant.conform.host.PROBE_LIMIT_S", 0.2)
    monkeypatch.setattr("cotenant.conform.host._CHILD", "import time; time.sleep(600)")
    with pytest.raises(OSError, match="did not answer within"):
        probe(1.0)


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "ok"), (0.5, "FAIL"), (2.0, "FAIL"), (0.8, "FAIL")])
def test_a_meter_with_a_factor_is_found(factor: float, verdict: str) -> None:
    assert judge.meter_agrees(factor * 2.0, 1.5, 0.5)[0] == verdict
    assert judge.tree_agrees(factor * 4.0, 4.0, 0.2)[0] == verdict


def test_a_meter_that_drops_kernel_time_is_found() -> None:
    assert judge.meter_agrees(1.5, 1.5, 0.5)[0] == "FAIL"
    assert judge.meter_agrees(0.1, 0.1, 0.0)[0] == "skip", "too little to say"


def test_what_it_used_after_the_last_reading_is_allowed_for() -> None:
    assert judge.tree_agrees(2.0, 3.0, 1.0)[0] == "ok"
    assert judge.tree_agrees(2.0, 3.0, 0.2)[0] == "FAIL"
    assert judge.tree_agrees(3.0, 2.0, 1.0)[0] == "FAIL", "more than the kernel counted"


@pytest.mark.parametrize(
    ("share", "cores", "host", "verdict"),
    [
        (0.30, 1.0, 1.0, "ok"),
        (0.40, 1.0, 1.0, "ok"),
        (0.41, 1.0, 1.0, "FAIL"),
        (0.45, 1.0, 0.3, "FAIL"),
        (0.20, 1.0, 0.3, "skip"),
        (0.29, 1.0, 0.3, "skip"),
        (0.29, 1.0, 0.45, "ok"),
        (0.29, 2.0, 0.7, "skip"),
        (0.10, 1.0, 1.0, "ok"),
    ],
)
def test_a_share_against_its_duty(share: float, cores: float, host: float, verdict: str) -> None:
    assert judge.within(share, 0.3, cores, host)[0] == verdict


def test_a_share_is_of_the_cores_that_the_stage_declares() -> None:
    assert judge.share_of(3.0, 10.0, 1.0) == pytest.approx(0.3)
    assert judge.share_of(6.0, 10.0, 2.0) == pytest.approx(0.3)


def intervals(*values: float, measured: float) -> list[judge.Interval]:
    return [judge.Interval(2.0, value, 2.0 * measured) for value in values]


@pytest.mark.parametrize(
    ("values", "measured", "verdict"),
    [
        ((0.3, 0.3), 0.3, "ok"),
        ((0.26, 0.26), 0.3, "ok"),
        ((0.15, 0.15), 0.3, "FAIL"),
        ((0.5,), 0.3, "ok"),
        ((), 0.3, "FAIL"),
    ],
)
def test_reports_against_the_same_stretches(values: tuple[float, ...], measured: float, verdict: str) -> None:
    assert judge.honest(intervals(*values, measured=measured), 1.0)[0] == verdict


def line(value: object = 0.3, duty: object = 0.3, device: object = "cpu", t: object = 100.0) -> dict[str, object]:
    return {"type": "metric", "name": "gpu_duty", "value": value, "duty": duty, "device": device, "t": t}


@pytest.mark.parametrize(
    ("reports", "verdict"),
    [
        ([], "FAIL"),
        ([line()], "ok"),
        ([line(value=0.41)], "FAIL"),
        ([line(), line(value=0.5)], "FAIL"),
        ([line(duty=0.45)], "FAIL"),
        ([line(duty=None)], "FAIL"),
        ([line(value="little")], "FAIL"),
        ([line(value=True)], "FAIL"),
        ([line(device="tpu")], "FAIL"),
    ],
)
def test_what_is_reported(reports: list[dict[str, object]], verdict: str) -> None:
    assert judge.reported(reports, 0.3)[0] == verdict


def test_only_reports_about_the_measured_stretch_count() -> None:
    reports = [line(t=98.0), line(t=100.0), line(t=102.0), line(t="soon")]
    assert [report["t"] for report in whole(reports, 99.0)] == [102.0]
    assert [report["t"] for report in whole([line(t=101.5)], 99.0)] == [101.5]
    assert whole([line(t=100.5)], 99.0) == []


def test_each_report_stands_beside_the_kits_own_count_of_the_same_time() -> None:
    meter = TreeMeter(at_s=[0.0, 10.0], wall_s=[100.0, 110.0], cpu_s=[5.0, 8.0])
    found = compared([line(t=99.0), line(t=101.0), line(value=0.2, t=103.0), line(t=111.0)], 100.0, meter)
    assert found == [judge.Interval(2.0, 0.2, pytest.approx(0.6))]


@pytest.mark.parametrize(
    ("used", "told", "device", "expected"),
    [
        (0.3, 0.3, "cpu", ["ok", "ok", "ok"]),
        (0.45, 0.3, "cpu", ["ok", "FAIL", "FAIL"]),
        (0.45, 0.45, "cpu", ["FAIL", "FAIL", "ok"]),
        (0.3, 0.15, "cpu", ["ok", "ok", "FAIL"]),
        (0.3, 0.3, "gpu", ["ok", "skip"]),
    ],
)
def test_the_meter_is_what_counts_whatever_is_reported(
    used: float, told: float, device: str, expected: list[str]
) -> None:
    meter = TreeMeter(at_s=[0.0, 10.0], wall_s=[100.0, 110.0], cpu_s=[1.0, 1.0 + 10.0 * used])
    reports = [line(value=told, device=device, t=102.0 + 2.0 * number) for number in range(4)]
    spec = DutySpec("n", "s", 0.3, 4.0, {})
    checks = list(verdicts(spec, Measured(reports, 100.0, meter, 1.0, 9.0, 1.0, 1.0)))
    assert [check.verdict for check in checks] == expected


@pytest.mark.parametrize(
    ("device", "told", "expected"),
    [
        (0.3, 0.32, ["ok", "ok", "ok"]),
        (0.4, 0.4, ["ok", "ok", "ok"]),
        (0.41, 0.38, ["ok", "FAIL", "ok"]),
        (0.3, 0.15, ["ok", "ok", "FAIL"]),
        (Unreadable("MIG"), 0.3, ["ok", "skip"]),
        (None, 0.3, ["ok", "skip"]),
    ],
)
def test_where_the_host_meters_the_device_that_is_what_counts(
    device: float | Unreadable | None, told: float, expected: list[str]
) -> None:
    """The tree's CPU time says nothing of a GPU: it is far over the duty here."""
    meter = TreeMeter(at_s=[0.0, 10.0], wall_s=[100.0, 110.0], cpu_s=[1.0, 10.0])
    reports = [line(value=told, device="gpu", t=102.0 + 2.0 * number) for number in range(4)]
    spec = DutySpec("n", "s", 0.3, 4.0, {})
    checks = list(verdicts(spec, Measured(reports, 100.0, meter, 1.0, 9.0, 1.0, 1.0, device)))
    assert [check.verdict for check in checks] == expected
    if isinstance(device, Unreadable):
        assert "MIG" in checks[1].said


def test_the_mean_of_a_devices_readings_and_none_where_one_is_missing() -> None:
    meters = SimpleNamespace(cannot_meter=lambda: None)
    meter = GpuMeter(meters, [1.0, 2.0, 3.0, 4.0, 5.0], [0.9, 0.2, 0.4, Unreadable("old"), 0.9])  # type: ignore[arg-type]
    assert meter.share(1.0, 3.0) == pytest.approx(0.3)
    for began, ended, why in ((1.0, 4.5, "old"), (5.0, 9.0, "not read")):
        share = meter.share(began, ended)
        assert isinstance(share, Unreadable)
        assert why in share.why
    begins = GpuMeter(meters, [1.0, 2.0, 3.0], [Unreadable("first reading: no baseline yet"), 0.2, 0.3])  # type: ignore[arg-type]
    assert begins.share(0.0, 9.0) == pytest.approx(0.25), "what a meter begins with is no failed reading"
    assert isinstance(begins.share(0.0, 1.5), Unreadable)


@pytest.mark.parametrize(
    ("seconds", "host", "late", "verdict"),
    [
        (1.9, 1.0, 0.0, "ok"),
        (2.1, 1.0, 0.0, "FAIL"),
        (3.9, 0.5, 0.0, "ok"),
        (4.2, 0.5, 0.0, "FAIL"),
        (None, 0.5, 9.0, "FAIL"),
        (2.4, 1.0, 0.5, "ok"),
    ],
)
def test_acknowledging_a_stop(seconds: float | None, host: float, late: float, verdict: str) -> None:
    assert judge.acknowledged(seconds, host, late)[0] == verdict


@pytest.mark.parametrize(
    ("seconds", "code", "signal", "transient", "verdict"),
    [
        (1.0, 75, None, True, "ok"),
        (1.0, 0, None, False, "ok"),
        (1.0, 75, None, False, "FAIL"),
        (1.0, 1, None, True, "FAIL"),
        (5.0, None, 9, True, "FAIL"),
        (None, None, None, False, "FAIL"),
    ],
)
def test_the_end_after_a_stop(
    seconds: float | None, code: int | None, signal: int | None, transient: bool, verdict: str
) -> None:
    assert judge.ended(seconds, 5.0, code, signal, transient)[0] == verdict


def test_a_runner_that_had_to_be_killed_is_told_so_and_not_of_an_exit_code_it_never_had() -> None:
    verdict, said = judge.ended(5.0, 5.0, None, 9, True)
    assert verdict == "FAIL"
    assert "signal 9, not by itself" in said
    assert "exit" not in said


@pytest.mark.parametrize(
    ("before", "held", "verdict"),
    [
        (1.0, 0.0, "ok"),
        (1.0, 0.1, "ok"),
        (1.0, 0.11, "FAIL"),
        (0.3, 0.3, "FAIL"),
        (0.3, 0.05, "ok"),
        (0.3, 0.06, "FAIL"),
        (0.04, 0.0, "skip"),
        (2.0, 0.12, "FAIL"),
    ],
)
def test_a_pause_by_what_is_used(before: float, held: float, verdict: str) -> None:
    assert judge.paused(before, held, 1.0)[0] == verdict


@pytest.mark.parametrize(
    ("before", "again", "verdict"), [(1.0, 0.9, "ok"), (1.0, 0.11, "ok"), (1.0, 0.05, "FAIL"), (0.04, 0.0, "skip")]
)
def test_a_resumed_runner_uses_more_than_a_paused_one_may(before: float, again: float, verdict: str) -> None:
    assert judge.resumed(before, again, 1.0)[0] == verdict


def test_lines_and_the_last_one() -> None:
    checks = [Check("a", "ok", "1"), Check("b", "FAIL", "2"), Check("c", "skip", "3"), Check("d", "ok", "4")]
    assert [check.line() for check in checks[:3]] == ["ok    a: 1", "FAIL  b: 2", "skip  c: 3"]
    assert summary(checks) == "2 passed, 1 failed, 1 skipped"


MANIFEST = """
manifest = 1
[module]
id = "dev.example.m"
version = "1"
[runner]
exec = ["python", "{bundle}/m.py"]
[[stages]]
name = "s"
determinism = "exact"
[results]
digest = { version = 1, over = ["a"] }
[goldens]
fixtures = ["g.json"]
"""


@pytest.fixture
def manifest() -> Manifest:
    return parse_manifest(MANIFEST)


@pytest.mark.parametrize(
    ("got", "exact", "differs"),
    [
        ({"a": [1, "x"], "b": 9}, True, False),
        ({"a": [1, "y"]}, True, True),
        ({"a": [1.0, "x"]}, True, True),
        ({"a": [1.0000001, "x"]}, False, False),
        ({"a": [1.1, "x"]}, False, True),
        ({"a": [1]}, True, True),
        ({}, True, True),
        (None, True, True),
    ],
)
def test_results_against_a_golden(manifest: Manifest, got: Any, exact: bool, differs: bool) -> None:
    assert (difference({"a": [1, "x"], "b": 2}, got, manifest, exact=exact) is not None) == differs


def test_the_digest_is_over_what_the_manifest_names(manifest: Manifest) -> None:
    assert digest({"a": 1, "b": 2}, manifest) == digest({"b": 3, "a": 1}, manifest)
    assert digest({"a": 1}, manifest) != digest({"a": 2}, manifest)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"stage": "s", "payload": 1}', '{"stage": "t", "payload": 1, "result": {}}']
)
def test_a_fixture_that_cannot_be_used_is_named(tmp_path: Path, manifest: Manifest, text: str) -> None:
    (tmp_path / "g.json").write_text(text)
    with pytest.raises(GoldenError, match=r"g\.json"):
        read_goldens(tmp_path, manifest)


def test_a_fixture_outside_the_bundle_is_none(tmp_path: Path, manifest: Manifest) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (tmp_path / "g.json").write_text('{"stage": "s", "payload": 1, "result": {}}')
    (bundle / "g.json").symlink_to(tmp_path / "g.json")
    with pytest.raises(GoldenError, match="leaves the bundle"):
        read_goldens(bundle, manifest)


GOOD = {"name": "n", "stage": "s", "duty": 0.3, "window_s": 4, "payload": {}}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"stage": "t"}, "stage"),
        ({"duty": 0}, "duty"),
        ({"duty": 1.5}, "duty"),
        ({"duty": "half"}, "duty"),
        ({"duty": True}, "duty"),
        ({"window_s": 0}, "window_s"),
        ({"window_s": 1e9}, "window_s"),
        ({"name": ""}, "name"),
    ],
)
def test_a_duty_spec_that_cannot_be_used_is_named(
    tmp_path: Path, manifest: Manifest, change: dict[str, object], named: str
) -> None:
    (tmp_path / "conformance.json").write_text(json.dumps({"duty_specs": [{**GOOD, **change}]}))
    with pytest.raises(SpecError, match=rf"duty_specs\[0\]\.{named}"):
        read_specs(tmp_path, manifest)


def test_duty_specs(tmp_path: Path, manifest: Manifest) -> None:
    assert read_specs(tmp_path, manifest) == []
    (tmp_path / "conformance.json").write_text(json.dumps({"duty_specs": [GOOD]}))
    assert [(spec.name, spec.duty) for spec in read_specs(tmp_path, manifest)] == [("n", 0.3)]
    (tmp_path / "conformance.json").write_text(json.dumps({"duty_specs": [GOOD, GOOD]}))
    with pytest.raises(SpecError, match="same name"):
        read_specs(tmp_path, manifest)


def test_the_watch_sees_writes_outside_and_lets_them_happen(tmp_path: Path) -> None:
    from cotenant.conform.writes import Watch

    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.mkdir()
    other.mkdir()
    shared = f"/dev/shm/cotenant-test-{os.getpid()}"
    (mine / "link").symlink_to(other / "through")
    code = (
        f"import os; os.chdir({str(mine)!r}); open('a', 'w').close(); os.rename('a', 'b'); os.makedirs('c/d')\n"
        f"open({str(other / 'e')!r}, 'w').close(); os.rename('b', '../other/f'); open('link', 'w').close()\n"
        "open('/dev/null', 'w').close(); open('/proc/self/comm', 'w').close(); open('../other/e').close()\n"
        f"os.makedirs({str(other)!r}, exist_ok=True); os.mkdir({str(other / 'g')!r})\n"
        f"open({shared!r}, 'w').close(); os.unlink({shared!r})\n"
    )
    watch = Watch([mine])
    watch.start()
    done = subprocess.run(watch.wrap([sys.executable, "-c", code]), timeout=120, check=False)
    watch.close()
    assert done.returncode == 0
    if watch.unwatched is not None:
        pytest.skip(watch.unwatched)
    assert {name: (other / name).exists() for name in "ef"} == {"e": True, "f": True}
    seen = {item.partition(" ")[2] for item in watch.outside}
    assert seen == {str(other / "e"), str(other / "f"), str(mine / "link"), str(other / "g"), shared}
    assert watch.detached == []


def test_the_watch_sees_a_session_that_is_begun(tmp_path: Path) -> None:
    from cotenant.conform.writes import Watch

    watch = Watch([tmp_path])
    watch.start()
    code = "import os\nif os.fork() == 0:\n    os.setsid()\n    os._exit(0)\nos.wait()"
    subprocess.run(watch.wrap([sys.executable, "-c", code]), timeout=120, check=True)
    watch.close()
    if watch.unwatched is not None:
        pytest.skip(watch.unwatched)
    assert [told.partition(") ")[2] for told in watch.detached] == ["began a session of its own"]
