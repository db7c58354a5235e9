"""The duty governor's step, the compliance check, what both mean for units, and what they leave for the next process."""

from __future__ import annotations

from tests.mutants.runner import Mutant

__all__ = ["GOVERNOR"]

RUNNING = "policies/governor/running.py"
MEASURING = "policies/governor/measuring.py"
MOMENT = "policies/governor/moment.py"
STEP = "policies/governor/step.py"
NUMBERS = "policies/governor/numbers.py"
COMPLIANCE = "policies/compliance.py"
GOVERNED = "policies/governed.py"
KEPT = "policies/kept.py"

T_STEP = "tests/unit/test_governor_step.py"
T_RULES = "tests/unit/test_governor_rules.py"
T_COMPLIANCE = "tests/unit/test_compliance.py"
T_GOVERNED = "tests/unit/test_governed.py"
T_BASELINE = "tests/unit/test_governor_baseline.py"
T_TAKE_BACK = "tests/unit/test_governor_take_back.py"

GOVERNOR = [
    Mutant(
        "an unknown minute is a clean one",
        RUNNING,
        "if pressure is None or pressure >= numbers.HALVE_PRESSURE:",
        "pressure = pressure or 0.0\n    if pressure >= numbers.HALVE_PRESSURE:",
        (f"{T_STEP}::test_an_unknown_minute_is_no_clean_minute",),
    ),
    Mutant(
        "the largest certificate is the ceiling of several rules",
        MOMENT,
        "if lowest is None or duty < lowest:",
        "if lowest is None or duty > lowest:",
        (f"{T_STEP}::test_several_rules_smallest_ceiling_largest_pressure",),
        quick=True,
    ),
    Mutant(
        "a budget grows past its ceiling",
        RUNNING,
        "grown = settled(min(ceiling, budget + numbers.GROW))",
        "grown = settled(max(ceiling, budget + numbers.GROW))",
        (f"{T_STEP}::test_a_clean_minute_grows_by_a_twentieth_up_to_the_ceiling",),
    ),
    Mutant(
        "a take-back ends with the next baseline",
        MEASURING,
        "    if moment.now_s < state.barred_until_s:\n        return False\n",
        "",
        (f"{T_TAKE_BACK}::test_leaving_for_a_tick_does_not_end_a_take_back",),
    ),
    Mutant(
        "a new agent forgets the bar",
        STEP,
        "        resume=resume,\n        barred_until_s=state.barred_until_s,\n",
        "        resume=resume,\n",
        (f"{T_TAKE_BACK}::test_a_new_agent_keeps_levels_baselines_and_the_bar",),
    ),
    Mutant(
        "a baseline may fall as it likes",
        MEASURING,
        "max(measured, numbers.BASELINE_FLOOR * last.rate)",
        "min(measured, numbers.BASELINE_FLOOR * last.rate)",
        (f"{T_BASELINE}::test_a_baseline_falls_by_a_twentieth_at_most",),
    ),
    Mutant(
        "a baseline holds for half a minute",
        NUMBERS,
        "BASELINE_AGE_S: Final = 1800.0",
        "BASELINE_AGE_S: Final = 30.0",
        (f"{T_BASELINE}::test_every_thirty_minutes_it_measures_again_and_goes_on_at_its_level",),
    ),
    Mutant(
        "a suspend is a clean minute",
        RUNNING,
        "if ticks < numbers.MIN_TICKS * elapsed / numbers.TICK_S:",
        "if ticks < numbers.MIN_TICKS * elapsed / numbers.MINUTE_S:",
        (
            f"{T_STEP}::test_case_118_a_suspend_is_no_clean_minute",
            f"{T_STEP}::test_a_minute_with_late_ticks_decides_nothing",
        ),
    ),
    Mutant(
        "harm of the last rule alone keeps a minute from growing",
        MOMENT,
        "harm = harm or pressure >= numbers.GROW_BELOW_PRESSURE",
        "harm = pressure >= numbers.GROW_BELOW_PRESSURE",
        (f"{T_RULES}::test_harm_of_any_rule_on_one_tick_keeps_the_minute_from_growing",),
        quick=True,
    ),
    Mutant(
        "growth stops only where every baseline is low",
        RUNNING,
        "        if baseline is None or baseline.low:\n            return False\n    return True",
        "        if baseline is not None and not baseline.low:\n            return True\n    return False",
        (f"{T_RULES}::test_a_low_baseline_of_any_rule_stops_growth",),
    ),
    Mutant(
        "a baseline is judged low by its floor",
        MEASURING,
        "low = off is None or measured < numbers",
        "low = off is None or rate < numbers",
        (f"{T_RULES}::test_the_floor_does_not_hide_that_the_program_fell_under_the_certificates_rate",),
    ),
    Mutant(
        "work that ran without a budget is not felt",
        "policies/governor/entering.py",
        'if state.name in ("running", "free", "stood_down") else',
        'if state.name == "running" else',
        (f"{T_RULES}::test_work_that_ran_without_the_governor_may_be_felt_as_well",),
    ),
    Mutant(
        "the fastest program decides how long work is held",
        MEASURING,
        "return max(numbers.baseline_hold_s(rule",
        "return min(numbers.baseline_hold_s(rule",
        (f"{T_RULES}::test_the_slowest_program_decides_how_long_device_work_is_held",),
    ),
    # -- compliance
    Mutant(
        "a hold for the sum counts as an overrun of its own",
        COMPLIANCE,
        "over=0, held_until_s=now_s + HOLD_S, why=why)\n    unit",
        "over=0, times=(now_s, now_s), held_until_s=now_s + HOLD_S, why=why)\n    unit",
        (f"{T_COMPLIANCE}::test_a_unit_within_its_own_slack_is_held_for_the_sum_and_never_stopped_for_it",),
    ),
    Mutant(
        "an old share is the present one",
        COMPLIANCE,
        "return None if sample.age_s > MAX_AGE_S else sample.measured",
        "return sample.measured",
        (f"{T_COMPLIANCE}::test_case_003_an_old_share_is_no_data",),
    ),
    Mutant(
        "a share that cannot be read is none",
        COMPLIANCE,
        "    duty, share = sample.duty or 0.0, _share(sample)\n    before = records",
        "    duty, share = sample.duty or 0.0, _share(sample) or 0.0\n    before = records",
        (f"{T_COMPLIANCE}::test_an_unreadable_unit_is_held_until_it_reads",),
        quick=True,
    ),
    Mutant(
        "what a unit owed ends with it",
        COMPLIANCE,
        "            _take_over(records, there, sample, now_s)\n",
        "            pass\n",
        (f"{T_COMPLIANCE}::test_ending_while_held_and_beginning_anew_ends_no_hold_and_wipes_no_overrun_away",),
    ),
    Mutant(
        "overruns add up for ever",
        COMPLIANCE,
        "times = (*(at_s for at_s in record.times if now_s - at_s < HOUR_S), now_s)",
        "times = (*record.times, now_s)",
        (f"{T_COMPLIANCE}::test_overruns_over_an_hour_apart_do_not_add_up",),
    ),
    Mutant(
        "a module is trusted again after a minute",
        COMPLIANCE,
        "distrusted[sample.module] = now_s + HOUR_S",
        "distrusted[sample.module] = now_s + HOLD_S",
        (f"{T_COMPLIANCE}::test_the_third_time_within_an_hour_is_stopped_and_its_module_gets_no_duty_for_an_hour",),
    ),
    Mutant(
        "the slack is taken twice",
        COMPLIANCE,
        "return share > allowed + SLACK + 1e-9",
        "return share > allowed + 2.0 * SLACK + 1e-9",
        (f"{T_COMPLIANCE}::test_three_samples_in_a_row_over_it_are_held_for_a_minute",),
    ),
    Mutant(
        "an unknown share shows that the sum is within the budget",
        COMPLIANCE,
        "    elif len(shares) == len(running):\n",
        "    else:\n",
        (f"{T_COMPLIANCE}::test_an_unknown_share_does_not_show_that_the_sum_is_within_the_budget",),
    ),
    # -- governed
    Mutant(
        "the most generous certificate bounds the work that is there",
        GOVERNED,
        "return min(needed, key=lambda each: each.duty)",
        "return max(needed, key=lambda each: each.duty)",
        (f"{T_GOVERNED}::test_the_ceiling_is_the_least_of_the_work_that_is_present",),
    ),
    Mutant(
        "a certificate of any rule will do",
        GOVERNED,
        "found = [each for each in in_force if each.rule == rule and each.covers(work)]",
        "found = [each for each in in_force if each.covers(work)]",
        (f"{T_GOVERNED}::test_every_holding_rule_must_cover_the_work_and_the_least_duty_bounds_it",),
    ),
    Mutant(
        "a run may ask for more than another rule's certificate",
        GOVERNED,
        "elif run and asked > certificate.duty + 1e-9:",
        "elif run and asked < certificate.duty + 1e-9:",
        (f"{T_GOVERNED}::test_a_run_beside_another_certified_rule_may_ask_for_no_more_than_its_certificate",),
    ),
    Mutant(
        "each unit has the whole budget",
        GOVERNED,
        "return {unit.attempt: total / len(taking) for unit, _ in taking}",
        "return {unit.attempt: total for unit, _ in taking}",
        (f"{T_GOVERNED}::test_equal_shares_of_the_budget_for_what_a_certificate_covers",),
    ),
    Mutant(
        "a module that is not trusted takes a share",
        GOVERNED,
        "not unit.cooperative or unit.module in distrusted:\n            continue",
        "not unit.cooperative:\n            continue",
        (f"{T_GOVERNED}::test_jobs_of_a_module_that_is_not_trusted_wait",),
    ),
    # -- kept
    Mutant(
        "the harm of before the restart is not kept",
        KEPT,
        '        harm_s=_time(raw["harm_s"]),\n',
        "",
        (f"{T_GOVERNED}::test_a_restart_keeps_levels_baselines_and_the_bar_through_json",),
    ),
    Mutant(
        "a restart trusts a stopped unit",
        KEPT,
        'stopped=bool(row["stopped"])',
        "stopped=False",
        (f"{T_GOVERNED}::test_a_restart_does_not_make_an_overrunner_trusted_again",),
    ),
    Mutant(
        "a bar that was never set ends when the machine came up",
        KEPT,
        "return -math.inf if value is None else float(value)",
        "return 0.0 if value is None else float(value)",
        (f"{T_GOVERNED}::test_a_restart_keeps_levels_baselines_and_the_bar_through_json",),
    ),
    Mutant(
        "work in pieces too short to be read counts nothing",
        COMPLIANCE,
        "total = math.fsum((*shares.values(), *sums.unread.values()))",
        "total = math.fsum(shares.values())",
        (f"{T_COMPLIANCE}::test_work_in_pieces_too_short_to_be_read_is_held_by_its_module",),
    ),
]
