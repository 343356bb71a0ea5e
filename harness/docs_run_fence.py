"""Run a program that can change no file outside of some folders, nor can anything that it starts: `fence.py FOLDER... -- PROGRAM WORD...`.

Landlock of the Linux kernel (5.13 and later; its numbers are those of https://docs.kernel.org/userspace-api/landlock.html) holds it to
that; reading stays free. Where the kernel has none, the program runs all the same: what a page plainly changes outside is refused before.
Runs as a program of its own, in the process that becomes PROGRAM, and imports nothing of the harness.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH, _NO_NEW_PRIVS = 1, 1, 38
# write, remove a folder, remove a file, and make one of any kind; moving between folders and cutting short came later.
_WRITES = sum(1 << bit for bit in (1, *range(4, 13)))
_LATER = {2: 1 << 13, 3: 1 << 14}


def fence_version() -> int:
    """Landlock's version in this kernel; 0 where it has none, or has it switched off."""
    return max(0, int(ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, 0, _ASK_VERSION)))


def fence(folders: list[str]) -> None:
    """Hold this process to changes below `folders`, if the kernel can. Raises OSError where it could and did not."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not (version := fence_version()):
        return
    changes = _WRITES | sum(bit for since, bit in _LATER.items() if version >= since)
    rules = _done(libc.syscall(_CREATE_RULESET, struct.pack("=Q", changes), 8, 0))
    for folder in folders:
        place = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        _done(libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", changes, place), 0))
        os.close(place)
    _done(libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
    _done(libc.syscall(_RESTRICT_SELF, rules, 0))
    os.close(rules)


def _done(answer: int) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer


if __name__ == "__main__":
    at = sys.argv.index("--")
    fence(sys.argv[1:at])
    os.execvp(sys.argv[at + 1], sys.argv[at + 1 :])
