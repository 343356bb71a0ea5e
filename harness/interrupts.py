"""Ctrl-C and SIGTERM, treated alike: the first ends the run in good order, each later one only hurries that end."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# The first signal raises where the program happens to be. Code that swallows it must not make the program deaf for good.
_SWALLOWED_S = 5.0


class Interrupts:
    """The handlers of one harness run. `hurry` is called in the main thread for each signal after the first; it must be quick."""

    def __init__(self, hurry: Callable[[], object]) -> None:
        self.seen: list[str] = []
        self._hurry = hurry
        self._raised_at: float | None = None
        self._ending = False
        self._before: dict[signal.Signals, Any] = {}

    def install(self) -> None:
        """Outside the main thread nothing can be installed; a signal that whoever started us had ignored stays ignored."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._before[number] = signal.signal(number, self._handle)

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def ending(self) -> None:
        """From now on no signal raises: what follows writes evidence and ends children, and half of that would be worse than a wait."""
        self._ending = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.seen.append(signal.Signals(number).name)
        now = time.monotonic()
        if not self._ending and (self._raised_at is None or now - self._raised_at > _SWALLOWED_S):
            self._raised_at = now
            raise KeyboardInterrupt(self.seen[-1])
        with contextlib.suppress(OSError):
            self._hurry()
