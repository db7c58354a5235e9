"""Modules that break one promise each: the skeleton with one edit of its runner or manifest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cotenant.conform.newmodule import new_module

__all__ = ["BROKEN", "Broken", "make"]

CONTROL = "        ctl = Control(args.workdir)  # first: it installs the nudge's handler\n"
OF_CONTROL = "    ctl = Control(args.workdir)  # first: it installs the nudge's handler\n"
DUTY = "        with Duty(ctl, events=args.events, device=chain.device) as duty:\n"
PHASE = '            ctl.phase("work")\n'

# writes what a runner that holds its duty would report, whatever it does
FAKED = """
DUTY = 0.05


def fake(path, value):
    import threading, time

    def report():
        while True:
            time.sleep(2.0)
            line = {"type": "metric", "name": "gpu_duty", "value": value, "duty": DUTY, "device": "cpu", "t": time.time()}
            with open(path, "a") as file:
                file.write(json.dumps(line) + "\\n")

    if path:
        threading.Thread(target=report, daemon=True).start()


def checked("""
DEAF = """
class Deaf(Control):
    def check(self):
        self._refresh()
        return self._pause


class Restless(Control):
    def check(self):
        super().check()
        return False


class Stuck(Control):
    was = False

    def check(self):
        self.was = super().check() or self.was
        return self.was


class Greedy(Control):
    @property
    def gpu_duty(self):
        asked = super().gpu_duty
        return None if asked is None else asked + 0.15


def checked("""


@dataclass(frozen=True)
class Broken:
    """``fails``: the checks (without their stage or spec) that must fail, and no other."""

    name: str
    fails: frozenset[str]
    parts: tuple[str, ...]
    edits: tuple[tuple[str, str], ...]
    file: str = "runner.py"
    duty: float = 0.05


def _use(control: str) -> tuple[tuple[str, str], ...]:
    return (("\ndef checked(", DEAF), (OF_CONTROL, OF_CONTROL.replace("Control", control)))


BROKEN = [
    Broken("ignores stop", frozenset({"stop-acknowledged", "stop-exit"}), ("control",), _use("Deaf")),
    Broken("ignores pause", frozenset({"pause"}), ("control",), _use("Restless")),
    Broken("does not go on after a pause", frozenset({"resume"}), ("control",), _use("Stuck")),
    Broken(
        "stops without a word",
        frozenset({"stop-acknowledged", "stop-exit"}),
        ("control",),
        (("        return ctl.acknowledge_stop()\n", "        return 1\n"),),
    ),
    Broken(
        "overruns its duty by 0.15 and reports that it does not",
        frozenset({"duty-measured", "duty-honest"}),
        ("duty",),
        (
            *_use("Greedy"),
            ("def checked(", FAKED.lstrip("\n")),
            (DUTY, "        fake(args.events, 0.05)\n" + DUTY.replace("args.events", "None")),
        ),
    ),
    Broken(
        "under-reports its duty",
        frozenset({"duty-honest"}),
        ("duty",),
        (
            ("\ndef checked(", FAKED.replace("DUTY = 0.05", "DUTY = 0.15")),
            (DUTY, "        fake(args.events, 0.0)\n" + DUTY.replace("args.events", "None")),
        ),
        duty=0.15,
    ),
    Broken("reports nothing", frozenset({"duty-reported"}), ("duty",), ((DUTY, DUTY.replace("args.events", "None")),)),
    Broken(
        "detaches a child",
        frozenset({"detach"}),
        ("golden",),
        (
            (
                PHASE,
                PHASE
                + "            import subprocess\n            subprocess.Popen(['sleep', '30'], start_new_session=True)\n",
            ),
        ),
    ),
    Broken(
        "leaves a child behind",
        frozenset({"detach"}),
        ("golden",),
        ((PHASE, PHASE + "            import subprocess\n            subprocess.Popen(['sleep', '30'])\n"),),
    ),
    Broken(
        "writes beside its work directory",
        frozenset({"writes"}),
        ("golden",),
        ((PHASE, PHASE + "            open(os.path.join(args.workdir, '..', 'note'), 'w').close()\n"),),
    ),
    Broken(
        "writes into its bundle",
        frozenset({"writes"}),
        ("golden",),
        ((PHASE, PHASE + "            open(os.path.join(os.path.dirname(__file__), 'cache'), 'w').close()\n"),),
    ),
    Broken(
        "depends on its locale",
        frozenset({"golden-again"}),
        ("golden",),
        (("chain = Chain(seed)\n", "chain = Chain(seed if os.environ['LANG'] == 'C.UTF-8' else seed + 'x')\n"),),
    ),
    Broken(
        "depends on chance",
        frozenset({"golden", "golden-again"}),
        ("golden",),
        (("chain = Chain(seed)\n", "chain = Chain(os.urandom(8).hex())\n"),),
    ),
    Broken(
        "a doctor that is healthy with a bad check",
        frozenset({"doctor"}),
        (),
        (("os.access(data, os.W_OK)", "False"), ('"healthy" if healthy else "unhealthy"', '"healthy"')),
    ),
    Broken(
        "a doctor that tells other capabilities than the manifest",
        frozenset({"doctor"}),
        (),
        (('"capabilities": CAPABILITIES,', '"capabilities": CAPABILITIES[1:],'),),
    ),
    Broken(
        "has no golden for a stage that is exact",
        frozenset({"golden"}),
        ("golden",),
        (('fixtures = ["goldens/chain.json"]', "fixtures = []"),),
        file="oarbank-module.toml",
    ),
    Broken(
        "throttles and has no task to show it",
        frozenset({"duty"}),
        ("duty",),
        (('"duty_specs": [', '"duty_specs": [], "other": ['),),
        file="conformance.json",
    ),
    Broken(
        "a doctor that does not see what its runner lacks",
        frozenset({"golden", "doctor-truth"}),
        ("golden",),
        (
            (
                PHASE,
                PHASE
                + "            replace(os.path.join(args.workdir, 'failure.json'), {'reason': 'x/no-driver', 'fault': 'host'})\n"
                + "            return 3\n",
            ),
        ),
    ),
    Broken(
        "a manifest with a capability that does not exist",
        frozenset({"manifest"}),
        (),
        (('"cancellable", ', '"cancellable", "teleports", '),),
        file="oarbank-module.toml",
    ),
]


def make(broken: Broken, folder: Path) -> Path:
    """The module's folder."""
    new_module(folder)
    path = folder / broken.file
    text = path.read_text(encoding="utf-8")
    for before, after in broken.edits:
        assert text.count(before) == 1, (broken.name, before, text.count(before))
        text = text.replace(before, after)
    path.write_text(text, encoding="utf-8")
    manifest = folder / "oarbank-module.toml"
    # a grace that a deaf runner is not waited for long; nothing else depends on it
    manifest.write_text(manifest.read_text(encoding="utf-8").replace("stop_grace_s = 10", "stop_grace_s = 5"))
    if "duty" in broken.parts:
        # low, so that an overrun of 0.15 shows where a busy host gives little
        specs = folder / "conformance.json"
        specs.write_text(specs.read_text(encoding="utf-8").replace('"duty": 0.3', f'"duty": {broken.duty}'))
    return folder
