"""Prompt batches: what is asked, how files are read and results written, how prompts are put into jobs. Pure."""

from __future__ import annotations

from policies.prompts.figures import added, progress_of, rates
from policies.prompts.inputs import BadLine, Item, Parsed, digest_of, parse_list, parse_text
from policies.prompts.outputs import result_lines
from policies.prompts.spec import (
    PER_JOB,
    BatchSpec,
    batch_id,
    checked_spec,
    chunk_size,
    job_key,
    job_payload,
    model_words,
    sized,
)

__all__ = [
    "PER_JOB",
    "BadLine",
    "BatchSpec",
    "Item",
    "Parsed",
    "added",
    "batch_id",
    "checked_spec",
    "chunk_size",
    "digest_of",
    "job_key",
    "job_payload",
    "model_words",
    "parse_list",
    "parse_text",
    "progress_of",
    "rates",
    "result_lines",
    "sized",
]
