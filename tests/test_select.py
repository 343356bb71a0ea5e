"""Which cells a run takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.matrix import parse_matrix
from harness.model import Matrix, Stage, Tier
from harness.rules import applicable_stages, required_stages
from harness.select import select_cells, stages_in

SMALL = (Path(__file__).parent / "matrix_small.yaml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    return parse_matrix(SMALL, "matrix.yaml")


@pytest.mark.parametrize(
    "tier,tiers",
    [
        (Tier.CONTRACT, set()),
        (Tier.PR, {Tier.PR}),
        (Tier.NIGHTLY, {Tier.PR, Tier.NIGHTLY}),
        (Tier.WEEKLY, {Tier.PR, Tier.NIGHTLY, Tier.WEEKLY}),
        (None, {Tier.PR, Tier.NIGHTLY, Tier.WEEKLY}),
    ],
)
def test_a_tier_takes_the_cheaper_ones_with_it_and_never_contract(matrix: Matrix, tier: Tier | None, tiers: set[Tier]) -> None:
    cells = select_cells(matrix, tier=tier)
    assert {c.tier for c in cells} == tiers
    assert list(cells) == [c for c in matrix.cells if c.tier in tiers]


def test_ids_narrow_the_selection_and_keep_the_matrixs_order(matrix: Matrix) -> None:
    asked = ["sft-qwen3_8b-lora-zero2-packing", "sft-qwen3_8b-lora-single", "sft-qwen3_8b-lora-single"]
    assert [c.id for c in select_cells(matrix, ids=asked)] == ["sft-qwen3_8b-lora-single", "sft-qwen3_8b-lora-zero2-packing"]


def test_an_unknown_id_is_refused_with_the_closest_ones(matrix: Matrix) -> None:
    with pytest.raises(HarnessError, match=r"no cell is called 'sft-qwen3_8b-lora-zero4'. Perhaps 'sft-qwen3_8b-lora-zero[23]' or "):
        select_cells(matrix, ids=["sft-qwen3_8b-lora-zero4"])


def test_an_id_like_no_other_points_to_the_list(matrix: Matrix) -> None:
    with pytest.raises(HarnessError, match="`python -m harness list` names them"):
        select_cells(matrix, ids=["%%%"])


def test_a_cell_that_is_only_parsed_is_not_selected_by_its_id_either(matrix: Matrix) -> None:
    with pytest.raises(HarnessError, match=r"matrix.yaml:\d+: dpo-qwen3_8b-full-ddp-vllm is of tier contract"):
        select_cells(matrix, ids=["dpo-qwen3_8b-full-ddp-vllm"])


def test_an_id_outside_the_tier_is_refused_and_not_dropped(matrix: Matrix) -> None:
    with pytest.raises(HarnessError, match=r"is of tier weekly, which --tier pr leaves out\. Ask for --tier weekly"):
        select_cells(matrix, tier=Tier.PR, ids=["sft-qwen3_8b-lora-zero2-packing"])


@pytest.fixture(scope="module")
def staged() -> Matrix:
    return parse_matrix(SMALL.replace("\nclaims:", BLOCKS + "claims:"), "matrix.yaml")


BLOCKS = """
  one_stage: {models: [qwen3_8b], algorithms: [sft], tuners: [full], strategies: [ddp], hardware: [a2], tier: nightly, stages: [train]}
  two_stages: {models: [qwen3_8b], algorithms: [sft], tuners: [lora], strategies: [ddp], hardware: [a2], tier: pr, stages: [infer, train]}
  all_stages: {models: [qwen2_7b], algorithms: [sft], tuners: [lora], strategies: [ddp], hardware: [a2], tier: pr}
"""


@pytest.mark.parametrize("tier", list(Tier))
@pytest.mark.parametrize(
    ("cell_id", "named"),
    [
        ("sft-qwen3_8b-full-ddp", (Stage.TRAIN,)),
        ("sft-qwen3_8b-lora-ddp", (Stage.TRAIN, Stage.INFER)),
        ("sft-qwen2_7b-lora-ddp", None),
    ],
)
def test_a_block_that_names_its_stages_leaves_the_others_to_the_last_tier(
    staged: Matrix, tier: Tier, cell_id: str, named: tuple[Stage, ...] | None
) -> None:
    cell = staged.cell(cell_id)
    assert cell is not None
    # In the order in which they run, whatever the order in which they are named.
    assert stages_in(cell, tier) == (applicable_stages(cell) if named is None or tier is Tier.WEEKLY else named)


def test_a_stage_that_a_block_left_out_is_still_one_that_its_mark_takes(staged: Matrix) -> None:
    cell = staged.cell("sft-qwen3_8b-full-ddp")
    assert cell is not None
    assert set(required_stages(cell.algorithm, cell.tuner, cell.engine)) > set(stages_in(cell, Tier.NIGHTLY))
