"""A runner written to protocol 1 by hand: standard library only, its own reading of the control document.

The payload's ``do`` names what it does:

* ``tell``: put argv, environment, cwd and open descriptors into the result;
* ``exit``: leave with ``code``, writing ``failure`` and ``result`` where given, or die by ``signal``;
* ``work``: spin in units of a few milliseconds, obeying pause, stop and duty at each, with ``children`` spinners of which
  ``detached`` have a session of their own; ``deaf``: ignore everything that can be ignored; ``greedy``: ignore the
  duty alone; ``headless``: children that spin in a thread which outlives their main thread; ``strays``: orphans that spin in a
  session of their own with nothing in their environment; ``forking``: short-lived children without end;
  ``bomb``: so many processes, each of which makes another whenever one is gone, and dies by nothing that can be ignored;
  ``pair``: two threads and a child that each wait for the other's word, the rounds counted in ``rounds``;
  ``seconds``: for so long, then a result with ``big`` bytes in it;
* ``files``: write ``files`` (path -> text), name ``artifacts`` in the result.

``odd`` (path -> ``fifo``, ``dir``, ``deep``, ``closed``, ``loop`` or ``link:TARGET``) puts such things where files are expected: before all
else, and once more after ``work`` wrote its phase.

Each control document that applied is one line of ``seen.ndjson`` in the module's data folder.
"""

import argparse
import ctypes
import json
import os
import signal
import sys
import threading
import time

nudged = True
document = {"seq": -1}


def on_nudge(_number, _frame):
    global nudged
    nudged = True


def replace(path, value):
    with open(path + ".part", "w") as file:
        file.write(value if isinstance(value, str) else json.dumps(value))
    os.replace(path + ".part", path)


def look(args, note):
    global nudged, document
    if nudged:
        nudged = False
        with open(os.path.join(args.workdir, "control.json")) as file:
            found = json.load(file)
        if found["seq"] > document["seq"]:
            document = found
            note({"attempt": os.environ["OARBANK_ATTEMPT_ID"], "t": time.monotonic(), **found})
    return document


def content(path):
    with open(path) as file:
        return file.read()


def put_odd(args, payload):
    for name, kind in payload.get("odd", {}).items():
        path = os.path.join(args.workdir, name)
        if os.path.isfile(path) or os.path.islink(path):
            os.unlink(path)
        if os.path.lexists(path):
            continue
        if kind == "fifo":
            os.mkfifo(path)
        elif kind.startswith("link:"):
            os.symlink(kind[5:], path)
        elif kind == "loop":
            os.symlink(os.path.basename(path), path)
        else:
            os.mkdir(path)
        if kind == "deep":
            here = os.getcwd()
            os.chdir(path)
            for _ in range(2500):
                os.mkdir("d")
                os.chdir("d")
            os.chdir(here)
        if kind == "closed":
            open(os.path.join(path, "file"), "w").close()
            os.chmod(path, 0)


def spin(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def child(detached, deaf):
    pid = os.fork()
    if pid:
        return pid
    if detached:
        os.setsid()
    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        spin(0.05)


def headless():
    if os.fork() == 0:
        threading.Thread(target=spin, args=(3600,)).start()
        ctypes.CDLL(None).pthread_exit(None)


def stray():
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", "while True: pass"], {})
    os._exit(0)


def fork_without_end():
    if os.fork() == 0:
        while True:
            if os.fork() == 0:
                spin(0.01)
                os._exit(0)
            spin(0.005)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                pass


def bomb(count):
    """Each process that comes makes the next, up to so many, and goes on replacing what is gone; half leave the session."""
    slots, tickets = os.pipe()
    os.write(tickets, b"t" * count)

    def live():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        while True:
            os.set_blocking(slots, False)
            try:
                more = os.read(slots, 1)
            except BlockingIOError:
                more = b""
            if more and os.fork() == 0:
                if os.getpid() % 2:
                    os.setsid()
                continue
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    os.write(tickets, b"t")
            except ChildProcessError:
                pass
            spin(0.001)
            time.sleep(0.05)

    if os.fork() == 0:
        live()


def pair(path):
    """A token goes round: thread one, thread two, a child process, and again; each sleeps until it comes."""
    pipes = [os.pipe() for _ in range(3)]
    if os.fork() == 0:
        while True:
            os.write(pipes[0][1], os.read(pipes[2][0], 1))

    def one():
        rounds = 0
        while True:
            os.read(pipes[0][0], 1)
            rounds += 1
            replace(path, str(rounds))
            os.write(pipes[1][1], b"t")
            time.sleep(0.002)

    def two():
        while True:
            os.write(pipes[2][1], os.read(pipes[1][0], 1))

    for part in (one, two):
        threading.Thread(target=part, daemon=True).start()
    os.write(pipes[0][1], b"t")


def work(args, payload, note):
    deaf = payload.get("deaf", False)
    if deaf:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
    for number in range(payload.get("children", 0)):
        child(number < payload.get("detached", 0), deaf)
    for _ in range(payload.get("headless", 0)):
        headless()
    for _ in range(payload.get("strays", 0)):
        stray()
    if payload.get("forking"):
        fork_without_end()
    if payload.get("bomb"):
        bomb(payload["bomb"])
    if payload.get("pair"):
        pair(os.path.join(args.workdir, "rounds"))
    for line in payload.get("events", []):
        with open(args.events, "a") as file:
            file.write(line)
    replace(os.path.join(args.workdir, "phase"), "spinning\n")
    put_odd(args, payload)
    end = time.monotonic() + payload.get("seconds", 3600)
    while time.monotonic() < end:
        spin(0.004)
        if deaf:
            continue
        asked = look(args, note)
        if asked.get("pause") and payload.get("confirms"):
            replace(os.path.join(args.workdir, "phase"), "paused\n")
        while asked.get("pause") and not asked.get("stop"):
            signal.sigtimedwait([], 0.05) if not nudged else None
            asked = look(args, note)
        if asked.get("stop"):
            replace(
                os.path.join(args.workdir, "failure.json"),
                {"reason": "stranger/stopped", "detail": "", "fault": "transient"},
            )
            return 75
        duty = asked.get("gpu_duty")
        if duty is not None and not payload.get("greedy"):
            time.sleep(0.004 * (1 - duty) / max(duty, 0.01))
    return 0


def result(args, payload, artifacts=()):
    replace(
        args.out,
        {
            "envelope": 1,
            "schema": "stranger/result@4",
            "module_version": "3.2.1",
            "protocol": 1,
            "effective": {},
            "provenance": {},
            "artifacts": list(artifacts),
            "payload": payload,
            "unheard_of": 1,
        },
    )


def run(args):
    signal_at_start = signal.getsignal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, on_nudge)
    with open(args.spec) as file:
        spec = json.load(file)
    payload = spec["payload"]
    seen = os.path.join(os.environ["OARBANK_MODULE_DATA"], "seen.ndjson")

    def note(line):
        try:
            with open(seen, "a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError:
            pass  # a full disk takes no note, and ends no work

    look(args, note)
    put_odd(args, payload)
    sys.stdout.write("x" * payload.get("noise", 0))
    sys.stdout.flush()
    if payload["do"] == "tell" or os.path.exists(args.workdir + "/resume.ndjson"):
        told = {
            "argv": sys.argv[1:],
            "env": dict(os.environ),
            "cwd": os.getcwd(),
            "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")),
            "usr1_ignored": signal_at_start == signal.SIG_IGN,
            "oom": content("/proc/self/oom_score_adj").strip(),
            "umask": os.umask(0o077),
            "spec": spec,
            "listing": sorted(os.listdir(args.workdir)),
            "resume": content(args.workdir + "/resume.ndjson")
            if os.path.exists(args.workdir + "/resume.ndjson")
            else None,
            "settings": json.loads(content(os.environ["OARBANK_SETTINGS_FILE"])),
        }
        result(args, told)
        return 0
    if payload["do"] == "exit":
        if "failure" in payload:
            replace(os.path.join(args.workdir, "failure.json"), payload["failure"])
        if payload.get("result"):
            result(args, payload["result"])
        if payload.get("lets_go"):
            signal.signal(payload["signal"], signal.SIG_DFL)
        if "signal" in payload:
            os.kill(os.getpid(), payload["signal"])
        return payload["code"]
    if payload["do"] == "files":
        for name, text in payload["files"].items():
            path = os.path.join(args.workdir, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write(text)
        for name, target in payload.get("links", {}).items():
            os.symlink(target, os.path.join(args.workdir, name))
        result(args, {}, [{"name": "all", "files": [{"path": name, "local": name} for name in payload["artifacts"]]}])
        return 0
    code = work(args, payload, note)
    if code == 0:
        result(args, {"worked": True, "big": "x" * payload.get("big", 0)})
    return code


def main():
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers(dest="verb", required=True)
    runner = verbs.add_parser("run")
    for name in ("--spec", "--workdir", "--out"):
        runner.add_argument(name, required=True)
    runner.add_argument("--events")
    doctor = verbs.add_parser("doctor")
    doctor.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.verb == "doctor":
        print(json.dumps({"runner_protocol": {"supported": [1]}, "health": "healthy", "checks": [], "attrs": {}}))
        return 0
    return run(args)


if __name__ == "__main__":
    sys.exit(main())
