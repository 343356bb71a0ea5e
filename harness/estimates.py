"""What cells took before, read from evidence: the seconds and the memory that the next run of the same is expected to take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.evidence import rank
from harness.model import Evidence, Hardware, Stage, Weights
from harness.packing import guessed_s

# A rank with torch and ms-swift imported, measured on a tiny model: cold, and forked from a process that shares the imports.
COLD_RANK_MIB, WARM_RANK_MIB = 1536.0, 614.0


@dataclass(frozen=True)
class Estimate:
    """`known`: on records, else a guess. `memory_mib` is what all processes of the largest step take together."""

    seconds: float
    memory_mib: float
    known: bool


@dataclass(frozen=True)
class Records:
    """The newest measured run of every (cell or tiny run, stage) on one kind of hardware, by one launcher."""

    took: Mapping[tuple[str, Stage], tuple[float, float | None]]

    @classmethod
    def of(cls, evidence: Iterable[Evidence], *, hardware: Hardware, launcher: str) -> Records:
        """Evidence of another launcher or hardware, of a stage that started nothing, or that was broken off, tells no time."""
        newest: dict[tuple[str, Stage], Evidence] = {}
        for piece in evidence:
            broken = any(run.ended_by == "interrupt" for run in piece.runs)
            if piece.asked is not hardware or piece.launcher != launcher or not piece.runs or broken:
                continue
            key = (_key(piece), piece.stage)
            if key not in newest or rank(piece) > rank(newest[key]):
                newest[key] = piece
        return cls({key: (piece.duration_s, _peak(piece)) for key, piece in newest.items()})

    def estimate(self, key: str, stages: Sequence[Stage], *, ranks: int, params_b: float | None, weights: Weights, warm: bool) -> Estimate:
        """For the cell or tiny run `key`; what no record tells is guessed from the number of ranks and parameters (billions)."""
        tiny = weights is Weights.TINY
        a_stage_s = guessed_s(1, params_b=params_b, devices=ranks, tiny=tiny)
        found = [self.took.get((key, stage)) for stage in stages]
        peaks = [peak for _, peak in filter(None, found) if peak is not None]
        memory = max(peaks) if peaks else ranks * (WARM_RANK_MIB if warm else COLD_RANK_MIB)
        return Estimate(sum(took[0] if took else a_stage_s for took in found), memory, None not in found)


def _key(evidence: Evidence) -> str:
    return evidence.tiny_key if evidence.weights is Weights.TINY else evidence.cell


def _peak(evidence: Evidence) -> float | None:
    return max((run.peak_rss_mib for run in evidence.runs if run.peak_rss_mib is not None), default=None)
