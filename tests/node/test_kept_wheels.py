"""What a module's lock needs built from source is built once per lock and machine, whatever uv has forgotten; damaged wheels again."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from nodes.builds import Builds, Built
from nodes.kept_wheels import KeptWheels, build_settings, cache_home
from nodes.uv_environment import Environment, EnvironmentFailed, uv_environment
from policies.manifest import Runtime

pytestmark = pytest.mark.timeout(900)

# A build backend of its own: it writes the wheel, and a line into a file for each time that it did.
BACKEND = """
import os, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    with open({counter!r}, "a") as file:
        file.write("built\\n")
    if os.environ.get("CMAKE_ARGS") == "wrong":
        raise SystemExit("the compiler says no")
    info = "tinything-1.0.dist-info"
    files = {{
        "tinything.py": "HOW = " + repr(os.environ.get("CMAKE_ARGS", "plain")),
        info + "/METADATA": "Metadata-Version: 2.1\\nName: tinything\\nVersion: 1.0\\n",
        info + "/WHEEL": "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }}
    name = "tinything-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
        record = "".join(path + ",,\\n" for path in [*files, info + "/RECORD"])
        wheel.writestr(info + "/RECORD", record)
    return name
"""
PROJECT = """
[project]
name = "tinything"
version = "1.0"
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""


class Plain(Builds):
    """At normal priority: what is tested here is not how a build gives way."""

    def run(self, argv: Sequence[str], env: Mapping[str, str], limit_s: float, **_: Any) -> Built:
        done = subprocess.run(argv, env=dict(env), capture_output=True, text=True, timeout=600, check=False)
        return Built(done.returncode, done.stdout + done.stderr)


class Owner:
    """A package of which an index has the source alone, a bundle whose lock names it, and homes that need it."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place, self.counter, self.homes = place, place / "builds", 0
        self.cache = place / "cache" / "cotenant" / "wheels"
        for name in [name for name in os.environ if name.startswith(("UV_", "CMAKE"))]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        monkeypatch.setenv("UV_DEFAULT_INDEX", (place / "simple").as_uri())
        self.monkeypatch = monkeypatch
        self.archive = self._archive()
        folder = place / "simple" / "tinything"
        folder.mkdir(parents=True)
        (folder / "tinything-1.0.tar.gz").write_bytes(self.archive)
        (folder / "index.html").write_text('<a href="tinything-1.0.tar.gz">tinything-1.0.tar.gz</a>')
        self.bundle = self._bundle()

    def _archive(self) -> bytes:
        out = io.BytesIO()
        info = "Metadata-Version: 2.2\nName: tinything\nVersion: 1.0\n"
        files = {"PKG-INFO": info, "pyproject.toml": PROJECT, "backend.py": BACKEND.format(counter=str(self.counter))}
        with tarfile.open(fileobj=out, mode="w:gz") as archive:
            for name, text in files.items():
                member = tarfile.TarInfo(f"tinything-1.0/{name}")
                member.size = len(text.encode())
                archive.addfile(member, io.BytesIO(text.encode()))
        return out.getvalue()

    def _bundle(self) -> Path:
        bundle = self.place / "bundle"
        bundle.mkdir()
        (bundle / "pyproject.toml").write_text(
            '[project]\nname = "m"\nversion = "0"\nrequires-python = ">=3.11"\ndependencies = ["tinything==1.0"]\n'
        )
        digest = hashlib.sha256(self.archive).hexdigest()
        (bundle / "uv.lock").write_text(
            textwrap.dedent(f"""\
                version = 1
                revision = 3
                requires-python = ">=3.11"

                [[package]]
                name = "m"
                version = "0"
                source = {{ virtual = "." }}
                dependencies = [{{ name = "tinything" }}]

                [package.metadata]
                requires-dist = [{{ name = "tinything", specifier = "==1.0" }}]

                [[package]]
                name = "tinything"
                version = "1.0"
                source = {{ registry = "https://index.invalid/simple" }}
                sdist = {{ url = "https://index.invalid/tinything-1.0.tar.gz", hash = "sha256:{digest}" }}
                """)
        )
        return bundle

    def needs_it(self) -> Environment:
        """A node of another home, and a uv that remembers nothing."""
        self.homes += 1
        self.monkeypatch.setenv("UV_CACHE_DIR", str(self.place / f"uv-{self.homes}"))
        runtime = Runtime(kind="uv", lock="uv.lock")
        return uv_environment(self.bundle, "d", runtime, self.place / f"home-{self.homes}", Plain())

    def how(self, environment: Environment) -> str:
        script = "import tinything; print(tinything.HOW)"
        done = subprocess.run([environment.python, "-I", "-c", script], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def builds(self) -> int:
        return self.counter.read_text().count("built") if self.counter.exists() else 0

    def kept(self) -> Path:
        (wheel,) = self.cache.glob("*/*.whl")
        return wheel


@pytest.fixture
def owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Owner:
    return Owner(tmp_path, monkeypatch)


def test_it_is_built_once_for_all_homes_and_kept_where_only_the_account_can_write(owner: Owner) -> None:
    first = owner.needs_it()
    assert (owner.how(first), owner.builds()) == ("plain", 1)
    assert "was built here and is kept" in first.notes[0]
    assert owner.cache.stat().st_mode & 0o777 == 0o700
    second = owner.needs_it()
    assert (owner.how(second), owner.builds()) == ("plain", 1)
    assert "was built here before and is used again" in second.notes[0]
    assert not list(owner.cache.glob("*/building")), "uv's own cache of the build is gone"


@pytest.mark.parametrize("damage", ["cut", "changed", "unknown", "gone", "index cut"])
def test_a_damaged_wheel_is_said_and_built_again(owner: Owner, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    owner.needs_it()
    wheel, index = owner.kept(), owner.kept().parent / "built.json"
    data = wheel.read_bytes()
    if damage == "cut":
        wheel.write_bytes(data[: len(data) // 2])
    elif damage == "changed":
        wheel.write_bytes(data.replace(b"plain", b"PLAIN"))
    elif damage == "gone":
        wheel.unlink()
    elif damage == "unknown":
        index.unlink()
    else:
        index.write_text(index.read_text()[:20])
    again = owner.needs_it()
    assert (owner.how(again), owner.builds()) == ("plain", 2)
    words = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(words) == 1
    assert words[0] in again.notes
    assert wheel.name in words[0]
    assert words[0].endswith("it is built again")
    assert owner.how(owner.needs_it()) == "plain"
    assert owner.builds() == 2, "the new one is whole"


def test_other_build_settings_make_another_wheel_and_a_build_that_fails_keeps_nothing(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert owner.how(owner.needs_it()) == "plain"
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_CUDA=on")
    assert owner.how(owner.needs_it()) == "-DGGML_CUDA=on"
    assert owner.how(owner.needs_it()) == "-DGGML_CUDA=on"
    assert owner.builds() == 2
    monkeypatch.setenv("CMAKE_ARGS", "wrong")
    with pytest.raises(EnvironmentFailed, match="the compiler says no"):
        owner.needs_it()
    monkeypatch.delenv("CMAKE_ARGS")
    assert owner.how(owner.needs_it()) == "plain"
    assert owner.builds() == 3
    assert len(list(owner.cache.glob("*/*.whl"))) == 2
    assert not list(owner.cache.glob("*/building"))


def test_where_nothing_can_be_kept_the_environment_is_built_all_the_same(owner: Owner) -> None:
    class Full(KeptWheels):
        def _write(self, kept: Mapping[str, str]) -> None:
            raise OSError(28, "No space left on device")

    owner.monkeypatch.setattr("nodes.uv_environment.KeptWheels", Full)
    made = owner.needs_it()
    assert owner.how(made) == "plain"
    assert "could not be kept" in made.notes[-1]
    owner.monkeypatch.setattr("nodes.uv_environment.KeptWheels", KeptWheels)
    assert "not finished" in owner.needs_it().notes[0]
    assert owner.builds() == 2


def test_a_folder_that_others_can_write_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place, own = tmp_path / "cache" / "cotenant" / "wheels", tmp_path / "own"
    assert cache_home(own) == place
    place.chmod(0o777)
    assert cache_home(own) == own
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    assert cache_home(own) == own


def test_only_what_makes_another_wheel_is_a_build_setting() -> None:
    told = {"CC": "clang", "CMAKE_ARGS": "-DX=1", "GGML_CUDA": "1", "CFLAGS": "", "CCACHE_DIR": "/c", "PATH": "/bin"}
    assert build_settings(told) == [("CC", "clang"), ("CMAKE_ARGS", "-DX=1"), ("GGML_CUDA", "1")]


def test_who_waits_for_another_ones_build_stops_waiting_when_its_agent_ends(tmp_path: Path) -> None:
    import fcntl

    from nodes.uv_environment import _alone, _Asked

    asked = _Asked(Plain(), insists=True, gpu=False)
    asked.builds.end()
    with open(tmp_path / "lock", "a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(EnvironmentFailed, match="add the module again"), _alone(tmp_path / "lock", asked):
            pass
    assert not asked.builds.is_insisted(tmp_path / "lock")
