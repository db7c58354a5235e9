"""The harness: statistics, schedule and looks, collapse, honesty, conditions, dose, what counts."""

from __future__ import annotations

from tests.mutants.runner import Mutant

__all__ = ["HARNESS"]

STATISTICS = "policies/statistics.py"
RATIOS = "policies/harness/ratios.py"
SCHEDULE = "policies/harness/schedule.py"
COLLAPSE = "policies/harness/collapse.py"
HONESTY = "policies/harness/honesty.py"
CONDITIONS = "policies/harness/conditions.py"
DOSE = "policies/harness/dose.py"
VALIDITY = "policies/harness/validity.py"

T_STATISTICS = "tests/unit/test_statistics.py"
T_SCHEDULE = "tests/unit/test_harness_schedule.py"
T_COLLAPSE = "tests/unit/test_harness_collapse.py"
T_HONESTY = "tests/unit/test_harness_honesty.py"
T_CONDITIONS = "tests/unit/test_harness_conditions.py"
T_DOSE = "tests/unit/test_harness_dose.py"
T_VALIDITY = "tests/unit/test_harness_validity.py"

HARNESS = [
    # -- statistics
    Mutant(
        "a look's interval has a degree of freedom too many",
        STATISTICS,
        "c = t_quantile(n - 2, p)\n",
        "c = t_quantile(n - 1, p)\n",
        (f"{T_STATISTICS}::test_c_at_forty_blocks_is_the_published_row", f"{T_STATISTICS}::test_final_vectors"),
    ),
    Mutant(
        "the residual sd has a degree of freedom too many",
        RATIOS,
        "for e in residuals]) / (n - 2))",
        "for e in residuals]) / (n - 1))",
        (f"{T_STATISTICS}::test_fit_agrees_with_least_squares",),
    ),
    Mutant(
        "a pass looks at the estimate, not at the bound",
        STATISTICS,
        "if mu - half >= floor - TIE:",
        "if mu >= floor - TIE:",
        (f"{T_STATISTICS}::test_a_pass_needs_the_lower_bound_at_the_margin",),
        quick=True,
    ),
    Mutant(
        "a slowdown within the margin is one",
        STATISTICS,
        "if mu + half < -TIE and mu < floor - TIE:",
        "if mu + half < -TIE:",
        (f"{T_STATISTICS}::test_a_slowdown_needs_both_the_interval_under_one_and_the_estimate_under_the_margin",),
    ),
    Mutant(
        "drift is charged to the work",
        RATIOS,
        "mu = d_mean - b * o_mean",
        "mu = d_mean",
        (f"{T_STATISTICS}::test_drift_stays_out_of_r_where_one_order_came_more_often",),
    ),
    Mutant(
        "a number of blocks in the table takes the next row",
        STATISTICS,
        "if n_max <= rows_n:",
        "if n_max < rows_n:",
        (f"{T_STATISTICS}::test_an_unlisted_n_max_takes_the_next_larger_row",),
    ),
    Mutant(
        "a block without OFF progress is one of no change",
        RATIOS,
        "            void += 1\n",
        "            d.append(0.0)\n            o.append(sign)\n",
        (f"{T_STATISTICS}::test_blocks_without_off_progress_are_void",),
    ),
    Mutant(
        "a refusal takes the pessimistic sd",
        STATISTICS,
        "favourable = math.sqrt(df / round(chi2_quantile(df, 0.90), 3))",
        "favourable = math.sqrt(df / round(chi2_quantile(df, 0.10), 3))",
        (f"{T_STATISTICS}::test_refusal_begins_at_seven_point_one_percent_at_the_defaults",),
    ),
    # -- the schedule
    Mutant(
        "the last look is left out",
        "policies/harness/spec.py",
        "range(self.first_look, self.n_max + 1, LOOK_STEP)",
        "range(self.first_look, self.n_max, LOOK_STEP)",
        (f"{T_SCHEDULE}::test_looks_are_every_fourth_from_the_first",),
    ),
    Mutant(
        "orders alternate",
        SCHEDULE,
        'return "on_first" if digest[0] & 1 else "off_first"',
        'return "on_first" if number & 1 else "off_first"',
        (f"{T_SCHEDULE}::test_the_coin_is_the_same_for_ever", f"{T_SCHEDULE}::test_the_coin_is_fair"),
    ),
    Mutant(
        "left-out blocks bring a look nearer",
        SCHEDULE,
        "if n <= len(usable) and n not in judged:",
        "if n <= len(rows) and n not in judged:",
        (f"{T_SCHEDULE}::test_a_left_out_block_is_repeated_under_a_new_number_and_coin", T_SCHEDULE),
    ),
    Mutant(
        "a block may end after the owner's hours",
        SCHEDULE,
        "if elapsed_s + spec.block_s > limit:",
        "if elapsed_s > limit:",
        (f"{T_SCHEDULE}::test_no_block_starts_that_would_end_after_the_limit",),
    ),
    Mutant(
        "a single block without a dose ends the run",
        SCHEDULE,
        "return len(newest) == NO_DOSE_IN_A_ROW and all(",
        "return len(newest) == NO_DOSE_IN_A_ROW and any(",
        (f"{T_SCHEDULE}::test_three_no_dose_blocks_in_a_row_end_the_run",),
    ),
    # -- collapse
    Mutant(
        "the window's own rate counts the washout's events",
        COLLAPSE,
        "_below(events - state.window_events, now_s - state.window_s, half)",
        "_below(events, now_s - state.window_s, half)",
        (f"{T_COLLAPSE}::test_a_collapse_in_the_window_is_seen_though_the_washout_was_fine",),
    ),
    Mutant(
        "a program that stalls by itself is blamed on the work",
        COLLAPSE,
        "min(off_rates, default=off_rate) < COLLAPSE_SHARE * off_rate",
        "max(off_rates, default=off_rate) < COLLAPSE_SHARE * off_rate",
        (f"{T_COLLAPSE}::test_where_off_falls_as_low_the_program_stalls_by_itself",),
    ),
    Mutant(
        "a collapse is waited for past half the window",
        COLLAPSE,
        "return max(min(max(LENGTH_S, steps_s), window_s / 2.0), least_s)",
        "return max(max(LENGTH_S, steps_s), window_s / 2.0, least_s)",
        (f"{T_COLLAPSE}::test_the_length",),
    ),
    Mutant(
        "a recovery is not seen",
        COLLAPSE,
        "if not low or recovered:",
        "if not low:",
        (f"{T_COLLAPSE}::test_a_slow_start_that_recovers_is_no_collapse",),
    ),
    Mutant(
        "an unknown count is none",
        COLLAPSE,
        "        if events is None:\n            return None\n        self._state, why",
        "        events = events or 0.0\n        self._state, why",
        (f"{T_COLLAPSE}::test_an_unknown_count_decides_nothing",),
    ),
    # -- honesty
    Mutant(
        "an A/A run is judged by a one-sided bound",
        HONESTY,
        "reach = t_quantile(n - 1, NULL_LEVEL / 2.0) * se",
        "reach = t_quantile(n - 1, NULL_LEVEL) * se",
        (f"{T_HONESTY}::test_the_interval_of_an_aa_run_is_the_printed_99_percent_one",),
    ),
    Mutant(
        "the order effect has the wrong sign",
        HONESTY,
        "100 * math.expm1(-fitted.b)",
        "100 * math.expm1(fitted.b)",
        (f"{T_HONESTY}::test_the_order_effect_has_the_sign_of_the_drift",),
    ),
    Mutant(
        "rare harm is bounded from the wrong end",
        HONESTY,
        "return float(1.0 - 0.05 ** (1.0 / n))",
        "return float(0.05 ** (1.0 / n))",
        (f"{T_HONESTY}::test_rare_harm_may_be_unseen",),
    ),
    Mutant(
        "an A/A run too wide to mean anything passes",
        HONESTY,
        "return bool(self.holds_1 and self.narrow)",
        "return bool(self.holds_1)",
        (f"{T_HONESTY}::test_a_noisy_aa_run_that_holds_1_does_not_pass_as_proof",),
    ),
    # -- conditions
    Mutant(
        "a machine that ever slept leaves every block out",
        CONDITIONS,
        "if now.asleep_s - before.asleep_s > SUSPEND_S:",
        "if now.asleep_s > SUSPEND_S:",
        (T_CONDITIONS,),
    ),
    Mutant(
        "a program is its pid",
        CONDITIONS,
        "gone, came = before.program - now.program, now.program - before.program",
        "gone = frozenset(who for who in before.program if who[0] not in dict(now.program))\n"
        "    came = now.program - before.program",
        (T_CONDITIONS,),
    ),
    Mutant(
        "a phase that came and went is not seen",
        CONDITIONS,
        "elif now.phases_begun != before.phases_begun:",
        "elif now.phases_begun < before.phases_begun:",
        (f"{T_CONDITIONS}::test_each_disturbance_has_its_reason",),
    ),
    # -- dose
    Mutant(
        "windows whose share is unknown are left out of the mean",
        DOSE,
        "if not shares or len(known) < len(shares):",
        "if not known:",
        (f"{T_DOSE}::test_an_unknown_share_certifies_nothing",),
        quick=True,
    ),
    Mutant(
        "a certified duty is rounded to the nearest",
        DOSE,
        "math.floor(held * 100.0 + _ROUNDING)",
        "round(held * 100.0)",
        (f"{T_DOSE}::test_certified_duty_is_the_smaller_rounded_down",),
    ),
    Mutant(
        "the dose is held to no duty",
        DOSE,
        "least = LEAST_SHARE if duty is None else LEAST_OF_DUTY * duty",
        "least = LEAST_SHARE",
        (f"{T_DOSE}::test_thresholds",),
    ),
    # -- what counts
    Mutant(
        "a block without OFF progress counts",
        VALIDITY,
        "and row.off.rate > 0.0",
        "and row.off.rate >= 0.0",
        (f"{T_VALIDITY}::test_case_117_only_counted_blocks_with_both_rates_and_off_progress_count",),
    ),
    Mutant(
        "a death right after the work is the program's own",
        VALIDITY,
        'against = happening.arm == "on" or (_settling(happening) and _after_on(row, previous))',
        'against = happening.arm == "on"',
        (f"{T_VALIDITY}::test_the_washout_after_on_speaks_against_the_work",),
    ),
    Mutant(
        "left-out blocks are compared with those that count",
        VALIDITY,
        "return len(left_out(rows)) / len(rows) if rows else 0.0",
        "return len(left_out(rows)) / max(1, len(counted(rows)))",
        (f"{T_VALIDITY}::test_more_than_a_fifth_left_out_earns_no_certificate",),
    ),
    Mutant(
        "a program that stands still is evidence",
        VALIDITY,
        "row.off.steps < LEAST_STEPS",
        "row.off.steps < 0",
        (f"{T_VALIDITY}::test_a_program_that_hardly_moves_in_off_earns_no_certificate",),
    ),
    Mutant(
        "a block counts in which the program became another one",
        "nodes/agent/measure.py",
        'if row.state == "counted" and (changed := await self._other_program(active.run)):',
        "if changed := []:",
        ("tests/unit/test_run_same_program.py::test_a_block_in_which_the_program_replaced_itself_does_not_count",),
    ),
]
