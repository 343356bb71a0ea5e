"""What rows of support tables mean: every wording that ms-swift's pages have used, and the ways others may write them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.docs_rows import RowMeaning, TableKind, read_rows, table_form
from harness.matrix import parse_matrix
from harness.matrix_claims import row_text
from harness.model import Hardware

MATRIX = parse_matrix((Path(__file__).resolve().parent.parent / "matrix.yaml").read_text(encoding="utf-8"), "matrix.yaml")
SFT = ("algorithm", "model families", "strategy", "hardware")
RL = ("algorithm", "model families", "strategy", "rollout engine", "hardware")
A2 = "Atlas 900 A2 PODc"


def mean(columns: tuple[str, ...], *rows: tuple[str, ...], heading: str = "") -> tuple[RowMeaning, ...]:
    form = table_form(columns)
    assert form is not None
    return read_rows(form, rows, MATRIX, heading)


def cells(columns: tuple[str, ...], *row: str) -> set[tuple[str, str]]:
    (meaning,) = mean(columns, row)
    assert meaning.problems == () and meaning.without_cell == ()
    return {(cell, str(target)) for cell, target in meaning.cells}


QWEN3_8B = {(f"sft-qwen3_8b-lora-{strategy}", "a2") for strategy in ("fsdp1", "fsdp2", "zero2", "zero3")}


@pytest.mark.parametrize(("table", "columns"), [("sft", SFT), ("rl", RL)])
def test_a_documented_combination_means_the_cells_of_its_claim(table: str, columns: tuple[str, ...]) -> None:
    for row in MATRIX.tables[table]:
        claimed = {(c.cell, str(c.target)) for c in MATRIX.claims if c.row == row_text(row)}
        assert cells(columns, *map(str, row.values())) == claimed


@pytest.mark.parametrize("language", ["zh", "en"])
def test_a_documented_feature_or_item_means_the_cells_of_its_claim_in_both_languages(language: str) -> None:
    for row in MATRIX.tables["features"]:
        (meaning,) = mean(("一级特性", "特性", "进展"), tuple(str(row[f"{name}_{language}"]) for name in ("group", "feature", "state")))
        assert set(meaning.cells) == {(c.cell, c.target) for c in MATRIX.claims if c.row == row_text(row)} != set()
        assert meaning.says == row[f"state_{language}"] and not meaning.names_model
    for row in MATRIX.tables["unsupported"]:
        (meaning,) = mean(("item",), (str(row[f"item_{language}"]),))
        assert set(meaning.cells) == {(c.cell, c.target) for c in MATRIX.claims if c.row == row_text(row)} != set()


@pytest.mark.parametrize(
    ("group", "feature", "cell"),
    [
        ("Performance Optimization", "Fused ops such as FA", "sft-qwen2_5_7b_instruct-lora-single-flash_attn"),
        ("Optimization", "FA and other fused ops", "sft-qwen2_5_7b_instruct-lora-single-flash_attn"),
        ("Distributed", "MindSpeed (Megatron)", "sft-qwen3_5_27b-lora-megatron"),
        ("Distributed", "FSDP", "sft-qwen2_5_7b_instruct-lora-fsdp1"),
        ("PEFT", "LoRA", "sft-qwen3_0_6b-lora-single"),
    ],
)
def test_other_wordings_of_a_feature_are_known_by_their_technical_words(group: str, feature: str, cell: str) -> None:
    assert cells(("Primary Feature", "Feature", "Status"), group, feature, "Supported") == {(cell, "a2")}


@pytest.mark.parametrize(
    "item",
    ["Quantization/QLoRA", "Quantization/QLoRA related features", "量化/QLoRA相关"],
)
def test_other_wordings_of_an_unsupported_item_are_known_too(item: str) -> None:
    assert cells(("Item",), item) == {("sft-qwen2_5_7b_instruct-qlora-single", "a2")}


def test_a_feature_under_another_group_is_another_feature() -> None:
    (meaning,) = mean(("一级特性", "特性", "进展"), ("训练范式", "PT", "已支持"))
    assert meaning.cells == () and "PT" in meaning.problems[0]


def test_the_group_of_a_feature_goes_on_below_where_its_cell_is_empty() -> None:
    found = mean(("一级特性", "特性", "进展"), ("部署", "PT", "已支持"), ("", "vLLM", "已支持"), ("", "CPT", "已支持"))
    assert [len(m.cells) for m in found] == [1, 1, 0]


def test_a_column_of_row_numbers_stands_in_nobody_s_way() -> None:
    columns = ("序号", "algorithm", "model families", "strategy", "hardware")
    above, below = ("1", "SFT", "Qwen2.5-7B-Instruct", "FSDP2", A2), ("3", "", "", "FSDP2", A2)
    found = mean(columns, above, ("2", "", "Qwen3-8B", "FSDP1/FSDP2/deepspeed", A2), below)
    assert set(found[1].cells) == QWEN3_8B and found[1].problems == ()
    assert found[2].cells == (("sft-qwen3_8b-lora-fsdp2", Hardware.A2),)


@pytest.mark.parametrize("columns", [("Hardware", "策略", "模型系列", "算法"), ("硬件", "Strategy", "Model Families", "Algorithm")])
def test_columns_in_another_order_and_language_mean_the_same(columns: tuple[str, ...]) -> None:
    assert cells(columns, A2, "FSDP1/FSDP2/deepspeed", "Qwen3-8B", "SFT") == QWEN3_8B


@pytest.mark.parametrize(
    "strategy",
    [
        "FSDP1/FSDP2/deepspeed",
        "FSDP1、FSDP2、DeepSpeed",
        "fsdp1, fsdp2, ZeRO-2/3",
        "FSDP1/2, zero2 和 zero3",
        "`FSDP`/**FSDP2**/ZeRO2/ZeRO3",
    ],
)
def test_strategies_are_read_in_every_form(strategy: str) -> None:
    assert cells(SFT, "SFT", "Qwen3-8B", strategy, A2) == QWEN3_8B


@pytest.mark.parametrize(
    "model", ["Qwen3-8B", "qwen3-8b", "Qwen/Qwen3-8B", "`Qwen3-8B`", "**Qwen3-8B**", "[Qwen3-8B](https://x.cn/models/Qwen/Qwen3-8B)"]
)
def test_models_are_read_in_every_form(model: str) -> None:
    assert cells(SFT, "**SFT**", model, "FSDP1/FSDP2/deepspeed", A2) == QWEN3_8B


def test_several_models_of_a_row_are_a_product() -> None:
    both = {(cell.replace("qwen3_8b", "qwen3_32b"), target) for cell, target in QWEN3_8B} | QWEN3_8B
    for families in ("Qwen3-8B/Qwen3-32B", "Qwen/Qwen3-8B, Qwen/Qwen3-32B", "Qwen3-8B、Qwen3-32B", "Qwen3-8B<br>Qwen3-32B"):
        assert cells(SFT, "SFT", families, "FSDP1/FSDP2/deepspeed", A2) == both


@pytest.mark.parametrize("hardware", [A2, "A2", "昇腾910B3", "Ascend 910B", "Atlas A2 训练系列", "<term>Atlas 900 A2 PODc</term>"])
def test_hardware_is_read_in_every_form(hardware: str) -> None:
    assert cells(SFT, "SFT", "Qwen3-8B", "FSDP1/FSDP2/deepspeed", hardware) == QWEN3_8B


def test_hardware_of_two_series_is_a_product_and_what_no_cell_asks_is_told() -> None:
    assert len(cells(SFT, "SFT", "Qwen3.5-27B", "deepspeed/Megatron", "Atlas 900 A2 PODc/A3 SuperPoD")) == 6
    (meaning,) = mean(SFT, ("SFT", "Qwen3-8B", "FSDP2", "A2/A3"))
    assert meaning.cells == (("sft-qwen3_8b-lora-fsdp2", Hardware.A2),)
    assert meaning.without_cell == ("sft Qwen3-8B lora fsdp2 transformers a3",)


def test_a_tuner_is_lora_unless_a_word_says_otherwise() -> None:
    full = {("sft-qwen2_5_0_5b_instruct-full-zero3", "a2")}
    assert cells(SFT, "SFT (full)", "Qwen2.5-0.5B-Instruct", "ZeRO3", A2) == full
    assert cells((*SFT, "微调方式"), "SFT", "Qwen2.5-0.5B-Instruct", "ZeRO3", A2, "全参数") == full


def test_the_engine_is_what_the_row_says() -> None:
    assert cells(RL, "**DPO**", "Qwen3-8B", "zero2", "vllm-ascend", A2) == {("dpo-qwen3_8b-lora-zero2-vllm", "a2")}
    assert cells(RL, "DPO", "Qwen3-8B", "zero2", "-", A2) == {("dpo-qwen3_8b-lora-zero2", "a2")}
    assert cells(SFT, "GRPO", "Qwen2.5-7B-Instruct", "zero3", A2) == {("grpo-qwen2_5_7b_instruct-lora-zero3-vllm", "a2")}


def test_a_table_without_algorithms_takes_that_of_its_title() -> None:
    (meaning,) = mean(SFT[1:], ("Qwen3-8B", "FSDP2", A2), heading="已验证 SFT 组合")
    assert [cell for cell, _ in meaning.cells] == ["sft-qwen3_8b-lora-fsdp2"]
    (meaning,) = mean(SFT[1:], ("Qwen3-8B", "FSDP2", A2))
    assert "names no algorithm" in meaning.problems[0]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (("SFT", "Qwen3_8bb", "FSDP2", A2), "Perhaps 'Qwen3-8B'?"),
        (("SFT", "Qwen3-8B", "FSDP3", A2), "Perhaps 'fsdp"),
        (("SFFT", "Qwen3-8B", "FSDP2", A2), "Perhaps 'sft'?"),
        (("SFT", "Qwen3-8B", "FSDP2", "Atlas 900 A4 PODc"), "Perhaps 'Atlas 900 A2 PODc'?"),
        (("SFT", "", "FSDP2", A2), "names no model"),
    ],
)
def test_an_unknown_word_is_told_with_the_closest_known_one(row: tuple[str, ...], said: str) -> None:
    (meaning,) = mean(SFT, row)
    assert meaning.cells == () and any(said in problem for problem in meaning.problems), meaning


def test_what_is_known_of_a_row_is_read_though_another_word_is_not() -> None:
    (meaning,) = mean(SFT, ("SFT", "Qwen3-8B/Qwen9", "FSDP2/warp", A2))
    assert [cell for cell, _ in meaning.cells] == ["sft-qwen3_8b-lora-fsdp2"]
    assert len(meaning.problems) == 2


def test_memory_rows_mean_the_cells_of_their_claims() -> None:
    for columns in (
        ("模型大小", "NPU数量", "deepspeed类型", "最大显存占用量"),
        ("Model Size", "Number of NPUs", "Deepspeed Type", "Max Memory Usage"),
        ("Model size", "NPU count", "DeepSpeed type", "Max memory usage"),
    ):
        assert table_form(columns) == replace(table_form(columns) or pytest.fail("unknown"), kind=TableKind.MEMORY)
        assert cells(columns, "7B", "4", "zero2", "4 * 28 GB") == {("sft-qwen2_7b_instruct-lora-zero2", "a2")}
        assert cells(columns, "14B", "8", "zero2", "8 * 49 GB") == set()
        (meaning,) = mean(columns, ("7B", "16", "zero2", "1 * 1 GB"))
        assert "no documented row" in meaning.problems[0]


def test_products_are_known_and_mean_no_cell() -> None:
    for row in (("<term>Atlas A2 训练系列产品</term>", "√"), ("<term>Atlas A3 inference series products</term>", "x")):
        (meaning,) = mean(("产品", "是否支持"), row)
        assert meaning == RowMeaning((), row[1], names_model=False)
    (meaning,) = mean(("Product", "Supported"), ("Atlas A9 training series products", "√"))
    assert "Perhaps 'Atlas A" in meaning.problems[0]


@pytest.mark.parametrize(
    "columns", [("software", "version"), ("场景", "推荐路线", "是否需要 MindSpeed"), ("Model ID", "Model Type", "Default Template"), ("",)]
)
def test_other_tables_are_none_of_these(columns: tuple[str, ...]) -> None:
    assert table_form(columns) is None


TEXT = st.text("ABab23/,、()（）*`<>[]|\\ -_—FSDPzeroQwen训练", max_size=12)


@given(
    st.lists(st.lists(TEXT, max_size=6).map(tuple), max_size=4),
    st.sampled_from([SFT, RL, ("特性", "进展"), ("item",), ("size", "x")]),
    TEXT,
)
def test_no_row_breaks_the_reader(rows: list[tuple[str, ...]], columns: tuple[str, ...], heading: str) -> None:
    form = table_form(columns)
    if form is not None:
        assert len(read_rows(form, rows, MATRIX, heading)) == len(rows)
