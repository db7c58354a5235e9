"""Prompt files, jobs made of them, results; and every prompt closed once in the store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import Engine

from cotenant import store
from policies.prompts import (
    BatchSpec,
    added,
    checked_spec,
    chunk_size,
    digest_of,
    job_payload,
    model_words,
    parse_list,
    parse_text,
    progress_of,
    rates,
    result_lines,
)
from policies.refusal import Refused


def request(name: str, **body: object) -> dict[str, object]:
    asked = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **body}
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": asked}


def lines(*entries: object) -> str:
    return "".join(json.dumps(entry) + "\n" for entry in entries)


def test_a_list_and_lines_give_the_same_prompts() -> None:
    entries = ["a", {"prompt": "b", "max_tokens": 5}, {"id": 7, "messages": [{"role": "user", "content": "c"}]}]
    as_list, as_lines = parse_text(json.dumps(entries, indent=2)), parse_text("\ufeff" + lines(*entries) + "\n\n")
    assert as_list.items == as_lines.items == parse_list(entries).items
    assert (as_list.bad, as_lines.bad, as_list.format) == ([], [], "plain")
    assert [item.custom_id for item in as_list.items] == [None, None, "7"]
    assert digest_of({}, as_list.items) == digest_of({}, as_lines.items) != digest_of({"seed": 1}, as_list.items)


def test_characters_that_end_no_line_of_json_split_no_prompt() -> None:
    parsed = parse_text('"one\u2028two\u0085three"\r\n"b"\n')
    assert [item.body["prompt"] for item in parsed.items] == ["one\u2028two\u0085three", "b"]


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("", "empty"),
        (5, "neither a text nor an object"),
        ({"prompt": "a", "messages": []}, "either prompt or messages"),
        ({"prompt": "a", "maxtokens": 3}, "it has maxtokens"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens is a whole number from 1"),
        ({"prompt": "a", "max_tokens": True}, "max_tokens"),
        ({"prompt": "a", "temperature": "hot"}, "temperature"),
        ({"prompt": "a", "stop": [""]}, "stop"),
        ({"messages": [{"role": "king", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "content"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "content"),
        ({"messages": [{"role": "user", "content": []}]}, "content"),
        ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]}, "a message has tool_calls"),
        ({"id": True, "prompt": "a"}, "custom_id"),
        ({"prompt": "a", "half \ud83d": 1}, "it has half \\ud83d"),
        ({"prompt": "x" * 300_000}, "more than"),
        ({"prompt": "half \ud83d"}, "half a character"),
        ({"prompt": "a", "id": "nul \0"}, "NUL"),
        (request("r"), "of the other kind"),
    ],
)
def test_a_bad_line_is_named_with_its_number_and_reason(entry: object, why: str) -> None:
    parsed = parse_text(lines("fine", entry))
    assert [(bad.line, why in bad.why) for bad in parsed.bad] == [(2, True)], parsed.bad
    assert len(parsed.items) == 1
    broken = parse_text('"fine"\n{"prompt": \n"also fine"\n')
    assert [bad.line for bad in broken.bad] == [2]
    assert len(broken.items) == 2


def test_openai_requests_are_checked_and_answered_in_their_own_format() -> None:
    parsed = parse_text(
        lines(
            request("r-1", max_completion_tokens=9, temperature=0.5),
            request("r-1"),
            request("r-2", tools=[]),
            request("r-3", n=2),
            {**request("r-4"), "url": "/v1/embeddings"},
            request("r-5", model="other"),
            {**request("r-6"), "max_tokens": 5},
            {key: value for key, value in request("r-7").items() if key != "body"},
            {**request("r-8"), "method": "GET"},
            {**request("r-9"), "custom_id": None},
        )
    )
    assert (parsed.format, parsed.models) == ("openai", ["m", "other"])
    assert [(bad.line, bad.why.split()[0]) for bad in parsed.bad] == [
        (2, "custom_id"),
        (3, "body"),
        (4, "one"),
        (5, "url"),
        (7, "it"),
        (8, "body"),
        (9, "method"),
        (10, "custom_id"),
    ]
    assert parsed.items[0].body == {
        "max_tokens": 9,
        "temperature": 0.5,
        "messages": [{"role": "user", "content": "Hi"}],
    }
    rows = [
        {"number": 0, "custom_id": "r-1", "state": "done", "body": {}, "finished_at": "2026-11-29T12:00:00+00:00",
         "answer": {"text": "Hello", "finish": "length", "prompt_tokens": 3, "tokens": 2}},
        {"number": 1, "custom_id": "r-5", "state": "failed", "body": {}, "finished_at": None,
         "answer": {"error": {"code": "too_long", "message": "no room"}}},
        {"number": 2, "custom_id": "r-6", "state": "open", "body": {}, "finished_at": None, "answer": None},
    ]  # fmt: skip
    done, failed, left = (json.loads(line) for line in result_lines("b", "m.gguf", "openai", rows))
    assert done["custom_id"] == "r-1"
    assert done["response"]["status_code"] == 200
    body = done["response"]["body"]
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Hello"}
    assert (body["choices"][0]["finish_reason"], body["usage"]["total_tokens"]) == ("length", 5)
    assert (failed["response"], failed["error"]["code"]) == (None, "too_long")
    assert left["error"]["code"] == "not_finished"


def test_what_a_request_says_without_asking_for_anything_is_taken() -> None:
    idle = {
        "frequency_penalty": 0.0,
        "presence_penalty": 0,
        "logprobs": False,
        "tools": None,
        "response_format": {"type": "text"},
    }
    said = [{"role": "assistant", "content": "x", "refusal": None, "annotations": []}]
    parsed = parse_text(
        lines(
            request("a", max_tokens=5, max_completion_tokens=None, **idle),
            request("b", messages=said),
            request("c", frequency_penalty=0.5),
            request("d", response_format={"type": "json_object"}),
        )
    )
    assert [(bad.line, bad.why) for bad in parsed.bad] == [
        (3, "body has frequency_penalty, which cannot be served"),
        (4, "body has response_format, which cannot be served"),
    ]
    assert parsed.items[0].body["max_tokens"] == 5, "a null is no longer answer"
    assert parsed.items[1].body["messages"] == [{"role": "assistant", "content": "x"}]


def test_an_id_is_taken_from_where_it_is_and_a_reason_can_always_be_printed() -> None:
    parsed = parse_text(lines({"custom_id": None, "id": "mine", "prompt": "a"}, {"prompt": "b", "\ud800": 1}))
    assert parsed.items[0].custom_id == "mine"
    parsed.bad[0].why.encode()


@pytest.mark.parametrize("stop", [[""], ["half \ud83d"], ["x" * 1001], ["a"] * 17])
def test_stop_texts_that_no_job_could_take_are_refused_before_one_starts(stop: list[str]) -> None:
    with pytest.raises(Refused, match="stop"):
        checked_spec({"node": "n", "stop": stop})


def test_jobs_of_prompts_that_failed_grow_smaller_until_one_is_alone() -> None:
    assert [chunk_size(100, tries) for tries in (0, 1, 2)] == [100, 12, 1]
    assert [chunk_size(1, tries) for tries in (0, 1, 2)] == [1, 1, 1]


def test_a_payload_carries_the_batchs_options_and_each_prompts_own() -> None:
    spec = BatchSpec(node="n", model="m.gguf", max_tokens=7, stop=("END",), per_job=3)
    payload = job_payload(spec, [(4, {"prompt": "a", "max_tokens": 2, "id": "evil"})])
    assert payload["prompts"] == [{"prompt": "a", "max_tokens": 2, "id": "4"}]
    assert (payload["max_tokens"], payload["stop"]) == (7, ["END"])
    assert not {"node", "per_job", "seed"} & set(payload)


def test_figures_come_from_progress_and_add_up() -> None:
    told = lines({"type": "progress", "tokens": 10, "busy_s": 2.0, "wall_s": 4.0, "unit_worst_s": 0.1, "odd": "x"})
    answers, figures = progress_of([*told.splitlines(), "not json", '{"name": "prompt", "answer": {"id": "3"}}', "7"])
    assert answers == [{"id": "3"}]
    both = added(figures[0], {"tokens": 5, "busy_s": 1.0, "wall_s": 1.0, "unit_worst_s": 0.3})
    assert (both["tokens"], both["unit_worst_s"]) == (15, 0.3)
    assert rates(both) == {"tokens_per_busy_s": 5.0, "tokens_per_wall_s": 3.0}
    assert rates({}) == {"tokens_per_busy_s": None, "tokens_per_wall_s": None}, "unknown is not zero"


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    engine = store.open(f"sqlite:///{tmp_path}/store.sqlite")
    items = parse_list([f"p{number}" for number in range(5)]).items
    spec = BatchSpec(node="n", per_job=3)
    assert store.make_batch(engine, "b", spec, items, source="s", digest="d" * 64, style="plain")
    assert not store.make_batch(engine, "b", spec, items[:1], source="s", digest="d" * 64, style="plain")
    return engine


def answer(number: int, text: str = "x") -> dict[str, object]:
    return {"id": str(number), "text": text}


def test_a_prompt_is_closed_once_whatever_is_told_twice(engine: Engine) -> None:
    first = store.next_job(engine, "b")
    assert first is not None
    assert [number for number, _ in first["prompts"]] == [0, 1, 2]
    assert store.next_job(engine, "b") == first, "asked again, the same job"
    assert store.take_over(engine, "b", 0, [answer(0), answer(4), answer(99)], after=0, place=10) == 1
    assert store.take_over(engine, "b", 0, [answer(1)], after=0, place=10) == 0, "these events were taken over already"
    assert store.take_over(engine, "b", 0, [answer(0, "other"), answer(1)], after=10, place=20) == 1
    store.end_job(engine, "b", 0, "cancelled")
    status = store.batch_status(engine, "b")
    assert status is not None
    assert (status["done"], status["open"], status["repeated"]) == (2, 3, 1)
    assert [row["answer"]["text"] for row in store.prompt_rows(engine, "b") if row["answer"]] == ["x", "x"]
    second = store.next_job(engine, "b")
    assert second is not None
    assert [number for number, _ in second["prompts"]] == [2, 3, 4]


def test_a_prompt_that_brings_its_jobs_down_is_found_and_ends_as_failed(engine: Engine) -> None:
    """Prompt 1 is poison: a job that holds it answers nothing of what comes after it."""
    for _ in range(20):
        job = store.next_job(engine, "b")
        if job is None:
            break
        numbers = [number for number, _ in job["prompts"]]
        poisoned = 1 in numbers
        store.take_over(
            engine, "b", job["number"], [answer(number) for number in numbers if number < 1 or not poisoned]
        )
        store.end_job(
            engine, "b", job["number"], "failed" if poisoned else "done", failed="crashed" if poisoned else None
        )
    status = store.batch_status(engine, "b")
    assert status is not None
    assert (status["done"], status["failed"], status["open"]) == (4, 1, 0)
    bad = next(row for row in store.prompt_rows(engine, "b") if row["state"] == "failed")
    assert (bad["number"], bad["answer"]["error"]["code"]) == (1, "job_failed")


def test_figures_of_a_job_that_began_again_are_added_to_those_before(engine: Engine) -> None:
    store.next_job(engine, "b")
    for tokens, wall_s in ((10, 5.0), (30, 9.0), (4, 2.0)):
        store.take_over(engine, "b", 0, [], [{"tokens": tokens, "wall_s": wall_s, "busy_s": wall_s / 2}])
    status = store.batch_status(engine, "b")
    assert status is not None
    assert (status["figures"]["tokens"], status["figures"]["wall_s"]) == (34, 11.0)


def test_figures_of_an_attempt_that_was_killed_before_its_second_beat_count(engine: Engine) -> None:
    """Both attempts' first beats come at the same age: only their names tell them apart."""
    store.next_job(engine, "b")
    told = [{"type": "progress", "attempt": name, "tokens": tokens, "wall_s": 2.0 + tokens / 100}
            for name, tokens in (("a-1", 10), ("a-2", 11), ("a-2", 25))]  # fmt: skip
    _, figures = progress_of(lines(*told).splitlines())
    store.take_over(engine, "b", 0, [], figures)
    status = store.batch_status(engine, "b")
    assert status is not None
    assert status["figures"]["tokens"] == 10 + 25


def test_the_stand_in_answers_under_its_own_name() -> None:
    assert model_words({"model": "m.gguf", "backend": "auto"}) == "m.gguf"
    assert model_words({"model": "m.gguf", "backend": "stub"}) == "stand-in"
    assert model_words({"model": "", "backend": "stub"}) == "stand-in"


def test_the_same_prompts_are_known_again(engine: Engine) -> None:
    assert store.same_batches(engine, "n", "d" * 64) == ["b"]
    assert store.same_batches(engine, "other", "d" * 64) == []
