"""What a person asked of this host, and what the host turned out to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.model import Hardware, Model, Weights


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

    def devices_for(self, model: Model, documented: int | None, single: bool, weights: Weights) -> tuple[int, ...]:
        """The NPU ids a cell gets: the documented number, else the model's, else one for `single`, two for tiny, all for real."""
        if not self.npu_ids:
            return ()
        if single:
            count = 1
        elif weights is Weights.TINY:
            count = 2
        else:
            count = documented or model.devices.get(self.hardware) or len(self.npu_ids)
        return self.npu_ids[:count]
