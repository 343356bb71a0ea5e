"""What this host is: its NPUs, or the traces of some, the hardware that cells run on, and facts about it for evidence.

Under a rehearsal ROOT, /dev, /usr/local/Ascend and the programs are ROOT's; nothing of the real host counts as an NPU then.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import HostError
from harness.launch import resolve_program
from harness.model import Hardware
from harness.npu_smi import parse
from harness.npu_smi_series import series_of
from harness.npu_smi_view import Npu
from harness.sim.build import can_build

_BINARIES = ("usr/local/sbin", "usr/local/bin", "usr/bin", "bin")
SITE_PACKAGES = ("usr/lib/python3*/*-packages", "usr/local/lib/python3*/*-packages", "opt/*/lib/python3*/site-packages")
# As many as a host has; a cell sees those that its plan names.
SIMULATED_IDS = tuple(range(8))
_NPU_SMI_S, _PROBE_S = 60, 300
# A listing of 16 chips takes some 10 kB; a program that goes on printing would otherwise fill the memory before its time is up.
MOST_BYTES = 2**20
_LATE = "late"
# Fails unless a kernel ran on the device: the sum comes back from it.
PROBE = "import torch, torch_npu; t = torch.ones(3, device='npu:0'); assert t.sum().item() == 3.0 and '+sim' not in torch_npu.__version__"


@dataclass(frozen=True)
class Usable:
    """NPUs that can be used: `ids` as ASCEND_RT_VISIBLE_DEVICES counts them. None: `because` says what failed."""

    ids: tuple[int, ...]
    series: Hardware | None
    because: str
    chips: tuple[Npu, ...] = ()


@dataclass(frozen=True)
class Choice:
    """The hardware that cells run on. `last_line` is what a run must end with where nothing was proved about NPUs."""

    hardware: Hardware
    npu_ids: tuple[int, ...]
    last_line: str
    because: str


def programs_path(root: Path | None) -> str:
    """Where programs are looked up: PATH, or under a rehearsal only ROOT's own folders for programs."""
    if root is None:
        return os.environ.get("PATH", os.defpath)
    return os.pathsep.join(str(root / folder) for folder in _BINARIES)


def npu_traces(root: Path | None = None) -> tuple[str, ...]:
    """Everything that says that this host has, or should have, NPUs: devices, npu-smi, CANN, a real torch_npu. Looks only; runs nothing."""
    at = root or Path("/")
    found = sorted(str(path) for path in (at / "dev").glob("davinci*"))
    places = [str(at / folder) for folder in _BINARIES]
    npu_smi = resolve_program("npu-smi", os.pathsep.join([programs_path(root), *places]))
    found += [str(npu_smi)] if npu_smi else []
    ascend = at / "usr/local/Ascend"
    found += [str(ascend)] if ascend.exists() else []
    version = _torch_npu_version(root)
    return (*found, f"torch_npu {version}") if version and "+sim" not in version else tuple(found)


def _torch_npu_version(root: Path | None) -> str | None:
    """Read from the installed metadata: importing a real torch_npu fails, or worse, where CANN is not there."""
    if root is None:
        try:
            return importlib.metadata.version("torch_npu")
        except importlib.metadata.PackageNotFoundError:
            return None
    infos = (info for places in SITE_PACKAGES for info in root.glob(f"{places}/torch_npu-*.dist-info"))
    return next((info.name.removeprefix("torch_npu-").removesuffix(".dist-info") for info in infos), None)


def npu_usable(root: Path | None = None, *, probe: Sequence[str] | None = None, environment: Mapping[str, str] | None = None) -> Usable:
    """Whether NPUs are usable: npu-smi lists a healthy chip, and a child process made a tensor on npu:0.

    `probe` is the child's command; by default this interpreter runs PROBE. Under a rehearsal ROOT's own `python` does, and where ROOT has
    none `because` says that no tensor was made. Takes seconds on a real NPU. ASCEND_RT_VISIBLE_DEVICES in `environment` (default:
    os.environ), if set, limits the ids.
    """
    environment = os.environ if environment is None else environment
    npu_smi = resolve_program("npu-smi", programs_path(root)) or resolve_program("npu-smi", programs_path(root or Path("/")))
    if npu_smi is None:
        return Usable((), None, "there is no npu-smi to list chips")
    text, fault = output_of([str(npu_smi), "info"], environment, root, _NPU_SMI_S)
    listing = parse(text)
    chips = listing.devices
    if fault or not chips:
        said = fault or listing.error or f"no chip in {text.strip()[:200]!r}"
        return Usable((), None, f"npu-smi info lists nothing: {said}")
    series = series_of(chips)
    healthy = tuple(index for index, chip in enumerate(chips) if chip.healthy)
    if not healthy:
        states = ", ".join(f"NPU {chip.npu_id} {chip.health}" for chip in chips)
        return Usable((), series, f"no chip is healthy: {states}", chips)
    ids = _visible(healthy, environment.get("ASCEND_RT_VISIBLE_DEVICES", ""))
    if not ids:
        return Usable((), series, "ASCEND_RT_VISIBLE_DEVICES names no healthy chip", chips)
    names = _names(chips)
    listed = f"{len(ids)} healthy of {len(chips)} listed ({names})"
    command = probe or _default_probe(root)
    if command is None:
        return Usable(ids, series, f"{listed}; no tensor was made, since there is no python under the rehearsal's ROOT", chips)
    said, fault = output_of(command, {**environment, "ASCEND_RT_VISIBLE_DEVICES": str(ids[0])}, root, _PROBE_S)
    if fault:
        last = next((line for line in reversed(said.splitlines()) if line.strip()), "it said nothing")
        return Usable((), series, f"no tensor could be made on npu:0: {fault}: {last.strip()[:300]}", chips)
    return Usable(ids, series, f"{listed}, and npu:0 made a tensor", chips)


def _names(chips: Sequence[Npu]) -> str:
    return ", ".join(sorted({chip.name or "unnamed" for chip in chips}))


def _default_probe(root: Path | None) -> list[str] | None:
    if root is None:
        return [sys.executable, "-c", PROBE]
    python = resolve_program("python", programs_path(root)) or resolve_program("python3", programs_path(root))
    return [str(python), "-c", PROBE] if python else None


def _visible(healthy: Sequence[int], limit: str) -> tuple[int, ...]:
    if not limit.strip():
        return tuple(healthy)
    asked = {int(word) for word in limit.split(",") if word.strip().isdigit()}
    return tuple(i for i in healthy if i in asked)


def output_of(command: Sequence[str], environment: Mapping[str, str], root: Path | None, limit_s: float) -> tuple[str, str]:
    """(what it printed, "" or what went wrong), with the programs of `root`. If it has to be ended, its process group is."""
    path = os.pathsep.join([programs_path(root), environment.get("PATH", os.defpath)])
    try:
        child = subprocess.Popen(
            command,
            env={**environment, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as fault:
        return "", f"can't be started: {fault}"
    deadline = time.monotonic() + limit_s
    try:
        assert child.stdout is not None
        printed, fault_seen = _read(child.stdout.fileno(), deadline)
        if not fault_seen:
            code = child.wait(max(0.0, deadline - time.monotonic()))
            fault_seen = f"exit code {code}" if code else ""
    except subprocess.TimeoutExpired:
        fault_seen = _LATE
    finally:
        if child.returncode is None:  # not the child alone: a grandchild may hold the pipe, or a device, long after it
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        if child.stdout is not None:
            child.stdout.close()
    return printed.decode("utf-8", "replace"), f"no end within {limit_s:g} s" if fault_seen == _LATE else fault_seen


def _read(descriptor: int, deadline: float) -> tuple[bytes, str]:
    """(what came until the end of the stream, "" or why reading stopped before)."""
    printed = b""
    while len(printed) <= MOST_BYTES:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return printed, _LATE
        piece = os.read(descriptor, 65536)
        if not piece:
            return printed, ""
        printed += piece
    return b"", f"it printed more than {MOST_BYTES >> 20} MiB"


def choose_hardware(asked: str, *, require_npu: bool = False, root: Path | None = None, probe: Sequence[str] | None = None) -> Choice:
    """Where cells run, for `--hardware asked` (auto, cpu, sim, a2, a3, a5).

    Raises HostError: an NPU was asked for or required and none is usable, the chips are another series, a trace of NPUs without a usable
    one under `auto`, a simulated NPU that can't be built or stands beside traces of a real one.
    """
    where = f"--hardware {asked}"
    if asked in (Hardware.CPU, Hardware.SIM) and require_npu:
        raise HostError("--require-npu", f"contradicts --hardware {asked}.", "Drop one of them.")
    if asked == Hardware.CPU:
        return _on_cpu("asked for")
    traces = npu_traces(root)
    if asked == Hardware.SIM:
        return _on_sim(where, traces)
    usable = npu_usable(root, probe=probe) if traces else Usable((), None, "no trace of an NPU")
    if not usable.ids:
        return _without_npu(asked, require_npu, traces, usable, root is not None)
    if usable.series is None:
        names = _names(usable.chips)
        known = "Known: 910B1-910B4 (a2), Ascend910 of two dies (a3), Ascend950 (a5)."
        raise HostError(where, f"these chips are of no known series: {names}.", known)
    if asked not in ("auto", usable.series):
        raise HostError(where, f"this host's chips are {usable.series} ({usable.because}).", f"Use --hardware {usable.series}.")
    return Choice(usable.series, usable.ids, "", usable.because)


def _without_npu(asked: str, require_npu: bool, traces: tuple[str, ...], usable: Usable, rehearsed: bool) -> Choice:
    seen = f" Traces of an NPU: {', '.join(traces)}." if traces else ""
    if require_npu or asked != "auto":
        where = "--require-npu" if require_npu else f"--hardware {asked}"
        mend = "Source CANN's set_env.sh, see npu-smi info, or run on an NPU host."
        raise HostError(where, f"no NPU is usable: {usable.because}.{seen}", mend)
    if traces:
        what = f"there is a trace of an NPU but none is usable: {usable.because}.{seen}"
        raise HostError("--hardware auto", what, "Mend it, or say --hardware cpu to test without NPUs.")
    if rehearsed:
        return _on_cpu("no trace of an NPU under the rehearsal's ROOT")
    lacking = can_build()
    return _on_cpu(f"no trace of an NPU, and none can be simulated: {lacking}") if lacking else _on_sim("--hardware auto", traces)


def _on_cpu(because: str) -> Choice:
    return Choice(Hardware.CPU, (), "NO NPU: ran on cpu, proves nothing about NPU hardware", because)


def _on_sim(where: str, traces: tuple[str, ...]) -> Choice:
    """Raises HostError beside a real NPU, whose results a simulation could be taken for, and where it can't be built."""
    if traces:
        raise HostError(where, f"a simulated NPU is refused beside traces of a real one: {', '.join(traces)}.", "Use --hardware cpu.")
    if lacking := can_build():
        raise HostError(where, f"the simulated NPU can't be built: {lacking}.", "Install that, or use --hardware cpu.")
    return Choice(Hardware.SIM, SIMULATED_IDS, "NO NPU: ran on sim, proves nothing about NPU hardware", "simulated, in host memory")


def machine_facts() -> Mapping[str, str]:
    """What of this host a result may depend on. Never a host's, user's or network's name."""
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "memory_gib": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f}",
        "kernel": platform.release(),
        "cpu": _cpu_model(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
    }


def _cpu_model() -> str:
    """x86 says `model name`; arm64 kernels only give an implementer and part number."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "unknown"
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    part = f"implementer {facts['CPU implementer']} part {facts.get('CPU part', '?')}" if "CPU implementer" in facts else "unknown"
    return facts.get("model name") or facts.get("Model Name") or part
