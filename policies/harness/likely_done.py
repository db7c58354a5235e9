"""When a run without harm is likely done, guessed from the noise of its first blocks.

Source: ``harness-statistics.md``, section 5. Text for people only: a guess from four blocks must never refuse a run or
decide one.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from policies.harness.plan_text import duration_words
from policies.harness.ratios import Block, fit, log_ratios
from policies.harness.spec import RunSpec
from policies.statistics import likely_done_by

__all__ = ["PLAN_AFTER", "likely_done_words"]

PLAN_AFTER = 4  # counted blocks after which a first guess of the end is given


def likely_done_words(spec: RunSpec, blocks: Sequence[Block]) -> str | None:
    """When a run without harm is likely done, from its counted blocks so far; None: nothing can be said yet.

    First after block 4 from the plain sd, after the first look from the residual sd. Nine of ten such runs at a low
    noise keep it, fewer at a high one.
    """
    d, o, _, _ = log_ratios(blocks)
    n = len(d)
    if spec.kind == "null" or n < PLAN_AFTER:
        return None
    first = spec.first_look
    if n < first:
        s, df = statistics.stdev(d[:PLAN_AFTER]), PLAN_AFTER - 1
        seen = PLAN_AFTER
    else:
        fitted = fit(d[:first], o[:first])
        if fitted is None:
            return None
        s, df, seen = fitted.s, first - 2, first
    total = likely_done_by(s, df, seen, spec.margin, spec.n_max, first)
    noise = f"blocks differ by {100 * s:.1f} % so far"
    if total is None:
        return f"may not be decided within {spec.n_max} blocks ({noise})"
    if total <= n:
        return None
    return f"likely done by block {total}, in about {duration_words((total - n) * spec.block_s)} ({noise})"
