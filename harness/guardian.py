"""No run outlives its harness: a small process kills what a dead harness left, and a sweep at the next start what even that missed.

One guardian per harness process, started with the first run. It holds the read end of a pipe whose write end only the harness has, so the
kernel tells it of any death of the harness, SIGKILL included. While a folder is worked in, `owner-<nonce>.json` lies in it under a lock
that dies with the harness: `sweep` knows a dead owner by the lock being free, which a reused pid or another container can't fake.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from harness.processes import Process, kill_until_gone, members

_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from harness.guardian import stand_guard; stand_guard(sys.stdin.buffer.fileno())"
_OWNER = "owner-*.json"


class Guardian:
    """The harness's side of the pipe. Thread-safe; restarts the guardian process if somebody killed it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._known: dict[str, int] = {}
        os.register_at_fork(after_in_child=self._forget_in_child)

    def watch(self, nonce: str, group: int = 0) -> None:
        """From now on bearers of `nonce`, and process group `group` if not 0, die with this harness. Call before the run starts too."""
        with self._lock:
            self._known[nonce] = group
            self._tell(f"+ {nonce} {group}\n")

    def release(self, nonce: str) -> None:
        with self._lock:
            self._known.pop(nonce, None)
            self._tell(f"- {nonce} 0\n")

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def close(self) -> None:
        """End the guardian process (it first kills what is still watched) and wait for it."""
        with self._lock:
            if self._process is not None and self._process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    self._process.stdin.close()
                self._process.wait(timeout=30)
            self._process = None

    def _tell(self, line: str) -> None:
        if self._process is not None:
            try:
                self._send(line)
                return
            except BrokenPipeError:
                self._process.wait()
        self._start()
        for nonce, group in self._known.items():
            self._send(f"+ {nonce} {group}\n")

    def _send(self, line: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()

    def _start(self) -> None:
        root = str(Path(__file__).resolve().parent.parent)
        self._process = subprocess.Popen(
            [sys.executable, "-E", "-S", "-c", _PROGRAM, root],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        atexit.unregister(self.close)
        atexit.register(self.close)

    def _forget_in_child(self) -> None:
        """A forked copy of the harness must not keep the pipe open, or the guardian would never learn of the harness's death."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                os.close(self._process.stdin.fileno())
        self._lock, self._process, self._known = threading.Lock(), None, {}
        atexit.unregister(self.close)


GUARDIAN = Guardian()


def stand_guard(pipe: int) -> None:
    """The guardian process: note what the harness says on descriptor `pipe`; at its end kill everything still watched."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    watched: dict[str, int] = {}
    with os.fdopen(pipe, "rb", closefd=False) as lines:
        for line in lines:
            sign, nonce, group = line.decode().split()
            if sign == "+":
                watched[nonce] = int(group)
            else:
                watched.pop(nonce, None)
    if watched:
        left = kill_until_gone(lambda: members({g for g in watched.values() if g}, watched))
        if left:
            print(f"guardian: could not kill {', '.join(map(str, left))}", file=sys.stderr)


@contextlib.contextmanager
def owned(work: Path, nonce: str) -> Iterator[None]:
    """Mark `work` (created if missing) as half-finished by this live harness until the block ends, however it ends."""
    work.mkdir(parents=True, exist_ok=True)
    path = work / f"owner-{nonce}.json"
    # Locked under another name first, so that no sweep ever sees an owner file that its live owner has not locked yet.
    hidden = path.with_suffix(".tmp")
    with hidden.open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        json.dump({"nonce": nonce, "pid": os.getpid()}, file)
        file.flush()
        hidden.rename(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def sweep(run_root: Path) -> tuple[str, ...]:
    """Kill what dead harnesses left running and remove the folders they left half-finished, anywhere under `run_root`.

    Returns one line for each thing done. A folder whose harness lives, on this host or another that shares the file system, is left alone;
    so is one whose lock can't be tried. `run_root` itself is never removed.
    """
    done: list[str] = []
    for path in sorted(run_root.rglob(_OWNER)) if run_root.is_dir() else []:
        with contextlib.ExitStack() as held:
            try:
                file = held.enter_context(path.open("r+", encoding="utf-8"))
            except FileNotFoundError:
                continue  # another harness swept it, or its owner just finished
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue  # locked: its owner lives (or the file system knows no locks, where we can't tell)
            done += _clean(path, file.read(), run_root)
    return tuple(done)


def _clean(path: Path, text: str, run_root: Path) -> list[str]:
    nonce = path.stem.removeprefix("owner-")
    try:
        if json.loads(text)["nonce"] != nonce:
            raise ValueError("the nonce is not the one in the file's name")
    except (ValueError, KeyError, TypeError) as fault:
        return [f"{path.name}: left alone, not written by the harness ({fault})"]
    removable = path.parent != run_root and not path.parent.is_symlink()
    # A cell's folder is owned by the cell and by the command that ran in it; both must be over before the folder goes.
    nonces = {nonce, *(p.stem.removeprefix("owner-") for p in path.parent.rglob(_OWNER) if removable)}
    victims = members((), nonces)
    left: list[Process] = kill_until_gone(lambda: members((), nonces))
    done = [f"killed {victim}, left by a harness that died" for victim in victims if victim.pid not in {p.pid for p in left}]
    done += [f"could not kill {victim}, left by a harness that died" for victim in left]
    if not removable:
        path.unlink(missing_ok=True)
        return done
    try:
        shutil.rmtree(path.parent)
    except OSError as fault:
        return [*done, f"could not remove {path.parent.relative_to(run_root)}, left half-finished by a harness that died: {fault}"]
    return [*done, f"removed {path.parent.relative_to(run_root)}, left half-finished by a harness that died"]
