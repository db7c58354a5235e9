"""An agent in the test's own process, with runs put into its journal: what the tests of certificates and runs stand on."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from nodes.agent.certify import Certifier
from nodes.agent.core import Agent
from nodes.agent.plan import Planner
from nodes.agent.runs import ActiveRun
from nodes.agent.subject import Subject
from nodes.clock import utc_iso
from nodes.identity import ProcessId, own_id
from policies.harness.rows import BlockRow, UnitDose, WindowRow
from policies.harness.schedule import coin
from policies.harness.spec import RunSpec
from policies.refusal import Refused
from tests.node.agent_rig import ROOT, Rig, wait_for


class Node:
    """An agent in this process, with a program that it sees; blocks are put into its journal as it would have measured them."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        rig.events.touch()
        rig.start_program()
        self.agent = Agent(rig.home, "local", ROOT / "modules")
        self.agent.prepare_modules()
        self.agent.start()
        self.agent.set_section(rig.section(), "test")
        wait_for("the program is seen", self.sees)
        self.subject = Subject(self.agent)
        self.planner = Planner(self.agent, self.subject)
        self.certifier = Certifier(self.agent, self.subject)
        self.digest = next(m.digest for m in self.agent.modules.list() if m.short == "llmserve")
        chance = random.Random(5)
        track, when = self.agent.progress("stepper").track, self.agent.now_s()
        for _ in range(40):  # gaps of a program that is no timer, so that the check before a certificate knows enough
            when += chance.uniform(0.03, 0.09)
            track.add_events(when)

    def sees(self) -> bool:
        self.agent.tick()
        return bool(self.agent.observer.program("stepper"))

    def begin(self, name: str, holder: ProcessId | None = None, **spec: Any) -> ActiveRun:
        """A run that has just begun; ``holder`` drives it, or this process."""
        asked = RunSpec.model_validate(self.rig.spec(**spec))
        facts = asyncio.run(self.subject.facts(asked, None)) | {"reviewed_by": "test", "flow_run_id": None}
        self.agent.runs.begin(name, asked, holder or own_id(), facts)
        active = self.agent.runs.active
        assert active is not None
        return active

    def run(
        self,
        name: str,
        ratio: float = 1.0,
        ending: str = "no slowdown shown",
        counted: int = 8,
        left_out: int = 0,
        dose: float = 0.1,
        digest: str | None = None,
        **spec: Any,
    ) -> dict[str, Any]:
        """A whole run: begun, blocks journaled with ON = ``ratio`` x OFF, ended as the flow would say."""
        asked = self.begin(name, **spec).spec
        chance, digest = random.Random(name), digest or self.digest
        for number in range(1, counted + left_out + 1):
            order = coin(asked.seed, number)
            out = number > counted
            windows = {
                arm: WindowRow(
                    run=name,
                    block=number,
                    arm=arm,
                    position=1,
                    started_at=utc_iso(),
                    started_mono_s=0.0,
                    length_s=asked.window_s,
                    events=rate * asked.window_s,
                    rate=rate,
                    work_ran_s=asked.window_s if arm == "on" else 0.0,
                    dose=dose if arm == "on" else None,
                    units=(
                        UnitDose(
                            attempt="1-1",
                            module="dev.cotenant.llmserve",
                            stage="selftest",
                            digest=digest,
                            share=dose,
                            by_device={"cpu": dose},
                        ),
                    )
                    if arm == "on"
                    else (),
                    program_on=("cpu",),
                )
                for arm, rate in (("on", 10.0 * ratio * chance.gauss(1, 0.002)), ("off", 10.0 * chance.gauss(1, 0.002)))
            }
            row = BlockRow(
                run=name,
                number=number,
                order=order,
                state="left_out" if out else "counted",
                reason="phase" if out else None,
                on=windows["on"],
                off=windows["off"],
            )
            self.agent.journal.put_block(name, number, row.model_dump())
        return self.certifier.end(name, ending, "test", {"R": ratio, "n": counted})

    def offer(self, name: str) -> dict[str, Any]:
        return asyncio.run(self.certifier.offer(name))

    def refused(self, name: str) -> str:
        with pytest.raises(Refused) as refused:
            self.offer(name)
        return refused.value.why

    def listed(self) -> list[dict[str, Any]]:
        return asyncio.run(self.certifier.listed())
