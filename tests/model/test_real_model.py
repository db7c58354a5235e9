"""llama.cpp with a real model, through the module's runner."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import time
from pathlib import Path

import pytest

from cotenant.demo_model import MODEL
from tests.model.conftest import Runner
from tests.node.agent_rig import own_ticks, wait_for

# of each test alone: building the environment from source, the first time, has a deadline of its own
pytestmark = pytest.mark.timeout(1800, func_only=True)
ASKED = "Name the capital of France."


def test_prompts_are_decoded_together_and_answered_sensibly(runner: Runner) -> None:
    prompts = [ASKED, *(f"Write one sentence about the number {number}." for number in range(7))]
    done = runner.run({"prompts": prompts, "max_tokens": 24})
    assert "Paris" in done["answers"][0]["text"]
    figures = done["figures"]
    assert figures["width_most"] > 1
    assert figures["shared_tokens"] > 16, "the chat template's own beginning is read once"
    assert figures["tokens"] == sum(answer["tokens"] for answer in done["answers"])
    assert 0 < figures["unit_worst_s"] <= figures["yield_s"]
    assert {answer["finish"] for answer in done["answers"]} <= {"stop", "length"}


def test_temperature_0_gives_the_same_clear_answer_alone_and_among_sixteen(runner: Runner) -> None:
    """Only where the likeliest token is clear: llama.cpp's scores differ in their last bits with the size of a step."""
    others = [f"Tell me something about topic {number}, in your own words." for number in range(15)]
    alone = runner.texts({"prompts": [ASKED], "max_tokens": 6})[0]
    among = runner.texts({"prompts": [*others[:7], ASKED, *others[7:]], "max_tokens": 6})[7]
    again = runner.texts({"prompts": [*others[:7], ASKED, *others[7:]], "max_tokens": 6})[7]
    assert among == alone
    assert again == among


def test_seeds_stop_strings_and_raw_prompts(runner: Runner) -> None:
    drawn = {"prompt": "Once upon a time", "raw": True, "temperature": 1.0, "max_tokens": 12}
    prompts = [
        drawn | {"id": "a", "seed": 1},
        drawn | {"id": "b", "seed": 1},
        drawn | {"id": "c", "seed": 2},
        {"id": "d", "prompt": "1, 2, 3, 4,", "raw": True, "stop": ["7"], "max_tokens": 30},
    ]
    a, b, c, d = runner.texts({"prompts": prompts})
    assert a == b != c
    assert "6" in d
    assert "7" not in d


def test_case_102_prompt_and_answer_must_fit_the_context_and_nothing_shifts(runner: Runner) -> None:
    long = {"id": "long", "prompt": "word " * 500, "raw": True, "max_tokens": 512}
    fits = {"id": "fits", "prompt": "word", "raw": True, "max_tokens": 8}
    done = runner.run({"prompts": [long, fits], "context": 512})
    first, second = done["answers"]
    assert (first["error"]["code"], first["tokens"]) == ("too_long", 0)
    assert second["tokens"] <= 8
    assert second["error"] is None


def test_case_103_a_long_prompt_is_read_in_pieces_and_a_pause_waits_for_one_of_them(runner: Runner) -> None:
    process, work = runner.start({"prompts": [{"prompt": "word " * 1500, "raw": True}], "max_tokens": 4})
    wait_for("it works", lambda: (work / "phase").exists() and (work / "phase").read_text() == "work\n", 300)
    (work / "control.json").write_text('{"seq": 1, "pause": true}')
    process.send_signal(signal.SIGUSR1)
    idle = wait_for("the pause holds", lambda: still(process.pid), 300)
    assert idle
    assert not (work / "result.json").exists()
    (work / "control.json").write_text('{"seq": 2, "pause": false}')
    process.send_signal(signal.SIGUSR1)
    assert process.wait(900) == 0
    figures = json.loads((work / "result.json").read_text())["payload"]["figures"]
    assert figures["units"] > 1500 / 512, "no unit holds as much of a prompt as llama.cpp would take at once"
    assert figures["paused_s"] > 0
    assert figures["yield_s"] >= figures["unit_worst_s"]


def still(pid: int) -> bool:
    """Uses no CPU for a second."""
    before = own_ticks(pid)
    time.sleep(1.0)
    return own_ticks(pid) - before <= 2


def tree_ticks(pid: int) -> int:
    """CPU ticks of a process with its children, those that ended included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    used = sum(map(int, fields[11:15]))
    for child in children:
        with contextlib.suppress(OSError, IndexError):
            used += tree_ticks(int(child))
    return used


def test_a_start_holds_its_duty_from_the_imports_to_the_first_token(runner: Runner) -> None:
    """Judged by the kernel's own count, with the child that tries a model for the first time."""
    (runner.data / "models" / ".checked.json").unlink(missing_ok=True)
    duty, second = 0.1, 1.0
    process, work = runner.start({"prompts": [ASKED], "max_tokens": 200}, control={"seq": 1, "gpu_duty": duty})
    seen: list[tuple[float, int]] = []
    phase = work / "phase"
    try:
        while process.poll() is None and (not phase.exists() or phase.read_text() != "work\n"):
            with contextlib.suppress(OSError, IndexError):
                seen.append((time.monotonic(), tree_ticks(process.pid)))
            time.sleep(0.02)
        assert process.poll() is None, "it came to its first token"
    finally:
        process.kill()
        process.wait()
    used_s = (seen[-1][1] - seen[0][1]) / os.sysconf("SC_CLK_TCK")
    assert used_s > 0.3, "a start costs something"
    # the interpreter's own start is before the governor's, and an import is not cut
    assert used_s <= duty * (seen[-1][0] - seen[0][0]) + 0.4
    for at_s, ticks in seen:
        later = next((more for when_s, more in seen if when_s >= at_s + second), None)
        if later is not None:
            assert (later - ticks) / os.sysconf("SC_CLK_TCK") <= duty * second + 0.3


def test_case_103_a_pause_holds_in_the_middle_of_a_start(runner: Runner) -> None:
    (runner.data / "models" / ".checked.json").unlink(missing_ok=True)
    process, work = runner.start({"prompts": [ASKED], "max_tokens": 4}, control={"seq": 1, "gpu_duty": 0.1})
    try:
        wait_for("it loads", lambda: (work / "phase").exists() and (work / "phase").read_text() == "load\n", 300)
        (work / "control.json").write_text('{"seq": 2, "pause": true}')
        process.send_signal(signal.SIGUSR1)
        wait_for("the pause is confirmed", lambda: (work / "phase").read_text() == "paused\n", 300)
        before = tree_ticks(process.pid)
        time.sleep(3.0)
        # its duty alone would have let it use thirty
        assert tree_ticks(process.pid) - before <= 6
        assert (work / "phase").read_text() == "paused\n"
        (work / "control.json").write_text('{"seq": 3}')
        process.send_signal(signal.SIGUSR1)
        assert process.wait(900) == 0
    finally:
        process.kill()
        process.wait()


def test_earlier_answers_are_kept_and_not_asked_again(runner: Runner) -> None:
    kept = {"id": "0", "text": "from before", "finish": "stop", "prompt_tokens": 1, "tokens": 1, "error": None}
    earlier = json.dumps({"type": "checkpoint", "name": "prompt", "answer": kept}) + '\n{"cut'
    done = runner.run({"prompts": [ASKED, ASKED], "max_tokens": 8}, earlier)
    assert done["answers"][0]["text"] == "from before"
    assert done["answers"][1]["text"] != "from before"
    assert (done["figures"]["resumed"], done["figures"]["tokens"]) == (1, done["answers"][1]["tokens"])


def damaged(kind: str, real: bytes) -> bytes:
    if kind == "empty key":  # 37 bytes, by which the process that loads them was seen to abort
        head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 0) + struct.pack("<I", 4)
        return (head + b"\0" * 37)[:37]
    if kind == "truncated":
        return real[: len(real) // 2]
    if kind == "cut in its head":
        return real[:1000]
    if kind == "foreign":
        return b"PK\x03\x04" + b"x" * 1000
    if kind == "damaged key":  # whole, and the head reads well: only the backend finds the count of heads impossible
        return real.replace(b"llama.attention.head_count\x04", b"llama.attention.head_counx\x04", 1)
    return b""


@pytest.mark.parametrize("kind", ["empty key", "truncated", "cut in its head", "foreign", "damaged key", "empty"])
def test_case_099_a_bad_model_ends_as_bad_model_and_is_not_retried(runner: Runner, kind: str) -> None:
    models = runner.data / "models"
    name = f"{kind.replace(' ', '-')}.gguf"
    (models / name).write_bytes(damaged(kind, (models / MODEL).read_bytes()))
    try:
        ended = runner.run({"prompts": ["a"], "model": name})
    finally:
        os.unlink(models / name)
    assert (ended["exit"], ended["reason"]) == (2, "llmserve/bad_model"), ended
    assert ended["retryable"] is False
    assert name in ended["detail"]
