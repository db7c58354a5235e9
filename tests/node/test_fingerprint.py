"""What a certificate is bound to: the program that runs, not what lies under its path by now or in another mount namespace."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import nodes.hardware
from nodes import fingerprint, program_script
from nodes.fingerprint import bytes_to_hash, read_fingerprint, replaced_scripts
from nodes.hardware import gpus, gpus_are_asked, hardware
from nodes.identity import identify
from nodes.meters.nvml_probe import Inventory, NvidiaDevice
from nodes.unbound_code import unbound_code
from policies.certificate import Program, differences
from tests.node.agent_rig import wait_for

Start = Callable[..., dict[str, Any]]
SLEEPS = "import time\nopen({ready!r}, 'w').close()\ntime.sleep(600)\n"


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process; what the agent's table knows of it."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*argv: str | Path, **how: Any) -> dict[str, Any]:
        ready = how.pop("ready", None)
        child = subprocess.Popen([str(part) for part in argv], stdin=subprocess.DEVNULL, **how)
        started.append(child)
        exe = how.pop("executable", argv[0])
        wait_for("it runs", lambda: os.path.samefile(f"/proc/{child.pid}/exe", exe) and (not ready or ready.exists()))
        who = identify(child.pid)
        assert who is not None
        return {
            "pid": child.pid,
            "start_ticks": who.start_ticks,
            "exe": os.readlink(f"/proc/{child.pid}/exe"),
            "argv": [str(part) for part in argv],
        }

    yield begin
    for child in started:
        child.kill()
        child.wait(30)


def one(process: dict[str, Any]) -> Program:
    found = read_fingerprint([process]).program
    assert found is not None
    (program,) = found
    return program


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_an_executable_that_was_replaced_while_it_runs_is_known_by_what_runs(tmp_path: Path, start: Start) -> None:
    sleeper = tmp_path / "trainer"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", sleeper)
    running = sleeper.read_bytes()
    process = start(sleeper, "600")
    draft = tmp_path / "draft"
    draft.write_bytes(running + b"\0another version")
    draft.chmod(0o755)
    os.replace(draft, sleeper)
    assert one(process).exe_sha256 == sha256(running)
    sleeper.unlink()
    assert one(process).exe_sha256 == sha256(running)


def test_files_are_those_of_the_root_that_the_process_has(tmp_path: Path, start: Start) -> None:
    """As in a container, where the same path is another file than here."""
    if os.geteuid() != 0:
        pytest.skip("only root may have another root")
    outside, root = tmp_path / "app", tmp_path / "root"
    (root / "releases").mkdir(parents=True)
    outside.mkdir()
    (root / "releases/2.py").write_bytes(b"# what runs there\n")
    (root / "app").mkdir()
    (root / "app/train.py").symlink_to("/releases/2.py")
    script = outside / "train.py"
    script.write_text(
        f"import os, time\nos.chroot({str(root)!r})\nos.chdir('/app')\nopen('/ready', 'w').close()\ntime.sleep(600)\n"
    )
    process = start(sys.executable, "train.py", cwd=outside, ready=root / "ready")
    found = one(process)
    assert (found.script, found.script_sha256) == ("/releases/2.py", sha256(b"# what runs there\n"))


def test_a_script_edited_in_place_with_its_old_times_is_another(tmp_path: Path, start: Start) -> None:
    script, ready = tmp_path / "train.py", tmp_path / "ready"
    script.write_text(SLEEPS.format(ready=str(ready)))
    process = start(sys.executable, script, ready=ready)
    before, times = one(process), script.stat()
    with script.open("r+") as file:
        file.write("IMPORT")
    os.utime(script, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert bytes_to_hash([process]) == times.st_size
    assert one(process).script_sha256 == sha256(script.read_bytes()) != before.script_sha256


def test_a_process_that_has_ended_is_no_program(tmp_path: Path, start: Start) -> None:
    script, ready = tmp_path / "train.py", tmp_path / "ready"
    script.write_text(SLEEPS.format(ready=str(ready)))
    process = start(sys.executable, script, ready=ready)
    assert read_fingerprint([{**process, "start_ticks": process["start_ticks"] - 1}]).program == ()
    os.kill(process["pid"], 9)
    wait_for("it has ended", lambda: identify(process["pid"]) is None)
    assert read_fingerprint([process]).program == ()


def test_links_lead_where_they_do_in_the_root(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app/a").symlink_to("b")
    (tmp_path / "app/b").symlink_to("a")
    (tmp_path / "app/up").symlink_to("../../../etc/./x")
    (tmp_path / "app/abs").symlink_to("/etc")
    resolved = program_script._resolved
    assert resolved(str(tmp_path), "/app/a") is None
    assert resolved(str(tmp_path), "/app/up") == "/etc/x"
    assert resolved(str(tmp_path), "/app/abs/../passwd") == "/passwd"
    ours = str(tmp_path / "app/./up/..")
    assert resolved("", ours) == os.path.realpath(ours)


def test_a_script_that_was_written_after_its_process_had_started_is_told(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, ready = tmp_path / "train.py", tmp_path / "ready"
    script.write_text(SLEEPS.format(ready=str(ready)))
    process = start(sys.executable, script, ready=ready)
    assert replaced_scripts([process]) == []
    monkeypatch.setattr(fingerprint, "START_TAKES_S", 0.0)
    old = time.time() - 3600
    os.utime(script, (old, old))  # only the change time tells, as for a file that was copied with its times
    (touched,) = replaced_scripts([process])
    assert (touched.path, touched.pid, touched.certain) == (str(script), process["pid"], False)
    script.write_text(script.read_text() + "# another version\n")
    assert [each.certain for each in replaced_scripts([process])] == [True]


def test_of_a_script_that_was_written_meanwhile_nothing_is_the_same_until_its_program_starts_anew(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where another version is checked out, started, and the first one checked out again beside it."""
    monkeypatch.setattr(fingerprint, "START_TAKES_S", 0.0)
    script, ready = tmp_path / "train.py", tmp_path / "ready"
    certified = SLEEPS.format(ready=str(ready))
    long_ago = time.time() - 3600.0
    script.write_text(certified)
    os.utime(script, (long_ago, long_ago))
    measured = one(start(sys.executable, script, ready=ready))
    script.write_text(certified + "# another version\n")
    os.utime(script, (long_ago, long_ago))
    ready.unlink()
    other = start(sys.executable, script, ready=ready)
    assert one(other).script_sha256 == sha256(script.read_bytes()) != measured.script_sha256
    script.write_text(certified)
    assert one(other).script_sha256 is None
    os.utime(script, (long_ago, long_ago))
    ready.unlink()
    assert one(start(sys.executable, script, ready=ready)) == measured


CHANGES_FOLDER = "import os, time\nos.chdir('/')\nopen({ready!r}, 'w').close()\ntime.sleep(600)\n"


@pytest.mark.parametrize("before", [[], ["-u"], ["-W", "ignore"]], ids=["plain", "option", "option with a value"])
def test_a_script_that_is_not_where_its_program_is_now_is_unknown(
    tmp_path: Path, start: Start, before: list[str]
) -> None:
    ready, data = tmp_path / "ready", tmp_path / "data.csv"
    data.touch()
    (tmp_path / "train.py").write_text(CHANGES_FOLDER.format(ready=str(ready)))
    process = start(sys.executable, *before, "train.py", "--data", data, ready=ready, cwd=tmp_path)
    wait_for("it changed its folder", lambda: os.readlink(f"/proc/{process['pid']}/cwd") == "/")
    program = one(process)
    assert (program.script, program.script_sha256) == ("train.py", None)
    print_ = read_fingerprint([process])
    assert any("train.py" in each for each in differences(print_, print_))
    (why,) = unbound_code([process])
    assert "train.py" in why.why
    assert "whole path" in why.remedy


def test_options_of_an_interpreter_are_not_its_script(tmp_path: Path, start: Start) -> None:
    ready, package = tmp_path / "ready", tmp_path / "trainer"
    package.mkdir()
    (package / "__main__.py").write_text(SLEEPS.format(ready=str(ready)))
    (tmp_path / "ignore").touch()
    for argv in (["-W", "ignore", "trainer"], ["-u", package]):
        process = start(sys.executable, *argv, ready=ready, cwd=tmp_path)
        assert one(process).script == str(package / "__main__.py")
        assert unbound_code([process]) == []
        ready.unlink()
    module = start(sys.executable, "-um", "trainer", "ignore", ready=ready, cwd=tmp_path)
    assert one(module).script is None
    (why,) = unbound_code([module, module])
    assert "-m" in why.why


@pytest.mark.parametrize(
    ("exe", "argv"),
    [
        ("node", ["--import", "./other", "./script", "data"]),
        ("node", ["-r", "./other", "./script"]),
        ("node22", ["--env-file", "other", "script"]),
        ("deno", ["run", "--config", "other", "script"]),
        ("bun", ["run", "--preload", "./other", "script"]),
        ("php", ["-c", "other", "script", "data"]),
        ("ruby", ["-E", "UTF-8", "-r", "./other", "script"]),
        ("julia", ["--sysimage", "other", "-L", "other", "script"]),
        ("bash", ["--rcfile", "other", "script"]),
        ("java", ["-cp", "other", "-jar", "script", "data"]),
        ("python3.13t", ["-u", "script", "other"]),
        ("python3.12-dbg", ["script"]),
        ("python3.7m", ["script"]),
    ],
    ids=lambda each: each if isinstance(each, str) else " ".join(each),
)
def test_the_script_is_what_is_run_and_not_a_file_that_an_option_names(
    tmp_path: Path, start: Start, exe: str, argv: list[str]
) -> None:
    """Else the certificate would name that file, and hold when the program itself is another."""
    for name in ("script", "other", "data"):
        (tmp_path / name).write_text(name)
    process = start(shutil.which("sleep") or "/bin/sleep", "600", cwd=tmp_path)
    program = one(process | {"exe": f"/usr/bin/{exe}", "argv": [exe, *argv]})
    assert (program.script, program.script_sha256) == (str(tmp_path / "script"), sha256(b"script"))


def test_a_class_of_a_class_path_is_no_script_and_the_plan_says_so(tmp_path: Path, start: Start) -> None:
    for name in ("app.jar", "server.properties"):
        (tmp_path / name).touch()
    process = start(shutil.which("sleep") or "/bin/sleep", "600", cwd=tmp_path) | {"exe": "/usr/bin/java"}
    argv = ["java", "-Xmx1g", "-cp", "app.jar", "com.example.Main", "server.properties"]
    assert one(process | {"argv": argv}).script is None
    (why,) = unbound_code([process | {"argv": argv}])
    assert "class path" in why.why


@pytest.mark.parametrize(
    ("exe", "argv"),
    [
        ("java", ["-jar", "gone/it", "{data}"]),
        ("node", ["gone/it", "{data}"]),
        ("bash", ["-x", "+e", "gone/it", "{data}"]),
        ("perl", ["-w", "gone/it", "{data}"]),
        ("bun", ["run", "gone/it", "{data}"]),
    ],
    ids=lambda each: each if isinstance(each, str) else " ".join(each),
)
def test_a_file_that_a_script_is_given_is_not_taken_for_the_script(
    tmp_path: Path, start: Start, exe: str, argv: list[str]
) -> None:
    """The program has changed its working directory, so the script itself is not found any more."""
    data = tmp_path / "app.conf"
    data.touch()
    process = start(shutil.which("sleep") or "/bin/sleep", "600", cwd=tmp_path) | {"exe": f"/usr/bin/{exe}"}
    program = one(process | {"argv": [exe, *(each.format(data=data) for each in argv)]})
    assert (program.script, program.script_sha256) == ("gone/it", None)


@pytest.mark.parametrize(
    ("exe", "argv"),
    [
        ("busybox", ["busybox", "sh", "-e", "./script", "data"]),
        ("busybox", ["sh", "script"]),
        ("busybox.static", ["-ash", "script", "data"]),
        ("dotnet", ["dotnet", "script", "data"]),
        ("dotnet", ["dotnet", "exec", "--roll-forward", "Major", "script"]),
        ("mono", ["mono", "--debug", "script"]),
        ("node", ["node", "server"]),
        ("node", ["node", "folder"]),
        ("node", ["node", "package", "data"]),
        ("bun", ["bun", "run", "site"]),
    ],
    ids=lambda each: each if isinstance(each, str) else " ".join(each),
)
def test_the_script_is_found_where_the_interpreter_finds_it(
    tmp_path: Path, start: Start, exe: str, argv: list[str]
) -> None:
    """Also one of many programs in one executable, and a module that is named without its ending or by its folder."""
    for name in ("script", "data", "server.js", "site.ts", "folder/index.js", "package/lib/start.js"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("the script")
    (tmp_path / "package/package.json").write_text('{"main": "./lib/start"}')
    (tmp_path / "data").write_text("data")
    process = start(shutil.which("sleep") or "/bin/sleep", "600", cwd=tmp_path) | {"exe": f"/usr/bin/{exe}"}
    program = one(process | {"argv": argv})
    assert program.script_sha256 == sha256(b"the script"), program


@pytest.mark.parametrize(
    ("exe", "argv"),
    [
        ("python3.12", ["train: epoch 3"]),
        ("python3.12", ["python3.12", "-u", "", ""]),
        ("node", ["my server"]),
        ("busybox", ["sh"]),
        ("php", ["php", "-S", "0.0.0.0:80"]),
    ],
    ids=lambda each: each if isinstance(each, str) else " ".join(each),
)
def test_an_interpreter_whose_arguments_name_no_file_is_no_known_program(
    tmp_path: Path, start: Start, exe: str, argv: list[str]
) -> None:
    """It reads its input, or has written another title over its arguments: the interpreter alone says nothing."""
    (tmp_path / "__main__.py").touch()
    process = start(shutil.which("sleep") or "/bin/sleep", "600", cwd=tmp_path)
    process |= {"exe": f"/usr/bin/{exe}", "argv": argv}
    found = read_fingerprint([process])
    assert any("sha256 of -" in each for each in differences(found, found))
    (why,) = unbound_code([process])
    assert "no certificate can name it" in why.why


def test_a_dotnet_programs_own_executable_is_bound_with_what_it_loads(tmp_path: Path, start: Start) -> None:
    app = tmp_path / "Trainer"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", app)
    (tmp_path / "Trainer.dll").write_bytes(b"the program")
    process = start(app, "600")
    assert one(process).script_sha256 == sha256(b"the program")
    assert unbound_code([process]) == []


COMMAND = "#!/usr/bin/python\nimport sys\nfrom coverage.cmdline import main\nif __name__ == '__main__':\n    sys.exit(main())\n"


@pytest.mark.parametrize(
    ("exe", "argv", "said"),
    [
        (
            "python3",
            ["python3", "bin/coverage", "run", "train.py"],
            ["bin/coverage, a command of a package", "gives train.py"],
        ),
        ("python3", ["python3", "bin/celery", "worker"], ["bin/celery, a command of a package"]),
        ("python3", ["python3", "train.py", "--config", "conf.py"], ["gives conf.py"]),
        ("python3", ["python3", "train.py", "--data", "data.csv"], []),
        (
            "node",
            ["node", "node_modules/ts-node/bin.js", "conf.py"],
            ["bin.js, a command of a package", "gives conf.py"],
        ),
        ("node", ["node", "-r", "./other.js", "train.js"], ["gives ./other.js"]),
        ("uv", ["uv", "run", "train.py"], ["is uv, which starts another program"]),
        ("timeout", ["timeout", "60", "/usr/bin/trainer"], ["is timeout, which starts another program"]),
        ("wine64-preloader", ["wine", "game.exe"], ["gives game.exe"]),
        ("trainer", ["trainer", "--in", "data.csv"], []),
        ("bash", ["bash", "-c", "true"], []),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) and each[:1] != ["gives"] else None,
)
def test_what_a_certificate_cannot_name_by_content_is_said(
    tmp_path: Path, start: Start, exe: str, argv: list[str], said: list[str]
) -> None:
    for name in ("bin/coverage", "bin/celery", "train.py", "train.js", "other.js", "conf.py", "data.csv", "game.exe",
                 "node_modules/ts-node/bin.js"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(COMMAND if name.startswith("bin/") else "x")
    process = start(shutil.which("sleep") or "/bin/sleep", "600", cwd=tmp_path)
    found = unbound_code([process | {"exe": f"/usr/bin/{exe}", "argv": argv}] * 2)
    assert len(found) == len(said), [each.words for each in found]
    for each, words in zip(found, said, strict=True):
        assert words in each.why
        assert each.words.startswith("CERT_NOT_BOUND: process ")
        assert each.remedy


def test_a_count_of_cores_that_the_system_does_not_tell_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as silent:
        silent.setattr(os, "cpu_count", lambda: None)
        unknown = read_fingerprint([])
    assert unknown.cores is None
    assert any(each.startswith("cores: unknown") for each in differences(unknown, unknown)), "not the same as itself"


def test_what_changes_of_the_machine_while_the_agent_runs_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = tmp_path / "os-release"
    release.write_text('# Which it is\nID=some-linux\nVERSION_ID="12.4"\n')
    monkeypatch.setattr(nodes.hardware, "OS_RELEASE", (tmp_path / "none", release))
    before = hardware()
    assert (before["os_name"], before["os_major"]) == ("some-linux", "12")
    release.write_text('ID=some-linux\nVERSION_ID="13.0"\n')
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    after = hardware()
    assert (after["os_major"], after["cores"]) == ("13", 3)


def inventory(*names: str) -> Inventory:
    return Inventory(tuple(NvidiaDevice(i, name, f"GPU-{i}", 1, False) for i, name in enumerate(names)), "550.1")


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the devices' nodes; nothing was asked yet."""
    folder = tmp_path / "dev"
    folder.mkdir()
    monkeypatch.setattr(nodes.hardware, "_known_gpus", {})
    monkeypatch.setattr(nodes.hardware, "_probes", {})
    monkeypatch.setattr(nodes.hardware, "_asked_since_s", [])
    monkeypatch.setattr(nodes.hardware, "DEVICES", (tmp_path / "none", folder))
    monkeypatch.setattr(nodes.hardware, "DRIVER", tmp_path / "version")
    monkeypatch.setattr(nodes.hardware, "nvidia_present", lambda: True)
    return folder


def names_of(found: tuple[Any, ...] | None) -> list[str] | None:
    return None if found is None else [gpu.name for gpu in found]


class Slow:
    """A driver that answers when it is polled the second time."""

    answer = inventory("A", "B")

    def __init__(self) -> None:
        self.polls = 0

    def poll(self) -> Inventory | None:
        self.polls += 1
        return self.answer if self.polls > 1 else None


def test_gpus_are_asked_for_again_when_their_list_changes_and_not_before(
    devices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Inventory] = []

    def probe_now() -> Inventory:
        asked.append(inventory("A"))
        return asked[-1]

    monkeypatch.setattr(nodes.hardware, "probe_now", probe_now)
    monkeypatch.setattr(nodes.hardware, "Probe", Slow)
    (devices / "nvidia0").touch()
    (devices.parent / "version").write_text("550.1")
    assert names_of(gpus()) == ["A"]
    (devices / "nvidia-uvm").touch()  # comes with the first program that computes
    assert names_of(gpus()) == ["A"]
    assert len(asked) == 1
    (devices / "nvidia1").touch()
    assert gpus() is None, "not known yet, and the tick does not wait for it"
    assert gpus_are_asked()
    assert names_of(gpus()) == ["A", "B"]
    assert not gpus_are_asked()
    (devices.parent / "version").write_text("560.2")
    assert gpus() is None, "another driver"
    assert names_of(gpus(wait=True)) == ["A", "B"]


def test_a_first_asking_that_makes_the_devices_nodes_leaves_no_moment_without_an_answer(
    devices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a boot, where no daemon holds the driver: the list is another one after it was asked."""

    def probe_now() -> Inventory:
        (devices / "nvidia0").touch()
        return inventory("A")

    monkeypatch.setattr(nodes.hardware, "probe_now", probe_now)
    monkeypatch.setattr(nodes.hardware, "Probe", Slow)
    assert [names_of(gpus()) for _ in range(4)] == [["A"]] * 4


def test_an_answer_to_a_list_that_changed_meanwhile_is_not_taken_for_either(
    devices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Plugged(Slow):
        def poll(self) -> Inventory | None:
            found = super().poll()
            if found is not None:
                (devices / "nvidia2").touch()
            return found

    monkeypatch.setattr(nodes.hardware, "probe_now", lambda: inventory("A"))
    monkeypatch.setattr(nodes.hardware, "Probe", Plugged)
    gpus()
    (devices / "nvidia1").touch()
    assert [names_of(gpus()) for _ in range(2)] == [None, None]
    assert gpus_are_asked()
    assert names_of(gpus(wait=True)) == ["A", "B"], "asked anew, and nothing changed then"


def test_a_driver_that_never_answers_is_asked_no_longer_than_its_limit(
    devices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stuck(Slow):
        def poll(self) -> Inventory | None:
            return Inventory(why="the driver did not answer") if super().poll() else None

    monkeypatch.setattr(nodes.hardware, "probe_now", lambda: inventory("A"))
    monkeypatch.setattr(nodes.hardware, "Probe", Stuck)
    monkeypatch.setattr(nodes.hardware, "ASK_WITHIN_S", 0.2)
    gpus()
    (devices / "nvidia1").touch()
    assert gpus(wait=True) is None
    assert not gpus_are_asked(), "unknown, and no more only for the moment"


def test_a_thread_and_the_loop_may_ask_for_the_gpus_at_once(devices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)

    class Met:
        def poll(self) -> Inventory | None:
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.3)
            return inventory("A", "B")

    monkeypatch.setattr(nodes.hardware, "probe_now", lambda: inventory("A"))
    monkeypatch.setattr(nodes.hardware, "Probe", Met)
    gpus()
    (devices / "nvidia1").touch()
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(gpus) for _ in range(2)]
        assert [names_of(each.result(30)) for each in asked] == [["A", "B"]] * 2
