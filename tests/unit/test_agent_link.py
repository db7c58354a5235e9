"""A run's line to its agent, where what it asked for takes longer than anybody thought."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nodes.client import AgentUnreachable
from nodes.identity import own_id
from policies.harness.spec import RunSpec
from policies.refusal import Refused
from tasks.agent_link import BLOCK_SLACK_S, BLOCK_WITHIN_S, AgentLost, Link

SOCKET = Path("agent.sock")


class Agent:
    """Answers by a script: (verb, what it answers or raises), in this order."""

    def __init__(self, *script: tuple[str, Any]) -> None:
        self.script = list(script)

    def call(self, verb: str, /, _timeout_s: float = 30.0, **params: Any) -> Any:
        expected, answer = self.script.pop(0)
        assert verb == expected
        if isinstance(answer, Exception):
            raise answer
        return answer


def locked(**data: Any) -> Refused:
    return Refused("RUN_LOCKED", "run r", "its block is being measured", "wait for it", data)


def block(*script: tuple[str, Any]) -> tuple[dict[str, Any] | None, list[Any]]:
    agent = Agent(*script)
    link = Link(agent, "r", RunSpec(node="n", rule="trainer"), own_id(), sleep=lambda s: None)
    return link.block(3, "on_first"), agent.script


def test_a_block_that_takes_longer_than_its_answer_was_waited_for_is_joined() -> None:
    """Else the run, hours of windows, would end as refused."""
    row = {"number": 3, "state": "counted"}
    late = ("run_block", AgentUnreachable(SOCKET, "no answer in 1,620 s"))
    assert block(late, ("run_begin", locked(block=3)), late, ("run_begin", locked(block=3)), ("run_block", row)) == (
        row,
        [],
    )


def test_a_block_that_ended_before_it_could_be_joined_is_taken_from_the_record() -> None:
    row = {"number": 3, "state": "counted"}
    late = ("run_block", AgentUnreachable(SOCKET, "no answer"))
    assert block(late, ("run_begin", {"resumed": True, "run": {"blocks": [row]}})) == (row, [])


@pytest.mark.parametrize("data", [{}, {"block": 2}, {"run": "other"}])
def test_any_other_lock_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        block(("run_block", AgentUnreachable(SOCKET, "no answer")), ("run_begin", locked(**data)))


def test_a_block_that_never_ends_is_not_waited_for_for_ever() -> None:
    """As on a disk that stays full. The run stays open, and a retry of its flow run joins the block again."""
    now_s = 0.0
    asked: list[float] = []

    class Stuck:
        def call(self, verb: str, /, _timeout_s: float = 30.0, **params: Any) -> Any:
            nonlocal now_s
            if verb == "run_begin":
                raise locked(block=3)
            asked.append(_timeout_s)
            now_s += _timeout_s
            raise AgentUnreachable(SOCKET, "no answer")

    spec = RunSpec(node="n", rule="trainer")
    link = Link(Stuck(), "r", spec, own_id(), sleep=lambda s: None, clock=lambda: now_s)
    with pytest.raises(AgentLost, match="block 3 has not ended"):
        link.block(3, "on_first")
    assert now_s == pytest.approx(spec.block_s + BLOCK_WITHIN_S)
    assert max(asked) == spec.block_s + BLOCK_SLACK_S
