"""What a person asked of this host, and what the host turned out to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from harness.commands_devices import tiny_devices
from harness.errors import HarnessError, HostError
from harness.leases import Lease
from harness.model import Cell, Hardware, Model, Strategy, Weights
from harness.ports import Ports

# What a rehearsal keeps lies in this folder of its ROOT: a name that no program or device tree has.
REHEARSAL_STORE = "npu-matrix-rehearsal"


@dataclass(frozen=True)
class HostRequest:
    """The options of the pytest door, as given. `jobs`, `as_of`, `device_hours` and `env_retries` are None where nothing was said."""

    root: Path
    hardware: str = "auto"
    weights: str = "auto"
    tier: str = "nightly"
    require_npu: bool = False
    launcher: str = "cli"
    jobs: int | None = None
    as_of: str | None = None
    rehearsal: Path | None = None
    matrix: Path | None = None
    deadline_scale: float = 1.0
    device_hours: float | None = None
    env_retries: int | None = None


@dataclass(frozen=True)
class Host:
    """Where cells run. `runs` is a new folder of this harness run's own; `search_path` is where programs are looked up.

    `ports` are None until a cell has a lease: see `lent`.
    """

    hardware: Hardware
    weights: str
    npu_ids: tuple[int, ...]
    root: Path
    runs: Path
    cache: Path
    search_path: str
    machine: Mapping[str, str]
    rehearsal: Path | None
    deadline_scale: float
    swift_cli_dir: str = "swift/cli"
    launcher: str = "cli"
    ports: Ports | None = None

    def lent(self, lease: Lease) -> Host:
        """This host as the cell that has `lease` sees it."""
        return replace(self, npu_ids=lease.device_ids, ports=lease.ports)

    def weights_for(self, model: Model) -> Weights:
        """`auto` means real weights on an NPU where the revision is pinned and the number of devices known, tiny everywhere else."""
        if self.weights != "auto":
            return Weights(self.weights)
        known = model.revision is not None and model.devices.get(self.hardware) is not None
        return Weights.REAL if self.hardware.is_npu and known else Weights.TINY

    def devices_for(self, cell: Cell, weights: Weights) -> tuple[int, ...]:
        """The ids of the NPUs, simulated ones included, that a cell sees; () on a plain cpu."""
        return self.npu_ids[: self.width_of(cell, weights)]

    def width_of(self, cell: Cell, weights: Weights) -> int:
        """How many NPUs, or ranks off NPUs, a cell takes: as a tiny run needs, else the documented number, the model's, one or all."""
        if weights is Weights.TINY:
            return tiny_devices(cell)
        if cell.strategy is Strategy.SINGLE:
            return 1
        return cell.devices or cell.model.devices.get(self.hardware) or len(self.npu_ids)


def rehearsal_root(text: str, repository: Path) -> Path:
    """The folder that `--rehearsal text` names, absolute. Raises HostError for what is none, or holds the repository."""
    where = f"--rehearsal {text!r}"
    mend = "Give a folder that holds dev/, usr/local/Ascend and the programs to rehearse with."
    if not text.strip():
        raise HostError(where, "names no folder.", mend)
    root = Path(text).resolve()
    if not root.is_dir():
        raise HostError(where, "is a file, no folder." if root.exists() else "there is no such folder.", mend)
    if repository.resolve().is_relative_to(root):
        raise HostError(where, "is, or holds, this repository or the real host's own folders: that would rehearse nothing.", mend)
    return root


def matrix_file(text: str) -> Path:
    """The file that `--matrix text` names. Raises HarnessError where it names none."""
    if not text.strip():
        raise HarnessError(f"--matrix {text!r}", "names no file.", "Leave it out for the repository's own matrix.yaml.")
    return Path(text)
