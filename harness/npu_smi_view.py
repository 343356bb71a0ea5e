"""What npu-smi said of a host, as values: chips, processes and links. Whatever the text left out is None, never a guess.

Sizes are npu-smi's MB (2**20 bytes), powers watts, temperatures degrees Celsius.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.model import Hardware

# Nearest first: SIO joins the dies of a module, HCCS and UB are direct, *_SW go through a switch, the rest is PCIe; SYS crosses sockets.
LINK_ORDER = ("X", "SIO", "HCCS", "UB", "XLink", "HCCS_SW", "XLink_SW", "PIX", "PXB", "PHB", "SYS")
_PUBLISHED = "npu_id chip phy_id name series health bus_id power_w temp_c aicore_pct hbm_used_mb hbm_total_mb"
_PROCESS_FIELDS = ("npu_id", "chip", "pid", "name", "mem_mb")


@dataclass(frozen=True)
class Npu:
    """One die as npu-smi lists it. `npu_id` and `chip` are npu-smi's names; frameworks count by `MachineView.devices`.

    `chip` is None where the table has no such column (Ascend 950); `phy_id` and `logic_id` are Phy-ID and Chip Logic ID where printed.
    `series` is a2, a3, a5 (as in matrix.yaml), 310P, 310B, 310 or 910A; None for a name that doesn't tell. `memory_*_mb` is the column
    Memory-Usage (DDR), the only memory of chips without HBM. `aicore_pct` is NPU Util(%) on an Ascend 950, which prints no AICore(%).
    `error_codes` are those of `-t health`, `double_bit_errors` the HBM's and DDR's uncorrected ones of `-t ecc`.
    """

    npu_id: int
    chip: int | None = None
    phy_id: int | None = None
    logic_id: int | None = None
    name: str | None = None
    series: str | None = None
    health: str | None = None
    bus_id: str | None = None
    power_w: float | None = None
    temp_c: float | None = None
    aicore_pct: float | None = None
    hbm_used_mb: int | None = None
    hbm_total_mb: int | None = None
    memory_used_mb: int | None = None
    memory_total_mb: int | None = None
    error_codes: tuple[str, ...] = ()
    double_bit_errors: int | None = None

    @property
    def healthy(self) -> bool:
        """Only where npu-smi said OK: a Warning, an Alarm or silence is not health."""
        return self.health == "OK"

    @property
    def hardware(self) -> Hardware | None:
        """The target hardware of matrix.yaml; None where the series is unknown or can't train."""
        return next((kind for kind in Hardware if kind.is_npu and kind.value == self.series), None)


@dataclass(frozen=True)
class NpuProcess:
    """A row of the process table. `chip` is None where the table names the NPU only; `pid` is the host's, not a container's."""

    npu_id: int
    chip: int | None
    pid: int
    name: str | None
    mem_mb: int | None


@dataclass(frozen=True)
class Link:
    """How two devices reach each other. `a` and `b` are named as in the matrix (NPU0, Phy-ID12), `kind` as printed (HCCS, PIX, NA)."""

    a: str
    b: str
    kind: str


@dataclass(frozen=True)
class MachineView:
    """All that was understood. `affinity` is (device as in the matrix, its CPUs such as `0-63,128-191`).

    `version` is npu-smi's own, or where only that is printed the driver's. `errors` are npu-smi's words, or ours about what could not be
    understood. `sections` says which kinds of output were there; that no process is listed means something only if "processes" is one.
    """

    version: str | None = None
    npus: tuple[Npu, ...] = ()
    processes: tuple[NpuProcess, ...] = ()
    links: tuple[Link, ...] = ()
    affinity: tuple[tuple[str, str], ...] = ()
    errors: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()

    @property
    def error(self) -> str | None:
        return "; ".join(self.errors) or None

    @property
    def devices(self) -> tuple[Npu, ...]:
        """The dies in the order in which ASCEND_RT_VISIBLE_DEVICES counts them: an NPU's place here is its id for frameworks.

        By Chip Logic ID where `npu-smi info -m` gave one to each, else by (NPU, chip), which is how npu-smi numbers them.
        """
        logical = [npu.logic_id for npu in self.npus]
        if sorted(i for i in logical if i is not None) == list(range(len(self.npus))):
            return tuple(sorted(self.npus, key=lambda npu: npu.logic_id or 0))
        return tuple(sorted(self.npus, key=lambda npu: (npu.npu_id, npu.chip or 0)))

    def processes_on(self, device: int) -> tuple[NpuProcess, ...]:
        """The processes listed for `devices[device]`; those of a table without a Chip column count for every die of their NPU."""
        npu = self.devices[device]
        return tuple(p for p in self.processes if p.npu_id == npu.npu_id and (None in (p.chip, npu.chip) or p.chip == npu.chip))

    def link_kind(self, one: int, other: int) -> str | None:
        """How `devices[one]` reaches `devices[other]`: `X` for itself, None where no matrix told."""
        if one == other:
            return "X"
        first, second = (self._names(self.devices[i]) for i in (one, other))
        kinds = (link.kind for link in self.links if (link.a in first and link.b in second) or (link.b in first and link.a in second))
        return next(kinds, None)

    def _names(self, npu: Npu) -> tuple[str, ...]:
        """What a matrix may call this die. An NPU of two dies has no `NPU<n>` of its own: its matrix says Phy-ID."""
        alone = sum(other.npu_id == npu.npu_id for other in self.npus) == 1
        names = (f"NPU{npu.npu_id}",) if alone else ()
        return (*names, f"Phy-ID{npu.phy_id}") if npu.phy_id is not None else names

    def as_json(self) -> dict[str, Any]:
        """The published shape: version, npus, processes, links, affinity, error; None where the output says nothing."""
        return {
            "version": self.version,
            "npus": [{name: getattr(npu, name) for name in _PUBLISHED.split()} for npu in self.npus],
            "processes": [{name: getattr(process, name) for name in _PROCESS_FIELDS} for process in self.processes],
            "links": [{"a": link.a, "b": link.b, "kind": link.kind} for link in self.links],
            "affinity": dict(self.affinity),
            "error": self.error,
        }


def link_distance(kind: str | None) -> int:
    """0 for the nearest. Kinds that are not known, and no link at all, come last."""
    return LINK_ORDER.index(kind) if kind in LINK_ORDER else len(LINK_ORDER)
