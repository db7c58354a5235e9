"""A PostgreSQL cluster of our own, in a temporary folder, on a free port of loopback; ended with the tests."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

START_WITHIN_S = 120.0


@dataclass
class Cluster:
    """``start`` and ``stop`` may be called again: a database that goes away for a minute and comes back."""

    folder: Path
    binaries: Path
    port: int

    def url(self, database: str, driver: str = "postgresql") -> str:
        return f"{driver}://fleet:secret@127.0.0.1:{self.port}/{database}"

    def run(self, *words: str) -> None:
        as_user = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
        done = subprocess.run([*as_user, *words], capture_output=True, text=True, timeout=START_WITHIN_S, check=False)
        assert done.returncode == 0, f"{words[0]}: {done.stdout[-500:]} {done.stderr[-1500:]}"

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -k {self.folder} -c fsync=off"
        log = self.folder / "log"
        self.run(
            str(self.binaries / "pg_ctl"), "-D", str(self.folder / "data"), "-l", str(log), "-o", options, "-w", "start"
        )

    def stop(self) -> None:
        self.run(str(self.binaries / "pg_ctl"), "-D", str(self.folder / "data"), "-m", "immediate", "-w", "stop")

    def query(self, database: str, sql: str) -> str:
        psql = [
            str(self.binaries / "psql"),
            "-h",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-U",
            "fleet",
            "-tAc",
            sql,
            database,
        ]
        env = {"PGPASSWORD": "secret", "PATH": os.environ["PATH"]}
        return subprocess.run(psql, capture_output=True, text=True, env=env, timeout=60, check=True).stdout.strip()


def _binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    binaries = _binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL here; make test-postgres installs it on Debian")
    folder = Path("/tmp") / f"cotenant-pg-{os.getpid()}-{time.time_ns() % 100000}"  # a socket's path must be short
    folder.mkdir(mode=0o755)
    if os.getuid() == 0:
        owner = pwd.getpwnam("postgres")
        os.chown(folder, owner.pw_uid, owner.pw_gid)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    cluster = Cluster(folder, binaries, port)
    try:
        password = folder / "password"
        password.write_text("secret\n")
        password.chmod(0o644)
        cluster.run(
            str(binaries / "initdb"),
            "-D",
            str(folder / "data"),
            "-U",
            "fleet",
            "--auth=scram-sha-256",
            f"--pwfile={password}",
            "-N",
        )
        cluster.start()
        for name in ("prefect", "cotenant"):
            cluster.query("postgres", f"CREATE DATABASE {name}")
        yield cluster
    finally:
        if (folder / "data" / "postmaster.pid").exists():
            cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
