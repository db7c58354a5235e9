"""One background process of this machine: started with a clean environment, known by its identity, ended by it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from cotenant.signals import send
from cotenant.stopping import undisturbed
from nodes.identity import ProcessId, identify, liveness, note, noted

__all__ = ["Background", "log_tail", "prefect_env"]

STOP_WITHIN_S = 40.0
LOG_TAIL_LINES, LOG_TAIL_BYTES = 6, 4096


def prefect_env(home: Path, url: str | None = None) -> dict[str, str]:
    """This process's environment without any of the user's own Prefect settings, and with ours.

    No telemetry, no advertisements, a Prefect home inside ours. ``url`` is the API's; None for the server itself.
    """
    env = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    env |= {
        "COTENANT_HOME": str(home),
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_PROFILES_PATH": str(home / "prefect" / "profiles.toml"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_CLI_PROMPT": "false",
        "DO_NOT_TRACK": "1",
    }
    if url is not None:
        env["PREFECT_API_URL"] = url
    return env


def _default_sigint() -> None:
    # A shell's background job ignores SIGINT, and its children inherit that. Prefect turns SIGTERM into SIGINT: the
    # first SIGTERM would then do nothing.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Background:
    """A process whose pid, start ticks and boot id stand in ``note``, so that any command can find and end it."""

    def __init__(self, note: Path, log: Path) -> None:
        self.note = note
        self.log = log
        self.popen: subprocess.Popen[bytes] | None = None

    def identity(self) -> ProcessId | None:
        """The process as noted, alive or not."""
        return noted(self.note)

    def is_alive(self) -> bool:
        who = self.identity()
        if self.popen is not None:
            self.popen.poll()  # a child that ended stays a zombie until somebody asks
        return who is not None and liveness(who) != "gone"

    def start(self, command: Sequence[str], env: Mapping[str, str], cwd: Path | None = None) -> subprocess.Popen[bytes]:
        for path in (self.note, self.log):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # A signal between the start and the note would leave a process that nobody knows of.
        with open(self.log, "ab") as log, undisturbed():
            self.popen = subprocess.Popen(
                list(command),
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_default_sigint,
            )
            who = identify(self.popen.pid)
            if who is not None:
                note(self.note, who)
        return self.popen

    def stop(self, within_s: float = STOP_WITHIN_S) -> bool:
        """SIGTERM, and SIGKILL when that did not end it in time. True when there was something to end."""
        who = self.identity()
        if who is None or liveness(who) == "gone":
            self.note.unlink(missing_ok=True)
            return False
        end = time.monotonic() + within_s
        send(who, signal.SIGTERM)
        while self.is_alive() and time.monotonic() < end:
            time.sleep(0.05)
        if self.is_alive():
            send(who, signal.SIGKILL)
            while self.is_alive() and time.monotonic() < end + 10.0:
                time.sleep(0.05)
        self.note.unlink(missing_ok=True)
        return True

    def last_words(self, lines: int = LOG_TAIL_LINES) -> str:
        return log_tail(self.log, lines)


def log_tail(path: Path, lines: int = LOG_TAIL_LINES) -> str:
    """The last lines of a log that say anything, for why something did not start; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])
