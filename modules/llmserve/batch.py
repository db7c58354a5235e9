"""Stage ``batch``: the prompts of a job through a language model, each recorded in the events as it finishes."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time
from typing import Any

import models
from backends import NoBackend, choose, open_backend
from batching import Backend, Batch, Finished
from envelope import Events, Failed
from gguf import BadModel, read_header
from loading import DoesNotLoad, Pieces, import_backend, read_ahead
from prompts import Prompt, Request, parse

from cotenant.sdk.control import Control
from cotenant.sdk.duty import Duty

BEAT_S = 2.0


def run(ctl: Control, payload: Any, events_path: str | None) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Result payload, effective settings, provenance.

    Raises:
        BadSpec: the payload can never succeed.
        Failed: with the reason, whose fault it is and the exit code.
    """
    request = parse(payload)
    backend_name = _chosen(request)
    answers = _earlier(ctl.workdir, {prompt.id for prompt in request.prompts})
    resumed = len(answers)
    left = [prompt for prompt in request.prompts if prompt.id not in answers]
    events = Events(events_path)
    ctl.phase("load")
    began_s = time.monotonic()
    path = _model_path(request, backend_name)
    # a start is the processor's work, whatever the model will run on
    duty = Duty(ctl, events=events_path, device="cpu")
    try:
        pieces = Pieces(ctl, duty)
        _imported(backend_name, pieces)
        device = _device(backend_name)
        if device != "cpu":
            duty.close()
            duty = pieces.duty = Duty(ctl, events=events_path, device=device)
        backend = _loaded(pieces, backend_name, request, path)
        load_s = time.monotonic() - began_s
        reporter = _Reporter(events, duty, ctl, len(request.prompts), answers, load_s)
        ctl.phase("work")
        batch = Batch(backend, ctl, duty, request.wall_s, reporter.finished, reporter.beat)
        # a pause that came while it loaded waited for a piece of that
        batch.figures.unit_worst_s = batch.figures.yield_s = pieces.worst_s
        reporter.batch = batch
        try:
            batch.run(left)
        except (models.NoRoom, MemoryError) as error:
            raise _no_memory(request, error) from error
        except RuntimeError as error:
            raise Failed("llmserve/backend_failed", str(error), fault=None, code=1) from error
        except OSError as error:  # the events cannot be written: no prompt is at fault
            raise Failed("llmserve/not_recorded", str(error), fault="transient", code=75) from error
        finally:
            with contextlib.suppress(OSError):
                reporter.beat(at_once=True)
            backend.close()
    finally:
        duty.close()
    ordered = [answers[prompt.id] for prompt in request.prompts]
    figures = reporter.figures() | {"resumed": resumed}
    effective = {
        "backend": backend.name, "model": request.model, "width": backend.width, "context": backend.context,
        "device": backend.device,
    }  # fmt: skip
    provenance = {"model": request.model or "stand-in", "backend": backend.name}
    return {"answers": ordered, "figures": figures}, effective, provenance


def _chosen(request: Request) -> str:
    try:
        return choose(request)
    except NoBackend as error:
        raise Failed("llmserve/no_backend", str(error), fault="host", code=3) from error


def _imported(backend_name: str, pieces: Pieces) -> None:
    try:
        import_backend(backend_name, pieces)
    except DoesNotLoad as error:
        raise Failed("llmserve/no_backend", str(error), fault="host", code=3) from error


def _device(backend_name: str) -> Any:
    """What the duty counts: CPU time where the model runs on the CPU."""
    if backend_name != "llamacpp":
        return "gpu" if backend_name == "mlx" else "cpu"
    import llama_cpp

    return "gpu" if llama_cpp.llama_supports_gpu_offload() else "cpu"


def _model_path(request: Request, backend_name: str) -> str:
    if backend_name == "stub":
        return ""
    try:
        return str(models.find(request.model, backend_name))
    except BadModel as error:
        raise _bad_model(request, error) from error


def _bad_model(request: Request, error: Exception) -> Failed:
    return Failed("llmserve/bad_model", f"model {request.model}: {error}", fault="job", code=2)


def _no_memory(request: Request, error: Exception) -> Failed:
    return Failed("llmserve/no_memory", f"model {request.model}: {error}", fault="transient", code=75)


def _loaded(pieces: Pieces, backend_name: str, request: Request, path: str) -> Backend:
    """The model is loaded here, in the runner; a file that is new in a child before."""
    try:
        if backend_name == "llamacpp":
            with pieces.piece():
                header = read_header(path)
            # what a single sequence needs at least; the cache is made when the prompts are known
            answers = (prompt.max_tokens for prompt in request.prompts)
            models.check_room(header, models.least_tokens(header, request.context, answers))
        if path:
            read_ahead(models.Path(path), pieces)
        if backend_name == "llamacpp":
            models.probe(models.Path(path), pieces)
        with pieces.gated() as point:
            return open_backend(backend_name, request, path, _threads(pieces.ctl), point)
    except BadModel as error:
        raise _bad_model(request, error) from error
    except (models.NoRoom, MemoryError) as error:
        raise _no_memory(request, error) from error
    except OSError as error:
        raise Failed("llmserve/load_failed", f"model {request.model}: {error}", fault="transient", code=75) from error


def _threads(ctl: Control) -> int:
    """As many as the stage declares, fewer where the control document asks for that."""
    try:
        with open(os.path.join(ctl.workdir, "spec.json"), encoding="utf-8") as file:
            declared = int(json.load(file)["resources"]["cpu"])
    except (OSError, ValueError, KeyError, TypeError):
        declared = 1
    return max(1, min(declared, ctl.threads or declared, os.cpu_count() or 1))


def _earlier(workdir: str, wanted: set[str]) -> dict[str, dict[str, Any]]:
    """Answers that earlier attempts of this job recorded; a line that was cut is none."""
    found: dict[str, dict[str, Any]] = {}
    path = os.path.join(workdir, "resume.ndjson")
    if not os.path.isfile(path):
        return found
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            answer = event.get("answer") if isinstance(event, dict) and event.get("name") == "prompt" else None
            if isinstance(answer, dict) and answer.get("id") in wanted:
                found.setdefault(answer["id"], answer)
    return found


class _Reporter:
    """A line for each prompt that finishes, and every two seconds one of how far the job is."""

    def __init__(
        self,
        events: Events,
        duty: Duty,
        ctl: Control,
        total: int,
        answers: dict[str, dict[str, Any]],
        load_s: float,
    ) -> None:
        self._events, self._duty, self._ctl, self._total, self._answers = events, duty, ctl, total, answers
        self._began_s = self._told_s = time.monotonic()
        # what loading used, idled and waited is not generation
        self._before = duty.busy_s, duty.idle_s, ctl.paused_s
        self._load_s = load_s
        self.batch: Batch | None = None

    def finished(self, done: Finished) -> None:
        answer = _answer(done.prompt, done)
        self._events.write("checkpoint", name="prompt", answer=answer)
        self._answers[done.prompt.id] = answer

    def beat(self, *, at_once: bool = False) -> None:
        now_s = time.monotonic()
        if at_once or now_s - self._told_s >= BEAT_S:
            self._told_s = now_s
            attempt = os.environ.get("OARBANK_ATTEMPT_ID", "")
            told = {"done": len(self._answers), "total": self._total, "attempt": attempt}
            self._events.write("progress", **told, **self.figures())

    def figures(self) -> dict[str, Any]:
        """``busy_s`` leaves out what was idled for the duty, ``wall_s`` leaves out nothing."""
        if self.batch is None:
            return {}
        seen = self.batch.figures
        busy_s, idle_s, paused_s = self._before
        return {
            "tokens": seen.tokens,
            "prompt_tokens": seen.prompt_tokens,
            "shared_tokens": seen.shared_tokens,
            "units": seen.units,
            "unit_worst_s": round(seen.unit_worst_s, 4),
            "yield_s": round(seen.yield_s, 4),
            "width_most": seen.width_most,
            "at_limit": seen.at_limit,
            "busy_s": round(self._duty.busy_s - busy_s, 3),
            "idle_s": round(self._duty.idle_s - idle_s, 3),
            "paused_s": round(self._ctl.paused_s - paused_s, 3),
            "load_s": round(self._load_s, 3),
            "wall_s": round(time.monotonic() - self._began_s, 3),
            "peak_rss_mb": round(_peak_rss_mb(), 1),
        }


def _peak_rss_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def _answer(prompt: Prompt, done: Finished) -> dict[str, Any]:
    return {
        "id": prompt.id,
        "text": done.text,
        "finish": done.finish,
        "prompt_tokens": done.prompt_tokens,
        "tokens": done.tokens,
        "first_s": None if done.first_s is None else round(done.first_s, 4),
        "took_s": round(done.took_s, 4),
        "error": done.error,
    }
