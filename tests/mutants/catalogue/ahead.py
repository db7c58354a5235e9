"""What is stopped ahead of the loop, and what becomes of it."""

from __future__ import annotations

from tests.mutants.runner import Mutant

__all__ = ["AHEAD"]

REFLEX = "nodes/agent/reflex.py"
LOOKOUT = "nodes/sources/lookout.py"
ENFORCING = "nodes/agent/enforcing.py"

T_REFLEX = "tests/node/test_reflex.py"
T_LOOKOUT = "tests/node/test_lookout.py"
T_GLANCE = "tests/unit/test_sources_glance.py"

AHEAD = [
    Mutant(
        "the oldest word of the new lines counts",
        "policies/sources/glance.py",
        "changes[-1].state",
        "changes[0].state",
        (f"{T_GLANCE}::test_the_newest_word_counts",),
        quick=True,
    ),
    Mutant(
        "a line counts before it has its end",
        "policies/sources/glance.py",
        "data[:whole].splitlines()",
        "data.splitlines()",
        (f"{T_GLANCE}::test_a_line_without_its_end_says_nothing_yet",),
    ),
    Mutant(
        "a line of brackets is read on a small stack",
        "policies/sources/glance.py",
        "<= BRACKETS_AT_MOST",
        ">= 0",
        (f"{T_GLANCE}::test_a_line_of_brackets_does_not_run_over_a_small_stack",),
    ),
    Mutant(
        "any new line stops fleet work",
        REFLEX,
        'if state != "on" or not aims:',
        "if not aims:",
        (f"{T_REFLEX}::test_only_new_lines_that_end_in_a_phase_that_is_on_stop_anything",),
    ),
    Mutant(
        "what the loop has read is read once more",
        REFLEX,
        "max(trigger.cursor.at, trigger.cursor.reader.line_at)",
        "trigger.cursor.at",
        (f"{T_REFLEX}::test_what_the_loop_has_read_stops_nothing_later",),
    ),
    Mutant(
        "the beginning of many new lines is taken for their end",
        REFLEX,
        "if len(data) == PIECE_BYTES:",
        "if len(data) > PIECE_BYTES:",
        (f"{T_REFLEX}::test_more_than_a_glance_can_take_in_is_left_to_the_loop",),
    ),
    Mutant(
        "what was stopped ahead is told to nobody",
        REFLEX,
        "            self._done.append(done)\n",
        "",
        (f"{T_REFLEX}::test_what_is_over_when_the_loop_reads_it_goes_on_and_is_told",),
    ),
    Mutant(
        "the door gives out what it does not own",
        "nodes/jobs/guard.py",
        '        if why == "":\n            return self._system.hold_of(pid, start_ticks)',
        "        if why is not None:\n            return self._system.hold_of(pid, start_ticks)",
        ("tests/unit/test_jobs_guard.py::test_no_signal_leaves_the_trees_over_any_process_table",),
        quick=True,
    ),
    Mutant(
        "what was stopped ahead and is not to be held stays stopped",
        ENFORCING,
        'if attempt.braked and attempt.state != "held" and self._agent.view.fresh:',
        "if False:",
        (f"{T_REFLEX}::test_a_brake_that_no_line_explains_is_undone_by_the_next_judgement",),
    ),
    Mutant(
        "what was stopped ahead goes on while nobody looks at the programs",
        ENFORCING,
        'if attempt.braked and attempt.state != "held" and self._agent.view.fresh:',
        'if attempt.braked and attempt.state != "held":',
        (f"{T_REFLEX}::test_while_nobody_sees_the_programs_a_brake_stays_on",),
    ),
    Mutant(
        "an attempt on its way out is kept stopped",
        "nodes/jobs/hands.py",
        "                if attempt.stopping is not None:\n                    attempt.unbrake(self._clock())\n",
        "",
        (f"{T_REFLEX}::test_an_attempt_that_is_being_stopped_is_not_kept_from_its_end",),
    ),
    Mutant(
        "the loop hears of events before what cannot wait is done",
        LOOKOUT,
        "            useful = False\n            try:",
        "            useful = False\n            self._read.append(b'')\n            os.eventfd_write(self._ready, 1)\n            try:",
        (f"{T_LOOKOUT}::test_it_acts_before_the_loop_hears_of_it",),
    ),
    Mutant(
        "every launcher wakes when a runner is stopped",
        "nodes/jobs/launcher.py",
        "        action.flags |= SA_NOCLDSTOP\n",
        "",
        ("tests/node/test_launcher.py::test_the_launcher_sleeps_on_while_its_runner_is_stopped_and_let_go",),
    ),
]
