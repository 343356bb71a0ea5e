"""Where the processes of a hung run stand, taken before the kill: by py-spy or pystack if installed, else what /proc says."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from harness.processes import Process

_PER_PROCESS_S = 10
_KEPT_CHARACTERS = 16_000


def stacks_of(processes: Iterable[Process]) -> str:
    """One section per process, in pid order, cut to a bounded length. Takes at most ten seconds a process."""
    sections = [f"== {process}\n{_stack(process.pid)}" for process in sorted(processes, key=lambda p: p.pid)]
    return "\n".join(sections)[:_KEPT_CHARACTERS]


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
