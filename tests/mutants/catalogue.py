"""The mutants. Each list belongs to a subject; ``ALL`` joins them."""

from __future__ import annotations

from tests.mutants.runner import Mutant

__all__ = ["ALL", "CONFORMANCE", "DUTY"]

UNIT = "tests/unit/test_conform.py"
METER = f"{UNIT}::test_the_tree_meter_counts_what_the_tree_counts_of_itself"
PROBE = f"{UNIT}::test_the_probe_finds_its_meter_right_and_the_host_gives_something"
NODE = "tests/node/test_conform.py::test_a_broken_promise_fails_by_its_own_check_and_no_other"
OVERRUN = f"{NODE}[overruns-its-duty-by-0.15-and-reports-that-it-does-not]"
ACCOUNT = "tests/unit/test_sdk_duty.py"
BENCH = "tests/unit/test_duty_accuracy.py"

JUDGE = "cotenant/conform/judge.py"
DEBT = "self._debt_s = max(-CREDIT_S * rate, self._debt_s + used - rate * elapsed)"

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
        quick=True,
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
        (UNIT,),
        quick=True,
    ),
    Mutant("the allowance is doubled", JUDGE, "ALLOWANCE = 0.1\n", "ALLOWANCE = 0.2\n", (UNIT,)),
    Mutant("the share forgets the cores", JUDGE, "return cpu_s / (seconds * cores)", "return cpu_s / seconds", (UNIT,)),
    Mutant(
        "a share has a factor",
        JUDGE,
        "return cpu_s / (seconds * cores)",
        "return cpu_s / (seconds * cores) * 0.5",
        (UNIT,),
        quick=True,
    ),
    Mutant(
        "the report is trusted in place of the meter",
        "cotenant/conform/duty.py",
        "share = judge.share_of(run.meter.used_s(began, ended), ended - began, cores)",
        'share = float(str(kept[-1]["value"]))',
        (OVERRUN,),
        quick=True,
    ),
    Mutant(
        "honesty compares reports with themselves",
        JUDGE,
        "measured = share_of(sum(item.cpu_s for item in intervals), seconds, cores)",
        "measured = told",
        (UNIT,),
    ),
    Mutant("honesty is turned round", JUDGE, "if told >= measured - HONEST", "if told <= measured - HONEST", (UNIT,)),
    Mutant(
        "a report's own stretch is not looked at",
        "cotenant/conform/duty.py",
        "found.append(judge.Interval(b - a, float(value), run.meter.used_wall_s(a, b)))",
        "found.append(judge.Interval(b - a, float(value), run.meter.total_s))",
        (UNIT,),
    ),
    Mutant(
        "a report of another duty passes",
        JUDGE,
        'if not _same(r.get("duty"), duty)',
        'if False and not _same(r.get("duty"), duty)',
        (UNIT,),
    ),
    Mutant(
        "silence passes",
        JUDGE,
        '        return "FAIL", "the runner reports no gpu_duty metric"',
        '        return "ok", "the runner reports no gpu_duty metric"',
        (UNIT,),
    ),
    Mutant(
        "any meter agrees",
        JUDGE,
        "agrees = abs(metered_s - child_s) <=",
        "agrees = -abs(metered_s - child_s) <=",
        (UNIT,),
    ),
    Mutant(
        "a tree meter that reads too little agrees",
        JUDGE,
        "agrees = -slack_s <= ended_s - metered_s <= after_s + slack_s",
        "agrees = -slack_s <= ended_s - metered_s",
        (UNIT,),
    ),
    Mutant(
        "a stop's limit forgets the host",
        JUDGE,
        "limit_s = ACKNOWLEDGE_S / host_share + late_s",
        "limit_s = ACKNOWLEDGE_S + late_s",
        (UNIT,),
    ),
    Mutant(
        "a stop's limit is turned round",
        JUDGE,
        'return ("ok" if seconds <= limit_s else "FAIL")',
        'return ("ok" if seconds >= limit_s else "FAIL")',
        (UNIT,),
    ),
    Mutant(
        "a killed runner ended by itself",
        JUDGE,
        "    if signal is not None:\n        return",
        "    if False:\n        return",
        (UNIT,),
    ),
    Mutant(
        "a pause is any use of CPU",
        JUDGE,
        "calm = held_cores <= _calm_cores(before_cores, held_s)",
        "calm = held_cores >= _calm_cores(before_cores, held_s)",
        (UNIT,),
    ),
    Mutant("a paused runner may go on as before", JUDGE, "PAUSED_PART = 0.1\n", "PAUSED_PART = 1.0\n", (UNIT,)),
    Mutant(
        "the exact golden has a tolerance",
        "cotenant/conform/goldens.py",
        "tolerance = 0.0 if exact else",
        "tolerance = 0.5 if exact else",
        (UNIT,),
    ),
    Mutant(
        "the digest is over everything",
        "cotenant/conform/goldens.py",
        '(manifest.results.digest or {}).get("over") or sorted(payload)',
        "sorted(payload)",
        (UNIT,),
    ),
    Mutant("renames are not seen", "cotenant/conform/_watched.py", '"rename": 82, ', "", (UNIT,)),
    Mutant(
        "a link out of the folder is not followed",
        "cotenant/conform/writes.py",
        "real = os.path.realpath(path) if name in",
        "real = path if name in",
        (UNIT,),
    ),
]

DUTY = [
    Mutant(
        "the account's use has a factor",
        "cotenant/sdk/duty.py",
        DEBT,
        "self._debt_s = max(-CREDIT_S * rate, self._debt_s + 0.5 * used - rate * elapsed)",
        (ACCOUNT,),
        quick=True,
    ),
    Mutant(
        "credit has no end",
        "cotenant/sdk/duty.py",
        DEBT,
        "self._debt_s = self._debt_s + used - rate * elapsed",
        (ACCOUNT,),
    ),
    Mutant(
        "lateness is paid twice",
        "cotenant/sdk/duty.py",
        DEBT,
        "self._debt_s = max(0.0, self._debt_s + used - rate * elapsed)",
        (ACCOUNT,),
    ),
    Mutant(
        "the duty's cores are forgotten",
        "cotenant/sdk/duty.py",
        "/ self._cores\n            self._cpu_mark",
        "\n            self._cpu_mark",
        (ACCOUNT,),
    ),
    Mutant(
        "children's time is dropped",
        "cotenant/sdk/duty.py",
        "return time.process_time() + self._children_s",
        "return time.process_time()",
        ("tests/node/test_jobs_duty_accuracy.py::test_children_are_counted_too",),
    ),
    Mutant(
        "a burst is ten times as long",
        "cotenant/sdk/duty.py",
        "BURST_S = 0.010\n",
        "BURST_S = 0.100\n",
        (f"{ACCOUNT}::test_bursts_stay_short",),
    ),
    Mutant(
        "the benchmark's share has a factor",
        "benchmarks/duty_accuracy.py",
        "share=samples.used(long.began, long.ended) /",
        "share=0.5 * samples.used(long.began, long.ended) /",
        (BENCH,),
        quick=True,
    ),
    Mutant(
        "the benchmark's largest share is the mean",
        "benchmarks/duty_accuracy.py",
        "return max(found, default=None)",
        "return sum(found) / len(found) if found else None",
        (BENCH,),
    ),
    Mutant(
        "the benchmark's throughput forgets the duty",
        "benchmarks/duty_accuracy.py",
        "/ (duty * free_units / free_s)",
        "/ (free_units / free_s)",
        (BENCH,),
    ),
]

ALL = [*CONFORMANCE, *DUTY]
