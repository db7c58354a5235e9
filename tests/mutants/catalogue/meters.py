"""The meters: CPU seconds of trees, samples of NVIDIA devices, DRM counters, scheduler delay."""

from __future__ import annotations

from tests.mutants.runner import Mutant

__all__ = ["METERS"]

CPU = "nodes/meters/cpu.py"
NVML = "nodes/meters/nvml.py"
SAMPLES = "nodes/meters/nvml_samples.py"
DRM = "nodes/meters/drm.py"
COUNTERS = "nodes/meters/drm_counters.py"
FDINFO = "nodes/meters/fdinfo.py"
STALL = "nodes/meters/stall.py"

T_CPU = "tests/unit/test_jobs_meter.py"
T_SAMPLES = "tests/unit/test_nvml_samples.py"
T_NVML = "tests/node/nvml/test_nvml.py"
T_DRM = "tests/unit/test_drm.py"
T_STALL = "tests/unit/test_condition.py"

METERS = [
    Mutant(
        "a collected child's time is counted twice",
        CPU,
        "tree.total_ticks += own + max(0, collected - moved)",
        "tree.total_ticks += own + collected",
        (f"{T_CPU}::test_readings_add_up_to_what_was_used",),
        quick=True,
    ),
    Mutant(
        "clock ticks are taken for hundredths of other hosts",
        CPU,
        "answers[key] = (tree.used_ticks - tree.told_ticks) / CLOCK_TICKS",
        "answers[key] = (tree.used_ticks - tree.told_ticks) / 1000",
        (f"{T_CPU}::test_readings_add_up_to_what_was_used",),
    ),
    Mutant(
        "a stranger with a used pid is metered",
        CPU,
        "if proc is not None and proc.start_ticks == who.start_ticks:",
        "if proc is not None:",
        (f"{T_CPU}::test_a_used_pid_and_an_empty_tree_are_unreadable",),
    ),
    Mutant(
        "a process that cannot be read used nothing",
        CPU,
        'return Unreadable(f"process {who.pid} cannot be read: {error.strerror}")',
        "continue",
        (f"{T_CPU}::test_unreadable_is_said_and_made_good_by_the_next_reading",),
    ),
    Mutant(
        "the first reading is zero",
        CPU,
        'answers[key] = Unreadable("first reading: no baseline yet")',
        "answers[key] = 0.0",
        (f"{T_CPU}::test_case_045_the_first_reading_is_no_figure_and_totals_leave_readings_alone",),
    ),
    Mutant(
        "what nobody collected was not used",
        CPU,
        ", CLOCK_TICKS * (self._in_group(key) or 0))",
        ")",
        (f"{T_CPU}::test_what_nobody_collected_is_in_the_count_of_the_trees_group",),
    ),
    # -- NVIDIA
    Mutant(
        "each sample is taken to hold since the last reading",
        SAMPLES,
        "pct / 100.0 * (stamp - before.get(pid, begin_us)) / 1e6",
        "pct / 100.0 * (stamp - begin_us) / 1e6",
        (f"{T_SAMPLES}::test_case_006_every_sample_is_counted_exactly_once",),
    ),
    Mutant(
        "the cursor is the clock beside the query",
        SAMPLES,
        "end_us = max(begin_us, last_us or 0)",
        "end_us = max(begin_us, asked_us)",
        (f"{T_SAMPLES}::test_case_004_a_cursor_is_the_largest_stamp_returned_and_not_the_clock",),
    ),
    Mutant(
        "an old stamp is the present",
        SAMPLES,
        "        if stamp <= begin_us:\n            continue\n",
        "",
        (T_SAMPLES, f"{T_NVML}::test_case_003_an_old_stamp_is_no_present_value"),
    ),
    Mutant(
        "a percentage is a share",
        SAMPLES,
        "pct / 100.0 * (stamp",
        "pct * (stamp",
        (f"{T_SAMPLES}::test_case_006_every_sample_is_counted_exactly_once",),
    ),
    Mutant(
        "a process without samples on a busy device used nothing",
        NVML,
        "if silent and self.unexplained and not self.unattributed:",
        "if silent and self.unexplained and self.unattributed:",
        (f"{T_NVML}::test_case_002_no_samples_on_an_idle_device_is_zero_and_on_a_busy_one_unknown",),
    ),
    Mutant(
        "an MPS server's time is its own",
        NVML,
        "if pid in local and pid not in servers},",
        "if pid in local},",
        (f"{T_NVML}::test_case_021_an_mps_servers_time_is_nobodys",),
    ),
    Mutant(
        "only the multiprocessors are a device",
        NVML,
        "max(int(s.smUtil), int(s.encUtil), int(s.decUtil))",
        "int(s.smUtil)",
        (f"{T_NVML}::test_the_busiest_of_multiprocessors_encoder_and_decoder_counts",),
    ),
    Mutant(
        "memory that the driver does not tell is free",
        NVML,
        "return Memory(device.total_bytes, None)",
        "return Memory(device.total_bytes, device.total_bytes)",
        (f"{T_NVML}::test_case_013_memory_that_cannot_be_read_any_more_is_unknown_and_not_all_of_it_free",),
    ),
    # -- DRM
    Mutant(
        "a counter that steps back is counted again",
        COUNTERS,
        "return (0, now) if now < highest * BEGAN_ANEW else (0, highest)",
        "return (0, now)",
        (f"{T_DRM}::test_case_031_counters_that_repeat_or_step_back_keep_their_sum",),
    ),
    Mutant(
        "nanoseconds are microseconds",
        COUNTERS,
        "used[name] = gained / 1e9 /",
        "used[name] = gained / 1e6 /",
        (f"{T_DRM}::test_case_026_a_client_counts_once_however_many_descriptors_share_it", T_DRM),
    ),
    Mutant(
        "a class of several engines is busy with one",
        COUNTERS,
        "used[name] = gained / 1e9 / max(1, file.capacity.get(name, 1))",
        "used[name] = gained / 1e9",
        (f"{T_DRM}::test_case_028_a_class_of_several_engines_is_whole_when_all_are_busy",),
    ),
    Mutant(
        "engine classes add up",
        DRM,
        "return Use(max(classes.values(), default=0.0), why)",
        "return Use(sum(classes.values()), why)",
        (f"{T_DRM}::test_engine_classes_work_at_the_same_time_and_the_busiest_is_the_devices",),
    ),
    Mutant(
        "a client that is shared is the fleet's",
        DRM,
        "return min(holders & protected or holders,",
        "return min(holders - protected or holders,",
        (f"{T_DRM}::test_case_026_a_client_shared_with_fleet_work_is_the_protected_programs",),
    ),
    Mutant(
        "a client's own cycles are its clock",
        COUNTERS,
        "clocks[file.pdev, name] = max(clocks.get((file.pdev, name), 0), total)",
        "clocks[file.pdev, name] = total",
        (f"{T_DRM}::test_case_028_cycles_are_read_against_the_class_wide_clock",),
    ),
    Mutant(
        "KiB are thousands",
        FDINFO,
        '"KiB": 1 << 10',
        '"KiB": 1000',
        (T_DRM,),
    ),
    # -- scheduler delay
    Mutant(
        "a wait that was told already is told when it is booked",
        STALL,
        "more = max(0, wait - had[1] - told)",
        "more = max(0, wait - had[1])",
        (f"{T_STALL}::test_a_wait_that_goes_on_is_told_as_it_goes_and_not_again_when_the_kernel_books_it",),
    ),
    Mutant(
        "time on a CPU is time waited",
        STALL,
        "            waited += more\n            wanted += more + max(0, run - had[0])\n",
        "            waited += more + max(0, run - had[0])\n            wanted += more + max(0, run - had[0])\n",
        (f"{T_STALL}::test_scheduler_delay_of_all_threads_since_the_last_reading",),
    ),
]
