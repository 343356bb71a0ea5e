"""The drill ground: a real cell, the real flow and the real launcher, with a fake `swift` on the search path.

Honest steps that only lead up to a lie are run once and then replayed, with the new run's nonce and folder in their files.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fakes.install import install
from fakes.liars import Lie
from harness.flow import run_cell
from harness.host import Host
from harness.launch import launch
from harness.matrix import parse_matrix
from harness.model import Cell, Engine, Evidence, Hardware, Matrix, Options, Run, Stage, Step, Strategy, Tuner, Weights
from harness.rules import applicable_stages, proof_gap

ROOT = Path(__file__).resolve().parents[2]
_TEXT = (".json", ".jsonl", ".log")
# A server that is deaf is waited for this long; the harness itself allows ten seconds.
_GRACE_S = 1.5
_USUAL_S = 120.0


@dataclass(frozen=True)
class Recording:
    """What an honest step left: its run, and its files by their path in the work folder."""

    run: Run
    work: Path
    files: Mapping[str, bytes]


@dataclass
class Ground:
    """One matrix, one cache and one honest fake for all drills of a session. `recordings`: by (tuner, step)."""

    folder: Path
    matrix: Matrix
    recordings: dict[tuple[str, str], Recording] = field(default_factory=dict)

    @classmethod
    def under(cls, folder: Path) -> Ground:
        install(folder / "honest")
        return cls(folder, parse_matrix((ROOT / "matrix.yaml").read_text(encoding="utf-8"), "matrix.yaml"))

    @property
    def honest(self) -> Path:
        return self.folder / "honest"

    def cell(self, tuner: str, algorithm: str = "sft", family: str = "qwen2") -> Cell:
        """A cell that a plain cpu runs in one process, with no option set; one for another tuner stands in where the matrix has none."""
        plain = [c for c in self.matrix.cells if (c.strategy, c.engine, c.options) == (Strategy.SINGLE, Engine.TRANSFORMERS, Options())]
        fit = [c for c in plain if (c.algorithm, c.model.family) == (algorithm, family)]
        exact = [c for c in fit if c.tuner == tuner]
        return exact[0] if exact else replace(fit[0], tuner=Tuner(tuner), id=f"{fit[0].id}-{tuner}")

    def stages(self, cell: Cell) -> tuple[Stage, ...]:
        """Those that have a proof."""
        stages = applicable_stages(cell)
        return tuple(s for s in stages if not proof_gap(cell, s, hardware=Hardware.CPU, weights=Weights.TINY))

    def forget(self) -> None:
        for left in Path("/dev/shm").glob("fake-swift-*"):
            # Another drill's may vanish meanwhile, or be another user's.
            with contextlib.suppress(OSError):
                if Path(left.read_text(encoding="utf-8")).is_relative_to(self.folder):
                    left.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)

    def host(self, name: str, programs: Path, scale: float = 1.0, **other: Any) -> Host:
        return Host(
            hardware=Hardware.CPU,
            weights="tiny",
            npu_ids=(),
            root=ROOT,
            runs=self.folder / "runs" / name,
            cache=self.folder / "cache",
            search_path=str(programs),
            machine={},
            rehearsal=None,
            deadline_scale=scale,
            **other,
        )

    def run(self, cell: Cell, stages: Iterable[Stage], host: Host, launcher: Any = launch) -> list[Evidence]:
        return list(
            run_cell(
                cell,
                tuple(stages),
                matrix=self.matrix,
                host=host,
                launch=launcher,
                keep=lambda evidence: None,
                clean=lambda text: text,
                stop=threading.Event(),
            )
        )

    def tell(self, lie: Lie, scale: float = 1.0, **settings: Any) -> Mapping[Stage, Evidence]:
        """The evidence of every stage up to the one that `lie` belongs to, the lie told in that stage (or from the start)."""
        programs = self.folder / "liars" / lie.name
        install(programs, lie.name, **settings)
        launcher = Replaying(self, lie, programs)
        host = self.host(lie.name, programs, scale)
        return {evidence.stage: evidence for evidence in self.run(self.cell(lie.tuner), (Stage(lie.stage),), host, launcher)}


@dataclass(frozen=True)
class Replaying:
    """Launches lying steps with the liar, replays the others."""

    ground: Ground
    lie: Lie
    programs: Path
    told: set[str] = field(default_factory=set)

    def __call__(self, step: Step, **how: Any) -> Run:
        if self.lie.told_in(step.name):
            self.told.add(step.name)
            return launch(step, **how, grace_s=_GRACE_S)
        if "merge" in self.told and "merged" in step.name:
            # What a lying merge left is read by an honest program; that must not be taken for an honest recording.
            return self._honest(step, how)
        key = (self.lie.tuner, step.name)
        if key not in self.ground.recordings:
            return self._record(key, step, how)
        return _replay(self.ground.recordings[key], step, how["nonce"], Path(how["work"]))

    def _honest(self, step: Step, how: Mapping[str, Any]) -> Run:
        # A lie's short deadline is not for the honest steps around it.
        return launch(replace(step, deadline_s=_USUAL_S), **{**how, "search_path": str(self.ground.honest)})

    def _record(self, key: tuple[str, str], step: Step, how: Mapping[str, Any]) -> Run:
        work = Path(how["work"])
        before = set(work.rglob("*")) if work.exists() else set()
        run = self._honest(step, how)
        new = [path for path in work.rglob("*") if path not in before and path.is_file() and not path.is_symlink()]
        files = {str(path.relative_to(work)): path.read_bytes() for path in new}
        if run.exit_code == 0:
            self.ground.recordings[key] = Recording(run, work, files)
        return run


def _replay(recording: Recording, step: Step, nonce: str, work: Path) -> Run:
    """Write the recorded files into `work`, as the run `nonce` would have left them."""
    swaps = ((str(recording.work).encode(), str(work).encode()), (recording.run.nonce.encode(), nonce.encode()))
    for name, content in recording.files.items():
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in _TEXT:
            for old, new in swaps:
                content = content.replace(old, new)
        path.write_bytes(content)
    env = {**recording.run.env, "NPU_MATRIX_NONCE": nonce}
    return replace(recording.run, nonce=nonce, argv=step.command.argv, env=env, log_path=str(work / f"{step.name}.log"))

