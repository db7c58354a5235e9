"""Each file of the SDK works alone, copied into a module that has nothing else."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SDK = Path(__file__).resolve().parents[2] / "cotenant" / "sdk"
RUNS = {
    "control": """
from control import Control, Stopped
ctl = Control()
ctl.phase("work")
try:
    while True:
        ctl.safe_point()
        ctl.wait(ctl.news, 60.0)
except Stopped:
    raise SystemExit(ctl.acknowledge_stop())
""",
    "duty": """
import asyncio, threading
from duty import Duty
duty = Duty(None, events="events.ndjson", device="gpu")
duty.set(0.5)
def work():
    for _ in range(3):
        with duty.unit():
            pass
threads = [threading.Thread(target=work) for _ in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
async def main():
    async with duty.unit():
        await asyncio.sleep(0.6)
asyncio.run(main())
assert duty.busy_s >= 0.6 and duty.scale() < 1.0
duty.close()
open("phase", "w").close()
""",
    "supervisor": """
import sys
from supervisor import Supervisor
told = []
code = Supervisor([sys.executable, "-c", "open('phase', 'w'); import time; time.sleep(600)"], gpu_duty=told.append).run()
assert told == [0.5], told
raise SystemExit(code)
""",
}


def test_every_file_is_here() -> None:
    assert set(RUNS) == {path.stem for path in SDK.glob("*.py")} - {"__init__"}


@pytest.mark.parametrize("name", sorted(RUNS))
def test_one_file_alone(tmp_path: Path, name: str) -> None:
    shutil.copy(SDK / f"{name}.py", tmp_path)
    (tmp_path / "main.py").write_text(RUNS[name])
    (tmp_path / "control.json").write_text(json.dumps({"seq": 0, "gpu_duty": 0.5}))
    env = {"OARBANK_WORKDIR": str(tmp_path), "OARBANK_MODULE": "alone", "PATH": os.environ["PATH"]}
    # -S: not even the installed packages are there
    process = subprocess.Popen([sys.executable, "-S", "main.py"], cwd=tmp_path, env=env)
    try:
        end = time.monotonic() + 60
        while not (tmp_path / "phase").exists():
            assert process.poll() in (None, 0)
            assert time.monotonic() < end
            time.sleep(0.02)
        if name != "duty":
            (tmp_path / "control.tmp").write_text(json.dumps({"seq": 1, "stop": True}))
            (tmp_path / "control.tmp").replace(tmp_path / "control.json")
            process.send_signal(signal.SIGUSR1)
        assert process.wait(60) == (0 if name == "duty" else 75)
    finally:
        process.kill()
        process.wait()
    if name == "duty":
        assert json.loads((tmp_path / "events.ndjson").read_text().splitlines()[-1])["name"] == "gpu_duty"
    else:
        assert json.loads((tmp_path / "failure.json").read_text())["reason"] == "alone/stopped"
