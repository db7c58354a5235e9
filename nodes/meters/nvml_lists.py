"""The processes that hold a context on a device: compute, graphics and MPS lists joined, one record a process.

The library's record changed its size twice under the same or a new name, and a buffer read with the wrong size swaps pids
and memory from the second entry on. Which size this driver fills is told by the functions it exports; what comes out is
checked, and a list that fails is no list at all.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from nodes.meters.nvml_gate import Fault, Gate

__all__ = ["Context", "Layout", "layout_of", "list_contexts"]

Kind = Literal["Compute", "Graphics", "MPSCompute"]
KINDS: Final[tuple[Kind, ...]] = ("Compute", "Graphics", "MPSCompute")

NOT_AVAILABLE: Final = 0xFFFF_FFFF_FFFF_FFFF
PID_MAX: Final = 1 << 22  # the kernel's own limit (PID_MAX_LIMIT)


class _Short(ctypes.Structure):
    _fields_ = (("pid", ctypes.c_uint), ("memory", ctypes.c_ulonglong))


class _Instance(ctypes.Structure):
    _fields_ = (*_Short._fields_, ("gpu_instance", ctypes.c_uint), ("compute_instance", ctypes.c_uint))


class _Confidential(ctypes.Structure):
    _fields_ = (*_Instance._fields_, ("protected_memory", ctypes.c_ulonglong))


@dataclass(frozen=True, slots=True)
class Layout:
    """``suffix`` of the functions to call and the record that they fill."""

    suffix: str
    record: type[ctypes.Structure]


OLD: Final = Layout("", _Short)
V2: Final = Layout("_v2", _Instance)
V3: Final = Layout("_v3", _Instance)
V3_LARGE: Final = Layout("_v3", _Confidential)


@dataclass(frozen=True, slots=True)
class Context:
    """One process on one device. ``memory_bytes`` None: the driver cannot say. ``kinds``: the lists it stands in."""

    pid: int
    memory_bytes: int | None
    kinds: frozenset[str]


def layout_of(exports: Callable[[str], bool]) -> Layout:
    """The layout of the loaded driver. ``exports``: whether its library has a function.

    Drivers that know confidential computing but not yet the detail list (535.43 to 535.86) fill the large record under the
    name ``_v3``; before and after them the name stands for the small one.
    """
    if exports("nvmlDeviceGetComputeRunningProcesses_v3"):
        large = exports("nvmlDeviceGetConfComputeMemSizeInfo") and not exports("nvmlDeviceGetRunningProcessDetailList")
        return V3_LARGE if large else V3
    return V2 if exports("nvmlDeviceGetComputeRunningProcesses_v2") else OLD


def list_contexts(
    gate: Gate, handle: Any, layout: Layout, total_bytes: int | None, exists: Callable[[int], bool]
) -> tuple[Context, ...] | Fault:
    """All processes with a context on the device.

    Args:
        total_bytes: the device's memory: no process holds more.
        exists: whether the machine has a process of that pid, as far as can be told.
    """
    found: dict[int, tuple[int | None, set[str]]] = {}
    answered = False
    refused: Fault | None = None
    for kind in KINDS:
        listed = gate.call("list", _listed, kind, handle, layout, total_bytes, exists)
        if isinstance(listed, Fault):
            # a driver without MPS or graphics has fewer lists; a driver without any has no answer
            if not listed.is_("NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "NOT_FOUND"):
                return listed
            refused = listed
            continue
        answered = True
        for pid, memory in listed:
            known, kinds = found.get(pid, (None, set()))
            best = memory if known is None else known if memory is None else max(known, memory)
            found[pid] = (best, kinds | {kind})
    if not answered and refused is not None:
        return refused
    return tuple(Context(pid, memory, frozenset(kinds)) for pid, (memory, kinds) in sorted(found.items()))


def _listed(
    kind: Kind, handle: Any, layout: Layout, total_bytes: int | None, exists: Callable[[int], bool]
) -> list[tuple[int, int | None]]:
    """One list as (pid, bytes). Raises NVMLError; UNKNOWN where the records make no sense."""
    import pynvml

    # pynvml's own functions know the small record alone
    function = pynvml._nvmlGetFunctionPointer(f"nvmlDeviceGet{kind}RunningProcesses{layout.suffix}")
    count = ctypes.c_uint(0)
    code = function(handle, ctypes.byref(count), None)
    if code == pynvml.NVML_SUCCESS:
        return []
    if code != pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
        raise pynvml.NVMLError(code)
    room = 2 * count.value + 5
    # room for the largest record, so that no driver writes beyond it
    buffer = ctypes.create_string_buffer(room * ctypes.sizeof(_Confidential))
    count.value = room
    code = function(handle, ctypes.byref(count), buffer)
    if code != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(code)
    records = _decode(buffer.raw, count.value, layout.record)
    if not _sane(records, total_bytes) or _another_fits_better(buffer.raw, records, layout, total_bytes, exists):
        raise UnfitError
    return records


class UnfitError(Exception):
    """The list's records make no sense in this driver's layout: the meter is unusable."""


def _decode(raw: bytes, count: int, record: type[ctypes.Structure]) -> list[tuple[int, int | None]]:
    entries = (record * count).from_buffer_copy(raw)
    return [(int(e.pid), None if e.memory == NOT_AVAILABLE else int(e.memory)) for e in entries]


def _sane(records: Sequence[tuple[int, int | None]], total_bytes: int | None) -> bool:
    return all(
        0 < pid <= PID_MAX and (memory is None or total_bytes is None or memory <= total_bytes)
        for pid, memory in records
    )


def _another_fits_better(
    raw: bytes,
    records: Sequence[tuple[int, int | None]],
    layout: Layout,
    total_bytes: int | None,
    exists: Callable[[int], bool],
) -> bool:
    """Whether pids are strangers in this layout that are all processes of the machine in the other of the same name.

    A stranger alone is no sign: a process may have ended, and some holders cannot be found at all.
    """
    if layout.suffix != "_v3" or all(exists(pid) for pid, _ in records):
        return False
    other = _Instance if layout.record is _Confidential else _Confidential
    try:
        reread = _decode(raw, len(records), other)
    except ValueError:
        return False
    return len(records) > 1 and _sane(reread, total_bytes) and all(exists(pid) for pid, _ in reread)
