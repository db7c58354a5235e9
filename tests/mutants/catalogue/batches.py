"""Batches of prompts: each closed once, none taken for another, none charged for what it did not do; and how they go on."""

from __future__ import annotations

from tests.mutants.runner import Mutant

__all__ = ["BATCHES"]

STORE = "cotenant/store/batches.py"
STORE_JOBS = "cotenant/store/prompt_jobs.py"
TASKS = "tasks/prompts.py"
PUT_BACK = "policies/put_back.py"
BATCHING = "modules/llmserve/batching.py"
LOADING = "modules/llmserve/loading.py"
WHEELS = "nodes/kept_wheels.py"

T_WORK = "tests/unit/test_batch_work.py"
T_PROMPTS = "tests/unit/test_prompt_batches.py"
T_BATCHING = "tests/unit/test_llmserve_batching.py"
T_LOADING = "tests/unit/test_llmserve_loading.py"
T_TEXT = "tests/unit/test_llmserve_prompts.py"
T_PUT_BACK = "tests/unit/test_put_back.py"
T_WHEELS = "tests/node/test_kept_wheels.py"

BATCHES = [
    Mutant(
        "events that were taken over are taken over again",
        STORE_JOBS,
        "if after is not None and job.place != after:",
        "if after is not None and job.place > after + 1_000_000:",
        (f"{T_PROMPTS}::test_a_prompt_is_closed_once_whatever_is_told_twice",),
        quick=True,
    ),
    Mutant(
        "an answer counts for a prompt of another job",
        STORE_JOBS,
        " and int(name) in numbers else None",
        " else None",
        (f"{T_PROMPTS}::test_a_prompt_is_closed_once_whatever_is_told_twice",),
    ),
    Mutant(
        "a second answer replaces the first",
        STORE_JOBS,
        '.where(Prompt.batch == batch, Prompt.number == number, Prompt.state == "open")',
        ".where(Prompt.batch == batch, Prompt.number == number)",
        (f"{T_PROMPTS}::test_a_prompt_is_closed_once_whatever_is_told_twice",),
    ),
    Mutant(
        "figures of another attempt replace those before",
        STORE_JOBS,
        'if now.get("attempt") != last.get("attempt", now.get("attempt")) or now',
        "if now",
        (f"{T_PROMPTS}::test_figures_of_an_attempt_that_was_killed_before_its_second_beat_count",),
    ),
    Mutant(
        "a cancel ends whatever has the number",
        TASKS,
        'self.ask("job_show", key=job_key(self.batch, row["number"]))',
        'self.ask("job_show", job=row["job"])',
        (f"{T_WORK}::test_a_cancel_leaves_a_job_alone_that_only_has_the_number_of_ours",),
    ),
    Mutant(
        "a job's events are believed by its number",
        TASKS,
        'if told.get("key", ours) != ours:',
        'if told.get("key") == "":',
        (f"{T_WORK}::test_an_agent_that_loses_its_journal_under_a_job_gets_the_open_prompts_as_a_new_one",),
        quick=True,
    ),
    Mutant(
        "a fault that passes ends the batch",
        "tasks/agent_link.py",
        "            if refusal.code not in PASSING:\n                raise\n            gone = refusal",
        "            raise",
        (f"{T_WORK}::test_a_fault_of_the_agent_that_passes_ends_no_batch",),
    ),
    Mutant(
        "a batch runs on any node",
        TASKS,
        'if self.node and status["node"] != self.node:',
        'if self.node and status["node"] == "":',
        (f"{T_WORK}::test_a_batch_of_another_node_is_refused_there",),
    ),
    Mutant(
        "a stall is charged to the prompts",
        TASKS,
        "charged = None if hopeless or stalled else failed",
        "charged = None if hopeless else failed",
        (f"{T_WORK}::test_jobs_that_fail_whatever_they_hold_stall_the_batch_and_charge_no_prompt",),
    ),
    Mutant(
        "one prompt that fails alone is a stall",
        STORE_JOBS,
        "if set.intersection(*(set(job.numbers) for job in jobs)):",
        "if not jobs:",
        (f"{T_WORK}::test_a_prompt_that_brings_down_every_job_of_its_own_is_no_stall",),
    ),
    Mutant(
        "what was left over is forgotten with the process",
        STORE,
        "session.execute(left.values(outcome=LEFT_OVER))",
        "session.execute(left.values(outcome=None))",
        (f"{T_WORK}::test_a_retry_that_is_killed_before_it_settled_the_cancelled_job_goes_on",),
    ),
    Mutant(
        "an answer does not begin the count of put-backs anew",
        PUT_BACK,
        " and (progress_at is None or was.at > progress_at)",
        "",
        (f"{T_PUT_BACK}::test_an_answer_in_between_has_too",),
    ),
    Mutant(
        "put-backs without an end",
        PUT_BACK,
        "if sum(was.put_back for was in history) >= ALL_MAX:",
        "if not history:",
        (f"{T_PUT_BACK}::test_whatever_came_of_them_there_is_an_end",),
    ),
    Mutant(
        "any run counts as steady",
        PUT_BACK,
        ">= STEADY_S]",
        ">= 0.0]",
        (f"{T_PUT_BACK}::test_three_in_a_row_that_came_to_nothing_are_enough",),
    ),
    Mutant(
        "a prompt that does not fit is cut instead of refused",
        BATCHING,
        "elif room < prompt.max_tokens:",
        "elif room < 0:",
        (f"{T_BATCHING}::test_prompts_without_room_or_tokens_are_refused_and_the_others_go_on",),
    ),
    Mutant(
        "a cut at the wall limit is not counted",
        BATCHING,
        "self.figures.at_limit += 1",
        "self.figures.at_limit += 0",
        (f"{T_BATCHING}::test_a_prompt_ends_at_the_wall_limit_with_what_it_has",),
    ),
    Mutant(
        "waiting for a turn uses up the wall limit",
        BATCHING,
        "and sequence.generating_s > self.wall_s:",
        "and now_s - sequence.began_s > self.wall_s:",
        (f"{T_BATCHING}::test_a_prompt_that_waits_for_its_turn_uses_up_none_of_its_wall_limit",),
    ),
    Mutant(
        "half a character at the end is passed over",
        "modules/llmserve/sequence.py",
        "return self._text if self._cut else",
        'return self._text if self.finish == "stop" else',
        (f"{T_TEXT}::test_text_of_pieces_stop_strings_and_cut_characters",),
    ),
    Mutant(
        "tokens of many prompts are made in one go",
        BATCHING,
        'with self.duty.unit() if self.backend.device == "cpu" else',
        'with self.duty.unit() if self.backend.device == "none" else',
        (f"{T_BATCHING}::test_making_tokens_is_work_of_the_device_where_that_is_the_processor",),
    ),
    Mutant(
        "a load never rests",
        LOADING,
        "if self.clock() - began_s >= self.room_s:",
        "if self.clock() - began_s >= 1e9:",
        (f"{T_LOADING}::test_a_load_rests_wherever_it_can_and_a_piece_fits_the_dutys_share_of_a_second",),
    ),
    Mutant(
        "a child that tries a model runs on between pieces",
        LOADING,
        "            except subprocess.TimeoutExpired:\n                child.send_signal(signal.SIGSTOP)",
        "            except subprocess.TimeoutExpired:\n                pass",
        (f"{T_LOADING}::test_a_child_that_tries_a_model_rests_between_pieces",),
    ),
    Mutant(
        "a stop does not go through a load",
        "modules/llmserve/backend_llamacpp.py",
        "return not raised",
        "return True",
        (f"{T_LOADING}::test_llama_cpp_loads_in_pieces_and_a_stop_goes_through_it",),
    ),
    Mutant(
        "a kept wheel is believed by its name",
        WHEELS,
        "(seen := _sha256(path)) != expected:",
        "(seen := expected) != expected:",
        (f"{T_WHEELS}::test_a_damaged_wheel_is_said_and_built_again",),
    ),
    Mutant(
        "other build settings get the same wheel",
        "nodes/uv_environment.py",
        "cpu_kind(), build_settings(self._env))).encode())",
        "cpu_kind())).encode())",
        (f"{T_WHEELS}::test_other_build_settings_make_another_wheel_and_a_build_that_fails_keeps_nothing",),
    ),
]
