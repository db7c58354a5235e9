"""What fleet work may do beside a program: admission, ceilings, reaction, devices, units."""

from __future__ import annotations

from tests.mutants.runner import Mutant

__all__ = ["PROTECTION"]

ADMISSION = "policies/admission.py"
CAPS = "policies/caps.py"
REACTION = "policies/reaction.py"
DEVICES = "policies/devices.py"
UNITS = "policies/units.py"
MEMORY = "policies/memory_guard.py"
PROCESSES = "nodes/processes.py"
T_PROCESSES = "tests/node/test_processes.py"

T_ADMISSION = "tests/unit/test_admission.py"
T_REACTION = "tests/unit/test_reaction.py"
T_DEVICES = "tests/unit/test_devices.py"
T_UNITS = "tests/unit/test_units.py"
T_PROCESSES_READ = "tests/node/test_processes_read.py"
T_PROCESSES_REAL = "tests/node/test_processes_real.py"

PROTECTION = [
    Mutant(
        "what a job took is counted a second time",
        ADMISSION,
        "return max(0.0, self.mem_bytes - (self.footprint_bytes or 0))",
        "return self.mem_bytes",
        (f"{T_ADMISSION}::test_what_a_running_job_has_not_taken_yet_is_not_given_away",),
    ),
    Mutant(
        "work that is held gives its slot away",
        ADMISSION,
        "if len(units if feeds_the_run else room.taken) >= room.slots:",
        "if len(units) >= room.slots:",
        (f"{T_ADMISSION}::test_case_075_work_that_is_held_keeps_its_slot_and_its_memory_but_no_core",),
    ),
    Mutant(
        "the share of memory kept free is no share",
        ADMISSION,
        "floor = room.soft_free_pct / 100.0 * pool.total_bytes",
        "floor = room.soft_free_pct * pool.total_bytes",
        (f"{T_ADMISSION}::test_what_a_stage_declares_counts_before_its_job_starts",),
    ),
    Mutant(
        "the smaller of what is kept free and reserved is left alone",
        ADMISSION,
        "if left >= max(floor, aside):",
        "if left >= min(floor, aside):",
        (f"{T_ADMISSION}::test_a_reserve_sets_cores_and_memory_aside", T_ADMISSION),
    ),
    Mutant(
        "memory that cannot be read has room",
        ADMISSION,
        'return [Reason("MEMORY_UNKNOWN", f"memory of {pool.name} cannot be read")]',
        "continue",
        (f"{T_ADMISSION}::test_memory_that_cannot_be_read_admits_nothing",),
    ),
    # -- ceilings
    Mutant(
        "the loosest ceiling binds",
        CAPS,
        "lowest[name] = min(given, default=None)",
        "lowest[name] = max(given, default=None)",
        (f"{T_ADMISSION}::test_the_strictest_of_several_ceilings_binds_and_reserves_add_up",),
    ),
    Mutant(
        "a reserve in GB is taken for MB",
        CAPS,
        "1e9 * (reserve.mem_gb or 0.0)",
        "1e6 * (reserve.mem_gb or 0.0)",
        (f"{T_ADMISSION}::test_what_a_section_writes_is_what_counts",),
    ),
    Mutant(
        "two programs share one reserve",
        CAPS,
        "sum(each.cores for each in found)",
        "max((each.cores for each in found), default=0.0)",
        (f"{T_ADMISSION}::test_the_strictest_of_several_ceilings_binds_and_reserves_add_up",),
    ),
    # -- reaction
    Mutant(
        "a figure that is not known is no harm",
        REACTION,
        "    if figure is None:\n        return None\n    if not limit.needs_baseline:",
        "    if figure is None:\n        return 0.0\n    if not limit.needs_baseline:",
        (f"{T_REACTION}::test_a_source_that_cannot_be_read_counts_as_harm",),
        quick=True,
    ),
    Mutant(
        "work is raised again before its time",
        REACTION,
        "elif now_s - under_since_s >= LOWERED_UNDER_S:",
        "elif now_s - under_since_s < LOWERED_UNDER_S:",
        (f"{T_REACTION}::test_harm_at_the_target_lowers_at_once_and_under_it_for_30_s_raises",),
    ),
    Mutant(
        "a baseline may be measured beside fleet work",
        REACTION,
        "        state = replace(state, quiet_since_s=None)\n    elif state.quiet_since_s is None:",
        "        pass\n    elif state.quiet_since_s is None:",
        (f"{T_REACTION}::test_a_stretch_that_fleet_work_interrupts_is_none",),
    ),
    Mutant(
        "two looks at one instant are two samples",
        REACTION,
        "if now_s - state.now_s < SAMPLE_APART_S and state.program == signals.program:",
        "if now_s < state.now_s and state.program == signals.program:",
        (f"{T_REACTION}::test_two_looks_at_one_instant_are_one_sample",),
    ),
    # -- devices
    Mutant(
        "a device of unknown load is the idlest",
        DEVICES,
        "1.0 if device.busy is None else device.busy",
        "0.0 if device.busy is None else device.busy",
        (f"{T_DEVICES}::test_of_devices_with_room_the_one_with_the_least_on_it",),
    ),
    Mutant(
        "room is what the device has in all",
        DEVICES,
        "left = device.free_bytes - needs_bytes",
        "left = device.total_bytes - needs_bytes",
        (f"{T_DEVICES}::test_case_023_an_idle_device_that_is_full_has_no_room",),
    ),
    Mutant(
        "a device that cannot be read is not used",
        DEVICES,
        "devices = used | doubted | state.unread.keys()",
        "devices = used | doubted",
        (f"{T_DEVICES}::test_unreadable_counts_as_use_of_that_device_alone",),
    ),
    Mutant(
        "use under the threshold is use",
        DEVICES,
        "if share > DEVICE_USE:",
        "if share > 0.0:",
        (f"{T_DEVICES}::test_above_five_percent_of_its_time_is_use",),
    ),
    Mutant(
        "a starved program is idle after a minute",
        DEVICES,
        "            doubted[device] = now_s\n",
        "            pass\n",
        (f"{T_DEVICES}::test_a_program_that_fleet_work_starves_is_not_idle",),
    ),
    # -- units
    Mutant(
        "a limit on stall binds no device work",
        UNITS,
        'return not unit.device or (node.duty_device == "cpu" and node.gpu_jobs != "always")',
        "return not unit.device",
        (f"{T_UNITS}::test_a_phases_limit_on_stall_binds_beside_progress_and_in_a_runs_on_windows",),
    ),
    Mutant(
        "an overrun goes though memory is left over",
        "policies/overrun.py",
        "if short and not going\n",
        "if not going\n",
        ("tests/unit/test_overrun.py::test_what_is_left_over_may_be_lent_and_is_taken_back_first",),
    ),
    Mutant(
        "a program of which nobody knows uses no device",
        UNITS,
        "and rule.uses_device is not False",
        "and rule.uses_device",
        (f"{T_UNITS}::test_a_program_that_uses_the_device_or_may_holds_device_work_back",),
    ),
    Mutant(
        "each unit under test has the run's whole duty",
        UNITS,
        "return {unit.attempt: node.run.duty / len(sharing) for unit in sharing}",
        "return {unit.attempt: node.run.duty for unit in sharing}",
        (f"{T_UNITS}::test_the_duty_is_shared_equally_among_those_that_may_run",),
    ),
    Mutant(
        "the grant exempts from every rule",
        UNITS,
        "holding = [rule for rule in rules_beside(unit, node) if rule.id != exempt]",
        "holding = [rule for rule in rules_beside(unit, node) if exempt is None]",
        (f"{T_UNITS}::test_the_grant_exempts_the_work_under_test_from_its_own_rule_only",),
    ),
    Mutant(
        "an eviction is a pause where another reason pauses",
        UNITS,
        'else "evict" if any(r.action == "evict" for r in why) else "pause"',
        'else "evict" if all(r.action == "evict" for r in why) else "pause"',
        (T_UNITS,),
    ),
    Mutant(
        "other work starts on the cores that OFF leaves empty",
        "policies/run_holds.py",
        "if run is None or run.tests(unit):",
        "if True:",
        ("tests/unit/test_run_holds.py::test_nothing_but_the_work_under_test_starts_while_a_run_measures",),
    ),
    Mutant(
        "work that harm paused in ON runs in OFF",
        "policies/run_holds.py",
        "if unit.attempt in run.stays_held:",
        "if False:",
        ("tests/unit/test_run_holds.py::test_work_that_harm_in_on_paused_stays_paused_in_off",),
    ),
    # -- who runs
    Mutant(
        "an exec is told by name and arguments alone",
        PROCESSES,
        "entry.other = file != entry.exe_file",
        "entry.other = False",
        (f"{T_PROCESSES}::test_what_is_looked_at_closely_is_seen_to_end_and_to_exec_at_once",),
    ),
    Mutant(
        "a protected program's end is seen when its turn comes",
        PROCESSES,
        "for pid in chain(closely, islice(",
        "for pid in chain((), islice(",
        (f"{T_PROCESSES}::test_what_is_looked_at_closely_is_seen_to_end_and_to_exec_at_once",),
    ),
    Mutant(
        "one that comes as another goes is not seen",
        PROCESSES,
        "before == self._forks != Forks()",
        "before.tasks == self._forks.tasks != 0",
        (f"{T_PROCESSES_READ}::test_while_nobody_comes_or_goes_nothing_is_listed",),
        quick=True,
    ),
    Mutant(
        "while the counts stand still nothing is ever listed",
        PROCESSES,
        " and self._unlisted < UNLISTED",
        "",
        (f"{T_PROCESSES_READ}::test_what_the_counts_do_not_tell_is_seen_by_a_list_that_comes_all_the_same",),
    ),
    Mutant(
        "counts that a program made are believed",
        PROCESSES,
        "if self._counts_apply and before",
        "if before",
        (f"{T_PROCESSES_READ}::test_counts_from_another_file_system_are_not_believed",),
    ),
    Mutant(
        "a process that was read once is never read again",
        PROCESSES,
        "if raw == entry.stat and not entry.other:",
        "if entry.stat:",
        (f"{T_PROCESSES_REAL}::test_a_real_late_exec_with_the_same_name_is_seen",),
    ),
    Mutant(
        "a verdict outlives the facts that it was of",
        "policies/rules.py",
        "if table.get(pid) is before[pid]}",
        "if pid in table}",
        ("tests/unit/test_rules.py::test_what_is_kept_between_looks_changes_no_answer",),
    ),
    Mutant(
        "a reboot ends a cooldown",
        "policies/rule_restart.py",
        "return RuleState(active=kept.holds,",
        "return RuleState(active=kept.active,",
        ("tests/unit/test_rule_restart.py::test_after_a_reboot_what_was_held_waits_its_whole_time_anew",),
    ),
    Mutant(
        "a timing that cannot be read is none",
        "nodes/agent/rule_memory.py",
        "return None if key in left else self._doubt(key, now_s)",
        "return None",
        ("tests/unit/test_rule_restart.py::test_what_cannot_be_read_counts_as_held",),
    ),
    Mutant(
        "a module's build runs beside a run whose work is all",
        "policies/build_holds.py",
        "if node.run is not None:",
        "if node.run is not None and not node.run.tests(_OFF_DEVICE):",
        ("tests/unit/test_build_holds.py::test_a_run_holds_them_in_both_arms_whatever_work_it_tests",),
    ),
    Mutant(
        "a pause of GPU work holds every module's build",
        "policies/build_holds.py",
        'if not gpu and node.duty_device != "cpu":',
        "if False:",
        (
            "tests/unit/test_build_holds.py"
            "::test_a_pause_of_gpu_work_is_none_for_a_module_that_uses_no_gpu_but_where_the_cpu_is_the_device",
        ),
    ),
    Mutant(
        "memory that cannot be read ends builds",
        "policies/memory_guard.py",
        "short = free_pct is not None and _level(",
        "short = free_pct is None or _level(",
        ("tests/unit/test_memory_guard.py::test_memory_that_is_not_known_is_not_said_to_be_short",),
    ),
    Mutant(
        "a module's build ignores a pause of GPU work",
        "policies/build_holds.py",
        "for each in brakes(_ON_DEVICE, node) if",
        "for each in () if",
        ("tests/unit/test_build_holds.py::test_a_pause_of_any_scope_is_one_for_them_and_said_once",),
    ),
]
