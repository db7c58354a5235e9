"""Certificates: their digest, how long and for what they hold, what repetition costs."""

from __future__ import annotations

from tests.mutants.runner import Mutant

__all__ = ["CERTIFICATES"]

MODEL = "policies/certificate/model.py"
VALIDITY = "policies/certificate/validity.py"
COVERAGE = "policies/certificate/coverage.py"
BESIDE = "policies/certificate/beside.py"
ISSUE = "policies/certificate/issue.py"
REPETITION = "policies/certificate/repetition.py"

T_CERTIFICATE = "tests/unit/test_certificate.py"
T_REPETITION = "tests/unit/test_certificate_repetition.py"
T_COVERAGE = "tests/unit/test_certificate_coverage.py"
T_SAMENESS = "tests/unit/test_certificate_sameness.py"

CERTIFICATES = [
    Mutant(
        "a pass is worth one with a narrower margin",
        REPETITION,
        " and self.margin <= other.margin + _SAME_MARGIN",
        "",
        (f"{T_REPETITION}::test_a_pass_with_a_wider_margin_is_no_pass_of_the_two",),
    ),
    Mutant(
        "a run is judged by nobody until a look of it is kept",
        REPETITION,
        ' or bool(record.get("reached_look"))',
        "",
        (f"{T_REPETITION}::test_whoever_stops_a_run_whose_blocks_could_be_judged_has_seen_them",),
    ),
    Mutant(
        "work is covered wherever the program is",
        COVERAGE,
        "    if beside is None or not beside <= set(certificate.devices or ()):",
        "    if beside is None:",
        (f"{T_COVERAGE}::test_it_covers_work_only_where_the_program_was_measured",),
        quick=True,
    ),
    Mutant(
        "one block with the program on a device is enough",
        BESIDE,
        "frozenset.intersection(*each)",
        "frozenset.union(*each)",
        (f"{T_COVERAGE}::test_no_certificate_from_blocks_in_which_program_and_work_did_not_meet",),
    ),
    Mutant(
        "the duty is not under the digest",
        MODEL,
        'if k != "digest" and not',
        'if k not in ("digest", "certified_duty") and not',
        (f"{T_CERTIFICATE}::test_no_field_can_be_edited_unseen",),
        quick=True,
    ),
    Mutant(
        "any digest fits",
        MODEL,
        "return isinstance(digest, str) and hmac.compare_digest(digest.encode(), expected.encode())",
        "return isinstance(digest, str) and len(digest) == len(expected)",
        (f"{T_CERTIFICATE}::test_no_field_can_be_edited_unseen",),
    ),
    Mutant(
        "a certificate holds at the instant it expires",
        VALIDITY,
        "if now >= certificate.expires_at:",
        "if now > certificate.expires_at:",
        (f"{T_CERTIFICATE}::test_case_117_fourteen_days_from_the_verdict",),
    ),
    Mutant(
        "a clock set back lengthens a certificate",
        VALIDITY,
        "if now < certificate.issued_at:",
        "if False:",
        (f"{T_CERTIFICATE}::test_a_clock_set_back_makes_it_invalid_not_longer",),
    ),
    Mutant(
        "a fingerprint that could not be taken is the same",
        VALIDITY,
        '        found.append("node and program: as fingerprinted → unknown")\n',
        "        pass\n",
        (f"{T_SAMENESS}::test_no_fingerprint_at_all_is_unknown_and_stale",),
    ),
    Mutant(
        "a stale certificate admits work",
        COVERAGE,
        'if state.state != "valid":',
        'if state.state not in ("valid", "stale"):',
        (f"{T_COVERAGE}::test_only_a_valid_one_admits",),
    ),
    Mutant(
        "a bundle of which nothing is known is covered",
        COVERAGE,
        "if bundle_digest != item.digest:",
        "if bundle_digest is not None and bundle_digest != item.digest:",
        (f"{T_COVERAGE}::test_what_it_covers",),
    ),
    Mutant(
        "uncapped work is covered by any duty",
        COVERAGE,
        "asked = 1.0 if duty is None else duty",
        "asked = 0.0 if duty is None else duty",
        (
            f"{T_COVERAGE}::test_what_it_covers",
            f"{T_COVERAGE}::test_no_duty_above_the_certified_one_is_ever_covered",
        ),
    ),
    Mutant(
        "a demonstration admits wherever",
        COVERAGE,
        "if certificate.demonstration and not accept_demonstration:",
        "if certificate.demonstration and accept_demonstration:",
        (f"{T_COVERAGE}::test_a_demonstration_admits_only_where_the_section_accepts_those",),
    ),
    Mutant(
        "work that was there and used nothing is certified",
        ISSUE,
        "dosed = [key for key, share in shares.items() if share > 0.0 and share >= least]",
        "dosed = list(shares)",
        (
            f"{T_CERTIFICATE}::test_only_work_that_was_part_of_the_dose_is_named",
            f"{T_CERTIFICATE}::test_case_094_without_a_metered_dose_there_is_no_certificate",
        ),
    ),
    Mutant(
        "a certificate's days begin when it is asked for",
        ISSUE,
        'datetime.fromisoformat(record["ended_at"]) if record.get("ended_at") else now',
        "now",
        (
            f"{T_CERTIFICATE}::test_it_names_what_it_was_earned_with",
            f"{T_CERTIFICATE}::test_case_117_fourteen_days_from_the_verdict",
        ),
    ),
    # -- repetition
    Mutant(
        "which run came first is what the wall clock said",
        REPETITION,
        '_end(record, record["came_at"]) if record.get("came_at") else ended_at',
        "ended_at",
        (f"{T_REPETITION}::test_which_run_came_first_is_not_what_the_wall_clock_said",),
    ),
    Mutant(
        "a clock that is set back makes a certificate younger",
        VALIDITY,
        "if seen is not None and seen >= certificate.expires_at:",
        "if False:",
        (f"{T_CERTIFICATE}::test_a_certificate_that_was_seen_after_its_time_stays_expired",),
    ),
    Mutant(
        "one pass after a failure certifies",
        REPETITION,
        "PASSES_OWED = 2\n",
        "PASSES_OWED = 1\n",
        (f"{T_REPETITION}::test_after_any_ending_but_a_pass_it_takes_two_in_a_row",),
    ),
    Mutant(
        "two passes at any distance are two in a row",
        REPETITION,
        "in_row = [each for each in in_row if _within(each, past)] + [past]",
        "in_row = [*in_row, past]",
        (f"{T_REPETITION}::test_the_two_passes_lie_within_fourteen_days",),
    ),
    Mutant(
        "the fourteen days are those of a clock that was ahead",
        REPETITION,
        "max(later.came_at - earlier.came_at, later.ended_at - earlier.ended_at)",
        "later.came_at - earlier.came_at",
        (f"{T_REPETITION}::test_the_fourteen_days_are_not_made_short_by_a_clock_that_was_ahead_once",),
    ),
    Mutant(
        "a script that was written meanwhile is what runs",
        "nodes/fingerprint.py",
        "script is None or stale else",
        "script is None else",
        ("tests/node/test_fingerprint.py",),
    ),
    Mutant(
        "a script that is not there is no script",
        "nodes/program_script.py",
        "return None if is_class else script or Script(argument, None)",
        "return script",
        ("tests/node/test_fingerprint.py",),
    ),
    Mutant(
        "a run that showed harm is aborted politely",
        "nodes/agent/runs.py",
        "shown = None if ending in HARM else self._harm_shown(record)",
        "shown = None",
        ("tests/node/test_runs_left_open.py",),
    ),
    Mutant(
        "a run ends without the block that the disk did not take",
        "nodes/agent/runs.py",
        "self.keep_unkept(run)  # it may show harm",
        "pass  # it may show harm",
        ("tests/node/test_runs_left_open.py",),
    ),
    Mutant(
        "a program that died with the agent in a block is a mere cut",
        "nodes/agent/runs.py",
        "if left is not None and left.ended():",
        "if False:",
        ("tests/node/test_program_left.py",),
    ),
    Mutant(
        "a death after the last window is nobody's",
        "nodes/agent/runs.py",
        "if (active is None or active.measuring is None) and ending not in HARM:",
        "if False:",
        ("tests/node/test_program_left.py",),
    ),
    Mutant(
        "a death while a block waits to begin is nobody's",
        "nodes/agent/block.py",
        "            self._nothing_between()\n            return",
        "            return",
        ("tests/unit/test_block_between.py",),
    ),
    Mutant(
        "a left-out block leaves nothing to compare the program with",
        "nodes/agent/block.py",
        "            if self.started is not None:\n                self._leave(keep=False)",
        "            pass",
        ("tests/unit/test_block_between.py",),
    ),
    Mutant(
        "a block that is not kept yet certifies",
        "nodes/agent/certificates.py",
        "for run in self.agent.runs.unkept",
        "for run in ()",
        ("tests/node/test_agent_revoking.py",),
    ),
    Mutant(
        "who goes on with a run writes a block off that the disk did not take",
        "nodes/agent/runs.py",
        'it was cut."""\n        self.keep_unkept(run)\n',
        'it was cut."""\n',
        ("tests/node/test_runs_left_open.py",),
    ),
    Mutant(
        "a file that an option names is the script",
        "nodes/program_script.py",
        "elif argument in takes:",
        "elif False:",
        ("tests/node/test_fingerprint.py",),
    ),
    Mutant(
        "a revocation that is not kept is forgotten",
        "nodes/agent/core.py",
        "for run in tuple(self.unsettled):",
        "for run in ():",
        ("tests/node/test_agent_revoking.py::test_what_harm_takes_back_is_tried_again_until_it_is_kept",),
    ),
    Mutant(
        "harm at the larger of two duties takes back too little",
        REPETITION,
        "at = min(known, default=0.0)",
        "at = max(known, default=0.0)",
        (T_REPETITION,),
    ),
    Mutant(
        "a certificate covers every model of its stage",
        "policies/certificate/coverage.py",
        "(each for each in of_stage if each.model == model)",
        "iter(of_stage)",
        (f"{T_COVERAGE}::test_a_certificate_is_of_the_models_that_were_measured",),
    ),
    Mutant(
        "a certificate of another node holds here",
        "policies/certificate/validity.py",
        "if node is not None and certificate.node != node:",
        "if node is None:",
        (f"{T_SAMENESS}::test_a_certificate_of_another_node_is_none_here",),
    ),
]
