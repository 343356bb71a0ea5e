"""What is asked of a cell here, and which of its stages have a proof."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from pathlib import Path

import pytest

from harness.commands_devices import tiny_devices
from harness.matrix import parse_matrix
from harness.model import Algorithm, Cell, Engine, Hardware, Matrix, Ruling, RulingKind, Stage, Strategy, Tier, Tuner, Weights
from harness.rules import applicable_stages, changed_options, matches, proof_gap, required_stages, rule_for
from harness.select import select_cells

TEXT = (Path(__file__).parent.parent / "matrix.yaml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    return parse_matrix(TEXT, "matrix.yaml")


def cell_of(matrix: Matrix, cell_id: str) -> Cell:
    cell = matrix.cell(cell_id)
    assert cell is not None, cell_id
    return cell


def ruling(matrix: Matrix, cell_id: str, hardware: Hardware, weights: Weights, rehearsal: bool = False) -> Ruling:
    return rule_for(cell_of(matrix, cell_id), matrix, hardware=hardware, weights=weights, rehearsal=rehearsal)


SPREAD = tuple(s for s in Strategy if s not in (Strategy.SINGLE, Strategy.MEGATRON))
TEXT_MODELS = ("qwen2_5_0_5b_instruct", "qwen3_0_6b", "qwen3_30b_a3b")


def running(matrix: Matrix, hardware: Hardware) -> dict[str, Cell]:
    runnable = (RulingKind.RUN, RulingKind.EXPECT_FAIL)
    return {c.id: c for c in select_cells(matrix) if rule_for(c, matrix, hardware=hardware, weights=Weights.TINY).kind in runnable}


def table(strategies: Iterable[Strategy]) -> set[str]:
    """Every text model with every offline algorithm, both tuners and `strategies`."""
    axes = (("sft", "pt", "dpo", "rm"), TEXT_MODELS, ("lora", "full"), strategies)
    return {"-".join(map(str, words)) for words in product(*axes)}


def test_a_plain_cpu_runs_the_skeleton_and_of_every_strategy_what_it_does_as_asked(matrix: Matrix) -> None:
    runs = running(matrix, Hardware.CPU)
    skeleton = {c.id for c in matrix.cells if c.tier is Tier.PR}
    assert runs.keys() >= skeleton and len(skeleton) == 18
    others = {f"sft-qwen2_7b_instruct-lora-{strategy}" for strategy in ("single", "ddp-x4", "ddp-x8")}
    others |= {f"sft-qwen2_5_0_5b_instruct-{tuner}-{strategy}-bfloat16" for tuner in ("lora", "full") for strategy in ("single", "ddp")}
    assert runs.keys() - skeleton == (table((Strategy.SINGLE, Strategy.DDP)) - skeleton) | others


def test_a_simulated_npu_runs_every_strategy_with_every_offline_algorithm_and_tuner_of_three_families(matrix: Matrix) -> None:
    runs = running(matrix, Hardware.SIM)
    assert runs.keys() >= running(matrix, Hardware.CPU).keys()
    # Tiny models of one family are the same model, whichever real one a cell names.
    found = {(str(c.algorithm), c.model.family, str(c.tuner), c.strategy) for c in runs.values()}
    families = ("qwen2", "qwen3", "qwen3_moe")
    assert found == set(product(("sft", "pt", "dpo", "rm"), families, ("lora", "full"), (Strategy.SINGLE, *SPREAD)))
    for cell in runs.values():
        assert proof_gap(cell, Stage.TRAIN, hardware=Hardware.SIM, weights=Weights.TINY) == "", cell.id
    ranks = {strategy: {tiny_devices(cell) for cell in runs.values() if cell.strategy is strategy} for strategy in SPREAD}
    assert ranks == {strategy: {2, 4} for strategy in SPREAD}


@pytest.mark.parametrize("strategy", [s for s in SPREAD if s is not Strategy.DDP])
def test_a_strategy_that_a_plain_cpu_does_otherwise_than_asked_is_not_run_there(matrix: Matrix, strategy: Strategy) -> None:
    found = ruling(matrix, f"sft-qwen2_5_0_5b_instruct-lora-{strategy}", Hardware.CPU, Weights.TINY)
    assert found == Ruling(RulingKind.NOT_RUNNABLE, f"a plain cpu does not do {strategy} as asked: a simulated NPU does")


@pytest.mark.parametrize("hardware", list(Hardware))
@pytest.mark.parametrize("weights", list(Weights))
@pytest.mark.parametrize("rehearsal", [False, True])
def test_nothing_is_ruled_out_or_expected_to_fail_without_a_because(
    matrix: Matrix, hardware: Hardware, weights: Weights, rehearsal: bool
) -> None:
    for cell in matrix.cells:
        found = rule_for(cell, matrix, hardware=hardware, weights=weights, rehearsal=rehearsal)
        assert (found.kind is RulingKind.RUN) == (not found.because)
        if found.kind is RulingKind.EXPECT_FAIL:
            assert found.issue and found.since and found.recorded_on


@pytest.mark.parametrize(
    "cell_id,because",
    [
        ("sft-qwen2_7b_instruct-lora-zero2", "a plain cpu does not do zero2 as asked: a simulated NPU does"),
        ("sft-qwen3_8b-lora-fsdp1", "a plain cpu does not do fsdp1 as asked: a simulated NPU does"),
        ("sft-qwen2_5_0_5b_instruct-lora-ddp-sp2", "option sequence_parallel_size isn't built off an NPU yet"),
        ("sft-qwen2_5_7b_instruct-lora-single-vllm", "engine vllm isn't built off an NPU yet"),
        ("sft-qwen2_5_7b_instruct-lora-single-flash_attn", "option attn_impl isn't built off an NPU yet"),
        ("sft-qwen3_30b_a3b-lora-fsdp1", "a plain cpu does not do fsdp1 as asked: a simulated NPU does"),
        ("sft-qwen3_5_27b-lora-megatron", "no tiny model of family qwen3_5 is built yet"),
    ],
)
def test_a_plain_cpu_says_what_it_lacks(matrix: Matrix, cell_id: str, because: str) -> None:
    assert ruling(matrix, cell_id, Hardware.CPU, Weights.TINY) == Ruling(RulingKind.NOT_RUNNABLE, because)


def test_a_limit_stays_visible_where_the_cell_cant_run(matrix: Matrix) -> None:
    found = ruling(matrix, "sft-qwen3_8b-qlora-single", Hardware.CPU, Weights.TINY)
    assert found.kind is RulingKind.NOT_RUNNABLE
    assert found.because == ("tuner qlora isn't built off an NPU yet (known limit: quantisation and QLoRA are not supported on NPUs)")
    assert (found.issue, found.recorded_on) == ("documented: 暂不支持或未完全验证", Hardware.A2)


@pytest.mark.parametrize(
    "cell_id",
    [
        "sft-qwen3_8b-qlora-single",
        "sft-qwen3_8b-full-single-liger",
        "sft-qwen2_5_7b_instruct-lora-single-sglang",
        "grpo-qwen2_5_7b_instruct-lora-zero2-sglang",
        "sft-qwen3_5_35b_a3b-lora-megatron-etp2",
        "sft-qwen3_5_35b_a3b-lora-single-params_gate_up_proj+down_proj",
        "sft-qwen3_5_35b_a3b-lora-single-dropout0.05-params_gate_up_proj+down_proj",
        "sft-qwen3_omni_30b_a3b_instruct-lora-zero3-dropout0-params_gate_up_proj+down_proj",
        "sft-qwen3_omni_30b_a3b_instruct-lora-fsdp2-dropout0-params_gate_up_proj+down_proj",
        "sft-qwen3_5_35b_a3b-lora-single-dropout0-params_gate_up_proj+down_proj-adapters2",
        "sft-qwen3_5_27b-lora-zero2-sp2",
        "sft-qwen3_5_4b-lora-zero2-packing",
        "sft-qwen3_5_35b_a3b-lora-zero2-padding_free",
        "sft-qwen3_5_27b-lora-megatron-cp2-mcore_gdn",
        "sft-qwen3_5_27b-lora-megatron-packing-no_mcore_gdn",
    ],
)
def test_every_documented_limit_is_expected_to_fail_on_the_npu(matrix: Matrix, cell_id: str) -> None:
    found = ruling(matrix, cell_id, Hardware.A2, Weights.REAL, rehearsal=True)
    assert found.kind is RulingKind.EXPECT_FAIL and found.issue.startswith("documented: ")


@pytest.mark.parametrize("strategy", ["single", "ddp", "zero2"])
def test_fused_experts_without_dropout_or_sharding_are_no_limit(matrix: Matrix, strategy: str) -> None:
    cell_id = f"sft-qwen3_5_35b_a3b-lora-{strategy}-dropout0-params_gate_up_proj+down_proj"
    assert ruling(matrix, cell_id, Hardware.A2, Weights.REAL, rehearsal=True).kind is RulingKind.RUN


@pytest.mark.parametrize("hardware", [Hardware.CPU, Hardware.SIM, Hardware.A2])
def test_a_combination_without_meaning_is_excluded_everywhere(matrix: Matrix, hardware: Hardware) -> None:
    for cell_id in ("sft-qwen2_5_1_5b_instruct-lora-single-sp2", "rm-qwen2_5_0_5b_instruct-lora-zero2-vllm"):
        assert ruling(matrix, cell_id, hardware, Weights.TINY).kind is RulingKind.EXCLUDED
    assert ruling(matrix, "sft-qwen2_5_1_5b_instruct-full-ddp-dropout0", hardware, Weights.TINY).kind is RulingKind.EXCLUDED


def test_real_weights_name_everything_that_is_unknown(matrix: Matrix) -> None:
    found = ruling(matrix, "sft-qwen3_8b-lora-zero2", Hardware.A2, Weights.REAL)
    assert found == Ruling(
        RulingKind.NOT_RUNNABLE,
        "unknown in matrix.yaml: the revision of Qwen/Qwen3-8B and the number of NPUs that it needs on a2",
    )
    only_revision = ruling(matrix, "sft-qwen3_0_6b-lora-single", Hardware.A2, Weights.REAL)
    assert only_revision.because == "unknown in matrix.yaml: the revision of Qwen/Qwen3-0.6B"


def test_in_a_rehearsal_what_is_unknown_blocks_nothing(matrix: Matrix) -> None:
    for cell in select_cells(matrix):
        found = rule_for(cell, matrix, hardware=Hardware.A2, weights=Weights.REAL, rehearsal=True)
        if cell.options.tiny_experts:
            assert found.kind is RulingKind.NOT_RUNNABLE and "tiny models only" in found.because
        else:
            assert found.kind in (RulingKind.RUN, RulingKind.EXPECT_FAIL)


def test_a_rule_of_a_stage_speaks_of_that_stage_alone(matrix: Matrix) -> None:
    cell = cell_of(matrix, "sft-qwen3_30b_a3b-full-single")
    for stage in (None, *Stage):
        found = rule_for(cell, matrix, hardware=Hardware.SIM, weights=Weights.TINY, stage=stage)
        assert found.kind is (RulingKind.EXPECT_FAIL if stage is Stage.RESUME else RulingKind.RUN)


@pytest.mark.parametrize(
    ("cell_id", "stage", "causes"),
    [
        ("sft-qwen3_30b_a3b-full-single", Stage.RESUME, ("resume.differs", "resume.ignored")),
        ("sft-qwen3_30b_a3b-full-single-experts_square", Stage.TRAIN, ("golden.differs",)),
    ],
)
def test_a_ruling_carries_the_causes_of_its_limit(matrix: Matrix, cell_id: str, stage: Stage, causes: tuple[str, ...]) -> None:
    found = rule_for(cell_of(matrix, cell_id), matrix, hardware=Hardware.SIM, weights=Weights.TINY, stage=stage)
    assert (found.kind, found.causes) == (RulingKind.EXPECT_FAIL, causes)


def test_what_this_harness_found_is_known_by_its_cause(matrix: Matrix) -> None:
    assert all(rule.causes for rule in matrix.rules if rule.issue == "found by this harness")


def test_a_pinned_model_with_known_devices_runs_with_real_weights(matrix: Matrix) -> None:
    commit = "c1899de289a04d12100db370d81485cdf75e47ca"
    pinned = parse_matrix(TEXT.replace("Qwen/Qwen3-0.6B, revision: unknown", f"Qwen/Qwen3-0.6B, revision: {commit}"), "matrix.yaml")
    assert ruling(pinned, "sft-qwen3_0_6b-lora-single", Hardware.A2, Weights.REAL) == Ruling(RulingKind.RUN)


def test_real_weights_are_not_run_off_an_npu_even_in_a_rehearsal(matrix: Matrix) -> None:
    assert "an NPU only" in ruling(matrix, "sft-qwen3_0_6b-lora-single", Hardware.CPU, Weights.REAL, rehearsal=True).because


def test_hardware_that_no_document_names_for_a_cell_is_named(matrix: Matrix) -> None:
    assert ruling(matrix, "sft-qwen3_8b-lora-fsdp2", Hardware.A3, Weights.TINY).because == "the cell is declared for a2, not for a3"
    both = ruling(matrix, "sft-qwen3_5_27b-lora-fsdp2", Hardware.A5, Weights.REAL)
    assert both.because == "the cell is declared for a2 and a3, not for a5"


def test_a_simulated_npu_runs_what_a_plain_cpu_runs(matrix: Matrix) -> None:
    assert ruling(matrix, "sft-qwen3_0_6b-lora-single", Hardware.SIM, Weights.TINY) == Ruling(RulingKind.RUN)
    assert ruling(matrix, "sft-qwen3_0_6b-lora-single", Hardware.SIM, Weights.REAL).kind is RulingKind.NOT_RUNNABLE


@pytest.mark.parametrize(
    "algorithm,tuner,engine,stages",
    [
        ("sft", "lora", "transformers", "train resume merge infer deploy"),
        ("pt", "lora", "vllm", "train resume merge infer deploy"),
        ("dpo", "qlora", "transformers", "train resume merge infer deploy"),
        ("dpo", "lora", "vllm", "train resume merge infer deploy"),
        ("sft", "full", "transformers", "train resume infer deploy"),
        ("rm", "lora", "transformers", "train resume"),
        ("embedding", "full", "vllm", "train resume"),
        ("seq_cls", "lora", "transformers", "train resume"),
        ("reranker", "lora", "transformers", "train resume"),
        ("ppo", "lora", "transformers", "train infer"),
        ("gkd", "full", "transformers", "train infer"),
        ("ppo", "lora", "vllm", "train infer rollout"),
        ("grpo", "lora", "vllm", "train resume merge infer deploy rollout"),
        ("grpo", "full", "sglang", "train resume infer deploy rollout"),
        ("rloo", "lora", "transformers", "train resume merge infer deploy"),
    ],
)
def test_required_stages(algorithm: str, tuner: str, engine: str, stages: str) -> None:
    found = required_stages(Algorithm(algorithm), Tuner(tuner), Engine(engine))
    assert " ".join(map(str, found)) == stages


def test_eval_applies_where_text_is_written_and_is_a_contract(matrix: Matrix) -> None:
    flagship = cell_of(matrix, "sft-qwen3_0_6b-lora-single")
    assert applicable_stages(flagship) == (Stage.TRAIN, Stage.RESUME, Stage.MERGE, Stage.INFER, Stage.DEPLOY, Stage.EVAL)
    assert applicable_stages(cell_of(matrix, "rm-qwen3_0_6b-lora-single")) == (Stage.TRAIN, Stage.RESUME)
    gap = proof_gap(flagship, Stage.EVAL, hardware=Hardware.CPU, weights=Weights.TINY)
    assert gap == "eval is a contract until a proof of it is defined"


def test_every_required_stage_of_the_skeleton_has_a_proof_on_a_cpu(matrix: Matrix) -> None:
    for cell in select_cells(matrix, tier=Tier.PR):
        for stage in required_stages(cell.algorithm, cell.tuner, cell.engine):
            assert proof_gap(cell, stage, hardware=Hardware.CPU, weights=Weights.TINY) == "", (cell.id, stage)


@pytest.mark.parametrize(
    "cell_id,stage,because",
    [
        ("sft-qwen3_5_27b-lora-megatron", Stage.TRAIN, "the proof of strategy megatron isn't built yet"),
        ("sft-qwen2_5_7b_instruct-lora-single-vllm", Stage.INFER, "the proof of engine vllm isn't built yet"),
        ("kto-qwen3_8b-lora-single", Stage.TRAIN, "the proof of algorithm kto isn't built yet"),
        ("sft-qwen3_8b-qlora-single", Stage.TRAIN, "the proof of tuner qlora isn't built yet"),
        ("sft-qwen3_8b-lora-single-liger", Stage.TRAIN, "the proof of option liger isn't built yet"),
        ("grpo-qwen3_8b-lora-zero2-vllm", Stage.ROLLOUT, "rollout is a contract until a proof of it is defined"),
        ("rm-qwen3_0_6b-lora-single", Stage.INFER, "infer is no stage of rm with lora"),
        ("sft-qwen3_0_6b-full-single", Stage.MERGE, "merge is no stage of sft with full"),
        ("sft-qwen3_0_6b-lora-single", Stage.RESUME, ""),
    ],
)
def test_a_missing_proof_is_named(matrix: Matrix, cell_id: str, stage: Stage, because: str) -> None:
    assert proof_gap(cell_of(matrix, cell_id), stage, hardware=Hardware.A2, weights=Weights.REAL) == because


def test_what_runs_on_a_cpu_can_be_proved_there(matrix: Matrix) -> None:
    for cell in matrix.cells:
        if rule_for(cell, matrix, hardware=Hardware.CPU, weights=Weights.TINY).kind is RulingKind.RUN and cell.tier is not Tier.CONTRACT:
            assert proof_gap(cell, Stage.TRAIN, hardware=Hardware.CPU, weights=Weights.TINY) == "", cell.id


def test_a_rule_matches_only_when_every_field_does(matrix: Matrix) -> None:
    rule = next(r for r in matrix.rules if "expert_tensor_parallel_size" in r.when)
    matching = {c.id for c in matrix.cells if matches(rule, c)}
    assert matching == {"sft-qwen3_omni_30b_a3b_instruct-lora-megatron-etp2", "sft-qwen3_5_35b_a3b-lora-megatron-etp2"}


def test_changed_options_are_those_that_a_cell_sets(matrix: Matrix) -> None:
    assert changed_options(cell_of(matrix, "sft-qwen3_0_6b-lora-single").options) == ()
    assert changed_options(cell_of(matrix, "sft-qwen3_5_27b-lora-megatron-cp2-mcore_gdn").options) == (
        "context_parallel_size",
        "use_mcore_gdn",
    )
