"""`cotenant demo`: the main job, whole and real, on a sample protected program in a home of its own.

A real trainer runs; the owner's section protects it; fleet work runs beside it in random windows; the run says whether the
trainer got slower, and the verdict is recomputed from the raw windows. Each step is the command that an owner would type.
Everything started here is ended here, whatever happens.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotenant.cli.result import Exit, OperationError, OperationResult
from cotenant.demo_stage import LOOK_EVERY_S, NODE, ROOT, Stage, StepFailed, when_less_busy
from cotenant.stopping import Stopping

if TYPE_CHECKING:
    from cotenant.cli.agents import Agent

__all__ = ["no_answer", "run_demo", "section_text"]

RULE, WORK = "trainer", "llmserve/selftest"
WINDOW_S, WASHOUT_S, MARGIN, DUTY = 8.0, 2.0, 0.10, 0.3
# Said instead of the plan's warning of a margin wider than the section's: neither was chosen by who watches the demo.
WHY_MARGIN = (
    f"a demonstration: windows of {WINDOW_S:g} s are noisy, so its margin, and max_slowdown in its section, are "
    f"{100 * MARGIN:g} %; a run to rely on has windows of 300 s and a margin of 2 %"
)
# 12 blocks are the most that these hours hold, so the demo decides within minutes or says that it cannot.
MAX_HOURS = 0.067
# The plan wants a source with a history: its rate, and whether its lines come on a timer.
STEPS_BEFORE_RUN = 60
SOURCE_WITHIN_S = 120.0
# The run itself takes at most five minutes; the rest is for a machine that is busy with other things.
RUN_WITHIN_S = 2400.0
HONEST = ("no slowdown shown", "slowdown", "inconclusive", "refused", "harm_suspected")

HELD = 'gpu_jobs = "when_no_gpu_protected"   # no device work beside the trainer, but what a run lets happen'


def section_text(events: Path, gpu_jobs: str = HELD) -> str:
    """The owner's section for the sample trainer that writes these events; ``gpu_jobs`` is that line of it."""
    pattern = json.dumps(r"examples/trainer\.py .*" + re.escape(str(events)))
    path = json.dumps(str(events))
    return f"""\
# The sample trainer is protected: fleet work beside it must be proven harmless first.
schema = 1

[node]
{gpu_jobs}
duty_device = "cpu"                  # this machine's accelerator is its processor
accept_demonstration = true          # a run of short windows earns only a demonstration certificate

[[rule]]
id = "{RULE}"
match = {{ argv_regex = {pattern} }}
tree = "descendants"
protect = {{ metric = "progress_rate", max_slowdown = {MARGIN:g}, source = {{ jsonl = {path}, event = "step_done" }} }}
"""


def no_answer(record: dict[str, Any], again: str = Stage.again) -> OperationError:
    """Of a run that ended without an honest answer: why, and whether another moment may bring one."""
    reason = f" ({record['reason']})" if record.get("reason") else ""
    remedy = when_less_busy(again) if record["ending"] == "no_dose" else again
    why = f"it ended '{record['ending']}'{reason}, which is no answer"
    return OperationError("DEMO_NO_ANSWER", f"run {record['run']}", why, remedy)


def run_demo(*, full: bool, keep: bool, out: Path, llm: bool = False) -> OperationResult:
    """Run it. The result is done when it came to an honest answer, whichever that is."""
    stopping = Stopping()
    with stopping.on_signals():
        home = Path(tempfile.mkdtemp(prefix="cotenant-demo-"))
        try:
            return _in_home(home, stopping, full=full, keep=keep, out=out.expanduser().resolve(), llm=llm)
        finally:
            shutil.rmtree(home, ignore_errors=True)


def _in_home(home: Path, stopping: Stopping, *, full: bool, keep: bool, out: Path, llm: bool) -> OperationResult:
    kept = {"COTENANT_TEST_WHEELS"}
    for name in [name for name in os.environ if name.startswith("COTENANT_") and name not in kept]:
        del os.environ[name]  # the demo has nothing to do with an installed node
    os.environ["COTENANT_HOME"] = str(home)
    # Prefect's usual port is left to the user's own server.
    os.environ["COTENANT_SERVER_PORT"] = str(_any_port())
    # The flow costs CPU only while it starts, before any window; at idle priority that takes minutes on a busy machine. Where
    # prompts follow, their flow starts beside the trainer while the governor watches it: as on any node, it gives way.
    os.environ["COTENANT_FLOW_PRIORITY"] = "idle" if llm else "normal"
    demo = _made(home, out, llm=llm)

    def go() -> None:
        demo.run(full=full)
        if keep:
            demo.say(f"everything stays up until Ctrl-C; home {home}, the UI at {demo.ui()}")
            while True:
                time.sleep(1.0)

    try:
        stopping.run(go)
    except StepFailed as failed:
        demo.keep_logs()
        return OperationResult.failed(Exit.OTHER_ANSWER, failed.error)
    finally:
        demo.stop()
    if demo.answer is not None:
        return demo.answer
    again = f"make demo{'-llm' if llm else '-full' if full else ''}"
    interrupted = OperationError("INTERRUPTED", "the demo", "it was interrupted before it had an answer", again)
    return OperationResult.failed(Exit.OTHER_ANSWER, interrupted)


def _made(home: Path, out: Path, *, llm: bool) -> Demo:
    if llm:
        from cotenant.demo_llm import LlmDemo

        return LlmDemo(home, out)
    return Demo(home, out)


def _any_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Demo(Stage):
    """The steps of one demo."""

    work = WORK
    feed = WORK

    def __init__(self, home: Path, out: Path) -> None:
        super().__init__(home, out)
        self.answer: OperationResult | None = None

    def run(self, *, full: bool) -> OperationResult:
        minutes = 10 if full else 5
        self.say(f"a demo of cotenant: about {minutes} minutes; longer on a busy machine")
        self.say(f"everything is real, in a home of its own: {self.home}")
        self.say("1. a program worth protecting: a neural network trains on one core and writes a line for each step")
        self.start_trainer()
        self.say("2. the node: the agent that protects it, a Prefect server for long jobs, a worker")
        self.start_node()
        self.say("3. the owner says what is protected, and how the program's speed is read")
        self.protect()
        self.say("4. the measurement: fleet work in windows ON and OFF, in random order, judged at 8 and 12 blocks")
        self.say(f"   {WHY_MARGIN}")
        records = [self.measure(DUTY)]
        self.after(records[-1])
        if full:
            self.say("5. the same work once more, uncapped: it takes all the processor time it can get")
            records.append(self.measure(None))
            self.after(records[-1])
        self.answer = self.conclude(records)
        return self.answer

    def protect(self) -> None:
        section = self.home / "section.toml"
        section.write_text(self.section())
        for line in section.read_text().splitlines():
            self.say(f"   | {line}")
        self.cotenant("protection", "set", NODE, str(section), "--yes")
        agent = self.agent()
        if not any(module.get("short") == "llmserve" for module in agent.ask("modules")):
            self.cotenant("module", "add", str(ROOT / "modules" / "llmserve"))
        self.await_source(agent)
        self.cotenant("protection", "sources", NODE)

    def section(self) -> str:
        return section_text(self.events)

    def await_source(self, agent: Agent) -> None:
        """Until the trainer has a history, so that the plan can say its rate and judge its lines."""
        self.say(f"   waiting until the trainer has done {STEPS_BEFORE_RUN} steps under the agent's eyes")
        until = time.monotonic() + SOURCE_WITHIN_S
        at_first = self.steps()
        while self.steps() - at_first < STEPS_BEFORE_RUN or not self.reads_a_rate(agent):
            self.check_trainer()
            if time.monotonic() > until:
                raise StepFailed(
                    OperationError(
                        "DEMO_SOURCE",
                        str(self.events),
                        f"in {SOURCE_WITHIN_S:g} s the agent saw no {STEPS_BEFORE_RUN} steps and their rate",
                        when_less_busy(self.again),
                    )
                )
            time.sleep(LOOK_EVERY_S)

    @staticmethod
    def reads_a_rate(agent: Agent) -> bool:
        return any(source["role"] == "progress" and source.get("rate") is not None for source in agent.ask("sources"))

    def measure(self, duty: float | None) -> dict[str, Any]:
        options = ["--rule", RULE, "--work", self.work, "--feed", self.feed]
        options += ["--duty", f"{duty:g}"] if duty is not None else []
        options += ["--window", f"{WINDOW_S:g}", "--washout", f"{WASHOUT_S:g}", "--margin", f"{MARGIN:g}"]
        options += ["--max-hours", f"{MAX_HOURS:g}", "--yes", "--watch"]
        self.cotenant("protection", "ab", "start", NODE, *options, fine=(0, 1), within_s=RUN_WITHIN_S)
        newest = self.agent().ask("run_list", limit=1)
        record = self.agent().ask("run_show", run=newest[0]["run"]) if newest else None
        if record is None or record["state"] != "ended":
            raise StepFailed(OperationError("DEMO_RUN", "the run", "it has not ended", self.again))
        return dict(record)

    def after(self, record: dict[str, Any]) -> None:
        self.say("   the verdict, recomputed from the raw windows:")
        self.cotenant("protection", "ab", "verify", record["run"])
        self.say("   what the node keeps of it:")
        self.cotenant("protection", "certificates", NODE)

    def conclude(self, records: list[dict[str, Any]]) -> OperationResult:
        from cotenant.cli.report_view import write_report
        from tasks.reports import build, compare_html

        runs = []
        for record in records:
            report = build(record).report
            paths = write_report(record, self.out)
            self.say(f"answer: {report.sentence}")
            self.say(f"   {report.certificate.says}")
            self.say(f"   the report: {paths['html']}")
            runs.append(
                {
                    "run": record["run"],
                    "ending": record["ending"],
                    "sentence": report.sentence,
                    "certificate": record.get("certificate"),
                    "files": {kind: str(path) for kind, path in paths.items()},
                    "ui": f"{self.ui()}/runs/flow-run/{record.get('flow_run_id')}",
                }
            )
        if len(records) > 1:
            page = self.out / "compared.html"
            page.write_text(compare_html(records, [f"duty {DUTY:g}", "uncapped"]), encoding="utf-8")
            self.say(f"   both side by side: {page}")
        self.say(f"   in the Prefect UI, as long as the demo runs (--keep): {runs[-1]['ui']}")
        errors = [no_answer(record, self.again) for record in records if record["ending"] not in HONEST]
        return OperationResult(
            {"runs": runs, "seconds": round(time.monotonic() - self._since, 1)},
            exit_code=Exit.OTHER_ANSWER if errors else Exit.DONE,
            errors=errors,
            view=lambda data: [f"{run['ending']}: {run['files']['html']}" for run in data["runs"]],
        )
