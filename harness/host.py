"""What a person asked of this host, and what the host turned out to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.commands_devices import tiny_devices
from harness.errors import HarnessError, HostError
from harness.model import Cell, Hardware, Model, Strategy, Weights

# What a rehearsal keeps lies in this folder of its ROOT: a name that no program or device tree has.
REHEARSAL_STORE = "npu-matrix-rehearsal"


@dataclass(frozen=True)
class HostRequest:
    """The options of the pytest door, as given. `jobs` and `as_of` are None where nothing was said."""

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


@dataclass(frozen=True)
class Host:
    """Where cells run. `runs` is a new folder of this harness run's own; `search_path` is where programs are looked up."""

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

    def weights_for(self, model: Model) -> Weights:
        """`auto` means real weights on an NPU where the revision is pinned and the number of devices known, tiny everywhere else."""
        if self.weights != "auto":
            return Weights(self.weights)
        known = model.revision is not None and model.devices.get(self.hardware) is not None
        return Weights.REAL if self.hardware.is_npu and known else Weights.TINY

    def devices_for(self, cell: Cell, weights: Weights) -> tuple[int, ...]:
        """The NPU ids a cell gets: what a tiny run needs, else the documented number, else the model's, else one or all."""
        if not self.npu_ids:
            return ()
        if weights is Weights.TINY:
            count = tiny_devices(cell)
        elif cell.strategy is Strategy.SINGLE:
            count = 1
        else:
            count = cell.devices or cell.model.devices.get(self.hardware) or len(self.npu_ids)
        return self.npu_ids[:count]


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
