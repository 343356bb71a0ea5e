"""The witness file of this process: one JSON object a line, flushed as it comes. Nothing is written without both variables set."""

from __future__ import annotations

import atexit
import json
import math
import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

DIR_VARIABLE, NONCE_VARIABLE = "NPU_MATRIX_WITNESS_DIR", "NPU_MATRIX_NONCE"
LAST_WORDS_S = 20.0


class Session:
    """What one process writes. `training` is true once a trainer has taken the callback; `cost_s` is the witness's own time."""

    def __init__(self, folder: str, nonce: str) -> None:
        self.folder, self.nonce, self.pid = folder, nonce, os.getpid()
        self.training = False
        self.cost_s = 0.0
        self.files = 0
        self.busy = 0
        self._idle = threading.Condition()
        self._lock = threading.RLock()
        self._mute = False

    @property
    def path(self) -> str:
        return os.path.join(self.folder, f"witness-{self.pid}.jsonl")

    def emit(self, event: str, **fields: Any) -> None:
        """Append one event; never raises, since a full disk must not end the run that is being watched."""
        line = {
            "event": event,
            "nonce": self.nonce,
            "pid": self.pid,
            "rank": int(os.environ.get("RANK", "0")),
            "world_size": int(os.environ.get("WORLD_SIZE", "1")),
            "time": time.time(),
            **fields,
        }
        try:
            with self._lock:
                os.makedirs(self.folder, exist_ok=True)
                with open(self.path, "a", encoding="utf-8") as file:
                    file.write(json.dumps(strict(line), allow_nan=False) + "\n")
        except OSError as error:
            self._complain(error)

    def fault(self, where: str, error: BaseException) -> None:
        """A failure of the witness itself: recorded, and survived by the run."""
        self.emit("fault", where=where, error=f"{type(error).__name__}: {error}")

    def file_name(self, suffix: str) -> str:
        """A name for a file beside the witness file, new on every call."""
        with self._lock:
            self.files += 1
            return f"witness-{self.pid}-{self.files}{suffix}"

    @contextmanager
    def guard(self, where: str) -> Iterator[None]:
        """Run the witness's own code: its failures become a `fault`, its time is added to `cost_s`."""
        began = time.perf_counter()
        try:
            yield
        except Exception as error:
            self.fault(where, error)
        finally:
            self.cost_s += time.perf_counter() - began

    @contextmanager
    def working(self) -> Iterator[None]:
        """What `end` waits for: ms-swift streams from daemon threads, which the interpreter's exit would cut off before they record."""
        with self._idle:
            self.busy += 1
        try:
            yield
        finally:
            with self._idle:
                self.busy -= 1
                self._idle.notify_all()

    def wait_until_idle(self, timeout_s: float) -> None:
        with self._idle:
            if not self._idle.wait_for(lambda: self.busy == 0, timeout_s):
                self.fault("end", TimeoutError(f"{self.busy} generations were still running after {timeout_s:g} s"))

    def _complain(self, error: OSError) -> None:
        if not self._mute:
            self._mute = True
            print(f"npu_matrix_witness: {self.path} can't be written: {error}", file=sys.stderr, flush=True)


def strict(value: Any) -> Any:
    """`value` with what JSON lacks written as text: NaN and the infinities, and any object that is no plain value."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(k): strict(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(v) for v in value]
    return str(value)


def peak_rss_mib() -> float:
    """Largest resident set of this process so far."""
    scale = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


def rss_mib() -> float:
    """Resident set of this process now; its peak where /proc is missing."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize() / 2**20
    except OSError:
        return peak_rss_mib()


_current: Session | None = None
_current_lock = threading.Lock()


def session() -> Session | None:
    """This process's session, opened (with its `start` event) on first use; None where the variables are not set.

    Looked up on each use, since a process forked from a warm one has another pid and another nonce.
    """
    global _current
    folder, nonce = os.environ.get(DIR_VARIABLE), os.environ.get(NONCE_VARIABLE)
    if not folder or not nonce:
        return None
    with _current_lock:
        known = _current
        if known is not None and (known.pid, known.nonce, known.folder) == (os.getpid(), nonce, folder):
            return known
        opened = _current = Session(folder, nonce)
        _start(opened)
        atexit.register(_end, opened)
        return opened


def _start(opened: Session) -> None:
    from . import stack

    with opened.guard("start"):
        opened.emit("start", **stack.describe())


def _end(opened: Session) -> None:
    if opened.pid == os.getpid():  # a forked child inherits its parent's exit handlers
        opened.wait_until_idle(LAST_WORDS_S)
        opened.emit("end", peak_rss_mib=peak_rss_mib(), witness_seconds=round(opened.cost_s, 3))
