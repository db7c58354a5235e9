"""Jobs and their keepers: the journal, launcher and guardian, adoption, the door for signals."""

from __future__ import annotations

from tests.mutants.runner import Mutant

__all__ = ["JOBS"]

JOURNAL = "nodes/journal.py"
LAUNCHER = "nodes/jobs/launcher.py"
UNWATCHED = "nodes/jobs/unwatched.py"
GUARDIAN = "nodes/jobs/guardian.py"
ADOPTION = "nodes/jobs/adoption.py"
GUARD = "nodes/jobs/guard.py"
PROCTREE = "nodes/jobs/proctree.py"

T_JOURNAL = "tests/node/test_journal.py"
T_STATE = "tests/node/test_state_files.py"
T_LAUNCHER = "tests/node/test_launcher.py"
T_REPORT = "tests/node/test_launcher_report.py"
T_HOLDING = "tests/node/test_jobs_holding.py"
T_JOBS = "tests/node/test_jobs.py"
T_GUARD = "tests/unit/test_jobs_guard.py"
T_SIGNALS = "tests/unit/test_jobs_signals.py"
T_ADOPTED = "tests/unit/test_jobs_adoption.py"

JOBS = [
    Mutant(
        "a block is written over",
        JOURNAL,
        '"INSERT INTO blocks (run, number, row) VALUES (?,?,?)"',
        '"INSERT OR REPLACE INTO blocks (run, number, row) VALUES (?,?,?)"',
        (f"{T_JOURNAL}::test_a_block_is_written_once",),
        quick=True,
    ),
    Mutant(
        "entries that were lost count as one",
        JOURNAL,
        "self.lost + len(entries)",
        "self.lost + 1",
        (f"{T_JOURNAL}::test_each_entry_that_is_lost_together_with_others_counts",),
    ),
    Mutant(
        "an error loses what was written before it",
        JOURNAL,
        "            waiting, self._waiting = self._waiting, None\n            if waiting:\n                self._keep(waiting)\n",
        "            self._waiting = None\n",
        (f"{T_JOURNAL}::test_entries_written_together_are_kept_also_when_an_error_follows",),
    ),
    Mutant(
        "an old failure is forgotten",
        JOURNAL,
        "(limit or -1,)",
        "(limit or 50,)",
        (f"{T_JOURNAL}::test_no_run_is_forgotten",),
    ),
    Mutant(
        "why a certificate was revoked is told anew",
        JOURNAL,
        "WHERE certificate = ? AND revoked IS NULL",
        "WHERE certificate = ?",
        (f"{T_JOURNAL}::test_a_certificate_is_revoked_once_and_for_the_first_reason",),
    ),
    # -- launcher and guardian
    Mutant(
        "a runner is started that stands in no registry",
        LAUNCHER,
        "                return False  # no writer: the agent is gone\n",
        "                return True\n",
        (f"{T_LAUNCHER}::test_the_launcher_starts_nothing_without_a_word_from_the_agent",),
    ),
    Mutant(
        "a stuck agent is a live one",
        LAUNCHER,
        "        elif now - self.last_byte > self.silence_s:\n",
        "        elif False:\n",
        (f"{T_LAUNCHER}::test_a_stuck_agent_protects_nobody_and_decides_anew_when_it_comes_back",),
    ),
    Mutant(
        "the launcher stops its runner alone",
        "nodes/jobs/below.py",
        "running = [proc for proc in self.processes() if proc.state not in",
        "running = [proc for proc in self.processes()[:1] if proc.state not in",
        (f"{T_LAUNCHER}::test_freeze_ok_is_frozen_when_the_agent_is_killed_and_goes_on_when_released",),
    ),
    Mutant(
        "a process ends with its main thread",
        PROCTREE,
        "if state in DEAD and int(f[17]) > 1:",
        "if False:",
        ("tests/node/test_headless.py",),
    ),
    Mutant(
        "a tree that was at rest is looked at no more",
        UNWATCHED,
        "        if rests:\n            self._freeze_until = None\n",
        "        if rests:\n            self._freezes = False\n            self._freeze_until = None\n",
        ("tests/node/test_unwatched.py::test_what_a_stranger_lets_go_on_is_stopped_again",),
    ),
    Mutant(
        "a nudge is sent to who does not listen",
        "nodes/jobs/proctree.py",
        "if sig == signal.SIGUSR1 and not _takes(pid, sig):",
        "if False:",
        ("tests/node/test_nudges.py",),
    ),
    Mutant(
        "the launcher's report leaves kernel time out",
        LAUNCHER,
        '"cpu_s": max(children.ru_utime + children.ru_stime,',
        '"cpu_s": max(children.ru_utime,',
        (T_REPORT,),
    ),
    Mutant(
        "the peak of memory is told in KiB",
        LAUNCHER,
        "children.ru_maxrss * 1024",
        "children.ru_maxrss",
        (T_REPORT,),
    ),
    Mutant(
        "the launcher's document is no newer",
        LAUNCHER,
        '"seq": (seq if isinstance(seq, int) else 0) + 1}',
        '"seq": seq if isinstance(seq, int) else 0}',
        (f"{T_LAUNCHER}::test_cooperative_pause_gets_a_newer_document_and_stays_paused",),
    ),
    Mutant(
        "a pause that is not obeyed is one",
        UNWATCHED,
        "> PAUSE_CPU_MAX * (now - since):",
        "> proctree.CLOCK_TICKS * (now - since):",
        (f"{T_LAUNCHER}::test_a_pause_that_is_not_obeyed_ends_the_attempt",),
    ),
    Mutant(
        "what a launcher leaves goes on",
        GUARDIAN,
        "    _, status = os.waitpid(launcher, 0)\n    _clear_away()\n",
        "    _, status = os.waitpid(launcher, 0)\n",
        (
            f"{T_LAUNCHER}::test_agent_and_launcher_both_killed",
            f"{T_HOLDING}::test_agent_and_launcher_killed_leave_no_stray",
        ),
    ),
    Mutant(
        "a launcher outlives its guardian",
        GUARDIAN,
        "libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)",
        "pass",
        (f"{T_HOLDING}::test_the_launcher_ends_the_attempt_when_its_guardian_dies",),
    ),
    # -- adoption
    Mutant(
        "the row is believed over the document",
        ADOPTION,
        "    if told is None:\n        return kept\n    duty = told",
        "    if told is None or kept is not None:\n        return kept\n    duty = told",
        (f"{T_ADOPTED}::test_an_agent_that_died_between_the_document_and_its_row",),
    ),
    Mutant(
        "a launcher of an earlier boot is ours",
        ADOPTION,
        "if row.launcher is not None and row.launcher.boot_id == boot_id():",
        "if row.launcher is not None:",
        (f"{T_ADOPTED}::test_a_launcher_of_an_earlier_boot_is_nobody_here",),
    ),
    Mutant(
        "what ran under an earlier agent is forgotten",
        ADOPTION,
        "    attempt.ran_before_s = row.ran_s\n",
        "",
        (f"{T_ADOPTED}::test_what_ran_under_an_earlier_agent_counts",),
    ),
    Mutant(
        "one mark in its environment makes a process ours",
        ADOPTION,
        "or not marks <= set(environ):",
        "or not marks & set(environ):",
        (f"{T_ADOPTED}::test_a_leftover_is_known_by_both_of_its_marks_and_by_neither_alone",),
    ),
    Mutant(
        "what the row names is nobody's once its launcher is gone",
        ADOPTION,
        "            guard.register(row.attempt, pid, start_ticks)\n",
        "            pass\n",
        (f"{T_ADOPTED}::test_what_the_row_names_is_ours_by_pid_and_start_and_boot",),
    ),
    Mutant(
        "a session is told by a pid that was used again",
        ADOPTION,
        "if proc is not None and proc.start_ticks == start_ticks and not proc.dead and guard.owns(pid, start_ticks):",
        "if proc is not None and not proc.dead and guard.owns(pid, start_ticks):",
        (f"{T_ADOPTED}::test_who_came_after_the_last_look_is_known_by_the_session",),
    ),
    Mutant(
        "who is in the agent's own session is fleet work",
        ADOPTION,
        "    holders.pop(os.getsid(0), None)\n",
        "",
        (f"{T_ADOPTED}::test_nobody_in_the_agents_own_session_is_a_mate",),
    ),
    Mutant(
        "a runner's word on who it is stands in the registry",
        "nodes/jobs/keeping.py",
        " if self._owns(pid, start_ticks)}",
        "}",
        (f"{T_ADOPTED}::test_a_row_gets_no_process_that_the_guard_does_not_know",),
    ),
    # -- the door for signals
    Mutant(
        "a process whose start is unknown may be signalled",
        GUARD,
        '            return "its start time is unknown"\n',
        '            return ""\n',
        (f"{T_GUARD}::test_case_042_unknown_is_refused_and_said_once",),
    ),
    Mutant(
        "a parent may be younger than its child",
        GUARD,
        "if parent is None or parent.start_ticks > proc.start_ticks:",
        "if parent is None:",
        (f"{T_GUARD}::test_who_started_after_a_process_is_not_its_parent",),
    ),
    Mutant(
        "a used pid is signalled",
        PROCTREE,
        "if now is None or now.start_ticks != start_ticks:",
        "if now is None:",
        (f"{T_SIGNALS}::test_the_kernels_own_table_is_asked_who_a_pid_is_before_a_signal_goes_out",),
    ),
]
