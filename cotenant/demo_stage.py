"""Where a demo plays: its home, the trainer, the node's pieces, an owner's commands; all of it is watched, and ended here."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cotenant.cli.result import OperationError
from cotenant.stopping import undisturbed
from nodes.identity import ProcessId, identify

if TYPE_CHECKING:
    from cotenant.cli.agents import Agent
    from cotenant.cli.supervisor import Supervisor
    from cotenant.settings import Settings

__all__ = ["LOOK_EVERY_S", "NODE", "ROOT", "Stage", "StepFailed", "when_less_busy"]

ROOT = Path(__file__).resolve().parents[1]
NODE = "local"
# Often enough to see a death soon, seldom enough to cost nothing beside what is measured.
LOOK_EVERY_S = 0.5
TRAINER_SECONDS = 3600.0


class StepFailed(Exception):
    """A step that the demo cannot go on without."""

    def __init__(self, error: OperationError) -> None:
        super().__init__(error.why)
        self.error = error


def when_less_busy(again: str) -> str:
    """The next step where a busy machine kept something from happening: on a less busy one it happens."""
    return f"{again}, when the machine is less busy"


class Stage:
    """What a demo started, by name and identity. ``again``: the command that plays it."""

    again = "cotenant demo"

    def __init__(self, home: Path, out: Path) -> None:
        from cotenant.settings import Settings

        self.home, self.out = home, out
        self.settings: Settings = Settings.from_env()
        self.events = home / "trainer" / "events.jsonl"
        self._since = time.monotonic()
        self._children: list[tuple[str, subprocess.Popen[bytes], ProcessId]] = []
        self._supervisor: Supervisor | None = None
        self._trainer_over = False

    def say(self, text: str) -> None:
        with contextlib.suppress(OSError):  # whoever read it went away: what was started must be stopped all the same
            print(f"[{time.monotonic() - self._since:4.0f} s] {text}", file=sys.stderr, flush=True)

    def ui(self) -> str:
        return (self.settings.api_url or "").removesuffix("/api")

    def start_trainer(self) -> None:
        command = [sys.executable, str(ROOT / "examples" / "trainer.py"), "--events", str(self.events)]
        self.spawn("trainer", [*command, "--seconds", f"{TRAINER_SECONDS:g}"])
        self.say(f"   $ {shlex.join(['python', 'examples/trainer.py', '--events', str(self.events)])} &")

    def start_node(self) -> None:
        from cotenant.cli.pieces import node_pieces
        from cotenant.cli.supervisor import Supervisor
        from cotenant.cli.uplog import STOP_ORDER
        from policies.refusal import Refused

        self.say("   $ cotenant up   (the first start of the server makes its database: about 20 s)")
        pieces = node_pieces(self.settings, NODE, with_server=True, say=lambda line: self.say(f"   {line}"))
        self._supervisor = Supervisor(pieces, stop_order=STOP_ORDER, say=lambda line: self.say(f"   {line}"))
        try:
            self._supervisor.start()
        except Refused as refused:
            raise StepFailed(OperationError.of(refused)) from refused

    def agent(self) -> Agent:
        from cotenant.cli.agents import Agent

        return Agent(self.settings, NODE)

    def cotenant(self, *arguments: str, fine: tuple[int, ...] = (0,), within_s: float = 180.0) -> None:
        """An owner's command, its output as an owner sees it."""
        self.say(f"   $ cotenant {shlex.join(arguments)}")
        process = self.spawn(
            "cotenant " + arguments[0], [sys.executable, "-m", "cotenant.cli.main", *arguments], quiet=False
        )
        until = time.monotonic() + within_s
        while process.poll() is None:
            self.look()
            if time.monotonic() > until:
                what, why = "cotenant " + shlex.join(arguments), f"it took more than {within_s:g} s"
                raise StepFailed(OperationError("DEMO_SLOW", what, why, when_less_busy(self.again)))
            time.sleep(LOOK_EVERY_S)
        if process.returncode not in fine:
            raise StepFailed(
                OperationError(
                    "DEMO_STEP",
                    "cotenant " + shlex.join(arguments),
                    f"exit status {process.returncode}; its words are above",
                    f"mend what they name, then: {self.again}",
                )
            )

    def spawn(self, name: str, command: list[str], *, quiet: bool = True) -> subprocess.Popen[bytes]:
        """A child in a session of its own: Ctrl-C reaches the demo alone, which ends what it started in order."""
        self.settings.logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        # A signal between the start and the note would leave a process that nobody ends.
        with open(self.settings.logs / f"{name.split()[0]}.log", "ab") as log, undisturbed():
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log if quiet else sys.stderr.fileno(),
                stderr=log if quiet else None,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
            who = identify(process.pid)
            if who is not None:
                self._children.append((name, process, who))
        return process

    def steps(self) -> int:
        try:
            return self.events.read_bytes().count(b'"step_done"')
        except FileNotFoundError:
            return 0

    def end_trainer(self) -> None:
        """The program is over, as its owner would end it; nobody misses it from here on."""
        from cotenant.signals import end

        self._trainer_over = True
        for name, process, who in self._children:
            if name == "trainer":
                end(who, 15.0)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=5.0)

    def look(self) -> None:
        """What is the node's and has died is started again. Raises StepFailed where the trainer has."""
        self.check_trainer()
        if self._supervisor is not None:
            self._supervisor.look()

    def check_trainer(self) -> None:
        for name, process, _ in self._children:
            if name == "trainer" and not self._trainer_over and process.poll() is not None:
                raise StepFailed(
                    OperationError(
                        "DEMO_TRAINER",
                        "the trainer",
                        f"it ended with exit status {process.returncode}",
                        self.again,
                    )
                )

    def keep_logs(self) -> None:
        """The logs of a demo that failed outlive its home."""
        kept = self.out / "logs"
        for log in [
            *self.settings.logs.glob("*.log"),
            *self.home.glob("prefect/*.log"),
            *self.home.glob("nodes/*/*.log"),
        ]:
            kept.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(log, kept / log.name)
        self.say(f"the logs of what went wrong: {kept}")

    def stop(self) -> None:
        """End what was started here, in order, by identity: commands, then worker, agent and server, the trainer last."""
        from cotenant.signals import end

        self.say("stopping what the demo started")
        for name, _, who in reversed(self._children):
            if name != "trainer":
                end(who, 10.0)
        if self._supervisor is not None:
            self._supervisor.stop()
        self.end_trainer()
        self.say("all stopped")
