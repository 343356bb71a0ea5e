"""What the doctor looks at, as values: a host's NPUs, software, network and limits. Gathered in one place, judged in others.

Paths are as the host says them (/dev/davinci0), also where they were looked up under a rehearsal's ROOT. None means: not known, which is
never taken for a fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from packaging.version import InvalidVersion, Version

from harness.model import Hardware, Word
from harness.npu_smi_view import MachineView

# Distributions that people also run from checkouts on PYTHONPATH, by the module that is then importable.
MODULES: Mapping[str, str] = {
    "ms-swift": "swift",
    "torch": "torch",
    "torch-npu": "torch_npu",
    "vllm": "vllm",
    "vllm-ascend": "vllm_ascend",
    "deepspeed": "deepspeed",
    "mindspeed": "mindspeed",
    "mcore-bridge": "mcore_bridge",
    "triton-ascend": "triton",
}


class Severity(Word):
    """How much of NPU work a finding stops."""

    BLOCKS = "blocks"
    DEGRADES = "degrades"
    NOTE = "note"


class Sureness(Word):
    """Certain: what was seen can't be otherwise. Likely: it was seen to go wrong elsewhere. Possible: worth a look."""

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth knowing.

    `source`: the FAQ item (Q5) or section of the document behind it. `cells`: which cells it makes impossible, as a rule's `when` names
    them ({}: all); None: none, since the harness sets that itself, or it is not certain.
    """

    id: str
    what: str
    why: str
    fix: str
    sure: Sureness
    severity: Severity
    source: str
    cells: Mapping[str, tuple[object, ...]] | None = None


@dataclass(frozen=True)
class Package:
    """An installed distribution, read from its metadata without importing it. `tags` are its wheel's (cp311-cp311-linux_x86_64)."""

    name: str
    version: str
    tags: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()

    @property
    def release(self) -> tuple[int, ...]:
        """(2, 9, 0) of 2.9.0.post1+cpu; empty for what is no version."""
        try:
            return Version(self.version).release
        except InvalidVersion:
            return ()

    @property
    def local(self) -> str:
        """`cu128` of 2.9.0+cu128."""
        return self.version.partition("+")[2]


@dataclass(frozen=True)
class DeviceFile:
    path: str
    usable: bool  # this user may read and write it


@dataclass(frozen=True)
class Cann:
    """`set_env`, `nnal_set_env`: the scripts to source, None where there are none. `kernels`: chips with operator binaries (ascend910b)."""

    home: str | None = None
    version: str | None = None
    architecture: str | None = None
    set_env: str | None = None
    nnal_set_env: str | None = None
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True)
class MegatronCopy:
    """A folder on the import path that holds a `megatron`. A regular one (with __init__.py) wins over namespace parts before it."""

    place: str
    regular: bool


@dataclass(frozen=True)
class Probe:
    """Whether a child process made a tensor on npu:0; `said` tells what was seen, or how it failed."""

    made_a_tensor: bool
    said: str


@dataclass(frozen=True)
class ModelFacts:
    """A checkpoint's folder: what config.json claims, and the dtypes that its safetensors really hold, by number of elements."""

    name: str
    model_type: str
    quantization: str | None
    elements: Mapping[str, int]
    faults: tuple[str, ...] = ()

    @property
    def params_b(self) -> float:
        """Elements of all tensors, in billions."""
        return sum(self.elements.values()) / 1e9


@dataclass(frozen=True)
class AskedCommand:
    """A command that somebody means to run: its variables, program, subcommand and options (`--a b c` is a: (b, c))."""

    environment: Mapping[str, str]
    program: str
    subcommand: str
    options: Mapping[str, tuple[str, ...]]

    def value(self, name: str) -> str | None:
        """The first word given to an option; "true" for a bare one; None where it isn't given."""
        if name not in self.options:
            return None
        return next(iter(self.options[name]), "true")


class Place(Enum):
    """Where a fault must be mended."""

    HOST = "host"
    CONTAINER = "container"


@dataclass(frozen=True)
class HostFacts:
    """A host as it was found. `environment` holds the variables that NPU software reads; sizes are GiB.

    `packages` and `ports` (port to nothing but its number), `interfaces` and `addresses` are None where there was nothing to read.
    `simulation`: "" where a simulated NPU can be built here, else what is lacking.
    """

    architecture: str
    python: str
    environment: Mapping[str, str] = field(default_factory=dict)
    device_files: tuple[DeviceFile, ...] = ()
    traces: tuple[str, ...] = ()
    npu_smi: bool = False
    machine: MachineView = field(default_factory=MachineView)
    driver_version: str | None = None
    mounted: Mapping[str, bool] = field(default_factory=dict)
    place: Place = Place.HOST
    cann: Cann = field(default_factory=Cann)
    libraries: tuple[str, ...] = ()  # CANN's libraries that LD_LIBRARY_PATH leads to
    packages: Mapping[str, Package] | None = None
    modules: frozenset[str] = frozenset()  # those of MODULES that lie on the import path, installed or not
    vllm_ascend_device: str | None = None  # what vllm_ascend/_build_info.py says
    swift_patches: bool | None = None  # the installed ms-swift has its NPU patches
    foreign_swift: str = ""  # the other Python that PATH's swift is run by: then `packages` are its
    megatron: tuple[MegatronCopy, ...] = ()
    probe: Probe | None = None
    interfaces: tuple[str, ...] | None = None
    addresses: tuple[str, ...] | None = None
    ports: frozenset[int] | None = None
    processes_here: frozenset[int] = frozenset()  # those of npu-smi's pids that live in this process namespace
    disk_gib: float | None = None
    memory_gib: float | None = None
    shm_gib: float | None = None
    open_files: int | None = None
    stack_tools: tuple[str, ...] = ()
    plog: tuple[str, ...] = ()  # the errors at the end of the newest plog
    simulation: str | None = None
    model: ModelFacts | None = None
    command: AskedCommand | None = None

    @property
    def series(self) -> Hardware | None:
        """The target hardware that all chips are of; None where they differ or don't say."""
        found = {npu.hardware for npu in self.machine.npus}
        return found.pop() if len(found) == 1 else None

    def variable(self, name: str) -> str:
        """As the command to run would see it: its own setting, else the environment's, else ""."""
        own = self.command.environment if self.command else {}
        return own.get(name, self.environment.get(name, "")).strip()

    def package(self, name: str) -> Package | None:
        return (self.packages or {}).get(name)

    def lacks(self, name: str) -> bool:
        """Whether a distribution is neither installed nor importable from a checkout on PYTHONPATH; False where that isn't known."""
        return self.packages is not None and name not in self.packages and MODULES.get(name, name) not in self.modules

    @property
    def usable(self) -> bool:
        """A tensor was made on npu:0: whatever was thought to forbid that didn't."""
        return self.probe is not None and self.probe.made_a_tensor


def unless_used(facts: HostFacts, finding: Finding) -> Finding:
    """A tensor made on npu:0 outranks what its absence was concluded from; the trap stays worth a word for the next shell."""
    if not facts.usable:
        return finding
    what = f"{finding.what} (yet a tensor was made on npu:0)"
    return Finding(finding.id, what, finding.why, finding.fix, Sureness.POSSIBLE, Severity.NOTE, finding.source)
