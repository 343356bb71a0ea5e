"""Drill: faults planted in a copy of the installed ms-swift. Each makes a cell on the simulated NPU fail, and its evidence says how.

The golden runs the installed ms-swift from one warm process for all faults; each copy has a warm process of its own.
"""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from fakes.planted import FAULTS, QWEN2, QWEN3, QWEN3_MOE, Fault, FromCopy, installed, plant

from harness.artifacts import read_witnesses
from harness.flow import run_cell
from harness.goldens import Goldens
from harness.host import Host
from harness.machine import SIMULATED_IDS, npu_traces
from harness.matrix import parse_matrix
from harness.model import Blame, Evidence, Hardware, Stage, VerdictKind
from harness.sim.build import build, cache_folder, can_build
from harness.warm import WarmLauncher

pytestmark = pytest.mark.swift

ROOT = Path(__file__).resolve().parents[1]
MATRIX = parse_matrix((ROOT / "matrix.yaml").read_text(encoding="utf-8"), "matrix.yaml")


@dataclass(frozen=True)
class Field:
    """The installed ms-swift, the folder that its copies go to, and the goldens, which it runs."""

    swift: Path
    folder: Path
    goldens: Goldens

    @contextmanager
    def planted(self, fault: Fault | None) -> Iterator[tuple[Path, WarmLauncher]]:
        """A copy of ms-swift with `fault`, and a launcher for it."""
        folder = self.folder / (fault.name if fault else "unchanged")
        plant(self.swift, folder, fault)
        launcher = WarmLauncher(folder / "warm")
        try:
            yield folder, launcher
        finally:
            launcher.close()
            shutil.rmtree(folder)

    def train(self, cell_id: str, copy: Path, launcher: WarmLauncher, golden_too: bool = False) -> Evidence:
        """The train stage of a cell on the simulated NPU by the ms-swift in `copy`; `golden_too`: its golden by that one as well."""
        cell = MATRIX.cell(cell_id)
        assert cell is not None
        kind = self.folder / ("runs-copied-golden" if golden_too else "runs")
        # Not in the copy, which is removed: a golden that was run for one cell serves the next.
        runs = kind / f"{copy.name}-{cell_id}"
        host = Host(
            hardware=Hardware.SIM,
            weights="tiny",
            npu_ids=SIMULATED_IDS,
            root=ROOT,
            runs=runs,
            cache=cache_folder(),
            search_path=str(Path(sys.executable).parent),
            machine={},
            rehearsal=None,
            deadline_scale=1.0,
            launcher="warm",
        )
        from_copy = FromCopy(copy, launcher)
        goldens = Goldens(from_copy) if golden_too else self.goldens
        (evidence,) = run_cell(
            cell,
            (Stage.TRAIN,),
            matrix=MATRIX,
            host=host,
            launch=from_copy,
            goldens=goldens,
            keep=lambda evidence: None,
            clean=lambda text: text,
            stop=threading.Event(),
        )
        assert swift_files(runs.glob("*")) == {copy / "swift/__init__.py"}, f"not the planted ms-swift ran\n{told(evidence)}"
        golden = (copy / "swift" if golden_too else self.swift) / "__init__.py"
        # Where the run itself crashed there is nothing to compare, and no golden is run.
        assert ("golden-train" in evidence.metrics) is bool(evidence.comparisons), told(evidence)
        assert swift_files(kind.glob("*/goldens/*")) <= {golden}, told(evidence)
        return evidence


def swift_files(works: Iterator[Path]) -> set[Path]:
    """Which ms-swift the trainings in these work folders imported, as their witnesses say."""
    starts = [w.last("start") for work in works for w in read_witnesses(work / "witness" / "train")]
    return {Path(str(start["swift_file"])) for start in starts if start}


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    swift = installed()
    if swift is None or not Path(sys.executable).with_name("swift").exists():
        pytest.skip("ms-swift is not installed beside this interpreter; install the swift extra")
    if because := can_build() or ", ".join(npu_traces()):
        pytest.skip(f"no simulated NPU here: {because}")
    build()
    folder = tmp_path_factory.mktemp("planted")
    launcher = WarmLauncher(folder / "warm")
    goldens = Goldens(launcher)
    yield Field(swift, folder, goldens)
    goldens.close()
    launcher.close()


def told(evidence: Evidence) -> str:
    """What a report says of it: the verdict, and every comparison that failed."""
    failed = [f"{c.name}: expected {c.expected}, found {c.found} [{c.cause}]" for c in evidence.comparisons if not c.ok]
    return "\n".join([f"{evidence.verdict.kind} {evidence.verdict.cause}: {evidence.verdict.because}", *failed])


def is_found(fault: Fault, evidence: Evidence) -> None:
    verdict = evidence.verdict
    assert (verdict.kind, verdict.cause, verdict.blame) == (VerdictKind.FAILED, fault.cause, Blame.PRODUCT), told(evidence)
    assert [text for text in fault.says if text not in told(evidence)] == [], told(evidence)


def test_an_unchanged_copy_of_ms_swift_passes(ground: Field) -> None:
    with ground.planted(None) as (copy, launcher):
        for cell in (QWEN2, QWEN3, QWEN3_MOE):
            evidence = ground.train(cell, copy, launcher)
            assert (evidence.verdict.kind, evidence.hardware) == (VerdictKind.PASSED, Hardware.SIM), told(evidence)


@pytest.mark.parametrize("fault", [pytest.param(fault, id=fault.name) for fault in FAULTS])
def test_a_planted_fault_fails_and_is_told(ground: Field, fault: Fault) -> None:
    with ground.planted(fault) as (copy, launcher):
        is_found(fault, ground.train(fault.cell, copy, launcher))


def test_a_fault_of_the_patches_is_found_though_the_golden_has_it_too(ground: Field) -> None:
    """An ms-swift that was changed where it is installed: nothing is patched on a cpu, so its golden is right."""
    fault = next(fault for fault in FAULTS if fault.name == "gradient-halved")
    with ground.planted(fault) as (copy, launcher):
        is_found(fault, ground.train(fault.cell, copy, launcher, golden_too=True))
