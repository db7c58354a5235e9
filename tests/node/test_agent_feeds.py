"""The feed of a run under test: queued, queued again or given up, and never a tick that fails for it."""

from __future__ import annotations

import pytest

from nodes.agent.revoking import settle
from tests.node.agent_rig import disk_full
from tests.node.certificate_rig import Node


def test_a_run_that_somebody_goes_on_with_keeps_its_feed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of the block that its earlier process drove ends a moment later."""
    ended: list[str] = []
    monkeypatch.setattr(node.agent.under_test, "end_feed", ended.append)
    node.begin("r1", duty=0.2)
    settle(node.agent, "r1")
    assert (ended, node.agent.unsettled) == ([], set())


def test_the_feed_of_a_run_that_a_full_disk_does_not_take_fails_no_tick(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ticks that fail judge no rule; the feed is asked for again."""
    active = node.begin("r1", duty=0.2, feed="llmserve/selftest")
    active.part = "grant"
    with monkeypatch.context() as full:
        full.setattr(node.agent.jobs.registry, "add_job", disk_full)
        before_s = node.agent.ticked_s
        node.agent.tick()
    assert node.agent.ticked_s > before_s


def test_a_feed_that_waits_to_be_tried_again_is_no_second_one_and_ends_with_its_run(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A feed whose runner fails at once: it must not be queued anew at every tick, nor wait for ever when its run has ended."""
    active = node.begin("r1", duty=0.2)
    monkeypatch.setattr(node.agent, "evaluate", lambda how: None)
    jobs = node.agent.jobs
    node.agent.under_test.feed(active)
    (feed,) = jobs.registry.open_jobs()
    jobs._retry_at[feed.job] = node.agent.now_s() + 300.0
    node.agent.under_test.feed(active)
    assert [job.job for job in jobs.registry.open_jobs()] == [feed.job]
    node.agent.under_test.end_feed("r1")
    assert jobs.registry.open_jobs() == []


@pytest.mark.parametrize(("earlier", "again"), [((), False), (("thrown_away",), True), (("cancelled",), False)])
def test_a_feed_that_failed_for_good_is_queued_again_at_the_next_on_and_not_before(
    node: Node, monkeypatch: pytest.MonkeyPatch, earlier: tuple[str, ...], again: bool
) -> None:
    """One that came to an end before shows that it can: then a failure is no last word."""
    active = node.begin("r1", duty=0.2)
    monkeypatch.setattr(node.agent, "evaluate", lambda how: None)
    jobs = node.agent.jobs
    node.agent.under_test.begin_feed(active)
    for outcome in (*earlier, "failed"):
        (feed,) = jobs.registry.open_jobs()
        jobs.registry.change_job(feed.job, state="ended", outcome=outcome, reason="no such model")
        assert not node.agent.under_test.runs_or_never_will(active), "not before it was looked at"
        node.agent.under_test.feed(active)
    assert len(jobs.registry.open_jobs()) == again
    assert node.agent.under_test.runs_or_never_will(active) is not again
    if not again:
        assert node.agent.under_test.why_not_running(active) == "its feed failed for good: no such model"
        node.agent.under_test.feed(active)
        assert jobs.registry.open_jobs() == []
        node.agent.under_test.begin_feed(active)
        assert len(jobs.registry.open_jobs()) == 1, "the next ON tries it once more"


def test_a_feed_whose_module_is_not_ready_any_more_fails_no_tick(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ticks that fail judge no rule, and fleet work would go on beside a program that has just begun."""
    active = node.begin("r1", duty=0.2)
    active.part = "grant"
    with monkeypatch.context() as gone:
        gone.setattr(node.agent.modules, "get", lambda name: None)
        before_s = node.agent.ticked_s
        node.agent.tick()
        assert node.agent.ticked_s > before_s
        assert "no such module" in node.agent.under_test.why_not_running(active)
        assert not node.agent.under_test.runs_or_never_will(active), "it may be ready again"
    node.agent.tick()
    assert active.feed_why is None
    assert node.agent.jobs.registry.feeds("r1", 2), "it is queued when the module is there again"
