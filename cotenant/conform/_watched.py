"""Put a program's file writes under the kit's eyes, then become that program.

``python -I -S _watched.py SOCKET ARGV…``: installs a seccomp filter that reports every call which may change the file system, and
``setsid``, to whoever holds its listener; hands the listener over the abstract unix socket; executes ARGV. Where the kernel has no such
filter a line on the socket says so and the program runs unwatched. Standard library only: it runs before the module does.
"""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct
import sys

PR_SET_NO_NEW_PRIVS = 38
SET_MODE_FILTER, NEW_LISTENER = 1, 8
RET_ALLOW, RET_USER_NOTIF = 0x7FFF0000, 0x7FC00000
LOAD, JUMP_EQUAL, JUMP_SET, RETURN = 0x20, 0x15, 0x45, 0x06
# O_WRONLY, O_RDWR, O_CREAT, O_TRUNC
WRITING = 0o1 | 0o2 | 0o100 | 0o1000
# name -> number; "open" and "openat" are reported only where their flags write
CALLS = {
    "x86_64": {
        "open": 2, "creat": 85, "openat": 257, "openat2": 437, "truncate": 76, "rename": 82, "renameat": 264, "renameat2": 316,
        "unlink": 87, "unlinkat": 263, "mkdir": 83, "mkdirat": 258, "rmdir": 84, "link": 86, "linkat": 265, "symlink": 88,
        "symlinkat": 266, "mknod": 133, "mknodat": 259, "chmod": 90, "fchmodat": 268, "setsid": 112,
    },
    "aarch64": {
        "openat": 56, "openat2": 437, "truncate": 45, "renameat": 38, "renameat2": 276, "unlinkat": 35, "mkdirat": 34,
        "linkat": 37, "symlinkat": 36, "mknodat": 33, "fchmodat": 53, "setsid": 157,
    },
}  # fmt: skip
ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
SECCOMP = {"x86_64": 317, "aarch64": 277}
FLAGS_AT = {"open": 1, "openat": 2}


def _program(machine: str) -> bytes:
    """The filter: struct sock_filter each (code, jump if true, jump if false, value)."""
    calls = CALLS[machine]
    plain = [number for name, number in calls.items() if name not in FLAGS_AT]
    steps = [(LOAD, 0, 0, 4), (JUMP_EQUAL, 1, 0, ARCHITECTURE[machine]), (RETURN, 0, 0, RET_ALLOW), (LOAD, 0, 0, 0)]
    for name, argument in FLAGS_AT.items():
        if name in calls:
            steps += [
                (JUMP_EQUAL, 0, 4, calls[name]),
                (LOAD, 0, 0, 16 + 8 * argument),
                (JUMP_SET, 0, 1, WRITING),
                (RETURN, 0, 0, RET_USER_NOTIF),
                (RETURN, 0, 0, RET_ALLOW),
            ]
    for number in plain:
        steps += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, RET_USER_NOTIF)]
    steps.append((RETURN, 0, 0, RET_ALLOW))
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def _listener() -> int:
    """Install the filter in this thread.

    Raises:
        OSError: the kernel refuses, or its machine is not known here.
    """
    machine = platform.machine()
    if machine not in CALLS or not sys.platform.startswith("linux"):
        raise OSError(f"no list of system calls for {machine}")
    libc = ctypes.CDLL(None, use_errno=True)
    code = _program(machine)
    held = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(held))
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs is refused")
    found = int(libc.syscall(SECCOMP[machine], SET_MODE_FILTER, NEW_LISTENER, ctypes.c_char_p(program)))
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


def main() -> None:
    name, argv = sys.argv[1], sys.argv[2:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as kit:
        kit.connect("\0" + name)
        try:
            listener = _listener()
        except OSError as error:
            kit.sendall(f"not watched: {error}".encode())
        else:
            socket.send_fds(kit, [b"watched"], [listener])
            kit.recv(1)  # the kit listens now
            os.close(listener)
    os.execve(argv[0], argv, os.environ)


if __name__ == "__main__":
    main()
