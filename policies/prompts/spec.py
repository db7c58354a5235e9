"""What a batch is asked to do, and how its prompts are put into jobs. Source: ``llmserve.md``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from policies.refusal import Refused

__all__ = [
    "PER_JOB",
    "TRIES_MAX",
    "BatchSpec",
    "batch_id",
    "checked_spec",
    "chunk_size",
    "job_key",
    "job_payload",
    "model_words",
    "sized",
]

PER_JOB = 100
# A request to the agent may have 1 MiB.
JOB_BYTES_MAX = 700_000
# A prompt whose jobs failed so often is the likely cause of it, and ends as failed.
TRIES_MAX = 3


class BatchSpec(BaseModel):
    """Options of all prompts of a batch; a prompt may carry its own ``max_tokens``, ``temperature`` and so on."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    node: str
    model: str = Field(default="", pattern=r"^$|^[A-Za-z0-9][A-Za-z0-9._+-]{0,199}$")
    backend: Literal["auto", "mlx", "llamacpp", "stub"] = "auto"
    max_tokens: int = Field(default=128, ge=1, le=1_000_000)
    temperature: float = Field(default=0.0, ge=0.0, le=10.0)
    top_p: float = Field(default=1.0, ge=0.0, le=1.0)
    top_k: int = Field(default=0, ge=0, le=1_000_000)
    seed: int | None = Field(default=None, ge=0, le=2**32 - 2)
    stop: tuple[Annotated[str, Field(min_length=1, max_length=1000)], ...] = Field(default=(), max_length=16)
    raw: bool = False
    per_job: int = Field(default=PER_JOB, ge=1, le=10_000)
    width: int = Field(default=16, ge=1, le=64)
    context: int | None = Field(default=None, ge=16, le=1_000_000)
    wall_s: float | None = Field(default=None, ge=0.1, le=86400.0)
    """A prompt that has generated for so long, time held left out, ends with what it has; None for the module's own limit."""


def checked_spec(given: Mapping[str, Any]) -> BatchSpec:
    """The options as they were given, on a command line or in a run form.

    Raises:
        Refused: naming the option that cannot be used.
    """
    try:
        return BatchSpec.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or "the options"
        raise Refused(
            "BATCH_BAD", f"{name} {first['input']!r}", first["msg"], "cotenant llmserve queue --help"
        ) from error


def batch_id(flow_run_id: str) -> str:
    """The batch of prompts that were typed into a flow run: the same however often the run is started."""
    return "batch-" + hashlib.sha256(flow_run_id.encode()).hexdigest()[:10]


def model_words(spec: Mapping[str, Any]) -> str:
    """Who answers: the model, or the stand-in, which takes no model's name."""
    return str(spec["model"]) if spec["model"] and spec["backend"] != "stub" else "stand-in"


def job_key(batch: str, number: int) -> str:
    """By which an agent knows a job of the batch again. Its own numbers begin anew where it lost its journal."""
    return f"{batch}/{number}"


def chunk_size(per_job: int, tries: int) -> int:
    """How many prompts a job takes of those whose jobs failed ``tries`` times: fewer each time, at last one alone.

    So a prompt that brings its job down takes the fewest others with it, and is found.
    """
    return max(1, per_job >> (3 * tries)) if tries < TRIES_MAX - 1 else 1


def sized(bodies: Iterable[Mapping[str, Any]], most: int) -> int:
    """How many of the first prompts fit in one job."""
    count = total = 0
    for body in bodies:
        total += len(json.dumps(body)) + 32
        if count == most or (count and total > JOB_BYTES_MAX):
            break
        count += 1
    return count


def job_payload(spec: BatchSpec, prompts: Iterable[tuple[int, Mapping[str, Any]]]) -> dict[str, Any]:
    """Payload of a ``batch`` job. A prompt's id in it is its number in the batch."""
    options = spec.model_dump(exclude={"node", "per_job"}, exclude_none=True)
    options["stop"] = list(spec.stop)
    return options | {"prompts": [{**body, "id": str(number)} for number, body in prompts]}
