"""What the demo with a language model says of its samples."""

from __future__ import annotations

from cotenant.demo_llm import PROMPTS, Sample, questions, rates, summary


def sample(at_s: float, steps: int, done: int, share: float | None = None, *, alone: bool = False) -> Sample:
    return Sample(at_s, steps, alone, 0.3 if share else 0.0, share, done)


def test_each_prompt_is_asked_once() -> None:
    asked = questions()
    assert len(set(asked)) == len(asked) >= PROMPTS


def test_rates_begin_after_ten_seconds() -> None:
    samples = [sample(2.0 * number, 20 * number, 0) for number in range(8)]
    assert rates(samples) == [None] * 5 + [10.0] * 3
    assert rates([*samples, sample(16.0, 140, 0, alone=True)])[-1] is None


def test_the_trainers_rate_is_told_apart_by_whether_the_model_worked() -> None:
    waits = [sample(2.0 * number, 20 * number, 0) for number in range(7)]
    works = [sample(14.0 + 2.0 * number, 120 + 18 * (number + 1), 10 * number, 0.28) for number in range(7)]
    first, second = summary([*waits, *works])
    assert first == "60 prompts were answered beside the trainer"
    assert "9.00 steps/s while the model worked beside it, 10.00 while it did not" in second


def test_a_moment_without_a_reading_counts_for_neither_rate() -> None:
    waits = [sample(2.0 * number, 20 * number, 0) for number in range(7)]
    unread = [Sample(14.0 + 2.0 * number, 120 + 2 * number, False, 0.3, None, number) for number in range(7)]
    assert summary([*waits, *unread]) == ["6 prompts were answered beside the trainer"]
    works = [sample(28.0 + 2.0 * number, 140 + 18 * number, 10 + number, 0.28) for number in range(7)]
    assert "9.00 steps/s while the model worked beside it, 10.00" in summary([*waits, *unread, *works])[1]


def test_what_ran_after_the_trainer_counts_for_neither_rate() -> None:
    waits = [sample(2.0 * number, 20 * number, 0) for number in range(8)]
    alone = [sample(16.0 + 2.0 * number, 140, 20 * number, 0.9, alone=True) for number in range(6)]
    assert summary([*waits, *alone]) == ["0 prompts were answered beside the trainer, 100 after it was ended"]
