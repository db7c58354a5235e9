"""On which devices fleet work may have been between two looks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from nodes.agent.gpus import Gpus
from nodes.meters.reading import Unreadable


def attempt(name: str, state: str = "running", confirmed: bool = False) -> Any:
    return SimpleNamespace(attempt_id=name, state=state, hold_confirmed=confirmed, module="m", stage="s")


class World:
    def __init__(self) -> None:
        self.live: list[Any] = []
        self.shares: dict[str, float | Unreadable] = {}
        meters = SimpleNamespace(
            devices=(),
            tick=lambda *args, **more: None,
            shares=lambda pids, now_s: {},
            unit_share=lambda name: self.shares.get(name, 0.0),
        )
        self.gpus = Gpus(cast(Any, meters), lambda: self.live, lambda name: [], lambda one: one.module == "m")
        self.gpus.devices_of = lambda one: frozenset({one.attempt_id[0]})  # type: ignore[method-assign]

    def look(self, *live: Any) -> frozenset[str] | None:
        self.live = list(live)
        return self.gpus.read(0.0, (), {})


def test_a_unit_is_off_its_device_once_it_was_seen_at_rest_twice() -> None:
    world = World()
    assert world.look() == frozenset()
    assert world.look(attempt("a1")) == {"a"}
    assert world.look(attempt("a1", "held")) == {"a"}, "asked to hold, not seen to"
    held = attempt("a1", "held", confirmed=True)
    assert world.look(held) == {"a"}, "it ran until it came to rest"
    assert world.look(held) == frozenset()
    assert world.look(attempt("a1")) == {"a"}


def test_what_ended_since_the_last_look_was_there() -> None:
    world = World()
    world.look(attempt("a1"), attempt("b1"))
    assert world.look(attempt("b1")) == {"a", "b"}
    assert world.look(attempt("b1")) == {"b"}


def test_a_held_unit_that_still_uses_the_device_is_there() -> None:
    world, held = World(), attempt("a1", "held", confirmed=True)
    world.look(held)
    world.shares["a1"] = 0.4
    assert world.look(held) == {"a"}
    world.shares["a1"] = 0.0
    world.look(held)
    assert world.look(held) == frozenset()


def test_work_off_the_gpu_is_nowhere_and_work_on_any_device_is_everywhere() -> None:
    world = World()
    other = attempt("a1")
    other.module = "off"
    assert world.look(other) == frozenset()
    world.gpus.devices_of = lambda one: None  # type: ignore[method-assign]
    assert world.look(attempt("b1")) is None


def test_a_look_at_a_windows_edge_takes_nothing_from_the_next_one() -> None:
    world = World()
    world.live = [attempt("a1")]
    world.gpus.read_now()
    assert world.look() == {"a"}


def test_that_a_unit_strayed_is_known_to_the_agents_next_process(tmp_path: Path) -> None:
    """It was put on one device and seen on another: it may be on any, whoever asks, until it ends."""
    root = tmp_path / "1-1"
    root.mkdir()
    (root / "launch.json").write_text('{"env": {"CUDA_VISIBLE_DEVICES": "a"}}')
    one = attempt("1-1")
    one.folder = SimpleNamespace(root=root)
    shares: dict[str, tuple[float, str | None]] = {"a": (0.5, None), "b": (0.0, None)}

    def agent() -> Gpus:
        meters = SimpleNamespace(
            devices=(SimpleNamespace(key="a"), SimpleNamespace(key="b")),
            tick=lambda *args, **more: None,
            shares=lambda pids, now_s: shares,
            unit_share=lambda name: 0.5,
        )
        return Gpus(cast(Any, meters), lambda: [one], lambda name: [], lambda one: True)

    first = agent()
    first.read(0.0, (), {"1-1": []})
    assert first.devices_of(one) == {"a"}
    assert agent().devices_of(one) == {"a"}
    shares["b"] = (0.2, None)
    first.read(2.0, (), {"1-1": []})
    shares["b"] = (0.0, None)
    assert first.devices_of(one) is None
    assert agent().devices_of(one) is None, "a restarted agent knows it, though it is there no more"


def test_work_that_says_it_uses_no_gpu_and_is_seen_on_one_counts_as_work_on_it() -> None:
    """Nothing would hold it beside a protected program else, and no meter would count it."""
    told: list[tuple[str, dict[str, Any]]] = []
    one, other = attempt("1-1"), attempt("2-1")
    one.job_id, other.job_id, other.stage = 1, 2, "t"
    trees = {"1-1": [SimpleNamespace(pid=7)], "2-1": [SimpleNamespace(pid=8)]}
    busy = {7: 0.005}
    read: list[Any] = []
    meters = SimpleNamespace(
        devices=(SimpleNamespace(key="a"),),
        tick=lambda now_s, protected, units, wait_s: read.append(units),
        shares=lambda pids, now_s: {"a": (sum(busy.get(pid, 0.0) for pid in pids), None)},
        unit_share=lambda name: 0.0,
    )
    gpus = Gpus(
        cast(Any, meters),
        lambda: [one, other],
        lambda name: [],
        lambda each: gpus.was_seen(each.module, each.stage, None),
        note=lambda code, data: told.append((code, data)),
    )
    gpus.devices_of = lambda each: frozenset({"a"})  # type: ignore[method-assign]
    assert gpus.read(0.0, (), cast(Any, trees)) == frozenset()
    assert set(read[-1]) == {"1-1", "2-1"}
    assert told == []
    busy[7] = 0.4
    assert gpus.read(2.0, (), cast(Any, trees)) == {"a"}
    assert gpus.was_seen("m", "s", None)
    assert not gpus.was_seen("m", "t", None)
    gpus.read(4.0, (), cast(Any, trees))
    assert [(code, data["attempt"], data["shares"]) for code, data in told] == [
        ("JOB_GPU_UNDECLARED", "1-1", {"a": 0.4})
    ]
    meters.devices = ()
    gpus.read(6.0, (), cast(Any, trees))
    assert set(read[-1]) == {"1-1"}, "without a device there is nothing to look for"
