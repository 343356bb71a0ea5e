"""The warm process itself: import, say so, fork at each request, report each end. It runs no thread and holds no state of a run."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.metadata
import importlib.util
import json
import os
import resource
import selectors
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any, NoReturn

from . import becoming, forking, supervising
from .becoming import Imported
from .slot import VARIABLE, Slot

# pyarrow's allocator starts this thread at import; jemalloc itself takes care of forks.
HARMLESS_THREADS = ("jemalloc_bg_thd",)
SIMULATED = "+sim"


@dataclass(frozen=True)
class Settings:
    """`control`: descriptor of the socket to the harness. `modules`: what to import, "module" or "module:name" where names are lazy;
    `extras`: likewise, but a cold run need not import them, so what they print is dropped. `arguments`: what imports see in sys.argv."""

    control: int
    modules: tuple[str, ...]
    extras: tuple[str, ...]
    arguments: tuple[str, ...]


def main(settings: dict[str, Any]) -> None:
    Warm(Settings(settings["control"], tuple(settings["modules"]), tuple(settings["extras"]), tuple(settings["arguments"]))).serve()


def real_torch_npu() -> str | None:
    """The version of an importable torch_npu that drives real devices, whose contexts would not survive a fork; None without one."""
    if importlib.util.find_spec("torch_npu") is None:
        return None
    try:
        version = importlib.metadata.version("torch_npu")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
    return None if version.endswith(SIMULATED) else version


class Warm:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.control = socket.socket(fileno=settings.control)
        self.control.set_inheritable(False)
        self.slot = Slot()
        self.pid = os.getpid()
        # The supervisors of the runs.
        self.runs: set[int] = set()
        self.wakeup, self.bell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self) -> None:
        version = real_torch_npu()
        if version is not None:
            self._say(refused=f"torch_npu {version} is installed: what it opened on a device does not survive a fork")
            return
        own = becoming.open_files()
        imported, seconds = self._import(own)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.bell, warn_on_full_buffer=False)
        self._say(seconds=round(seconds, 3), threads=_threads(), rss_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        with selectors.DefaultSelector() as selector:
            selector.register(self.control, selectors.EVENT_READ)
            selector.register(self.wakeup, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select()}
                if self.wakeup in ready:
                    self._reap()
                if self.control.fileno() in ready and not self._answer(imported):
                    break
        self._end()

    def _import(self, own: frozenset[int]) -> tuple[Imported, float]:
        began, before = time.monotonic(), dict(os.environ)
        sys.argv = ["warm", *self.settings.arguments]
        for name in self.settings.modules:
            _load(name)
        said = _output()
        for name in self.settings.extras:
            # They only save time later: a run that needs one that can't be imported will say so itself.
            with contextlib.suppress(ImportError):
                _load(name)
        gc.collect()
        # Out of the collector's sight, so that a run's collections do not copy the pages that all runs share.
        gc.freeze()
        after = dict(os.environ)
        changed = {name: value for name, value in after.items() if before.get(name) != value and name != VARIABLE}
        imported = Imported(tuple(sys.path), becoming.open_files() - own, changed, frozenset(before) - frozenset(after), said)
        return imported, time.monotonic() - began

    def _answer(self, imported: Imported) -> bool:
        """Fork one run; False when the harness has closed its end."""
        message, files, _, _ = socket.recv_fds(self.control, 16, 4)
        if not message:
            return False
        request, stdin, log, link = files
        pid = os.fork()
        if pid == 0:
            self._supervise(request, stdin, log, link, imported)
        for fd in files:
            os.close(fd)
        self.runs.add(pid)
        return True

    def _supervise(self, request: int, stdin: int, log: int, link: int, imported: Imported) -> NoReturn:
        """In the fork: be the parent of one run."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            becoming.close_all_but({request, stdin, log, link, *imported.files})
            supervising.take_orphans(self.pid)
            leader = os.fork()
            if leader == 0:
                self._lead(request, stdin, log, link, imported)
            for fd in (request, stdin, log):
                os.close(fd)
            os.chdir("/")
            supervising.watch_over(leader, socket.socket(fileno=link))
        except BaseException as fault:
            with contextlib.suppress(OSError):
                os.write(link, f"failed {type(fault).__name__}: {fault}\n".encode())
        os._exit(1)

    def _lead(self, request: int, stdin: int, log: int, link: int, imported: Imported) -> NoReturn:
        """In a fork of that: become the leader of a session of its own that runs the console script."""

        def program() -> None:
            os.setsid()
            with open(request, "rb", closefd=False) as file:
                asked = json.loads(file.read())
            self.slot.write(asked["environment"][VARIABLE])
            os.chdir(asked["folder"])
            for fd, standard in ((stdin, 0), (log, 1), (log, 2)):
                os.dup2(fd, standard)
            os.write(link, b"pid %d %d\n" % (os.getpid(), os.getppid()))
            becoming.close_all_but(imported.files)
            kept = {k: v for k, v in asked["environment"].items() if k not in imported.unset_variables}
            becoming.take_environment({**kept, **imported.set_variables})
            becoming.detach()
            forking.install(imported)
            becoming.run_script(asked["program"], asked["arguments"], os.path.dirname(os.path.realpath(asked["program"])), imported.path)

        try:
            program()
        except BaseException as fault:  # becoming.run_script never returns: what comes here failed before the program began
            with contextlib.suppress(OSError):
                os.write(link, f"failed {type(fault).__name__}: {fault}\n".encode())
        os._exit(1)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.wakeup, 4096)
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.runs.discard(pid)

    def _end(self) -> None:
        for pid in self.runs:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)
        for pid in self.runs:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def _say(self, **facts: Any) -> None:
        self.control.send(json.dumps(facts).encode())


def _load(name: str) -> None:
    module, _, attribute = name.partition(":")
    loaded = importlib.import_module(module)
    if attribute:
        getattr(loaded, attribute)


def _output() -> bytes:
    """What the imports printed so far: our standard output is a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    with open("/proc/self/fd/1", "rb") as file:
        return file.read()


def _threads() -> list[str]:
    """Threads beside the main one that a fork could find holding a lock."""
    names = []
    for task in os.listdir("/proc/self/task"):
        if int(task) != os.getpid():
            with open(f"/proc/self/task/{task}/comm", encoding="utf-8") as file:
                names.append(file.read().strip())
    return sorted(name for name in names if name not in HARMLESS_THREADS)
