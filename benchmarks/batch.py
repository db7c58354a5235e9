"""A batch through the whole product at full duty, beside llama.cpp's low-level batch driven directly, and one by one.

A real server, worker, agent and model; the same prompts, width, thread and number of tokens for all three.
``python -m benchmarks.batch [--json] [--quick]``; ``COTENANT_TEST_WHEELS`` names wheels to install the module from.

The bound is on tokens a second of CPU time: what others take of the machine slows all three, but not alike. A prompt that is read
before the clock of either starts counts for neither; loading counts for neither.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks._figures import Figure, figure, run

WIDTH = 16
LEAST_RATIO = 0.95
WITHIN_S = 3000.0


def measure(quick: bool) -> list[Figure]:
    count, tokens = (48, 16) if quick else (200, 32)
    with tempfile.TemporaryDirectory(prefix="cotenant-batch-") as folder:
        home = Path(folder)
        for name in [name for name in os.environ if name.startswith("PREFECT_")]:
            del os.environ[name]
        os.environ |= {"COTENANT_HOME": str(home), "COTENANT_FLOW_PRIORITY": "normal", "DO_NOT_TRACK": "1"}
        os.environ["PREFECT_HOME"] = str(home / "client")
        return _measure(home, count, tokens)


def _measure(home: Path, count: int, tokens: int) -> list[Figure]:
    from cotenant import fleet, store
    from cotenant.cli.llmserve_models import as_bundle
    from cotenant.demo_model import MODEL, model_file, wheels
    from policies.prompts import BatchSpec, Item, digest_of
    from tests.node.agent_rig import Rig, wait_for

    root, node = Path(__file__).parents[1], "local"
    prompts = [f"Question {number}: write a long story about the number {number}.\nAnswer:" for number in range(count)]
    rig = Rig(home)
    server = fleet.PrefectServer(home)
    url = server.start()
    worker = fleet.WorkerProcess(home, node, url, root)
    try:
        fleet.ensure_pool(url)
        fleet.deploy(url, root)
        rig.start_agent()
        wait_for("the built-in module", lambda: rig.client.call("modules")[0]["state"] == "ready", 300)
        added = rig.client.call("module_add", path=str(as_bundle(home / "bundle", wheels())), _timeout_s=WITHIN_S)
        if added["state"] != "ready":
            raise RuntimeError(added["why"])
        models = home / "nodes" / node / "modules" / "llmserve" / "data" / "models"
        models.mkdir()
        os.symlink(model_file(), models / MODEL)
        worker.start(WITHIN_S)
        python = next((home / "nodes" / node / "modules" / "llmserve" / "environments").glob("*/bin/python"))
        alone = _direct(python, home, 1, tokens, prompts[: max(8, count // 8)])
        before = _direct(python, home, WIDTH, tokens, prompts)
        spec = BatchSpec(node=node, model=MODEL, backend="llamacpp", max_tokens=tokens, raw=True, per_job=count)
        engine = store.open(store.default_url(home))
        items = [Item({"prompt": prompt}) for prompt in prompts]
        digest = digest_of({}, items)
        store.make_batch(engine, "bench", spec, items, source="benchmark", digest=digest, style="plain")
        asked_s = time.monotonic()
        flow_run = fleet.run_flow(url, "llmserve-batch/llmserve-batch", {"node": node, "batch": "bench"}, node)
        store.set_flow_run(engine, "bench", flow_run)
        first_s = wait_for("an answer", lambda: _closed(engine) and time.monotonic() - asked_s, WITHIN_S)
        status = wait_for(
            "the end", lambda: (s := store.batch_status(engine, "bench")) and s["state"] != "open" and s, WITHIN_S
        )
        wall_s = time.monotonic() - asked_s
        after = _direct(python, home, WIDTH, tokens, prompts)
        answers = [row["answer"] for row in store.prompt_rows(engine, "bench")]
    finally:
        worker.stop()
        rig.stop()
        server.stop()
    if status["done"] != count:
        raise RuntimeError(f"the batch came to {status}")
    return _figures(status["figures"], answers, (before, after), alone, wall_s, first_s, count)


def _closed(engine: Any) -> bool:
    from cotenant import store

    status = store.batch_status(engine, "bench")
    return status is not None and status["done"] + status["failed"] > 0


def _direct(python: Path, home: Path, width: int, tokens: int, prompts: list[str]) -> dict[str, float]:
    from cotenant.demo_model import model_file

    file = home / "prompts.json"
    file.write_text(json.dumps(prompts))
    script = Path(__file__).with_name("_llama_direct.py")
    argv = [str(python), "-I", str(script), str(model_file()), str(width), str(tokens), str(file)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=WITHIN_S, check=True)
    return dict(json.loads(done.stdout))


def _figures(
    mine: dict[str, Any],
    answers: list[dict[str, Any]],
    direct: tuple[dict[str, float], dict[str, float]],
    alone: dict[str, float],
    wall_s: float,
    first_s: float,
    count: int,
) -> list[Figure]:
    def rate(one: dict[str, Any], seconds: str) -> float:
        return float(one["tokens"] / one[seconds])

    busy = statistics.mean(rate(one, "busy_s") for one in direct)
    wall = statistics.mean(rate(one, "wall_s") for one in direct)
    return [
        figure(
            "product / direct, tokens a CPU second",
            rate(mine, "busy_s") / busy,
            "",
            (">=", LEAST_RATIO),
            f"direct before and after: {rate(direct[0], 'busy_s'):.1f}, {rate(direct[1], 'busy_s'):.1f} tokens/s",
        ),
        figure("product, tokens a CPU second", rate(mine, "busy_s"), "1/s", None, f"direct {busy:.1f}"),
        figure("product, tokens a second of its jobs", rate(mine, "wall_s"), "1/s", None, f"direct {wall:.1f}"),
        figure(
            "one by one, tokens a CPU second",
            rate(alone, "busy_s"),
            "1/s",
            None,
            f"by wall {rate(alone, 'wall_s'):.1f}",
        ),
        figure("time to first token of a prompt, median", statistics.median(a["first_s"] for a in answers), "s"),
        figure("from asking for the flow to the first answer", first_s, "s"),
        figure("flow's time besides its job's, a prompt", 1000.0 * (wall_s - mine["wall_s"]) / count, "ms"),
        figure(
            "tokens a unit, mean",
            (mine["tokens"] + mine["prompt_tokens"]) / mine["units"],
            "",
            None,
            f"up to {WIDTH} generate together: fewer where so many take longer than a unit may",
        ),
        figure("loading, once a job", mine["load_s"], "s"),
        figure("longest unit", mine["unit_worst_s"], "s", None, f"between two safe points {mine['yield_s']:.3f}"),
        figure("peak memory of the runner", mine["peak_rss_mb"], "MiB", None, "weights are 94 MiB of it"),
    ]


if __name__ == "__main__":
    sys.exit(run("batch", __doc__, measure))
