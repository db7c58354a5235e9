"""The SDK, ``Duty`` and ``Supervisor``, and the benchmark that measures the first."""

from __future__ import annotations

from tests.mutants.runner import Mutant

__all__ = ["SDK"]

ACCOUNT = "tests/unit/test_sdk_duty.py"
BENCH = "tests/unit/test_duty_accuracy.py"
SUPERVISOR = "tests/node/test_sdk_supervisor.py"
DUTY = "cotenant/sdk/duty.py"
RUNS = "cotenant/sdk/supervisor.py"
LOOP = "tests/node/test_sdk_asyncio.py"

DEBT = "self._debt_s = max(-CREDIT_S * rate, self._debt_s + used - rate * elapsed)"

SDK = [
    Mutant(
        "the account's use has a factor",
        DUTY,
        DEBT,
        "self._debt_s = max(-CREDIT_S * rate, self._debt_s + 0.5 * used - rate * elapsed)",
        (f"{ACCOUNT}::test_the_next_unit_starts_after_b_over_d",),
        quick=True,
    ),
    Mutant(
        "credit has no end",
        DUTY,
        DEBT,
        "self._debt_s = self._debt_s + used - rate * elapsed",
        (f"{ACCOUNT}::test_a_host_that_gives_nothing_earns_no_burst",),
    ),
    Mutant(
        "lateness is paid twice",
        DUTY,
        DEBT,
        "self._debt_s = max(0.0, self._debt_s + used - rate * elapsed)",
        (f"{ACCOUNT}::test_lateness_is_not_paid_twice",),
    ),
    Mutant(
        "the duty's cores are forgotten",
        DUTY,
        "/ self._cores\n            self._cpu_mark",
        "\n            self._cpu_mark",
        (f"{ACCOUNT}::test_cores_make_a_duty_of_1",),
    ),
    Mutant(
        "children's time is dropped",
        DUTY,
        "return time.process_time() + self._children_s",
        "return time.process_time()",
        ("tests/node/test_jobs_duty_accuracy.py::test_children_are_counted_too",),
    ),
    Mutant(
        "a burst is ten times as long",
        DUTY,
        "BURST_S = 0.020\n",
        "BURST_S = 0.200\n",
        (f"{ACCOUNT}::test_bursts_stay_short",),
    ),
    Mutant(
        "the benchmark's share has a factor",
        "benchmarks/duty_accuracy.py",
        "share=samples.used(long.began, long.ended) /",
        "share=0.5 * samples.used(long.began, long.ended) /",
        (BENCH,),
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
        "throughput_ratio=_rate(held) / (duty * free)",
        "throughput_ratio=_rate(held) / free",
        (BENCH,),
    ),
    Mutant(
        "overlapping units are counted each",
        DUTY,
        "used = elapsed if self._open else 0.0",
        "used = elapsed * self._open",
        (f"{ACCOUNT}::test_units_that_are_open_at_once_use_the_device_once",),
    ),
    Mutant(
        "a report divides by its period",
        DUTY,
        '"value": round((busy - before) / span, 4)',
        '"value": round((busy - before) / (2.0 * span), 4)',
        (f"{ACCOUNT}::test_a_device_that_is_in_use_all_the_time_is_reported_as_whole",),
    ),
    Mutant(
        "the time idled is counted as busy",
        DUTY,
        "        self._busy_s += used\n",
        "        self._busy_s += elapsed\n",
        (f"{ACCOUNT}::test_the_next_unit_starts_after_b_over_d", f"{ACCOUNT}::test_reports"),
    ),
    Mutant(
        "a workload's older document applies",
        RUNS,
        "known > self._seq:",
        "known != self._seq:",
        (f"{SUPERVISOR}::test_a_document_out_of_bounds_or_older_changes_nothing",),
    ),
    Mutant(
        "a limit out of bounds lifts the limit",
        RUNS,
        "raw[name] = least if before is None else before",
        "raw[name] = None",
        (f"{SUPERVISOR}::test_a_document_out_of_bounds_or_older_changes_nothing",),
    ),
    Mutant(
        "a workload that is to begin paused is started",
        RUNS,
        "if not self._over and not self._pause_asked:\n                self._spawn()",
        "if not self._over:\n                self._spawn()",
        (f"{SUPERVISOR}::test_paused_at_the_start_nothing_is_started",),
    ),
    Mutant(
        "a duty that was not taken passes",
        RUNS,
        'self._failure = f"{name} could not be applied: {error!r}"',
        "pass",
        (f"{SUPERVISOR}::test_a_duty_that_cannot_be_applied_ends_the_workload",),
    ),
    Mutant(
        "a pause reaches the first process alone",
        RUNS,
        "        for pid in found:\n            found += [child for child in _children(pid) if child not in found]\n",
        "",
        (f"{SUPERVISOR}::test_duty_pause_resume_and_stop_of_a_whole_tree",),
    ),
    Mutant(
        "a workload's child is forgotten with its parent",
        "cotenant/sdk/supervisor.py",
        "for pid, born in self._met.items() if pid not in found and",
        "for pid, born in self._met.items() if False and",
        (f"{SUPERVISOR}::test_a_child_that_ignores_term_is_killed_also_when_its_parent_has_ended",),
    ),
    Mutant(
        "a coroutine runs on under a pause",
        DUTY,
        "                    if not paused:\n                        wait_s = 0.0 if who",
        "                    if True:\n                        wait_s = 0.0 if who",
        (f"{LOOP}::test_a_document_applies_to_coroutines_that_idle",),
    ),
    Mutant(
        "a coroutine's pause is no time held",
        DUTY,
        "with self._held() if paused else contextlib.nullcontext():",
        "with contextlib.nullcontext():",
        (f"{LOOP}::test_a_document_applies_to_coroutines_that_idle",),
    ),
    Mutant(
        "a duty that is set wakes no coroutine",
        DUTY,
        "                    if not ended.is_set():\n                        callback()",
        "                    if not ended.is_set():\n                        pass",
        (f"{LOOP}::test_a_duty_that_is_set_applies_to_a_coroutine_that_idles",),
    ),
    Mutant(
        "a workload does not say that it rests",
        RUNS,
        'self._replace(path, "paused\\n")',
        "pass",
        (f"{SUPERVISOR}::test_a_server_that_pauses_itself_is_told_and_not_stopped_by_signal",),
    ),
    Mutant(
        "what the supervisor ended is the workload's exit code",
        RUNS,
        "bad = [code for code in self._own_ends if code]",
        "bad = [process.returncode for process in self.processes if process.returncode]",
        (f"{SUPERVISOR}::test_of_several_processes_the_first_that_fails_ends_all",),
    ),
    Mutant(
        "a document that could not be read is not read again",
        "cotenant/sdk/control.py",
        "if self._nudges_read == self._nudges and not self._doubt:",
        "if self._nudges_read == self._nudges:",
        ("tests/unit/test_sdk_control.py::test_a_document_that_cannot_be_read_holds_the_work_until_it_can",),
    ),
]
