"""What cells took before tells what they will take; what was never recorded is guessed, and says so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from evidence_samples import sample

from harness.estimates import COLD_RANK_MIB, WARM_RANK_MIB, Estimate, Records
from harness.model import Evidence, Hardware, Stage, Weights

CELL = "sft-qwen3_0_6b-lora-single"


def piece(stage: Stage, seconds: float, at: str = "2026-11-30T10:00:00+00:00", peak: float | None = 900.0, **other: object) -> Evidence:
    made = sample(CELL, stage)
    runs = tuple(replace(run, peak_rss_mib=peak) for run in made.runs)
    return replace(made, **{"duration_s": seconds, "started_at": at, "runs": runs, **other})  # type: ignore[arg-type]


def estimate(*pieces: Evidence, stages: tuple[Stage, ...] = (Stage.TRAIN,), **other: object) -> Estimate:
    of = sample(CELL)
    records = Records.of(pieces, hardware=of.asked, launcher=of.launcher)
    how = {"ranks": 2, "params_b": 0.6, "weights": Weights.TINY, "warm": False, **other}
    return records.estimate(of.tiny_key if how["weights"] is Weights.TINY else CELL, stages, **how)  # type: ignore[arg-type]


def test_the_newest_record_of_every_stage_counts() -> None:
    old, new = piece(Stage.TRAIN, 50.0), piece(Stage.TRAIN, 20.0, "2026-12-01T10:00:00+00:00", peak=1200.0)
    found = estimate(new, old, piece(Stage.MERGE, 5.0), stages=(Stage.TRAIN, Stage.MERGE))
    assert (found.seconds, found.memory_mib, found.known) == (25.0, 1200.0, True)


def test_one_unrecorded_stage_makes_it_a_guess() -> None:
    found = estimate(piece(Stage.TRAIN, 20.0), stages=(Stage.TRAIN, Stage.RESUME))
    assert found.seconds > 20.0 and not found.known


@pytest.mark.parametrize(
    "other",
    [
        piece(Stage.TRAIN, 20.0, asked=Hardware.A2),
        piece(Stage.TRAIN, 20.0, launcher="another"),
        piece(Stage.TRAIN, 20.0, runs=()),
        replace(sample(CELL), runs=tuple(replace(run, ended_by="interrupt") for run in sample(CELL).runs)),
    ],
    ids=["hardware", "launcher", "nothing-ran", "interrupted"],
)
def test_what_tells_no_time_is_left_out(other: Evidence) -> None:
    assert estimate(piece(Stage.TRAIN, 20.0)).known, "the others differ from this one in what is asked of them only"
    assert not estimate(other).known


def test_memory_is_guessed_by_ranks_where_nothing_is_recorded() -> None:
    assert estimate().memory_mib == 2 * COLD_RANK_MIB
    assert estimate(warm=True).memory_mib == 2 * WARM_RANK_MIB


def test_larger_models_on_fewer_devices_are_guessed_to_take_longer() -> None:
    small, large, wide = (
        estimate(weights=Weights.REAL, params_b=billions, ranks=ranks).seconds for billions, ranks in ((1.0, 1), (8.0, 1), (8.0, 8))
    )
    assert small < large > wide
