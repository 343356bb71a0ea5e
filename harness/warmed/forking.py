"""Instead of starting another Python, fork. Put under subprocess in processes that only start others: `swift`, `accelerate`, torchrun."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from . import becoming
from .becoming import Imported

# Those that start the ranks, and do nothing else with a Python of their own.
STARTERS = ("torch.distributed.run",)
_ORIGINAL: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_PARAMETERS = inspect.signature(_ORIGINAL)
# What a caller may ask of a new process that a fork does not do here; such a call goes the ordinary way.
_UNDONE = {"preexec_fn": None, "shell": False, "gid": None, "gids": None, "uid": None, "umask": -1, "process_group": -1, "executable": None}


@dataclass(frozen=True)
class Python:
    """`python [-u] FILE ARGUMENTS` or `python [-u] -m MODULE ARGUMENTS`, taken apart."""

    script: str
    arguments: tuple[str, ...]
    module: str | None
    unbuffered: bool


def read_command(command: object) -> Python | None:
    """None for what is no script or module run by this very interpreter with no other switch than -u."""
    if isinstance(command, (str, bytes)) or not isinstance(command, Sequence):
        return None
    words = [os.fsdecode(word) for word in command]
    if len(words) < 2 or words[0] != sys.executable:
        return None
    unbuffered = words[1] == "-u"
    rest = words[2:] if unbuffered else words[1:]
    if len(rest) >= 2 and rest[0] == "-m":
        return Python(becoming.script_of(rest[1]), tuple(rest[2:]), rest[1], unbuffered)
    if rest and not rest[0].startswith("-"):
        return Python(os.path.abspath(rest[0]), tuple(rest[1:]), None, unbuffered)
    return None


def install(imported: Imported) -> None:
    """From now on this process forks where it would have started this interpreter."""

    def execute_child(self: Any, args: Any, *rest: Any) -> None:
        call = _PARAMETERS.bind(self, args, *rest).arguments
        python = read_command(args)
        if python is None or any(name in call and call[name] != usual for name, usual in _UNDONE.items()):
            _ORIGINAL(self, args, *rest)
            return
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # torchrun has threads of its own (its store); the fork uses nothing of theirs.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _be(python, call, imported)
        self.pid, self._child_created = pid, True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(call[end] for end in ends))

    subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]


def remove() -> None:
    subprocess.Popen._execute_child = _ORIGINAL  # type: ignore[attr-defined]


def _be(python: Python, call: dict[str, Any], imported: Imported) -> NoReturn:
    """In the fork: the standard streams, session, folder and environment that Popen was asked for, then the script."""

    def program() -> None:
        for end, fd in (("p2cread", 0), ("c2pwrite", 1), ("errwrite", 2)):
            if call[end] not in (-1, fd):
                os.dup2(call[end], fd)
        if call["start_new_session"]:
            os.setsid()
        becoming.close_all_but({*imported.files, *call["pass_fds"]})
        if call["cwd"] is not None:
            os.chdir(call["cwd"])
        if call["env"] is not None:
            becoming.take_environment({os.fsdecode(k): os.fsdecode(v) for k, v in call["env"].items()})
        becoming.detach()
        starter = python.module in STARTERS
        if not starter:
            remove()
            becoming.be_ranked()
            # The harness reads logs: the lines that importing ms-swift printed belong into each.
            os.write(1, imported.said)
        if python.unbuffered:
            sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
        lead = os.getcwd() if python.module else os.path.dirname(os.path.realpath(python.script))
        becoming.run_script(python.script, python.arguments, lead, imported.path)

    becoming.end_with(program)
