"""Where the processes of a hung run stand, taken before the kill: by py-spy or pystack if installed, else what /proc says; CANN's plogs."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.diagnose import PLOG
from harness.processes import Process

_PER_PROCESS_S = 10
_KEPT_CHARACTERS = 16_000
_PLOGS, _PLOG_BYTES, _PLOG_LINES = 16, 64 * 1024, 12


def stacks_of(processes: Iterable[Process]) -> str:
    """One section per process, in pid order, cut to a bounded length. Takes at most ten seconds a process."""
    sections = [f"== {process}\n{_stack(process.pid)}" for process in sorted(processes, key=lambda p: p.pid)]
    return "\n".join(sections)[:_KEPT_CHARACTERS]


def plog_folder(env: Mapping[str, str]) -> Path:
    """Where CANN writes the logs of processes that run with `env`: ASCEND_PROCESS_LOG_PATH, else ~/ascend/log."""
    named = env.get("ASCEND_PROCESS_LOG_PATH")
    return Path(named) if named else Path(env.get("HOME") or Path.home()) / "ascend" / "log"


def plog_tails(folder: Path, within_s: float) -> str:
    """The last lines of the plogs that were written to in the last `within_s` seconds, newest first, those at level ERROR if there are any.

    Each is headed by diagnose.PLOG and the file's name; bounded, and "" where there is none. By time, since a rank that died left no pid.
    """
    oldest = time.time() - within_s
    found = [(changed, path) for path in folder.glob("**/plog/*.log") if (changed := _changed(path)) >= oldest]
    sections = [f"\n{PLOG}{path.name}\n{_plog_tail(path)}" for _, path in sorted(found, reverse=True)[:_PLOGS]]
    return "".join(sections)[:_KEPT_CHARACTERS]


def _plog_tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _PLOG_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError as fault:
        return f"can't be read: {fault.strerror}"
    errors = [line for line in lines if line.startswith("[ERROR]")]
    # The first errors of what is left tell more than the last, which follow from them.
    return "\n".join(line[:600] for line in (errors[:_PLOG_LINES] or lines[-_PLOG_LINES:]))


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0  # rotated away meanwhile


def _stack(pid: int) -> str:
    said = []
    for tool, arguments in (("py-spy", ["dump", "--pid", str(pid)]), ("pystack", ["remote", str(pid)])):
        program = shutil.which(tool)
        if program is None:
            continue
        try:
            done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=_PER_PROCESS_S, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            said.append(f"{tool} gave no answer within {_PER_PROCESS_S} s")
            continue
        if done.returncode == 0:
            return done.stdout
        said.append(f"{tool}: {(done.stderr or done.stdout).strip()[:300]}")
    return "\n".join([*said, *_threads(pid)])


def _threads(pid: int) -> list[str]:
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*"), key=lambda p: int(p.name)):
        facts = {line.partition(":")[0]: line.partition(":")[2].strip() for line in _text(task / "status").splitlines()}
        where = _text(task / "wchan") or "?"
        lines.append(f"thread {task.name} {facts.get('Name', '?')}: state {facts.get('State', '?')}, waits in {where}")
        lines += [f"    {frame}" for frame in _text(task / "stack").splitlines()]
    return lines or ["gone before it could be looked at"]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""  # the thread ended, or the kernel shows this file to root only
