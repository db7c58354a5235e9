"""Prompts in the slots of the llmserve runner: sizes of units, what is shared, refused, cut short and stopped."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.llmserve_rig import Clock, Ctl, Duty, Stop, load

pytestmark = pytest.mark.usefixtures("bundle")


class FakeBackend:
    """Answers ``a`` until told to stop; every token costs the same time, and a step a little."""

    name, device, unit_max = "fake", "cpu", 512

    def __init__(self, clock: Clock, width: int = 4, context: int = 1000, token_s: float = 0.005) -> None:
        self.clock, self.width, self.context, self.token_s = clock, width, context, token_s
        self.unread: dict[int, int] = {}
        self.shared: list[int] = []
        self.most_live = self.largest = 0

    def encode(self, prompt: Any) -> list[int]:
        text = prompt.text if prompt.text is not None else prompt.messages[0][1]
        if prompt.messages and prompt.messages[0][0] == "system":
            raise load("batching").BadPrompt("the template has no system role")
        return [ord(character) for character in text]

    def open(self, shared: list[int]) -> None:
        self.shared = shared

    def start(self, slot: int, tokens: list[int], sampling: Any) -> None:
        assert slot not in self.unread, "a slot is used by one prompt at a time"
        self.unread[slot] = len(tokens) - len(self.shared)
        self.most_live = max(self.most_live, len(self.unread))

    def step(self, limit: int) -> tuple[int, list[tuple[int, int]]]:
        held, news = 0, []
        for slot, left in self.unread.items():
            if held == limit:
                break
            take = min(limit - held, max(1, left))
            held += take
            self.unread[slot] = max(0, left - take)
            if self.unread[slot] == 0:
                news.append((slot, ord("a")))
        assert 0 < held <= limit
        self.largest = max(self.largest, held)
        self.clock.now += 0.002 + held * self.token_s
        return held, news

    def piece(self, slot: int, token: int) -> bytes:
        return chr(token).encode()

    def rest(self, slot: int) -> bytes:
        return b""

    def ends(self, token: int) -> bool:
        return False

    def stop(self, slot: int) -> None:
        del self.unread[slot]

    def close(self) -> None:
        return


class InTurns(FakeBackend):
    """As MLX: a unit is one prompt's turn."""

    def step(self, limit: int) -> tuple[int, list[tuple[int, int]]]:
        slot, left = next(iter(self.unread.items()))
        held = min(limit, max(1, left))
        del self.unread[slot]
        self.unread[slot] = max(0, left - held)
        self.clock.now += 0.002 + held * self.token_s
        return held, [] if self.unread[slot] else [(slot, ord("a"))]


def run(
    prompts: list[Any],
    duty: float | None = None,
    wall_s: float = 1e9,
    kind: type[FakeBackend] = FakeBackend,
    **backend: Any,
) -> tuple[Any, ...]:
    clock = Clock()
    engine, ctl, governor = kind(clock, **backend), Ctl(duty), Duty(clock, duty)
    done: list[Any] = []
    batch = load("batching").Batch(engine, ctl, governor, wall_s, done.append, clock=clock)
    batch.run(load("prompts").parse({"prompts": prompts, "max_tokens": 10, "backend": "stub"}).prompts)
    return done, batch.figures, engine, governor


def test_prompts_are_decoded_together_and_refilled_and_each_finishes_once() -> None:
    done, figures, engine, _ = run([f"{n:02d} and something of its own" for n in range(11)], width=4)
    assert sorted(one.prompt.id for one in done) == sorted(str(n) for n in range(11))
    assert {(one.text, one.finish, one.tokens) for one in done} == {("a" * 10, "length", 10)}
    assert engine.most_live == figures.width_most == 4
    assert not engine.unread


def test_a_common_beginning_is_shared_and_each_prompt_keeps_a_token() -> None:
    prefix = load("batching").common_prefix
    assert prefix([[1] * 20 + [2], [1] * 20 + [3]]) == [1] * 20
    assert prefix([[1] * 20, [1] * 20]) == [1] * 19
    assert prefix([[1] * 20, [1] * 20 + [4]]) == [1] * 19
    assert prefix([[1] * 10, [1] * 10 + [4]]) == [], "too short to be worth it"
    assert prefix([[1] * 40]) == []


@pytest.mark.parametrize("duty", [None, 0.5, 0.1, 0.05])
def test_units_come_to_fit_both_bounds_and_fill_them(duty: float | None) -> None:
    _, _, _, governor = run([f"{n} " + "x" * 400 for n in range(20)], duty=duty, width=16)
    # twenty prompts made into tokens, the context opened, and the first units, which find out what a token costs
    settled = governor.units[41:]
    allowed = 0.4 if duty is None else min(0.2, duty)
    assert max(settled) <= allowed * 1.1
    assert sorted(settled)[len(settled) // 2] >= 0.5 * allowed, "units are not needlessly small"


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_making_tokens_is_work_of_the_device_where_that_is_the_processor(device: str) -> None:
    class Reading(FakeBackend):
        def encode(self, prompt: Any) -> list[int]:
            self.clock.now += 0.5
            return super().encode(prompt)

    Reading.device = device
    _, _, _, governor = run(["a", "b", "c"], kind=Reading)
    assert governor.units.count(0.5) == (3 if device == "cpu" else 0)


def test_the_width_follows_what_a_unit_may_hold() -> None:
    _, wide, _, _ = run(["x" * 5 + str(n) for n in range(40)], width=16)
    _, narrow, _, _ = run(["x" * 5 + str(n) for n in range(40)], width=16, duty=0.02)
    assert wide.width_most == 16
    assert narrow.unit_worst_s <= 8 * 0.005 + 0.003, "the first units are small before anything is known"
    assert narrow.units > 2 * wide.units


def test_prompts_without_room_or_tokens_are_refused_and_the_others_go_on() -> None:
    done, _, _, _ = run(["x" * 95, "y" * 90], context=100)
    by_id = {one.prompt.id: one for one in done}
    assert by_id["0"].error["code"] == "too_long"
    assert by_id["1"].text == "a" * 10


def test_a_prompt_that_the_models_template_refuses_is_refused_alone() -> None:
    done, _, _, _ = run([{"id": "s", "messages": [{"role": "system", "content": "be brief"}]}, "b"])
    by_id = {one.prompt.id: one for one in done}
    assert by_id["s"].error == {"code": "bad_prompt", "message": "the template has no system role"}
    assert by_id["1"].text == "a" * 10


def test_a_prompt_ends_at_the_wall_limit_with_what_it_has() -> None:
    done, figures, _, _ = run(["x"], wall_s=0.02)
    assert (done[0].finish, figures.at_limit) == ("wall", 1)
    assert 0 < done[0].tokens < 10


@pytest.mark.parametrize("kind", [FakeBackend, InTurns])
def test_a_prompt_that_waits_for_its_turn_uses_up_none_of_its_wall_limit(kind: type[FakeBackend]) -> None:
    """A slow model under a small duty: eight begin together, and then one at a time has a token."""
    done, figures, _, governor = run(list("abcdefgh"), duty=0.02, wall_s=10.0, kind=kind, width=8, token_s=0.5)
    assert sum(governor.units) > 3 * 10.0, "the last ones waited for longer than their limit"
    assert {(one.text, one.finish) for one in done} == {("a" * 10, "length")}
    assert (len(done), figures.at_limit) == (8, 0)


@pytest.mark.parametrize("kind", [FakeBackend, InTurns])
def test_no_prompt_ends_at_the_wall_limit_without_a_token(kind: type[FakeBackend]) -> None:
    """Reading a long prompt is not generating, so what is cut is an answer that has begun."""
    done, figures, _, _ = run(["x" * 400, "y" * 300], wall_s=0.02, kind=kind, duty=0.02)
    assert {one.finish for one in done} == {"wall"}
    assert all(0 < one.tokens < 10 and one.text for one in done)
    assert figures.at_limit == 2


def test_a_stop_is_met_between_two_units_and_loses_only_what_was_open() -> None:
    clock = Clock()
    engine, ctl = FakeBackend(clock, width=2), Ctl(stop_after=20)
    done: list[Any] = []
    batch = load("batching").Batch(engine, ctl, Duty(clock), 1e9, done.append, clock=clock)
    with pytest.raises(Stop):
        batch.run(load("prompts").parse({"prompts": ["a", "b", "c", "d"], "max_tokens": 10}).prompts)
    assert {one.prompt.id for one in done} == {"0", "1"}
    assert batch.figures.yield_s >= batch.figures.unit_worst_s
