"""matrix.yaml holds every documented fact once: counted here against the numbers of the documents."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import jsonschema
import pytest

from harness.matrix import json_schema, parse_matrix
from harness.matrix_text import read_yaml
from harness.model import Algorithm, Claim, Engine, Hardware, Matrix, RulingKind, Stage, Strategy, Tier, Tuner
from harness.rules import concerns, matches, required_stages

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "matrix.yaml").read_text(encoding="utf-8")
SCHEMA = ROOT / "harness" / "schemas" / "matrix.schema.json"


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    return parse_matrix(TEXT, "matrix.yaml")


def claims_of(matrix: Matrix, section: str) -> list[Claim]:
    return [c for c in matrix.claims if c.section == section]


def test_eight_products_of_which_three_are_supported(matrix: Matrix) -> None:
    products = matrix.tables["products"]
    assert len(products) == 8
    assert {row["hardware"] for row in products if row["supported"]} == {"a2", "a3", "a5"}
    assert all(row["hardware"] is None for row in products if not row["supported"])


def test_every_table_has_the_documented_number_of_rows(matrix: Matrix) -> None:
    assert {name: len(rows) for name, rows in matrix.tables.items()} == {
        "products": 8,
        "versions": 4,
        "combinations": 6,
        "features": 19,
        "sft": 15,
        "rl": 6,
        "unsupported": 4,
        "fused_expert_lora": 3,
        "qwen3_5": 6,
        "quantised": 1,
        "memory": 9,
        "examples": 10,
        "routes": 4,
    }


def test_fifteen_sft_rows_are_seventy_eight_claims(matrix: Matrix) -> None:
    claims = claims_of(matrix, "已验证 SFT 组合")
    assert len(claims) == len({(c.cell, c.target) for c in claims}) == 12 * 4 * 1 + 3 * 5 * 2 == 78
    per_row = Counter(c.row for c in claims)
    assert sorted(per_row.values()) == [4] * 12 + [10] * 3
    for claim in claims:
        cell = matrix.cell(claim.cell or "")
        assert cell is not None
        assert (cell.algorithm, cell.tuner, cell.engine) == (Algorithm.SFT, Tuner.LORA, Engine.TRANSFORMERS)
        assert (cell.strategy is Strategy.MEGATRON) <= ("Megatron" in claim.row)
        assert (claim.target is Hardware.A3) <= ("A3" in claim.row)


@pytest.mark.parametrize("section", ["已验证 SFT 组合", "已验证 RL 组合"])
def test_a_row_names_the_model_of_its_claims(matrix: Matrix, section: str) -> None:
    for claim in claims_of(matrix, section):
        cell = matrix.cell(claim.cell or "")
        assert cell is not None
        assert claim.row.split(" | ")[1] == cell.model.id.split("/")[1].removesuffix("-hf")


def test_six_rl_rows_are_twelve_claims_with_an_engine(matrix: Matrix) -> None:
    claims = claims_of(matrix, "已验证 RL 组合")
    assert len(claims) == 6 * 2
    cells = [matrix.cell(c.cell or "") for c in claims]
    assert Counter(c.algorithm.value for c in cells if c) == {"grpo": 4, "dpo": 4, "ppo": 4}
    assert {c.engine for c in cells if c} == {Engine.VLLM}
    assert {c.strategy for c in cells if c} == {Strategy.ZERO2, Strategy.ZERO3}
    assert all("4.6.0" in c.reading for c in claims if c.row.startswith(("DPO", "PPO")))


def test_nineteen_features_are_twenty_claims_since_deepspeed_is_two(matrix: Matrix) -> None:
    rows = matrix.tables["features"]
    states = Counter(row["state_en"] for row in rows)
    assert states == {"Supported": 16, "Not supported": 3}
    assert {row["state_zh"] for row in rows if row["state_en"] == "Supported"} == {"已支持"}
    read = [c for c in claims_of(matrix, "支持范围速览")]
    assert len(read) == 20 and len({c.row for c in read}) == 19
    assert all(c.cell for c in read)


def test_a_feature_that_is_not_supported_is_an_expected_failure(matrix: Matrix) -> None:
    for claim in claims_of(matrix, "支持范围速览") + claims_of(matrix, "暂不支持或未完全验证"):
        cell = matrix.cell(claim.cell or "")
        assert cell is not None
        # A rule of single stages says nothing of the feature as a whole.
        kinds = {rule.kind for rule in matrix.rules if matches(rule, cell) and concerns(rule, None)}
        assert kinds == (set() if claim.says == "Supported" else {RulingKind.EXPECT_FAIL}), claim


def test_four_unsupported_items_are_four_claims(matrix: Matrix) -> None:
    assert len(claims_of(matrix, "暂不支持或未完全验证")) == len(matrix.tables["unsupported"]) == 4


@pytest.mark.parametrize("section,claims", [("PEFT Transformers 5 MoE fused expert LoRA 限制", 10), ("Qwen3.5 FLA补丁说明", 21)])
def test_every_documented_limit_has_a_probe_that_is_expected_to_fail(matrix: Matrix, section: str, claims: int) -> None:
    read = claims_of(matrix, section)
    assert len(read) == claims
    for claim in read:
        cell = matrix.cell(claim.cell or "")
        assert cell is not None
        assert any(rule.issue == f"documented: {section}" and matches(rule, cell) for rule in matrix.rules), cell.id


def test_nine_memory_rows_are_five_cells_and_four_that_name_too_little(matrix: Matrix) -> None:
    rows = [c for c in matrix.claims if c.row.startswith(("7B | ", "14B | "))]
    assert [(c.cell, c.says) for c in rows] == [
        ("sft-qwen2_7b_instruct-lora-single", "1 * 28 GB"),
        ("sft-qwen2_7b_instruct-lora-ddp-x4", "4 * 22 GB"),
        ("sft-qwen2_7b_instruct-lora-zero2", "4 * 28 GB"),
        ("sft-qwen2_7b_instruct-lora-zero3", "4 * 22 GB"),
        ("sft-qwen2_7b_instruct-lora-ddp-x8", "8 * 22 GB"),
        (None, "1 * 45 GB"),
        (None, "8 * 51 GB"),
        (None, "8 * 49 GB"),
        (None, "8 * 31 GB"),
    ]
    assert all(c.because_no_cell for c in rows if c.cell is None)


def test_a_memory_row_has_the_devices_that_it_names(matrix: Matrix) -> None:
    for claim in matrix.claims:
        if claim.row.startswith("7B | "):
            cell = matrix.cell(claim.cell or "")
            assert cell is not None and cell.devices == int(claim.row.split(" | ")[1])


def test_every_row_of_every_claiming_table_is_read(matrix: Matrix) -> None:
    read = {c.row for c in matrix.claims}
    for name in ("features", "sft", "rl", "unsupported", "fused_expert_lora", "qwen3_5", "quantised", "memory", "examples", "routes"):
        for row in matrix.tables[name]:
            text = " | ".join(str(v) for k, v in row.items() if not k.endswith("_en") and k != "section" and v is not None)
            assert text in read, f"nobody reads {name}: {text}"


def test_the_page_gives_no_date_and_no_claim_invents_one(matrix: Matrix) -> None:
    assert {c.date for c in matrix.claims} == {"undated"}
    assert len(matrix.claims) == 78 + 12 + 20 + 4 + 10 + 21 + 1 + 9 + 10 + 4


def test_the_flagship_is_the_quick_start_to_the_last_setting(matrix: Matrix) -> None:
    cell = matrix.cell("sft-qwen3_0_6b-lora-single")
    assert cell is not None and cell.model.id == "Qwen/Qwen3-0.6B" and cell.tier is Tier.PR
    assert cell.recipe.dataset == ("AI-ModelScope/alpaca-gpt4-data-zh#1000",)
    assert len(cell.recipe.settings) == 20
    assert cell.recipe.settings["served_model_name"] == "npu-modelscope-qwen3-0_6b"
    assert cell.recipe.settings["gradient_accumulation_steps"] == 8
    assert required_stages(cell.algorithm, cell.tuner, cell.engine) == (
        Stage.TRAIN,
        Stage.RESUME,
        Stage.MERGE,
        Stage.INFER,
        Stage.DEPLOY,
    )


def test_the_skeleton_is_two_text_models_and_a_mixture_of_both_expert_shapes(matrix: Matrix) -> None:
    dense = {
        f"{algorithm}-{model}-{tuner}-single"
        for model in ("qwen3_0_6b", "qwen2_5_0_5b_instruct")
        for algorithm, tuner in (("sft", "lora"), ("sft", "full"), ("dpo", "lora"), ("dpo", "full"), ("pt", "lora"), ("rm", "lora"))
    }
    moe = "sft-qwen3_30b_a3b-full-single"
    mixture = {moe, f"{moe}-experts_square", f"{moe}-no_patch", f"{moe}-no_patch-experts_square"}
    options = {"sft-qwen3_0_6b-lora-single-no_patch", "sft-qwen2_5_0_5b_instruct-lora-single-dropout0.05"}
    assert {c.id for c in matrix.cells if c.tier is Tier.PR} == dense | mixture | options


def test_one_text_model_is_parsed_with_every_algorithm_tuner_and_strategy(matrix: Matrix) -> None:
    tuners = (Tuner.LORA, Tuner.FULL)
    seen = {
        (c.algorithm, c.tuner, c.strategy)
        for c in matrix.cells
        if c.model.key == "qwen3_8b" and c.engine is Engine.TRANSFORMERS and c.tuner in tuners
    }
    assert len(seen) == 15 * 2 * 6
    assert len(matrix.cells) > 300


def test_only_cells_of_tier_contract_are_excluded(matrix: Matrix) -> None:
    excluded = [c for c in matrix.cells if any(r.kind is RulingKind.EXCLUDED and matches(r, c) for r in matrix.rules)]
    assert excluded and {c.tier for c in excluded} == {Tier.CONTRACT}


def test_every_named_combination_is_a_stack(matrix: Matrix) -> None:
    assert len(matrix.stacks) == len(matrix.tables["combinations"]) + 2  # the version table, and vllm-ascend on A3 and on A5
    assert dict(matrix.stacks["docs_fla"].requires) == {
        "torch": "==2.9.0",
        "mindspeed": "==0.16.0",
        "flash-linear-attention": "==0.4.2",
        "triton-ascend": "==3.2.1",
        "transformers": "==5.2.0",
    }
    assert matrix.stacks["vllm_ascend_a3"].requires["vllm-ascend"] == "==0.18.0"
    assert matrix.stacks["vllm_ascend_a5"].requires["vllm-ascend"] == "==0.19.1"
    assert matrix.stacks["docs_vllm_serving"].requires == {"vllm": "==0.14.0", "vllm-ascend": "==0.14.0rc1"}


def test_ids_are_unique_and_safe_as_file_names(matrix: Matrix) -> None:
    ids = [c.id for c in matrix.cells]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9_.+-]{0,119}", i) for i in ids)


def test_the_published_schema_is_current() -> None:
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == json_schema()


def as_json(text: str) -> object:
    return json.loads(json.dumps(read_yaml(text, "matrix.yaml").data))


def test_the_matrix_is_valid_by_the_published_schema() -> None:
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8"))).validate(as_json(TEXT))


@pytest.mark.parametrize(
    "old,new",
    [
        ("tier: pr", "tier: monthly"),
        ("revision: unknown", "revision:"),
        ("revision: unknown", "revision: main"),
        ("learning_rate: 1e-4", "learning_rate: null"),
        ("id: Qwen/Qwen3-0.6B", "id: ../etc"),
        ('["Ascend910B*"]', '["*"]'),
        ("{liger: true}", "{ligr: true}"),
    ],
)
def test_the_published_schema_refuses_what_the_loader_refuses(old: str, new: str) -> None:
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(as_json(TEXT.replace(old, new, 1)))
