"""Benchmarks on disk: what this host measured (.harness/benchmarks, not committed) and the baselines (reports/baselines, committed).

A measurement's file is written anew after every repeat, whole or not at all, so that a killed run keeps what it measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.benchmark_codec import Baseline, baseline_from_json, baseline_to_json, from_json, key_of, to_json
from harness.benchmark_model import Measurement
from harness.errors import EvidenceError
from harness.store import read_regular, write_atomically


@dataclass(frozen=True)
class BenchmarkStore:
    """`root`: the repository."""

    root: Path

    @property
    def measured(self) -> Path:
        return self.root / ".harness" / "benchmarks"

    @property
    def baselines(self) -> Path:
        return self.root / "reports" / "baselines"

    def keep(self, measurement: Measurement, run: str) -> Path:
        """Write the repeats so far of one question of the harness run `run`. Raises HostError if the disk refuses."""
        path = self.measured / run / f"{key_of(measurement)}.json"
        write_atomically(path, to_json(measurement))
        return path

    def runs(self) -> tuple[str, ...]:
        """The harness runs that measured something, the oldest first: their names begin with their times."""
        return tuple(sorted(p.name for p in self.measured.glob("*") if p.is_dir() and any(p.glob("*.json"))))

    def newest_run(self) -> str | None:
        return next(reversed(self.runs()), None)

    def measurements(self, run: str) -> Iterator[Measurement]:
        """Of one harness run, in the order of their names. Raises EvidenceError for a damaged file or a run without any."""
        paths = sorted((self.measured / run).glob("*.json"))
        if not paths:
            raise EvidenceError(f".harness/benchmarks/{run}", "holds no measurement.", "Run `pytest -m npu_benchmark` first.")
        for path in paths:
            yield from_json(_text(path, path.name), path.name)

    def baseline_path(self, measurement: Measurement) -> Path:
        return self.baselines / str(measurement.hardware) / measurement.stack / f"{key_of(measurement)}.json"

    def baseline_for(self, measurement: Measurement) -> Baseline | None:
        """What the same question gave on this hardware and stack; None where nobody promoted any. Raises EvidenceError if damaged."""
        path = self.baseline_path(measurement)
        return baseline_from_json(_text(path, self._name(path)), self._name(path)) if path.is_file() else None

    def all_baselines(self) -> tuple[Baseline, ...]:
        """Every baseline, in the order of the paths. Raises EvidenceError for a damaged one."""
        paths = sorted(self.baselines.glob("*/*/*.json"))
        return tuple(baseline_from_json(_text(path, self._name(path)), self._name(path)) for path in paths)

    def promote(self, baseline: Baseline) -> Path:
        """Put `baseline` in its place. Raises HostError if the disk refuses."""
        path = self.baseline_path(baseline.measurement)
        write_atomically(path, baseline_to_json(baseline))
        return path

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.root))


def _text(path: Path, where: str) -> str:
    try:
        return read_regular(path, where).decode("utf-8")
    except UnicodeDecodeError as error:
        raise EvidenceError(where, f"is no UTF-8 text (byte {error.start}).", "Restore the file as it was written.") from error
