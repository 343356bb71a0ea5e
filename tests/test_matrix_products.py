"""Blocks become cells: ids, keys of tiny answers, devices, recipes, and how long ten thousand of them take."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from harness.matrix import parse_matrix
from harness.model import Hardware, Matrix, Options, RulingKind, Tier

SMALL = (Path(__file__).parent / "matrix_small.yaml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def small() -> Matrix:
    return parse_matrix(SMALL, "matrix.yaml")


def test_a_block_is_a_product_in_the_order_of_its_lists(small: Matrix) -> None:
    assert [c.id for c in small.cells if c.block == "documented"] == [
        f"{algorithm}-{model}-lora-{strategy}"
        for algorithm in ("sft", "dpo")
        for model in ("qwen3_8b", "qwen2_7b")
        for strategy in ("zero2", "zero3")
    ]


def test_an_id_names_the_engine_and_the_options_in_a_fixed_order(small: Matrix) -> None:
    ids = {c.id for c in small.cells}
    assert "dpo-qwen3_8b-full-ddp-vllm" in ids
    assert "sft-qwen3_8b-lora-zero2-sp2-dropout0.05" in ids
    assert "sft-qwen3_8b-lora-zero2-packing" in ids


def test_a_cell_carries_what_its_block_says(small: Matrix) -> None:
    cell = small.cell("sft-qwen3_8b-lora-zero2-sp2-dropout0.05")
    assert cell is not None
    assert cell.options == Options(sequence_parallel_size=2, lora_dropout=0.05)
    assert (cell.targets, cell.tier, cell.recipe.key, cell.devices) == ((Hardware.A2,), Tier.WEEKLY, "default_text", None)
    assert cell.line == SMALL[: SMALL.index("  limits:")].count("\n") + 1


def test_one_process_is_one_device(small: Matrix) -> None:
    cell = small.cell("sft-qwen3_8b-lora-single")
    assert cell is not None and cell.devices == 1 and cell.recipe.key == "quick"


def test_settings_stay_as_the_document_writes_them(small: Matrix) -> None:
    settings = small.recipes["quick"].settings
    assert settings == {"learning_rate": 1e-4, "num_train_epochs": 1}
    assert repr(settings["num_train_epochs"]) == "1"


def test_unknown_stays_unknown(small: Matrix) -> None:
    assert small.models["qwen3_8b"].revision is None and small.models["qwen3_8b"].devices == {Hardware.A2: None}
    assert small.models["qwen2_7b"].params_b is None and small.models["qwen2_7b"].devices == {Hardware.A2: 4}


def test_cells_that_differ_only_in_devices_are_told_apart_by_them() -> None:
    product = "models: [qwen2_7b], algorithms: [sft], tuners: [lora], strategies: [zero3]"
    eight = f"  eight: {{{product}, hardware: [a2], tier: weekly, devices: 8}}\nclaims:\n"
    matrix = parse_matrix(SMALL.replace("claims:\n", eight, 1), "matrix.yaml")
    assert {c.id for c in matrix.cells if c.id.startswith("sft-qwen2_7b-lora-zero3")} == {
        "sft-qwen2_7b-lora-zero3",
        "sft-qwen2_7b-lora-zero3-x8",
    }


def test_models_of_one_family_share_a_tiny_answer_and_nothing_else_does() -> None:
    text = SMALL.replace("family: qwen2\n", "family: qwen3\n")
    matrix = parse_matrix(text, "matrix.yaml")
    keys = {c.id: c.tiny_key for c in matrix.cells}
    assert keys["sft-qwen3_8b-lora-zero2"] == keys["sft-qwen2_7b-lora-zero2"]
    different = [c for c in matrix.cells if c.model.key == "qwen3_8b"]
    assert len({c.tiny_key for c in different}) == len(different)


def test_a_tiny_key_tells_families_apart(small: Matrix) -> None:
    keys = {c.id: c.tiny_key for c in small.cells}
    assert keys["sft-qwen3_8b-lora-zero2"] != keys["sft-qwen2_7b-lora-zero2"]


def test_a_claim_is_one_cell_on_one_hardware(small: Matrix) -> None:
    read = [c for c in small.claims if c.cell]
    assert {(c.cell, c.target) for c in read} == {
        (f"sft-qwen3_8b-lora-{strategy}", target) for strategy in ("zero2", "zero3") for target in (Hardware.A2, Hardware.A3)
    }
    assert read[0].row == "Qwen3-8B | deepspeed | 已支持" and read[0].says == "supported"
    assert (read[0].document, read[0].section, read[0].date) == ("A page", "Verified", "undated")


def test_a_claim_that_names_no_cell_says_why(small: Matrix) -> None:
    (claim,) = [c for c in small.claims if c.cell is None]
    assert claim.because_no_cell == "names no model" and claim.target is None


def test_rules_keep_their_line_and_kind(small: Matrix) -> None:
    limit, excluded = small.rules
    assert limit.kind is RulingKind.EXPECT_FAIL and limit.recorded_on is Hardware.A2
    assert excluded.kind is RulingKind.EXCLUDED
    assert limit.line == SMALL[: SMALL.index("- when: {family")].count("\n") + 1


def test_the_same_text_gives_the_same_matrix_and_another_text_another_hash(small: Matrix) -> None:
    assert parse_matrix(SMALL, "matrix.yaml") == small
    assert parse_matrix(SMALL + "\n# more\n", "matrix.yaml").sha256 != small.sha256


def wide(models: int) -> str:
    names = [f"m{n}" for n in range(models)]
    declared = "".join(f"  {n}: {{id: x/{n}, revision: unknown, family: qwen3, params_b: unknown, devices: {{}}}}\n" for n in names)
    block = f"""  wide:
    models: [{", ".join(names)}]
    algorithms: [sft, dpo]
    tuners: [lora, full]
    strategies: [single, ddp, fsdp1, fsdp2, zero2, zero3]
    options: [{{}}, {{packing: true}}, {{liger: true}}, {{attn_impl: sdpa}}]
    hardware: [a2]
    tier: contract
"""
    return SMALL.replace("stacks:\n", declared + "stacks:\n", 1).replace("cells:\n", "cells:\n" + block, 1)


def test_ten_thousand_cells_are_read_in_three_seconds_of_this_process() -> None:
    text = wide(105)
    begin = time.process_time()
    matrix = parse_matrix(text, "matrix.yaml")
    took = time.process_time() - begin
    assert len(matrix.cells) == 105 * 2 * 2 * 6 * 4 + 12
    assert len({c.id for c in matrix.cells}) == len(matrix.cells)
    assert all(re.fullmatch(r"[a-z0-9_.+-]{1,120}", c.id) for c in matrix.cells)
    assert took < 3
