"""What a machine has and lacks for protecting a program, and what falls back to what. Pure: facts in, checks out.

A check's state is ``ok``; ``falls_back`` (it works another way, which is said); or ``missing``: something that matters is not there, so
protection is weaker or fleet work is held for want of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

__all__ = ["LEAST_WATCHES", "Check", "Gpu", "MachineFacts", "judge_machine", "lacking"]

State = Literal["ok", "falls_back", "missing"]

LEAST_WATCHES: Final = 8192
CAP_DAC_READ_SEARCH: Final = 2
CAP_SYS_PTRACE: Final = 19
GB: Final = 1e9


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device as the meters read it; ``why``: no process's time can be told on it (None: it can)."""

    name: str
    kind: str
    why: str | None = None


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What was found. None is unknown.

    ``freezes``: a child group of a cgroup2 mount was made and a process in it was seen frozen; ``freezer_why`` where not.
    ``controllers``: those of that group. ``shares_group``: protected processes that live in the group that fleet work would
    be in too. ``capabilities``: the effective set of this process, as a bit mask.
    """

    cgroup2_mounts: tuple[str, ...] = ()
    freezes: bool = False
    freezer_why: str = ""
    controllers: frozenset[str] = frozenset()
    kills_group: bool = False
    autogroup: bool | None = None
    may_raise: bool = False
    pidfd: bool = True
    schedstat: bool = True
    shares_group: tuple[int, ...] = ()
    nvidia_present: bool = False
    driver: str | None = None
    driver_why: str | None = None
    driver_remedy: str = ""
    pids_why: str | None = None
    gpus: tuple[Gpu, ...] = ()
    drm_devices: int = 0
    capabilities: int = 0
    unreadable_programs: tuple[int, ...] = ()
    inotify_why: str | None = None
    max_user_watches: int | None = None
    max_user_instances: int | None = None
    machine_bytes: int | None = None
    limit_bytes: int | None = None
    limit_name: str = ""
    limit_readable: bool = True
    machine_cores: int = 1
    usable_cores: int = 1
    """Whole cores of affinity and quota, rounded up."""


@dataclass(frozen=True, slots=True)
class Check:
    """``what`` was found, ``fallback`` is what happens instead, ``remedy`` what would give the better way."""

    name: str
    state: State
    what: str
    fallback: str = ""
    remedy: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def lacking(checks: tuple[Check, ...]) -> bool:
    return any(check.state == "missing" for check in checks)


def judge_machine(facts: MachineFacts) -> tuple[Check, ...]:
    """Every check, in the order in which a person would mend them."""
    return (
        _freezer(facts),
        _controllers(facts),
        _own_group(facts),
        _signals(facts),
        _lowering(facts),
        *_nvidia(facts),
        *_drm(facts),
        _readable(facts),
        _inotify(facts),
        _memory(facts),
        _cores(facts),
        _stall(facts),
    )


def _freezer(facts: MachineFacts) -> Check:
    if facts.freezes:
        kill = "" if facts.kills_group else "; the kernel cannot kill a group whole (before 5.14)"
        return Check("freezer", "ok", f"a control group can be made and freezes{kill}")
    mounts = ", ".join(facts.cgroup2_mounts) or "none"
    return Check(
        "freezer",
        "falls_back",
        f"no control group can be frozen: {facts.freezer_why or 'not known why'} (cgroup2 mounts: {mounts})",
        "SIGSTOP to every process of the tree, which a new child can escape until the next look",
        "run the agent as its systemd unit (Delegate=yes): cotenant service install; in a container give it a writable cgroup2",
    )


def _controllers(facts: MachineFacts) -> Check:
    lacks = [name for name in ("cpu", "memory") if name not in facts.controllers]
    if not lacks:
        return Check("cgroup controllers", "ok", "cpu and memory")
    instead = {
        "cpu": "lowered work by session weight and SCHED_IDLE",
        "memory": "a job's memory by the sum of its processes",
    }
    return Check(
        "cgroup controllers",
        "falls_back",
        f"no {' and no '.join(lacks)} controller for child groups",
        "; ".join(instead[name] for name in lacks),
        "boot with the unified hierarchy (systemd.unified_cgroup_hierarchy=1) and delegate cpu and memory to the agent's unit",
    )


def _own_group(facts: MachineFacts) -> Check:
    """An out-of-memory killer that acts on groups takes all of one."""
    if facts.freezes:
        return Check("own group for fleet work", "ok", "each attempt has a leaf group of its own")
    if not facts.shares_group:
        return Check(
            "own group for fleet work",
            "falls_back",
            "attempts cannot have a group of their own, and live in the agent's",
            "no protected program is in that group",
            "as for the freezer",
        )
    pids = ", ".join(str(pid) for pid in facts.shares_group[:5])
    return Check(
        "own group for fleet work",
        "missing",
        f"fleet work would be in one control group with a protected program (pid {pids}): systemd-oomd ends a group whole",
        "the memory guard evicts fleet work before that",
        "run the agent as its systemd unit, in a slice of its own: cotenant service install",
    )


def _signals(facts: MachineFacts) -> Check:
    if facts.pidfd:
        return Check("pidfd", "ok", "signals cannot hit a process that took over a pid")
    return Check(
        "pidfd", "missing", "the kernel has no pidfd_open", "no process is signalled", "Linux 5.3 or newer is needed"
    )


def _lowering(facts: MachineFacts) -> Check:
    if "cpu" in facts.controllers:
        return Check("lowering", "ok", "by the group's cpu.idle")
    way = "by the session's weight (autogroup is on, so nice alone does nothing) and SCHED_IDLE"
    if facts.autogroup is False:
        way = "by SCHED_IDLE and nice"
    if facts.may_raise:
        return Check("lowering", "ok", way)
    return Check(
        "lowering",
        "falls_back",
        f"{way}; this account may not raise a process again",
        "lowered work stays lowered until its attempt ends, where only SCHED_IDLE or nice lowered it",
        "LimitNICE=-0 for the agent's account (cotenant service install writes it), or delegate the cpu controller",
    )


def _nvidia(facts: MachineFacts) -> Iterator[Check]:
    if not facts.nvidia_present:
        yield Check("NVML", "ok", "no NVIDIA device or driver: not used")
        return
    if facts.driver_why is not None:
        yield Check(
            "NVML",
            "missing",
            facts.driver_why,
            "no GPU work is admitted; a protected program counts as using every GPU",
            facts.driver_remedy or "see nvidia-smi",
        )
        return
    yield Check("NVML", "ok", f"driver {facts.driver} answers")
    if facts.pids_why is not None:
        yield Check(
            "GPU time by process",
            "missing",
            facts.pids_why,
            "a protected program counts as using every GPU; GPU work cannot be measured or certified",
            "share the machine's pid namespace with the agent: --pid=host, hostPID: true",
        )
        return
    for gpu in facts.gpus:
        if gpu.kind != "nvml":
            continue
        if gpu.why is None:
            yield Check("GPU time by process", "ok", gpu.name)
        else:
            yield Check(
                "GPU time by process",
                "missing",
                f"{gpu.name}: {gpu.why}",
                "a protected program counts as using this GPU; work on it is judged by the program's progress alone",
                "a device whose driver gives process utilisation: nvidia-smi pmon",
            )


def _drm(facts: MachineFacts) -> Iterator[Check]:
    if not facts.drm_devices:
        yield Check("DRM fdinfo", "ok", "no other GPU with engine counters: not used")
        return
    lacks = [
        name
        for name, bit in (("CAP_SYS_PTRACE", CAP_SYS_PTRACE), ("CAP_DAC_READ_SEARCH", CAP_DAC_READ_SEARCH))
        if not facts.capabilities >> bit & 1
    ]
    if not lacks:
        yield Check("DRM fdinfo", "ok", "open files of every account can be read")
        return
    yield Check(
        "DRM fdinfo",
        "falls_back",
        f"{' and '.join(lacks)} lacking: engine time of other accounts, and of programs that may not be dumped, is unreadable",
        "a protected program that cannot be read counts as using the GPU",
        f"AmbientCapabilities={' '.join(lacks)} for the agent's unit (perf counters beside it need CAP_PERFMON)",
    )


def _readable(facts: MachineFacts) -> Check:
    if not facts.unreadable_programs:
        return Check("protected programs", "ok", "every process that a rule may mean can be judged")
    pids = ", ".join(str(pid) for pid in facts.unreadable_programs[:5])
    return Check(
        "protected programs",
        "missing",
        f"processes that a rule may mean cannot be read (pid {pids})",
        "they count as the program for holding fleet work",
        "run the agent as a system service, or give it CAP_SYS_PTRACE: cotenant service install --system",
    )


def _inotify(facts: MachineFacts) -> Check:
    if facts.inotify_why is not None:
        return Check(
            "inotify",
            "falls_back",
            facts.inotify_why,
            "sources are looked at every 250 ms",
            f"sysctl -w fs.inotify.max_user_instances=1024 (now {facts.max_user_instances})",
        )
    if facts.max_user_watches is not None and facts.max_user_watches < LEAST_WATCHES:
        return Check(
            "inotify",
            "falls_back",
            f"{facts.max_user_watches} watches an account",
            "once they are exhausted sources are looked at every 250 ms",
            "sysctl -w fs.inotify.max_user_watches=524288",
        )
    return Check("inotify", "ok", f"{facts.max_user_watches} watches, {facts.max_user_instances} instances an account")


def _memory(facts: MachineFacts) -> Check:
    if facts.machine_bytes is None:
        return Check(
            "memory",
            "missing",
            "the machine's memory cannot be read",
            "nothing is admitted",
            "mount /proc for the agent",
        )
    if not facts.limit_readable:
        return Check(
            "memory",
            "missing",
            f"{facts.limit_name} has a limit, and its use cannot be read",
            "nothing is admitted",
            "let the agent read that control group's memory files",
        )
    if facts.limit_bytes is not None and facts.limit_bytes < facts.machine_bytes:
        return Check(
            "memory",
            "ok",
            f"{facts.limit_bytes / GB:.1f} GB of the machine's {facts.machine_bytes / GB:.1f} GB: {facts.limit_name} limits it",
        )
    return Check("memory", "ok", f"{facts.machine_bytes / GB:.1f} GB, no limit below it")


def _cores(facts: MachineFacts) -> Check:
    if facts.usable_cores < facts.machine_cores:
        return Check("cores", "ok", f"{facts.usable_cores} of {facts.machine_cores}: quota or affinity limits them")
    return Check("cores", "ok", f"{facts.machine_cores}")


def _stall(facts: MachineFacts) -> Check:
    if facts.schedstat:
        return Check("scheduler delay", "ok", "cpu_stall can be read")
    return Check(
        "scheduler delay",
        "falls_back",
        "the kernel keeps no /proc/PID/schedstat",
        'a rule that protects "cpu_stall" has no figure, which counts as harm',
        "a kernel with CONFIG_SCHED_INFO",
    )
