"""What an account may read, asked of the file system's own bits.

An agent that runs as root can read everything; the owner of a section cannot. Where the two differ a source is read only if
the section's owner could read it too: whatever links its path goes through, it is the file that was opened that counts, so
that a section is no way to learn about files of others.
"""

from __future__ import annotations

import os
import pwd
import stat

__all__ = ["may_read"]


def may_read(fd: int, uid: int) -> bool:
    """Whether account ``uid`` may read the open file and search every directory above it, by owner, group and other bits.

    Access lists are not looked at: what only they allow counts as not allowed.
    """
    if uid == 0:
        return True
    groups = _groups(uid)
    path = os.readlink(f"/proc/self/fd/{fd}")
    if not path.startswith("/") or not _allows(os.fstat(fd), uid, groups, stat.S_IROTH):
        return False
    above = os.path.dirname(path)
    while True:
        try:
            info = os.stat(above, follow_symlinks=False)
        except OSError:
            return False
        if not _allows(info, uid, groups, stat.S_IXOTH):
            return False
        if above == "/":
            return True
        above = os.path.dirname(above)


def _groups(uid: int) -> frozenset[int]:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return frozenset()
    return frozenset(os.getgrouplist(entry.pw_name, entry.pw_gid))


def _allows(info: os.stat_result, uid: int, groups: frozenset[int], bit: int) -> bool:
    """``bit``: as it stands for others; the kernel looks at the first class that fits, and at no other."""
    if info.st_uid == uid:
        return bool(info.st_mode & (bit << 6))
    if info.st_gid in groups:
        return bool(info.st_mode & (bit << 3))
    return bool(info.st_mode & bit)
