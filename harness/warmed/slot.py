"""The nonce of a forked run, where the harness looks for it: in /proc/PID/environ.

That file shows the environment block that the process was started with, which a fork inherits from the warm process. So the warm process
is started with a nonce of WIDTH characters, and a fork writes its own over it, in place, before anybody learns its pid.
"""

from __future__ import annotations

import ctypes
import os

VARIABLE = "NPU_MATRIX_NONCE"


class Slot:
    """Where the nonce lies in this process's first environment block, and how many bytes it may take."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        libc.getenv.restype = ctypes.c_void_p
        libc.getenv.argtypes = [ctypes.c_char_p]
        self._address = libc.getenv(VARIABLE.encode())
        self.width = len(os.environ[VARIABLE].encode())

    def write(self, nonce: str) -> None:
        """Raises ValueError for a nonce that is too long, RuntimeError where the kernel goes on showing another."""
        text = nonce.encode()
        if len(text) > self.width:
            raise ValueError(f"the nonce {nonce!r} is longer than the {self.width} bytes that the warm process keeps for it")
        ctypes.memmove(self._address, text.ljust(self.width, b"\0"), self.width)
        with open("/proc/self/environ", "rb") as file:
            if f"{VARIABLE}={nonce}".encode() not in file.read().split(b"\0"):
                raise RuntimeError("a forked run can't show its nonce in /proc/self/environ, so it could not be found and ended")
