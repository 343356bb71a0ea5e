"""The warm launcher: ms-swift is imported once, and each run is forked from the process that did. For a cpu and the simulated NPU only.

What an import decides by the environment or by a flag stays decided, so there is one warm process for each environment (less the
variables of PER_RUN) and each setting of IMPORT_FLAGS. harness/warmed says what happens inside it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import HostError
from harness.guardian import GUARDIAN
from harness.launch import Attendant, launch, resolve_program
from harness.model import Hardware, Run, Step
from harness.processes import NONCE_VARIABLE, kill_until_gone, members
from harness.supervised import Start, Supervised, hear, started
from harness.swift_parsers import swift_interpreter
from harness.warm_modules import EXTRAS, MODULES

WARMED = Path(__file__).parent / "warmed"
# Read when a run works, not when a module is imported; every other variable makes another warm process.
PER_RUN = frozenset({
    "MASTER_ADDR", "MASTER_PORT", "NPROC_PER_NODE", "SWIFT_CONFIG_FILE",
    "NPU_MATRIX_NONCE", "NPU_MATRIX_WITNESS_DIR", "NPU_MATRIX_CONTROL", "NPU_MATRIX_OPERATORS",
})  # fmt: skip
# Flags that ms-swift looks for in sys.argv while it is imported.
IMPORT_FLAGS = ("--enable_npu_model_patch", "--enable-npu-model-patch")
# Programs that are Python scripts which end in another Python: what a fork can be.
PROGRAMS = ("swift", "accelerate")
# Characters kept for a nonce in the environment block of a warm process (a uuid in hexadecimal has 32).
NONCE_WIDTH = 96
START_S = 300.0
_END_S = 10.0
_PID_S = 30.0


@dataclass(frozen=True)
class Key:
    """What one warm process has decided for all its runs."""

    interpreter: str
    environment: tuple[tuple[str, str], ...]
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()[:12]


def key_of(interpreter: str, environment: Mapping[str, str], args: tuple[str, ...], hardware: Hardware) -> Key:
    """The warm process that a command belongs to."""
    kept = tuple(sorted((k, v) for k, v in environment.items() if k not in PER_RUN))
    # Without an NPU, simulated or not, no patch is ever looked for.
    return Key(interpreter, kept, () if hardware is Hardware.CPU else import_arguments(args))


def import_arguments(args: tuple[str, ...]) -> tuple[str, ...]:
    """The words of `args` that ms-swift reads at import."""
    found: list[str] = []
    for at, word in enumerate(args):
        if word in IMPORT_FLAGS:
            found += args[at : at + 2]
        elif word.startswith(tuple(f"{flag}=" for flag in IMPORT_FLAGS)):
            found.append(word)
    return tuple(found)


class WarmRefused(HostError):
    """Nothing may be forked here: what was asked for has to be run by `--launcher cli`."""


class WarmProcess:
    """One process with ms-swift imported. Thread-safe. Raises HostError where it can't be started; `alive` says when it is gone."""

    def __init__(self, key: Key, folder: Path, modules: tuple[str, ...], extras: tuple[str, ...]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.key, self.log_path = key, folder / f"warm-{key.name}-{uuid.uuid4().hex[:8]}.log"
        self._nonce = f"warm-{uuid.uuid4().hex}".ljust(NONCE_WIDTH, ".")
        self.runs: set[int] = set()
        self._lock = threading.Lock()
        began = time.monotonic()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = {"control": theirs.fileno(), "modules": modules, "extras": extras, "arguments": key.arguments}
        GUARDIAN.watch(self._nonce)
        try:
            with theirs, self.log_path.open("wb") as log:
                self._process = subprocess.Popen(
                    [key.interpreter, str(WARMED), json.dumps(settings)],
                    env={**dict(key.environment), NONCE_VARIABLE: self._nonce},
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            GUARDIAN.watch(self._nonce, self._process.pid)
            self.facts = self._ready()
        except BaseException:
            self.close()
            raise
        self.start_s = time.monotonic() - began

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def _ready(self) -> dict[str, object]:
        said = hear(self._control, START_S)
        if said is None:
            raise HostError(
                "warm launcher", f"{self.key.interpreter} had not imported ms-swift after {START_S:g} s.", "Use --launcher cli."
            )
        if not said:
            self._process.wait(_END_S)
            tail = self.log_path.read_text(encoding="utf-8", errors="replace")[-4000:]
            raise HostError("warm launcher", f"ms-swift can't be imported by {self.key.interpreter}:\n{tail}\n", "Mend that first.")
        facts: dict[str, object] = json.loads(said)
        if "refused" in facts:
            raise WarmRefused("--launcher warm", f"{facts['refused']}.", "Use --launcher cli.")
        if facts["threads"]:
            what = f"an import started threads that a fork would lose: {facts['threads']}."
            raise WarmRefused("--launcher warm", what, "Use --launcher cli.")
        return facts

    def spawn(self, start: Start) -> Supervised:
        """Fork a run. Raises OSError where there is none: the warm process is gone, or the fork failed before its program began."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        asked = {"program": str(start.program), "arguments": start.args, "environment": dict(start.env), "folder": str(start.cwd)}
        try:
            # A file, not a message: an environment may be larger than a socket takes at once.
            with theirs, tempfile.TemporaryFile() as request:
                request.write(json.dumps(asked).encode())
                request.seek(0)
                with self._lock:
                    socket.send_fds(self._control, [b"fork"], [request.fileno(), start.stdin, start.log, theirs.fileno()])
            child = started(ours, f"warm process (pid {self.pid})", _PID_S)
        except BaseException:
            ours.close()
            raise
        self.runs.add(child.pid)
        return child

    def close(self) -> None:
        """End it, its runs with it, and wait for that."""
        self._control.close()
        process: subprocess.Popen[bytes] | None = getattr(self, "_process", None)
        if process is not None:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                kill_until_gone(lambda: members((process.pid,), (self._nonce,)))
                process.wait(_END_S)
        GUARDIAN.release(self._nonce)


class WarmLauncher:
    """In the place of `harness.launch.launch`. Thread-safe; `close` it, or let the end of the harness do so.

    `folder` takes the logs of the warm processes. At most `at_most` of them live (about 0.9 GiB each); beyond that idle ones are ended,
    the oldest first. Six: the plain cpu, simulated NPUs for one, two and four ranks, and a pair of them without ms-swift's patches.
    """

    def __init__(
        self, folder: Path, *, modules: tuple[str, ...] = MODULES, extras: tuple[str, ...] = EXTRAS, at_most: int = 6, grace_s: float = 10.0
    ) -> None:
        self.folder, self.modules, self.extras = folder.absolute(), modules, extras
        self.at_most, self.grace_s = at_most, grace_s
        self.parent_start_s: dict[str, float] = {}
        self._lock = threading.Lock()
        self._starting: dict[Key, threading.Lock] = {}
        self._processes: dict[Key, WarmProcess] = {}

    def __call__(
        self,
        step: Step,
        *,
        nonce: str,
        work: Path,
        search_path: str,
        base_env: Mapping[str, str],
        attend: Attendant | None = None,
        stop: threading.Event | None = None,
        witness_dir: Path | None = None,
        hardware: Hardware = Hardware.CPU,
    ) -> Run:
        """As `launch`, but forked. Raises HostError for NPU hardware, for a real torch_npu, and for a program that can't be forked."""
        if hardware.is_npu:
            raise WarmRefused(
                "--launcher warm", f"{hardware} is real hardware, whose contexts do not survive a fork.", "Use --launcher cli."
            )
        if step.command.program not in PROGRAMS:
            what = f"it forks {' and '.join(PROGRAMS)}, not {step.command.program!r}."
            raise WarmRefused("--launcher warm", what, "Use --launcher cli.")
        interpreter = self._interpreter(step.command.program, search_path)
        refused: list[WarmRefused] = []
        forked: list[Supervised] = []

        def spawn(start: Start) -> Supervised:
            key = key_of(shutil.which(interpreter, path=start.env["PATH"]) or interpreter, start.env, start.args, hardware)
            try:
                child = self._fork(key, start)
            except HostError as fault:
                if isinstance(fault, WarmRefused):
                    refused.append(fault)
                raise OSError(str(fault)) from fault
            forked.append(child)
            return child

        try:
            run = launch(
                step,
                nonce=nonce,
                work=work,
                search_path=search_path,
                base_env=base_env,
                attend=attend,
                stop=stop,
                witness_dir=witness_dir,
                hardware=hardware,
                grace_s=self.grace_s,
                spawn=spawn,
            )
        finally:
            for child in forked:
                self._rest(child)
        if refused:
            raise refused[0]
        if forked and forked[0].lost:
            return replace(run, notes=(*run.notes, f"the warm process that it was forked from died; look into {self.folder}"))
        return run

    def processes(self) -> tuple[WarmProcess, ...]:
        with self._lock:
            return tuple(self._processes.values())

    def close(self) -> None:
        with self._lock:
            processes, self._processes = tuple(self._processes.values()), {}
        for process in processes:
            process.close()

    def _interpreter(self, program: str, search_path: str) -> str:
        """The one in the script's first lines. A program that is not there is left to `launch`, which says so."""
        found = resolve_program(program, search_path)
        named = swift_interpreter(str(found)) if found else program
        if named is None:
            raise WarmRefused("--launcher warm", f"{found} is no Python script: nothing can be forked for it.", "Use --launcher cli.")
        return named

    def _fork(self, key: Key, start: Start) -> Supervised:
        with self._lock:
            turn = self._starting.setdefault(key, threading.Lock())
        with turn:  # one thread starts it, the others wait
            process = self._spare(key)
            try:
                return process.spawn(start)
            except ConnectionError:
                # It died between two runs, and this one has not begun: a new one may take it.
                process.close()
                return self._spare(key).spawn(start)

    def _spare(self, key: Key) -> WarmProcess:
        """The live warm process of `key`, started if need be."""
        with self._lock:
            known = self._processes.get(key)
        if known is not None and known.alive:
            return known
        if known is not None:
            known.close()
        self._make_room()
        started = WarmProcess(key, self.folder, self.modules, self.extras)
        with self._lock:
            self.parent_start_s[started.log_path.stem] = round(started.start_s, 3)
            self._processes[key] = started
        return started

    def _make_room(self) -> None:
        """End idle processes, the oldest first, until a new one is within the limit. Busy ones stay: a limit is no reason to fail a run."""
        with self._lock:
            idle = [process for process in self._processes.values() if not process.runs]
            surplus = idle[: max(0, len(self._processes) + 1 - self.at_most)]
            for process in surplus:
                del self._processes[process.key]
        for process in surplus:
            process.close()

    def _rest(self, child: Supervised) -> None:
        for process in self.processes():
            process.runs.discard(child.pid)
