"""The conformance kit: its meters, its judgements, its watch over writes."""

from __future__ import annotations

from tests.mutants.runner import Mutant

__all__ = ["CONFORMANCE"]

UNIT = "tests/unit/test_conform.py"
UNIT_METERS = "tests/unit/test_conform_meters.py"
UNIT_BUNDLE = "tests/unit/test_conform_bundle.py"
METER = f"{UNIT_METERS}::test_the_tree_meter_counts_what_the_tree_counts_of_itself"
PROBE = f"{UNIT_METERS}::test_the_probe_finds_its_meter_right_and_the_host_gives_something"

JUDGE = "cotenant/conform/judge.py"

CONFORMANCE = [
    Mutant(
        "the kit's tree meter reads half",
        "cotenant/conform/meter.py",
        "self.cpu_s.append(found)",
        "self.cpu_s.append(found * 0.5)",
        (METER,),
        quick=True,
    ),
    Mutant(
        "the kit's process meter reads half",
        "cotenant/conform/meter.py",
        "return proc.own_ticks / CLOCK_TICKS",
        "return proc.own_ticks / CLOCK_TICKS * 0.5",
        (PROBE,),
    ),
    Mutant(
        "kernel time is dropped",
        "nodes/jobs/proctree.py",
        "own_ticks=int(f[11]) + int(f[12])",
        "own_ticks=int(f[11])",
        (METER,),
        quick=True,
    ),
    Mutant(
        "user time is dropped",
        "nodes/jobs/proctree.py",
        "own_ticks=int(f[11]) + int(f[12])",
        "own_ticks=int(f[12])",
        (METER,),
    ),
    Mutant(
        "collected children are dropped",
        "nodes/jobs/proctree.py",
        "reaped_ticks=int(f[13]) + int(f[14])",
        "reaped_ticks=0",
        (METER,),
    ),
    Mutant(
        "the probe's kernel time is not told",
        "cotenant/conform/host.py",
        'told["user_s"], told["system_s"])',
        'told["user_s"], 0.0)',
        (PROBE,),
    ),
    Mutant(
        "the duty's limit is turned round",
        JUDGE,
        "    if share > limit:\n",
        "    if share < limit:\n",
        (f"{UNIT}::test_a_share_against_its_duty",),
    ),
    Mutant(
        "the allowance is doubled",
        JUDGE,
        "ALLOWANCE = 0.1\n",
        "ALLOWANCE = 0.2\n",
        (f"{UNIT}::test_a_share_against_its_duty",),
    ),
    Mutant(
        "the share forgets the cores",
        JUDGE,
        "return cpu_s / (seconds * cores)",
        "return cpu_s / seconds",
        (f"{UNIT}::test_a_share_is_of_the_cores_that_the_stage_declares",),
    ),
    Mutant(
        "a share has a factor",
        JUDGE,
        "return cpu_s / (seconds * cores)",
        "return cpu_s / (seconds * cores) * 0.5",
        (f"{UNIT}::test_a_share_is_of_the_cores_that_the_stage_declares",),
    ),
    Mutant(
        "the report is trusted in place of the meter",
        "cotenant/conform/duty.py",
        "share = judge.share_of(run.meter.used_s(run.began, run.ended), run.ended - run.began, run.cores)",
        'share = float(str(kept[-1]["value"]))',
        (f"{UNIT}::test_the_meter_is_what_counts_whatever_is_reported",),
        quick=True,
    ),
    Mutant(
        "honesty compares reports with themselves",
        JUDGE,
        "measured = share_of(sum(item.cpu_s for item in intervals), seconds, cores)",
        "measured = told",
        (f"{UNIT}::test_reports_against_the_same_stretches",),
    ),
    Mutant(
        "honesty is turned round",
        JUDGE,
        "if told >= measured - HONEST",
        "if told <= measured - HONEST",
        (f"{UNIT}::test_reports_against_the_same_stretches",),
    ),
    Mutant(
        "a report's own stretch is not looked at",
        "cotenant/conform/duty.py",
        "found.append(judge.Interval(b - a, float(value), meter.used_wall_s(a, b)))",
        "found.append(judge.Interval(b - a, float(value), meter.total_s))",
        (f"{UNIT}::test_each_report_stands_beside_the_kits_own_count_of_the_same_time",),
    ),
    Mutant(
        "a report of another duty passes",
        JUDGE,
        'if not _same(r.get("duty"), duty)',
        'if False and not _same(r.get("duty"), duty)',
        (f"{UNIT}::test_what_is_reported",),
    ),
    Mutant(
        "silence passes",
        JUDGE,
        '        return "FAIL", "the runner reports no gpu_duty metric"',
        '        return "ok", "the runner reports no gpu_duty metric"',
        (f"{UNIT}::test_what_is_reported",),
    ),
    Mutant(
        "any meter agrees",
        JUDGE,
        "agrees = abs(metered_s - child_s) <=",
        "agrees = -abs(metered_s - child_s) <=",
        (f"{UNIT}::test_a_meter_with_a_factor_is_found",),
    ),
    Mutant(
        "a tree meter that reads too little agrees",
        JUDGE,
        "agrees = -slack_s <= ended_s - metered_s <= after_s + slack_s",
        "agrees = -slack_s <= ended_s - metered_s",
        (f"{UNIT}::test_what_it_used_after_the_last_reading_is_allowed_for",),
    ),
    Mutant(
        "a stop's limit forgets the host",
        JUDGE,
        "limit_s = ACKNOWLEDGE_S / host_share + late_s",
        "limit_s = ACKNOWLEDGE_S + late_s",
        (f"{UNIT}::test_acknowledging_a_stop",),
    ),
    Mutant(
        "a stop's limit is turned round",
        JUDGE,
        'return ("ok" if seconds <= limit_s else "FAIL")',
        'return ("ok" if seconds >= limit_s else "FAIL")',
        (f"{UNIT}::test_acknowledging_a_stop",),
    ),
    Mutant(
        "a killed runner ended by itself",
        JUDGE,
        "    if signal is not None:\n        return",
        "    if False:\n        return",
        (f"{UNIT}::test_a_runner_that_had_to_be_killed_is_told_so_and_not_of_an_exit_code_it_never_had",),
    ),
    Mutant(
        "a pause is any use of CPU",
        JUDGE,
        "calm = held_cores <= _calm_cores(before_cores, held_s)",
        "calm = held_cores >= _calm_cores(before_cores, held_s)",
        (f"{UNIT}::test_a_pause_by_what_is_used",),
    ),
    Mutant(
        "a paused runner may go on as before",
        JUDGE,
        "PAUSED_PART = 0.1\n",
        "PAUSED_PART = 1.0\n",
        (f"{UNIT}::test_a_pause_by_what_is_used",),
    ),
    Mutant(
        "the exact golden has a tolerance",
        "cotenant/conform/goldens.py",
        "tolerance = 0.0 if exact else",
        "tolerance = 0.5 if exact else",
        (f"{UNIT_BUNDLE}::test_results_against_a_golden",),
    ),
    Mutant(
        "the digest is over everything",
        "cotenant/conform/goldens.py",
        '(manifest.results.digest or {}).get("over") or sorted(payload)',
        "sorted(payload)",
        (f"{UNIT_BUNDLE}::test_the_digest_is_over_what_the_manifest_names",),
    ),
    Mutant(
        "renames are not seen",
        "cotenant/conform/_watched.py",
        '"rename": 82, ',
        "",
        (f"{UNIT_METERS}::test_the_watch_sees_writes_outside_and_lets_them_happen",),
    ),
    Mutant(
        "a link out of the folder is not followed",
        "cotenant/conform/writes.py",
        "real = os.path.realpath(path) if name in",
        "real = path if name in",
        (f"{UNIT_METERS}::test_the_watch_sees_writes_outside_and_lets_them_happen",),
    ),
    Mutant(
        "a device's share has a factor",
        "cotenant/conform/gpu.py",
        "return sum(known) / len(known)",
        "return 0.5 * sum(known) / len(known)",
        (f"{UNIT_METERS}::test_the_mean_of_a_devices_readings_and_none_where_one_is_missing",),
    ),
    Mutant(
        "a reading of a device that failed is left out",
        "cotenant/conform/gpu.py",
        "if not known or len(known) < len(within):",
        "if not known:",
        (f"{UNIT_METERS}::test_the_mean_of_a_devices_readings_and_none_where_one_is_missing",),
    ),
    Mutant(
        "a device's limit is turned round",
        JUDGE,
        'return ("ok" if share <= limit else "FAIL"), f"{share:.3f} of the device',
        'return ("ok" if share >= limit else "FAIL"), f"{share:.3f} of the device',
        (f"{UNIT}::test_where_the_host_meters_the_device_that_is_what_counts",),
    ),
    Mutant(
        "a device's report is trusted in place of its meter",
        "cotenant/conform/duty.py",
        "*judge.within_device(run.device, spec.duty)",
        '*judge.within_device(float(str(kept[-1]["value"])), spec.duty)',
        (f"{UNIT}::test_where_the_host_meters_the_device_that_is_what_counts",),
    ),
]
