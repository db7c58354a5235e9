"""How often a lost flow run is put back: a bound on put-backs in a row that came to nothing, not on restarts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from policies.put_back import ALL_MAX, BATCH_WAITS_S, STEADY_S, WAITS_S, Was, next_put_back

BEGIN = datetime(2026, 11, 30, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def killed(times: int, ran_s: float = 5.0) -> list[Was]:
    """Runs for so long, is lost and put back, again and again; it runs when it is lost now."""
    history = []
    for number in range(times):
        history += [Was(at(number * (ran_s + 1)), running=True), Was(at(number * (ran_s + 1) + ran_s), put_back=True)]
    return [*history, Was(at(times * (ran_s + 1)), running=True)]


def numbers(history: list[Was], **more: object) -> int | None:
    found = next_put_back(history, **more)  # type: ignore[arg-type]
    return found.number if found else None


def test_three_in_a_row_that_came_to_nothing_are_enough() -> None:
    assert [numbers(killed(times)) for times in range(5)] == [1, 2, 3, None, None]


def test_one_that_ran_steadily_has_earned_the_next_ones() -> None:
    assert numbers(killed(9, STEADY_S)) == 2, "the newest came after the last steady stretch"
    assert numbers(killed(9, STEADY_S - 1)) is None
    later = [*killed(3), Was(at(100), put_back=True), Was(at(101), running=True), Was(at(101 + STEADY_S))]
    assert numbers(later) == 1


def test_an_answer_in_between_has_too() -> None:
    history = killed(3)
    newest = max(was.at for was in history if was.put_back)
    assert numbers(history, progress_at=newest) == 1
    assert numbers(history, progress_at=newest - timedelta(seconds=1)) == 2
    assert numbers(history, progress_at=BEGIN) is None


def test_a_batch_is_tried_in_growing_steps_through_the_night() -> None:
    waits = [found.wait_s for n in range(20) if (found := next_put_back(killed(n), BATCH_WAITS_S)) is not None]
    assert waits == list(BATCH_WAITS_S)
    assert waits == sorted(waits)
    assert waits[:3] == list(WAITS_S)
    assert 4 * 3600 <= sum(waits) <= 8 * 3600


def test_whatever_came_of_them_there_is_an_end() -> None:
    assert numbers(killed(ALL_MAX, STEADY_S)) is None
