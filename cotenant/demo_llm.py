"""`cotenant demo --llm`: a real language model answers a hundred prompts beside the sample trainer, under a certificate.

The same demo earned it; where it did not, the prompts are seen waiting, and run when the trainer is over. It ends with a picture of the
trainer's rate and the duty over time, and the answers.
"""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotenant.cli.result import Exit, OperationError, OperationResult
from cotenant.demo import DUTY, HONEST, WHY_MARGIN, Demo, no_answer, section_text
from cotenant.demo_model import MODEL, model_file, wheels
from cotenant.demo_stage import NODE, StepFailed, when_less_busy

__all__ = ["LlmDemo"]

PROMPTS = 100
TOKENS = 24
WORK = "llmserve/batch"
BATCH_WITHIN_S = 3600.0
SAMPLE_EVERY_S = 2.0
SAY_EVERY_S = 15.0
# what a runner that waits uses of a core is less
IDLE_SHARE = 0.01
# Without a certificate the prompts are shown waiting for so long; with one they may take so long beside the trainer.
WAITING_S, SHARED_WITHIN_S = 45.0, 1500.0
RATE_OVER_S = 10.0
TOPICS = [
    "rain",
    "bread",
    "iron",
    "music",
    "whales",
    "glass",
    "trees",
    "chess",
    "salt",
    "wolves",
    "roads",
    "ink",
    "snow",
    "clocks",
    "bees",
    "paper",
    "tea",
    "bridges",
    "wool",
    "maps",
]
ASKED = ("Say in one sentence what {} is.", "Why do people like {}?", "Name one use of {}.", "Where does {} come from?",
         "Write a short line of verse about {}.")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sample:
    """A moment of the batch. ``alone``: the trainer was ended; duty and share are None where there are none."""

    at_s: float
    steps: int
    alone: bool
    duty: float | None
    share: float | None
    done: int


class LlmDemo(Demo):
    """The steps of the demo, with the real model as the work."""

    work = WORK
    # what is measured is what will run: the real model
    feed = f"{WORK}@{MODEL}"
    again = "cotenant demo --llm"

    def run(self, *, full: bool) -> OperationResult:
        self.say(
            "a demo of cotenant with a language model: about ten minutes; longer on a busy machine, and where llama.cpp"
        )
        self.say("must be compiled first (ten minutes on two free cores, once)")
        self.say("1. a program worth protecting: a neural network trains on one core and writes a line for each step")
        self.start_trainer()
        self.say("2. the node: the agent that protects it, a Prefect server for long jobs, a worker")
        self.start_node()
        self.say("3. llmserve with llama.cpp in an environment of its own, and a model of 135 million parameters")
        self.install()
        self.say("4. the owner says what is protected; device work runs beside it only under a certificate")
        self.protect()
        self.say("5. the certificate: the model's work in windows ON and OFF, in random order")
        self.say(f"   {WHY_MARGIN}")
        record = self.measure(DUTY)
        self.after(record)
        self.answer = self.serve(record)
        return self.answer

    def section(self) -> str:
        return section_text(
            self.events, 'gpu_jobs = "certified"   # device work beside the trainer only under a certificate'
        )

    def install(self) -> None:
        from cotenant.cli.llmserve_models import INSTALL_S, as_bundle

        bundle = as_bundle(self.home / "llmserve", wheels())
        self.say("   $ cotenant llmserve install   (where llama.cpp has to be compiled: ten minutes to an hour, once)")
        added = self.agent().ask("module_add", path=str(bundle), _timeout_s=INSTALL_S)
        if added["state"] != "ready":
            raise StepFailed(OperationError("DEMO_MODULE", "module llmserve", str(added["why"]), self.again))
        self.cotenant("llmserve", "add-model", str(model_file()))
        self.cotenant("llmserve", "models")

    def serve(self, record: dict[str, Any]) -> OperationResult:
        from cotenant import store
        from cotenant.cli.report_view import write_report
        from tasks.reports import build

        report = build(record).report
        page = write_report(record, self.out)["html"]
        certified = record.get("certificate") is not None
        if certified:
            self.say(f"6. {PROMPTS} prompts, while the governor holds the duty that was certified")
        else:
            self.say(
                f"6. the run ended '{record['ending']}': no certificate, so the prompts wait while the trainer runs"
            )
        file = self.home / "prompts.jsonl"
        asked = questions()[:PROMPTS]
        file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in asked), encoding="utf-8")
        self.cotenant("llmserve", "queue", str(file), "--model", MODEL, "--max-tokens", str(TOKENS))
        engine = store.open(self.settings.store)
        batch = store.list_batches(engine, NODE, 1)[0]["batch"]
        samples = self.watch(engine, batch, SHARED_WITHIN_S if certified else WAITING_S)
        self.cotenant("llmserve", "status", batch)
        answers, picture = self.out / "answers.jsonl", self.out / "llm.png"
        self.cotenant("llmserve", "results", batch, "-o", str(answers), fine=(0, 1))
        draw(samples, picture)
        for line in answers.read_text(encoding="utf-8").splitlines()[: PROMPTS : PROMPTS // 5]:
            told = json.loads(line)
            self.say(f"   {told['prompt']} -> {' '.join(str(told['text']).split())}")
        self.say(f"answer: {report.sentence}")
        self.say(f"   {report.certificate.says}")
        for line in summary(samples):
            self.say(f"   {line}")
        self.say(f"   the trainer's rate and the duty over time: {picture}")
        self.say(f"   all answers: {answers}")
        self.say(f"   the report of the measurement: {page}")
        status = store.batch_status(engine, batch) or {}
        whole = status.get("done") == PROMPTS
        errors = []
        if not whole:
            errors.append(OperationError("DEMO_BATCH", f"batch {batch}", f"it came to {status}", self.again))
        if record["ending"] not in HONEST:
            errors.append(no_answer(record, self.again))
        return OperationResult(
            {
                "run": record["run"],
                "ending": record["ending"],
                "sentence": report.sentence,
                "certificate": record.get("certificate"),
                "batch": batch,
                "status": status,
                "summary": summary(samples),
                "picture": str(picture),
                "answers": str(answers),
                "report": str(page),
                "seconds": round(time.monotonic() - self._since, 1),
            },
            exit_code=Exit.OTHER_ANSWER if errors else Exit.DONE,
            errors=errors,
            view=lambda data: [
                f"{data['ending']}: {data['report']}",
                f"{data['status']['done']} answers: {data['answers']}",
                f"picture: {data['picture']}",
            ],
        )

    def watch(self, engine: Any, batch: str, beside_s: float) -> list[Sample]:
        """Samples until the batch has ended. When its job is ``beside_s`` old the trainer is ended, so that what is left runs alone."""
        from cotenant import store
        from tasks.prompt_words import batch_words

        samples: list[Sample] = []
        since, said_s, alone = time.monotonic(), -SAY_EVERY_S, False
        job_since_s: float | None = None
        while True:
            self.look()
            status = store.batch_status(engine, batch)
            assert status is not None
            jobs = self.agent().ask("job_list", limit=5)
            job = next((one for one in jobs if one["job"] == status["job"]), None) or {}
            at_s = time.monotonic() - since
            samples.append(Sample(at_s, self.steps(), alone, job.get("duty"), job.get("share"), status["done"]))
            if status["state"] != "open":
                return samples
            if at_s - said_s >= SAY_EVERY_S:
                said_s = at_s
                self.say(f"   {batch_words(status)}; {_job_words(job)}")
            if job and job_since_s is None:
                job_since_s = at_s
            if not alone and job_since_s is not None and at_s - job_since_s > beside_s:
                self.cotenant("llmserve", "status", batch)
                self.say(
                    "   the trainer is ended here: in a minute its rule is over (exit_after_s), and what is left runs alone"
                )
                self.end_trainer()
                alone = True
            if at_s > BATCH_WITHIN_S:
                why = f"it took more than {BATCH_WITHIN_S:g} s"
                raise StepFailed(OperationError("DEMO_SLOW", f"batch {batch}", why, when_less_busy(self.again)))
            time.sleep(SAMPLE_EVERY_S)


def _job_words(job: dict[str, Any]) -> str:
    if not job:
        return "its flow is being started"
    words = str(job["state"])
    words += "" if job.get("duty") is None else f", duty {job['duty']:g}"
    words += "" if job.get("share") is None else f", metered {job['share']:.2f}"
    return words + (f" ({job['reason']})" if job.get("reason") else "")


def questions() -> list[str]:
    return [form.format(topic) for form in ASKED for topic in TOPICS]


def draw(samples: list[Sample], path: Path) -> None:
    """Three strips over time: the trainer's rate, duty asked and metered, prompts answered."""
    from tasks.drawing import COLOURS, new_figure, style

    times = [one.at_s for one in samples]
    with style():
        figure = new_figure(narrow=False, height_in=5.6)
        rate, duty, done = figure.subplots(3, 1, sharex=True)
        figure.suptitle("A trainer and a language model on one machine", fontsize=11)
        seen = rates(samples)
        rate.plot(times, seen, color=COLOURS["off"])
        rate.set_ylabel("trainer, steps/s")
        rate.set_ylim(0, 1.15 * max((one for one in seen if one is not None), default=1.0) or 1.0)
        duty.plot(times, [s.duty for s in samples], drawstyle="steps-post", color=COLOURS["soft"], label="allowed")
        duty.plot(times, [s.share for s in samples], color=COLOURS["on"], label="metered")
        duty.set_ylabel("duty of the model")
        duty.set_ylim(0, 1.05)
        duty.legend(loc="upper left", frameon=False, ncols=2)
        done.plot(times, [s.done for s in samples], color=COLOURS["good"])
        done.set_ylabel("prompts answered")
        done.set_ylim(bottom=0)
        done.set_xlabel("seconds since they were queued")
        ended = next((one.at_s for one in samples if one.alone), None)
        for strip in (rate, duty, done):
            strip.grid(color=COLOURS["grid"], linewidth=0.6)
            if ended is not None:
                strip.axvline(ended, color=COLOURS["harm"], linewidth=0.9, linestyle=":")
        if ended is not None:
            rate.text(ended, 0.45, " the trainer is ended", transform=rate.get_xaxis_transform(), color=COLOURS["harm"])
        figure.savefig(path, dpi=130)


def rates(samples: list[Sample]) -> list[float | None]:
    """Steps a second over the last ten seconds at each sample; None where there is no such stretch, or no trainer any more."""
    found: list[float | None] = []
    for number, sample in enumerate(samples):
        earlier = [one for one in samples[:number] if one.at_s <= sample.at_s - RATE_OVER_S]
        first = earlier[-1] if earlier and not sample.alone else None
        found.append(None if first is None else (sample.steps - first.steps) / (sample.at_s - first.at_s))
    return found


def summary(samples: list[Sample]) -> list[str]:
    """What came of it in sentences: how many prompts beside the trainer, how many alone, and the trainer's rate meanwhile."""
    ended = next((one for one in samples if one.alone), samples[-1])
    beside, alone = ended.done, samples[-1].done - ended.done
    said = [f"{beside} prompts were answered beside the trainer" + (f", {alone} after it was ended" if alone else "")]
    shared, kept = _rate_where(samples, working=True), _rate_where(samples, working=False)
    if shared is not None and kept is not None:
        words = f"the trainer made {shared:.2f} steps/s while the model worked beside it, {kept:.2f} while it did not"
        said.append(words + " (a glance, no proof: the report is the proof)")
    return said


def _works(sample: Sample) -> bool | None:
    """None: it may work, and no reading says how much."""
    if sample.share is None:
        return None if sample.duty else False
    return sample.share > IDLE_SHARE


def _rate_where(samples: list[Sample], *, working: bool) -> float | None:
    """Steps a second between samples at which the model worked, or did not, while the trainer ran; None without ten seconds of it."""
    steps = seconds = 0.0
    for one, after in itertools.pairwise(samples):
        if after.alone or any(_works(sample) is not working for sample in (one, after)):
            continue
        steps += after.steps - one.steps
        seconds += after.at_s - one.at_s
    return steps / seconds if seconds >= RATE_OVER_S else None
