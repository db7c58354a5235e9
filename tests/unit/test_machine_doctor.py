"""What a machine has and lacks, judged from facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from policies.doctor import Check, Gpu, MachineFacts, judge_machine, lacking

WHOLE = MachineFacts(
    cgroup2_mounts=("/sys/fs/cgroup",),
    freezes=True,
    kills_group=True,
    controllers=frozenset({"cpu", "memory"}),
    autogroup=True,
    may_raise=True,
    nvidia_present=True,
    driver="570.1",
    gpus=(Gpu("H200", "nvml"),),
    drm_devices=1,
    capabilities=(1 << 19) | (1 << 2),
    max_user_watches=100_000,
    max_user_instances=128,
    machine_bytes=64_000_000_000,
)


def checks(**changes: Any) -> dict[str, Check]:
    return {check.name: check for check in judge_machine(replace(WHOLE, **changes))}


def test_a_machine_with_everything_lacks_nothing() -> None:
    assert {check.state for check in checks().values()} == {"ok"}
    assert not lacking(judge_machine(WHOLE))


@pytest.mark.parametrize(
    ("changes", "name", "state", "says"),
    [
        ({"freezes": False, "freezer_why": "there is no cgroup2 mount"}, "freezer", "falls_back", "SIGSTOP"),
        ({"controllers": frozenset({"memory"})}, "cgroup controllers", "falls_back", "cpu"),
        ({"pidfd": False}, "pidfd", "missing", "pidfd_open"),
        ({"controllers": frozenset(), "may_raise": False}, "lowering", "falls_back", "autogroup"),
        ({"driver_why": "Driver/library version mismatch", "driver_remedy": "reboot"}, "NVML", "missing", "reboot"),
        ({"pids_why": "a pid namespace of its own"}, "GPU time by process", "missing", "--pid=host"),
        ({"gpus": (Gpu("A100", "nvml", "split (MIG)"),)}, "GPU time by process", "missing", "MIG"),
        ({"capabilities": 1 << 2}, "DRM fdinfo", "falls_back", "CAP_SYS_PTRACE"),
        ({"unreadable_programs": (7,)}, "protected programs", "missing", "CAP_SYS_PTRACE"),
        ({"inotify_why": "EMFILE"}, "inotify", "falls_back", "max_user_instances"),
        ({"max_user_watches": 100}, "inotify", "falls_back", "max_user_watches"),
        ({"machine_bytes": None}, "memory", "missing", "/proc"),
        ({"limit_readable": False, "limit_bytes": 1, "limit_name": "control group x"}, "memory", "missing", "group x"),
        ({"schedstat": False}, "scheduler delay", "falls_back", "cpu_stall"),
    ],
)
def test_what_is_lacking_says_what_happens_instead_and_what_helps(
    changes: dict[str, Any], name: str, state: str, says: str
) -> None:
    check = checks(**changes)[name]
    assert check.state == state
    assert says in f"{check.what} {check.fallback} {check.remedy}"
    assert check.fallback
    assert check.remedy
    assert lacking(tuple(checks(**changes).values())) is (state == "missing")


def test_case_032_the_lacking_capabilities_are_named() -> None:
    assert "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH" in checks(capabilities=0)["DRM fdinfo"].what


def test_case_047_a_limit_below_the_machine_is_what_counts() -> None:
    found = checks(limit_bytes=1_000_000_000, limit_name="control group /box", machine_cores=16, usable_cores=3)
    assert "1.0 GB of the machine's 64.0 GB" in found["memory"].what
    assert found["cores"].what.startswith("3 of 16")


def test_case_085_fleet_work_in_one_group_with_a_protected_program_is_missing_its_own() -> None:
    assert checks(freezes=False)["own group for fleet work"].state == "falls_back"
    shared = checks(freezes=False, shares_group=(4711,))["own group for fleet work"]
    assert shared.state == "missing"
    assert "4711" in shared.what


def test_without_any_gpu_nothing_of_gpus_is_missing() -> None:
    found = checks(nvidia_present=False, driver=None, gpus=(), drm_devices=0)
    assert found["NVML"].state == found["DRM fdinfo"].state == "ok"
    assert "GPU time by process" not in found
