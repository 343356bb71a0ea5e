"""Start one command, watch it, end it, and say what it did. Nothing it started outlives it; of its log an excerpt is held in memory."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

from harness.diagnose import CHATTY, DEAF, SILENT, signal_name
from harness.guardian import GUARDIAN, owned
from harness.logs import read_log
from harness.model import Hardware, Run, Step
from harness.processes import NONCE_VARIABLE, Band, kill_until_gone, look, members
from harness.stacks import plog_folder, plog_tails, stacks_of
from harness.supervised import Spawn, Start, Supervised, start_process

WITNESS_VARIABLE = "NPU_MATRIX_WITNESS_DIR"
# What an earlier launcher or pytest left in the environment and ms-swift, torch or the witness would take for theirs.
_NOT_INHERITED = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "NNODES", "NPROC_PER_NODE", "MASTER_ADDR",
    "MASTER_PORT", "ASCEND_RT_VISIBLE_DEVICES", "SWIFT_CONFIG_FILE", "PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS",
)  # fmt: skip
_POLL_S, _SAMPLE_S = 0.1, 0.3
_SETTLE_S = 2.0
_ATTENDANT_S = 60


class LaunchInterrupted(KeyboardInterrupt):
    """Ctrl-C while a command ran. Everything was ended first; `run` says what it had done. Record it, then let this go on up."""

    def __init__(self, run: Run) -> None:
        self.run = run
        super().__init__(f"interrupted during step {run.step!r}")


@dataclass(frozen=True)
class Alive:
    """A command that runs, as its attendant sees it."""

    pid: int
    nonce: str
    log_path: Path
    is_alive: Callable[[], bool]

    def pids(self) -> frozenset[int]:
        """Every live process of the run: its group, and whoever carries its nonce."""
        return frozenset(p.pid for p in members((self.pid,), (self.nonce,)))


Attendant = Callable[[Alive], None]


def resolve_program(name: str, search_path: str) -> Path | None:
    """The executable that `name` means on `search_path` (directories joined by os.pathsep), absolute; None if there is none."""
    found = shutil.which(name, path=search_path)
    return Path(found).absolute() if found else None


def launch(
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
    threads: int = 1,
    grace_s: float = 10.0,
    log_limit_mib: int = 512,
    spawn: Spawn = start_process,
    inherit: tuple[int, ...] = (),
) -> Run:
    """Run `step.command` in folder `work` until it ends, its deadline passes, or `attend` (for a server) has returned.

    `attend` runs in a thread of its own; when it returns, the command is asked to end (SIGTERM to its group, SIGKILL `grace_s` seconds
    later). What it raises is raised here, after the command was ended. Setting `stop` ends the run with `ended_by="interrupt"` and returns;
    KeyboardInterrupt does the same but raises LaunchInterrupted, which carries the Run. `Run.env` is only what was added to `base_env`.
    A log beyond `log_limit_mib` is a chatty hang: it would fill the disk long before the deadline. The witness folder, by default
    `work/witness`, is created. A program that is not there, or can't be executed, is a Run with `ended_by="not started"`.
    `spawn` makes the process; the time that it takes to return counts neither as duration nor against the deadline.
    `inherit`: descriptors that the run keeps open as long as anything of it lives, so that locks outlive a killed harness.
    """
    witness_dir = (witness_dir or work / "witness").absolute()
    witness_dir.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    added = _added_environment(step, nonce, witness_dir, hardware, threads, base_env)
    flight = _Flight(step, nonce, work.absolute(), added, grace_s, log_limit_mib, spawn, inherit)
    if hardware.is_npu:
        flight.plogs = plog_folder({**base_env, **added})
    inherited = {name: value for name, value in base_env.items() if not _is_foreign(name, hardware)}
    with owned(work, nonce):
        return flight.fly(search_path, inherited, attend, stop)


def _added_environment(
    step: Step, nonce: str, witness_dir: Path, hardware: Hardware, threads: int, base_env: Mapping[str, str]
) -> dict[str, str]:
    added = {"OMP_NUM_THREADS": base_env.get("OMP_NUM_THREADS", str(threads)), "PYTHONUNBUFFERED": "1"}
    if hardware is Hardware.CPU:
        # An installed torch_npu would otherwise be loaded, and fail, at every `import torch`.
        added["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    return {**added, **step.command.env, NONCE_VARIABLE: nonce, WITNESS_VARIABLE: str(witness_dir)}


def _is_foreign(variable: str, hardware: Hardware) -> bool:
    """What describes a simulated NPU belongs to the runs on one, and to no other."""
    if variable.startswith("NPU_MATRIX_SIM") or variable == "NPU_MATRIX_CACHE":
        return hardware is not Hardware.SIM
    return variable in _NOT_INHERITED or variable.startswith("NPU_MATRIX_")


class _Flight:
    """The mutable state of one launch."""

    def __init__(
        self,
        step: Step,
        nonce: str,
        work: Path,
        added: dict[str, str],
        grace_s: float,
        log_limit_mib: int,
        spawn: Spawn,
        inherit: tuple[int, ...],
    ) -> None:
        self.step, self.nonce, self.work, self.added, self.spawn, self.inherit = step, nonce, work, added, spawn, inherit
        self.grace_s, self.log_limit_bytes = grace_s, log_limit_mib * 2**20
        self.log_path = work / f"{step.name}.log"
        self.notes: list[str] = []
        self.leftovers: list[str] = []
        self.stacks = ""
        self.plogs: Path | None = None
        self.peak_mib = 0.0
        self.started_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.began = time.monotonic()
        self.ended = self.began
        self.over = threading.Event()
        self.child: Supervised | None = None
        self.attendant: threading.Thread | None = None
        self.attendant_fault: BaseException | None = None

    def fly(self, search_path: str, base_env: Mapping[str, str], attend: Attendant | None, stop: threading.Event | None) -> Run:
        self.log_path.touch()
        program = resolve_program(self.step.command.program, search_path)
        if program is None:
            return self._not_started(f"program {self.step.command.program!r} is not on the search path: install it, or mend PATH")
        # Looked up on search_path alone; behind it the host's own folders, for the interpreters that scripts name.
        path = os.pathsep.join(dict.fromkeys([*search_path.split(os.pathsep), *base_env.get("PATH", "").split(os.pathsep)]))
        env = {**base_env, "PATH": path, **self.added}
        GUARDIAN.watch(self.nonce)
        try:
            try:
                child = self._spawn(program, env)
            except (OSError, ValueError) as fault:
                return self._not_started(f"{program} can't be started: {fault}")
            self.child = child
            GUARDIAN.watch(self.nonce, child.pid)
            return self._see_through(child, Band(child.pid, self.nonce, child.supervisor), attend, stop)
        except LaunchInterrupted:
            raise
        except BaseException as fault:
            kill_until_gone(lambda: members((), (self.nonce,)))
            if isinstance(fault, KeyboardInterrupt):
                raise LaunchInterrupted(self._run("interrupt", None)) from None
            raise
        finally:
            self.over.set()
            if self.child is not None:
                self.child.close()
            GUARDIAN.release(self.nonce)

    def _spawn(self, program: Path, env: Mapping[str, str]) -> Supervised:
        command = self.step.command
        reads, writes = (os.open(os.devnull, os.O_RDONLY), -1) if command.stdin is None else os.pipe()
        try:
            with self.log_path.open("wb") as log:
                child = self.spawn(Start(program, command.args, env, self.work, reads, log.fileno(), self.inherit))
        except BaseException:
            if writes != -1:
                os.close(writes)
            raise
        finally:
            os.close(reads)
        self.started_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.began = time.monotonic()
        if command.stdin is not None:
            threading.Thread(target=_feed, args=(os.fdopen(writes, "wb"), command.stdin.encode()), daemon=True).start()
        return child

    def _see_through(self, child: Supervised, band: Band, attend: Attendant | None, stop: threading.Event | None) -> Run:
        try:
            if attend is not None:
                self._start_attendant(child, attend)
            ended_by = self._watch(child, band, stop)
            self.over.set()
            if ended_by == "deadline":
                self.stacks = stacks_of(band.alive())
                if self.plogs is not None:
                    self.stacks += plog_tails(self.plogs, time.monotonic() - self.began + 1)
            if ended_by != "exit":
                self._end(child, band)
        except KeyboardInterrupt:
            self.over.set()
            self._end(child, band)
            raise LaunchInterrupted(self._report(child, band, "interrupt")) from None
        except BaseException:
            band.kill()
            raise
        run = self._report(child, band, ended_by)
        if self.attendant_fault is not None:
            raise self.attendant_fault
        return run

    def _start_attendant(self, child: Supervised, attend: Attendant) -> None:
        alive = Alive(child.pid, self.nonce, self.log_path, lambda: not self.over.is_set() and look(child.pid) is not None)

        def work() -> None:
            try:
                attend(alive)
            except BaseException as fault:  # handed to the launching thread, which raises it
                self.attendant_fault = fault

        self.attendant = threading.Thread(target=work, name=f"attend {self.step.name}", daemon=True)
        self.attendant.start()

    def _watch(self, child: Supervised, band: Band, stop: threading.Event | None) -> str:
        """Wait for the first thing that ends the run, and name it."""
        deadline, size, grew, sampled = self.began + self.step.deadline_s, 0, self.began, 0.0
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_POLL_S)
                # An end after the stop may be the stop's doing (a hurried one kills at once), so it proves nothing about the program.
                return "interrupt" if stop is not None and stop.is_set() else "exit"
            now, size_now = time.monotonic(), self.log_path.stat().st_size
            if now - sampled > _SAMPLE_S or now - self.began < _SAMPLE_S:
                band.sample()
                sampled = now
            if size_now != size:
                size, grew = size_now, now
            if self.attendant is not None and not self.attendant.is_alive():
                return "request"
            if stop is not None and stop.is_set():
                return "interrupt"
            if size > self.log_limit_bytes:
                self.notes.append(f"{CHATTY}: its log passed {self.log_limit_bytes >> 20} MiB after {now - self.began:.0f} s")
                return "deadline"
            if now > deadline:
                self.notes.append(self._manner_of_hanging(now - grew, size))
                return "deadline"

    def _manner_of_hanging(self, quiet_s: float, size: int) -> str:
        limit = f"deadline of {self.step.deadline_s:g} s"
        if not size:
            return f"{SILENT}: nothing printed before the {limit}"
        # A tqdm bar or a poll loop prints every few seconds, so a quarter of the deadline, or a minute, without a byte is silence.
        if quiet_s >= min(60.0, self.step.deadline_s / 4):
            return f"{SILENT}: nothing printed in the last {quiet_s:.1f} s before the {limit}"
        return f"{CHATTY}: still printing at the {limit}"

    def _end(self, child: Supervised, band: Band) -> None:
        """SIGTERM to the group; wait; SIGKILL. A second Ctrl-C during the wait goes straight to the kill."""
        began = time.monotonic()
        band.ask_to_end()
        try:
            while child.poll() is None or band.in_group():
                if time.monotonic() - began > self.grace_s:
                    break
                time.sleep(0.05)
        except KeyboardInterrupt:
            self.notes.append("a second interrupt cut the grace short")
        if deaf := band.in_group():
            self.notes.append(f"{DEAF}: {', '.join(map(str, deaf))} lived {time.monotonic() - began:.1f} s after SIGTERM to the group")
            kill_until_gone(band.in_group)
        else:
            self.notes.append(f"ended {time.monotonic() - began:.1f} s after SIGTERM, with status {child.poll()}")

    def _report(self, child: Supervised, band: Band, ended_by: str) -> Run:
        self.ended = time.monotonic()
        # multiprocessing's resource tracker and the like end by themselves a moment after their parent: no leftovers.
        while (left := band.alive()) and time.monotonic() - self.ended < _SETTLE_S:
            time.sleep(0.05)
        self.leftovers = [str(p) + ("" if p.group == child.pid else ", left its process group") for p in left]
        if left:
            self.notes += [f"{process} could not be killed" for process in band.kill()]
        if self.attendant is not None:
            self.attendant.join(_ATTENDANT_S)
            if self.attendant.is_alive():
                self.notes.append(f"what talks to the server had not returned {_ATTENDANT_S} s after its end")
        status, self.peak_mib = child.wait(10), band.peak_mib
        if ended_by == "exit" and status < 0:
            ended_by = "signal"
            self.notes.append("the process that watched over it died" if child.lost else f"killed by {signal_name(-status)}")
        return self._run(ended_by, status if ended_by in ("exit", "signal") else None)

    def _not_started(self, because: str) -> Run:
        self.log_path.write_text(because + "\n", encoding="utf-8")
        self.notes.append(because)
        return self._run("not started", None)

    def _run(self, ended_by: str, exit_code: int | None) -> Run:
        log = read_log(self.log_path)
        if ended_by == "exit" and exit_code == 0 and log.error:
            # No cause: ms-swift logs errors that it then gets over, and other proofs tell whether it did.
            self.notes.append(f"exit code 0, but its log says: {log.error}")
        return Run(
            step=self.step.name,
            nonce=self.nonce,
            argv=self.step.command.argv,
            env=self.added,
            started_at=self.started_at,
            duration_s=round(self.ended - self.began, 3),
            exit_code=exit_code,
            ended_by=ended_by,
            log_path=str(self.log_path),
            log_tail=log.text,
            peak_rss_mib=round(self.peak_mib, 1) or None,
            leftovers=tuple(self.leftovers),
            stacks=self.stacks,
            notes=tuple(self.notes),
        )


def _feed(pipe: IO[bytes], text: bytes) -> None:
    # A program that ends without reading its input is judged by what it did, not by this.
    with contextlib.suppress(BrokenPipeError), pipe:
        pipe.write(text)
