"""What a fork does to be the Python process that the command would have started, and how it ends like one."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import logging
import os
import signal
import sys
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

# What ms-swift sets to ERROR at import in every rank but the first of its host (swift/utils/logger.py).
RANKED_LOGGERS = ("swift", "modelscope")


@dataclass(frozen=True)
class Imported:
    """What the imports left behind in the warm process: every fork starts from it."""

    path: tuple[str, ...]
    files: frozenset[int]
    set_variables: Mapping[str, str]
    unset_variables: frozenset[str]
    said: bytes


def open_files() -> frozenset[int]:
    """Descriptors of this process beyond the standard three."""
    return frozenset(fd for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2 and os.path.exists(f"/proc/self/fd/{fd}"))


def close_all_but(kept: Iterable[int]) -> None:
    """As exec would. The warm process's sockets must not live on in a run: their end tells of a death."""
    for fd in open_files() - frozenset(kept):
        with contextlib.suppress(OSError):
            os.close(fd)


def take_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def detach() -> None:
    """Let go of what belongs to the process that forked this one."""
    # A temporary folder that an import or torchrun made is theirs to remove, not this process's at its exit.
    registry: dict[Any, Any] = weakref.finalize._registry  # type: ignore[attr-defined]
    registry.clear()
    # numpy's generator is seeded from the system in every new process; Python's own is, also after a fork.
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def be_ranked() -> None:
    """What a rank that imported ms-swift itself would have decided then by its LOCAL_RANK."""
    if os.environ.get("LOCAL_RANK", "").strip().lstrip("-").isdigit() and int(os.environ["LOCAL_RANK"]) > 0:
        for name in RANKED_LOGGERS:
            if name in logging.root.manager.loggerDict:
                logging.getLogger(name).setLevel(logging.ERROR)


def script_of(module: str) -> str:
    """The file that `python -m module` executes. Raises ImportError."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.origin:
        raise ImportError(f"No module named {module}")
    return spec.origin


def run_script(path: str, arguments: Sequence[str], lead: str, base: Sequence[str]) -> NoReturn:
    """Be `python path arguments` from here on and end as it would. `lead` is what Python puts first on sys.path."""
    sys.argv = [path, *arguments]
    sys.path[:] = [lead, *base]
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=path, __builtins__=__builtins__, __spec__=None, __cached__=None)
    sys.modules["__main__"] = main

    def program() -> None:
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec")
        exec(code, main.__dict__)

    end_with(program)


def end_with(program: Callable[[], None]) -> NoReturn:
    """Call `program`, then do what the interpreter does at its end, and leave with its status. Nothing that forked us runs again."""
    status = 1
    try:
        status, interrupted = _outcome(program)
        status = _last_words() or status
        if interrupted:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        # Whatever happened on the way: the frames above belong to the process that forked this one.
        os._exit(status)


def _outcome(program: Callable[[], None]) -> tuple[int, bool]:
    """(exit status, whether an interrupt ended it)"""
    try:
        program()
    except SystemExit as asked:
        return _status(asked.code), False
    except BaseException as fault:
        frame = fault.__traceback__
        # Ours are the frames of this file at the top.
        while frame is not None and frame.tb_frame.f_code.co_filename == __file__:
            frame = frame.tb_next
        sys.excepthook(type(fault), fault.with_traceback(frame), frame)
        return 1, isinstance(fault, KeyboardInterrupt)
    return 0, False


def _last_words() -> int:
    """Wait for threads, run exit handlers, flush. Python's own status for a standard stream that can't be flushed, else 0."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            return 120
    return 0


def _status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr, flush=True)
    return 1
