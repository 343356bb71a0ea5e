"""The one place that gathers HostFacts: looks at files, asks npu-smi, and lets a child process try npu:0.

Under a rehearsal's ROOT all of it is ROOT's: /dev, /proc, /sys, /usr/local/Ascend, packages and programs; only free disk is the real one.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from harness import doctor_parse as parse
from harness.doctor_checks_host import MANAGERS, MOUNTS
from harness.doctor_facts import AskedCommand, Cann, DeviceFile, HostFacts, Place, Probe
from harness.doctor_model import look_at_model
from harness.doctor_packages import (
    Installed,
    as_host,
    at,
    importable,
    megatron_copies,
    site_folders,
    swift_has_patches,
    swift_python,
    vllm_ascend_device,
)
from harness.launch import resolve_program
from harness.machine import npu_traces, npu_usable, output_of, programs_path
from harness.npu_smi import parse as parse_npu_smi
from harness.npu_smi_view import MachineView
from harness.sim.build import can_build

_READ = ("ASCEND_", "ATB_", "HCCL_", "NPU_", "PYTORCH_NPU_")
_READ_NAMES = ("NPROC_PER_NODE", "NNODES", "MASTER_PORT", "PYTHONPATH", "LD_LIBRARY_PATH", "MEGATRON_LM_PATH", "USE_MCORE_GDN", "HOME")
_CANN_LIBRARIES = ("libascendcl.so", "libhccl.so")
_ASCEND = "/usr/local/Ascend"
_KERNELS = "opp/built-in/op_impl/ai_core/tbe/kernel"
_NPU_SMI_S = 60
_MOST_PLOG_BYTES = 2**20


def gather(
    root: Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    model: Path | None = None,
    command: AskedCommand | None = None,
    probe: Probe | None = None,
    architecture: str = "",
) -> HostFacts:
    """A host's facts. Takes seconds: npu-smi, and where there are traces of an NPU a child process that imports torch_npu (at most 300 s).

    `probe`: what is known already of npu:0; then no child is started. `model`: a checkpoint's folder; without it the folder that `command`
    names, if it is one. Raises HarnessError where `model` holds no checkpoint.
    """
    environment = os.environ if environment is None else environment
    traces = npu_traces(root)
    asked = {**environment, **(command.environment if command else {})}
    foreign = swift_python() if root is None else ""
    sites = site_folders(root, foreign)
    installed = Installed(sites)
    machine, listed = _ask_npu_smi(root, environment)
    cann = _cann(root, environment)
    named = command.value("model") if command else None
    folder = model or (Path(named) if named and (Path(named) / "config.json").is_file() else None)
    return HostFacts(
        architecture=architecture or platform.machine(),
        python=platform.python_version() if root is None and not foreign else _python(sites),
        environment={k: v for k, v in environment.items() if k.startswith(_READ) or k in _READ_NAMES},
        device_files=_device_files(root),
        traces=tuple(as_host(root, Path(trace)) if trace.startswith("/") else trace for trace in traces),
        npu_smi=listed,
        machine=machine,
        driver_version=parse.version_in(_text(at(root, f"{_ASCEND}/driver/version.info"))),
        mounted={path: at(root, path).exists() for path in MOUNTS},
        place=_place(root),
        cann=cann,
        libraries=tuple(_libraries(root, asked.get("LD_LIBRARY_PATH", ""))),
        packages=installed.packages() if sites else None,
        vllm_ascend_device=vllm_ascend_device(installed),
        swift_patches=swift_has_patches(installed),
        foreign_swift=foreign or "",
        modules=importable(root, sites, asked.get("PYTHONPATH", "")),
        megatron=megatron_copies(root, sites, asked.get("PYTHONPATH", "")),
        probe=probe or _probe(root, environment, bool(traces)),
        **_network(root),
        **_room(root),
        processes_here=frozenset(p.pid for p in machine.processes if at(root, f"/proc/{p.pid}").exists()),
        stack_tools=tuple(tool for tool in ("pystack", "py-spy") if _has_program(root, tool)),
        plog=_plog(root, environment),
        simulation=can_build() if root is None and not traces else None,
        model=look_at_model(folder) if folder else None,
        command=command,
    )


def _python(sites: Sequence[Path]) -> str:
    """The version of another Python, as far as its folders tell it (3.11)."""
    named = [part.removeprefix("python") for site in sites for part in site.parts if part.startswith("python3.")]
    return named[0] if named else platform.python_version()


def _ask_npu_smi(root: Path | None, environment: Mapping[str, str]) -> tuple[MachineView, bool]:
    """What it lists, and whether there is one to ask."""
    program = resolve_program("npu-smi", programs_path(root)) or resolve_program("npu-smi", programs_path(root or Path("/")))
    if program is None:
        return MachineView(), False
    text, fault = output_of([str(program), "info"], environment, root, _NPU_SMI_S)
    view = parse_npu_smi(text)
    return (view if view.npus or not fault else MachineView(errors=(*view.errors, fault))), True


def _probe(root: Path | None, environment: Mapping[str, str], trace: bool) -> Probe | None:
    """None where nothing hints at an NPU, or a rehearsal has no python that could say."""
    if not trace or (root is not None and not (_has_program(root, "python") or _has_program(root, "python3"))):
        return None
    usable = npu_usable(root, environment=environment)
    return Probe(bool(usable.ids), usable.because)


def _has_program(root: Path | None, name: str) -> bool:
    return resolve_program(name, programs_path(root)) is not None


def _device_files(root: Path | None) -> tuple[DeviceFile, ...]:
    cards = sorted(at(root, "/dev").glob("davinci[0-9]*"))
    managers = [path for path in (at(root, name) for name in MANAGERS) if path.exists()]
    return tuple(DeviceFile(as_host(root, path), os.access(path, os.R_OK | os.W_OK)) for path in (*cards, *managers))


def _place(root: Path | None) -> Place:
    marked = any(at(root, path).exists() for path in ("/.dockerenv", "/run/.containerenv"))
    return Place.CONTAINER if marked or parse.is_container(_text(at(root, "/proc/1/cgroup"))) else Place.HOST


def _cann(root: Path | None, environment: Mapping[str, str]) -> Cann:
    """The sourced CANN, else the one that the usual links name."""
    sourced = [environment[name] for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME") if environment.get(name)]
    versions = sorted((as_host(root, path) for path in at(root, _ASCEND).glob("cann-*")), reverse=True)
    usual = [f"{_ASCEND}/ascend-toolkit/latest", f"{_ASCEND}/latest", f"{_ASCEND}/cann", *versions]
    homes = [home for home in (*sourced, *usual) if at(root, home).is_dir()]
    scripts = (f"{_ASCEND}/ascend-toolkit/set_env.sh", *(f"{home}/set_env.sh" for home in homes))
    nnal = (f"{_ASCEND}/nnal/atb/set_env.sh", f"{_ASCEND}/nnal/asdsip/set_env.sh")
    return Cann(
        home=homes[0] if homes else None,
        version=_first(parse.version_in(_text(path)) for home in homes for path in _install_infos(root, home)),
        architecture=_first(path.parent.name.removesuffix("-linux") for home in homes[:1] for path in _install_infos(root, home)),
        set_env=_first(script for script in scripts if at(root, script).is_file()),
        nnal_set_env=_first(script for script in nnal if at(root, script).is_file()),
        kernels=tuple(sorted(path.name for home in homes[:1] for path in at(root, f"{home}/{_KERNELS}").glob("ascend*"))),
    )


def _install_infos(root: Path | None, home: str) -> list[Path]:
    return sorted(at(root, home).glob("*-linux/ascend_*_install.info"))


def _first(found: Iterable[str | None]) -> str | None:
    return next((one for one in found if one), None)


def _libraries(root: Path | None, search: str) -> Iterator[str]:
    for folder in search.split(os.pathsep):
        for name in _CANN_LIBRARIES:
            if folder and at(root, f"{folder}/{name}").exists():
                yield f"{folder}/{name}"


class _Network(TypedDict):
    interfaces: tuple[str, ...] | None
    addresses: tuple[str, ...] | None
    ports: frozenset[int] | None


def _network(root: Path | None) -> _Network:
    tables = [_text(at(root, f"/proc/net/{name}")) for name in ("tcp", "tcp6")]
    trie, net = _text(at(root, "/proc/net/fib_trie")), at(root, "/sys/class/net")
    return {
        "interfaces": tuple(sorted(path.name for path in net.iterdir())) if net.is_dir() else None,
        "addresses": parse.local_addresses(trie) if trie else None,
        "ports": frozenset().union(*map(parse.listening_ports, tables)) if any(tables) else None,
    }


class _Room(TypedDict):
    disk_gib: float | None
    memory_gib: float | None
    shm_gib: float | None
    open_files: int | None


def _room(root: Path | None) -> _Room:
    """Sizes in GiB. A /dev/shm mounted without a size is as large as the file system says."""
    control = [_text(at(root, f"/sys/fs/cgroup/{name}")) for name in ("memory.max", "memory.current")]
    shm = parse.shared_memory_gib(_text(at(root, "/proc/mounts")))
    if shm is None and root is None and Path("/dev/shm").is_dir():
        shm = shutil.disk_usage("/dev/shm").total / 2**30
    return {
        "disk_gib": shutil.disk_usage(root or Path.cwd()).free / 2**30,
        "memory_gib": parse.free_memory_gib(_text(at(root, "/proc/meminfo")), *control),
        "shm_gib": shm,
        "open_files": parse.open_files_limit(_text(at(root, "/proc/self/limits"))),
    }


def _plog(root: Path | None, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The first errors of the newest plog. Only its last MiB is read."""
    base = environment.get("ASCEND_PROCESS_LOG_PATH") or f"{environment.get('HOME', '/root')}/ascend/log"
    found = [path for kind in ("debug", "run") for path in at(root, f"{base}/{kind}/plog").glob("plog-*.log")]
    newest = max(found, key=lambda path: path.stat().st_mtime, default=None)
    if newest is None:
        return ()
    with newest.open("rb") as file:
        file.seek(max(0, newest.stat().st_size - _MOST_PLOG_BYTES))
        return parse.plog_errors(file.read(_MOST_PLOG_BYTES).decode("utf-8", "replace").splitlines())


def _text(path: Path) -> str:
    """ "" for what isn't there, or this user may not read: then nothing is known of it."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
