"""`cotenant demo --llm`: a real language model answers a hundred prompts beside the sample trainer, under a certificate.

The same demo earned it. It ends with a picture of the trainer's rate and the duty over time, and the answers.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from cotenant.cli.result import Exit, OperationError, OperationResult
from cotenant.demo import NODE, Demo, StepFailed, section_text
from cotenant.demo_model import MODEL, model_file, wheels

__all__ = ["LlmDemo"]

PROMPTS = 100
TOKENS = 24
WORK = "llmserve/batch"
BATCH_WITHIN_S = 3600.0
SAMPLE_EVERY_S = 2.0
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


class LlmDemo(Demo):
    """The steps of the demo, with the real model as the work."""

    work = WORK

    def run(self, *, full: bool) -> OperationResult:
        self.say(
            "a demo of cotenant with a language model: about ten minutes; longer on a busy machine, and where llama.cpp"
        )
        self.say("must be built first (five minutes on two free cores; uv keeps the wheel)")
        self.say("1. a program worth protecting: a neural network trains on one core and writes a line for each step")
        self.start_trainer()
        self.say("2. the node: the agent that protects it, a Prefect server for long jobs, a worker")
        self.start_node()
        self.say("3. llmserve with llama.cpp in an environment of its own, and a model of 135 million parameters")
        self.install()
        self.say("4. the owner says what is protected; device work runs beside it only under a certificate")
        self.protect()
        self.say("5. the certificate: the model's work in windows ON and OFF, in random order")
        record = self.measure(0.3)
        self.after(record)
        if record.get("certificate") is None:
            why = f"the run ended '{record['ending']}', so there is no certificate, and the prompts would wait for one"
            raise StepFailed(OperationError("DEMO_NO_CERTIFICATE", f"run {record['run']}", why, "cotenant demo --llm"))
        self.say(f"6. {PROMPTS} prompts, while the governor holds the duty that was certified")
        self.answer = self.serve(record)
        return self.answer

    def section(self) -> str:
        return section_text(self.events).replace('gpu_jobs = "when_no_gpu_protected"', 'gpu_jobs = "certified"')

    def install(self) -> None:
        from cotenant.cli.llmserve_models import INSTALL_S, as_bundle

        bundle = as_bundle(self.home / "llmserve", wheels())
        specs = bundle / "conformance.json"
        document = json.loads(specs.read_text(encoding="utf-8"))
        for spec in document["duty_specs"]:
            if spec["stage"] == "batch":
                # what is measured is what will run: the real model
                many = [f"{question} ({number})" for number, question in enumerate(questions() * 20)]
                spec["payload"] = {"prompts": many, "max_tokens": 200, "model": MODEL, "backend": "llamacpp"}
        specs.write_text(json.dumps(document), encoding="utf-8")
        self.say("   $ cotenant llmserve install")
        added = self.agent().ask("module_add", path=str(bundle), _timeout_s=INSTALL_S)
        if added["state"] != "ready":
            raise StepFailed(OperationError("DEMO_MODULE", "module llmserve", str(added["why"]), "cotenant demo --llm"))
        self.cotenant("llmserve", "add-model", str(model_file()))
        self.cotenant("llmserve", "models")

    def serve(self, record: dict[str, Any]) -> OperationResult:
        from cotenant import store

        file = self.home / "prompts.jsonl"
        asked = [f"{question}" for question in questions()][:PROMPTS]
        file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in asked), encoding="utf-8")
        self.cotenant("llmserve", "queue", str(file), "--model", MODEL, "--max-tokens", str(TOKENS))
        engine = store.open(self.settings.store)
        batch = store.list_batches(engine, NODE, 1)[0]["batch"]
        samples = self.watch(engine, batch)
        self.cotenant("llmserve", "status", batch)
        self.out.mkdir(parents=True, exist_ok=True)
        answers, picture = self.out / "answers.jsonl", self.out / "llm.png"
        self.cotenant("llmserve", "results", batch, "-o", str(answers), fine=(0, 1))
        draw(samples, picture)
        for line in answers.read_text(encoding="utf-8").splitlines()[:5]:
            told = json.loads(line)
            self.say(f"   {told['prompt']} -> {' '.join(str(told['text']).split())}")
        self.say(f"   the trainer's rate and the duty over time: {picture}")
        self.say(f"   all answers: {answers}")
        status = store.batch_status(engine, batch) or {}
        whole = status.get("done") == PROMPTS
        errors = (
            []
            if whole
            else [OperationError("DEMO_BATCH", f"batch {batch}", f"it came to {status}", "cotenant demo --llm")]
        )
        return OperationResult(
            {
                "run": record["run"],
                "certificate": record.get("certificate"),
                "batch": batch,
                "status": status,
                "picture": str(picture),
                "answers": str(answers),
            },
            exit_code=Exit.DONE if whole else Exit.OTHER_ANSWER,
            errors=errors,
            view=lambda data: [f"{data['status']['done']} answers: {data['answers']}", f"picture: {data['picture']}"],
        )

    def watch(self, engine: Any, batch: str) -> list[dict[str, float | None]]:
        """Samples of steps, duty, share and answers until the batch has ended."""
        from cotenant import store
        from tasks.prompt_words import batch_words

        samples: list[dict[str, float | None]] = []
        since, said_s = time.monotonic(), 0.0
        while True:
            self.check_trainer()
            if self._supervisor is not None:
                self._supervisor.look()
            status = store.batch_status(engine, batch)
            assert status is not None
            jobs = self.agent().ask("job_list", limit=5)
            job = next((one for one in jobs if one["job"] == status["job"]), None) or {}
            at = time.monotonic() - since
            samples.append(
                {
                    "at_s": at,
                    "steps": float(self.steps()),
                    "duty": job.get("duty"),
                    "share": job.get("share"),
                    "done": float(status["done"]),
                }
            )
            if status["state"] != "open":
                return samples
            if at - said_s > 15.0:
                said_s = at
                why = f" ({job['reason']})" if job.get("reason") else ""
                self.say(f"   {batch_words(status)}; duty {job.get('duty')}, metered {job.get('share')}{why}")
            if at > BATCH_WITHIN_S:
                raise StepFailed(
                    OperationError("DEMO_SLOW", f"batch {batch}", f"it took more than {BATCH_WITHIN_S:g} s")
                )
            time.sleep(SAMPLE_EVERY_S)


def questions() -> list[str]:
    return [form.format(topic) for form in ASKED for topic in TOPICS]


def draw(samples: list[dict[str, float | None]], path: Path) -> None:
    """Three strips over time: the trainer's rate, duty asked and metered, prompts answered."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    times = [sample["at_s"] for sample in samples]
    figure, strips = pyplot.subplots(3, 1, sharex=True, figsize=(9, 6), constrained_layout=True)
    strips[0].plot(times, rates(samples), color="tab:blue")
    strips[0].set_ylabel("trainer, steps/s")
    strips[0].set_ylim(bottom=0)
    strips[1].plot(times, [s["duty"] for s in samples], drawstyle="steps-post", color="tab:orange", label="asked")
    strips[1].plot(times, [s["share"] for s in samples], color="tab:green", label="metered")
    strips[1].set_ylabel("duty of the model")
    strips[1].set_ylim(0, 1)
    strips[1].legend(loc="upper right", frameon=False)
    strips[2].plot(times, [s["done"] for s in samples], color="tab:gray")
    strips[2].set_ylabel("prompts answered")
    strips[2].set_xlabel("seconds since they were queued")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def rates(samples: list[dict[str, float | None]]) -> list[float | None]:
    """Steps a second over the last ten seconds at each sample; None where there is no such stretch yet."""
    found: list[float | None] = []
    for number, sample in enumerate(samples):
        at, steps = sample["at_s"], sample["steps"]
        earlier = [one for one in samples[:number] if (one["at_s"] or 0.0) <= (at or 0.0) - RATE_OVER_S]
        if not earlier or at is None or steps is None:
            found.append(None)
            continue
        first = earlier[-1]
        found.append((steps - (first["steps"] or 0.0)) / (at - (first["at_s"] or 0.0)))
    return found
