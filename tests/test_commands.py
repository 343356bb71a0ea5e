"""The commands: what a document says, what changes for a real and for a tiny run, and that every change is told."""

from __future__ import annotations

import itertools
import shlex
import subprocess
from dataclasses import replace

import pytest
from cells_by_hand import PLAIN, QWEN3, cell, places, wide
from hypothesis import given
from hypothesis import strategies as st

from harness import commands
from harness.commands import (
    Form,
    NotBuilt,
    contract_commands,
    documented_commands,
    normalised,
    not_built,
    plan_stage,
    shell_line,
    stages_of,
)
from harness.commands_tables import deadline_s
from harness.errors import HarnessError
from harness.model import Algorithm, Cell, Command, Engine, Hardware, Model, Stage, Step, Strategy, Tuner, Weights
from harness.rules import required_stages

QUICK_START = (
    "swift sft --model Qwen/Qwen3-0.6B --dataset AI-ModelScope/alpaca-gpt4-data-zh#1000 --split_dataset_ratio 0.01 --torch_dtype bfloat16 "
    "--tuner_type lora --target_modules all-linear --lora_rank 8 --lora_alpha 32 --num_train_epochs 1 --per_device_train_batch_size 1 "
    "--per_device_eval_batch_size 1 --gradient_accumulation_steps 8 --learning_rate 1e-4 --max_length 2048 --save_steps 100 "
    "--eval_steps 100 --save_total_limit 2 --logging_steps 10 --output_dir $WORK_DIR"
)


def tiny(asked: Cell, stage: Stage, hardware: Hardware = Hardware.CPU, **changes: object) -> dict[str, Step]:
    steps = plan_stage(asked, stage, form=Form.TINY, hardware=hardware, weights=Weights.TINY, places=places(**changes))
    return {step.name: step for step in steps}


def real(asked: Cell, stage: Stage, **changes: object) -> dict[str, Step]:
    known = places(**{"model": asked.model.id, "visible_devices": (0,), **changes})
    return {s.name: s for s in plan_stage(asked, stage, form=Form.NPU, hardware=Hardware.A2, weights=Weights.REAL, places=known)}


def value(step: Step, flag: str) -> str | None:
    args = step.command.args
    return args[args.index(flag) + 1] if flag in args else None


def pairs(line: str) -> set[tuple[str, str]]:
    words = line.split()
    return {(a, b) for a, b in itertools.pairwise(words) if a.startswith("--")}


def test_the_quick_start_is_shown_flag_for_flag_as_its_document_has_it() -> None:
    shown = [step for stage, step in documented_commands(cell()) if stage is Stage.TRAIN]
    assert pairs(" ".join(shown[0].command.argv)) == pairs(QUICK_START)
    assert shown[0].command.env == {"ASCEND_RT_VISIBLE_DEVICES": "0"}


def test_the_documented_loop_infers_merges_and_serves_as_the_document_does() -> None:
    lines = {step.name: " ".join(step.command.argv) for _, step in documented_commands(cell())}
    assert lines["merge"] == "swift export --adapters $CKPT_DIR --merge_lora true"
    assert lines["infer-adapter"] == "swift infer --adapters $CKPT_DIR --stream true --temperature 0 --max_new_tokens 512"
    assert lines["infer-merged"] == "swift infer --model $MERGED_DIR --stream true --temperature 0 --max_new_tokens 512"
    assert lines["deploy"] == (
        "swift deploy --model $MERGED_DIR --host 0.0.0.0 --port 8000 --max_new_tokens 512 --served_model_name npu-modelscope-qwen3-0_6b"
    )


def test_the_general_inference_section_loads_the_data_arguments() -> None:
    lines = {step.name: " ".join(step.command.argv) for _, step in documented_commands(cell(recipe=PLAIN))}
    assert lines["infer-adapter"] == "swift infer --adapters $CKPT_DIR --load_data_args true --stream true --max_new_tokens 2048"


def test_a_real_run_keeps_the_document_and_tells_what_it_cut() -> None:
    step = real(cell(), Stage.TRAIN)["train"]
    told = {s.flag: (s.documented, s.used) for s in step.substitutions}
    assert told["--max_steps"] == ("", "20")
    assert told["--save_steps"] == ("100", "10")
    assert told["--logging_steps"] == ("10", "1")
    assert told["--callbacks"] == ("", "npu_matrix_witness")
    assert value(step, "--learning_rate") == "1e-4" and value(step, "--lora_rank") == "8"


@pytest.mark.parametrize("asked", wide(), ids=lambda c: c.id)
def test_no_difference_from_the_document_goes_untold(asked: Cell) -> None:
    shown = {step.name: step for stage, step in documented_commands(asked) if stage is Stage.TRAIN}["train"]
    for step in contract_commands(asked):
        assert all(s.because and s.documented != s.used for s in step.substitutions), step
        if step.name != "train":
            continue
        told = {s.flag for s in step.substitutions}
        before, after = pairs(" ".join(shown.command.argv)), pairs(" ".join(step.command.argv))
        assert {flag for flag, _ in before ^ after} <= told


def test_a_tiny_run_is_small_exact_offline_and_on_the_cpu_only_there() -> None:
    step = tiny(cell(), Stage.TRAIN)["train"]
    for flag, wanted in {
        "--model": "tiny",
        "--model_type": "qwen3",
        "--template": "qwen3",
        "--check_model": "false",
        "--use_cpu": "true",
        "--torch_dtype": "float32",
        "--fp16": "false",
        "--bf16": "false",
        "--max_steps": "6",
        "--save_steps": "3",
        "--learning_rate": "0.02",
        "--split_dataset_ratio": "0",
        "--report_to": "none",
        "--output_dir": "W/train",
    }.items():
        assert value(step, flag) == wanted, flag
    assert "ASCEND_RT_VISIBLE_DEVICES" not in step.command.env and step.command.env["HF_HUB_OFFLINE"] == "1"
    assert "--add_version" not in step.command.args
    on_npu = tiny(cell(), Stage.TRAIN, Hardware.A3, visible_devices=(5,))["train"]
    assert "--use_cpu" not in on_npu.command.args and on_npu.command.env["ASCEND_RT_VISIBLE_DEVICES"] == "5"


@pytest.mark.parametrize("strategy", [s for s in Strategy if s not in (Strategy.MEGATRON, Strategy.SINGLE)])
def test_visible_devices_and_processes_always_agree(strategy: Strategy) -> None:
    step = real(cell(strategy=strategy), Stage.TRAIN, visible_devices=(2, 3, 6))["train"]
    assert step.command.env["ASCEND_RT_VISIBLE_DEVICES"] == "2,3,6"
    if strategy is Strategy.FSDP1:
        assert step.command.argv[:2] == ("accelerate", "launch") and value(step, "--num_processes") == "3"
        assert "swift/cli/sft.py" in step.command.args and "NPROC_PER_NODE" not in step.command.env
    else:
        assert step.command.env["NPROC_PER_NODE"] == "3" and step.command.env["MASTER_PORT"] == "29500"


def test_what_follows_a_sharded_training_runs_on_one_device_unless_the_model_is_too_large() -> None:
    small = real(cell(strategy=Strategy.ZERO2), Stage.MERGE, visible_devices=(4, 5, 6, 7))["merge"]
    assert small.command.env == {"ASCEND_RT_VISIBLE_DEVICES": "4"}
    large = replace(QWEN3, params_b=32.8)
    spread = real(cell(strategy=Strategy.ZERO2, model=large), Stage.MERGE, visible_devices=(4, 5, 6, 7))["merge"]
    assert spread.command.env == {"ASCEND_RT_VISIBLE_DEVICES": "4,5"}


def test_one_device_is_never_shared_by_a_strategy_that_needs_several() -> None:
    with pytest.raises(HarnessError, match="at least two devices"):
        real(cell(strategy=Strategy.FSDP2), Stage.TRAIN, visible_devices=(0,))


def test_an_npu_run_without_a_device_is_refused() -> None:
    with pytest.raises(HarnessError, match="no device was lent"):
        real(cell(), Stage.TRAIN, visible_devices=())


def test_resume_changes_nothing_but_where_it_starts_and_writes() -> None:
    train = tiny(cell(), Stage.TRAIN)["train"]
    resumed = tiny(cell(), Stage.RESUME)
    assert list(resumed) == ["resume", "resume-zero-moments", "resume-only-model"]
    before, after = pairs(" ".join(train.command.args)), pairs(" ".join(resumed["resume"].command.args))
    assert after - before == {("--output_dir", "W/resume"), ("--resume_from_checkpoint", "W/train/v0/checkpoint-3")}
    assert resumed["resume-zero-moments"].command.env["NPU_MATRIX_CONTROL"] == "zero_moments"
    assert value(resumed["resume-only-model"], "--resume_only_model") == "true"


def test_real_weights_are_resumed_without_the_controls() -> None:
    assert list(real(cell(), Stage.RESUME)) == ["resume"]


def test_a_step_that_two_stages_name_is_the_same_step() -> None:
    merge, infer = tiny(cell(), Stage.MERGE), tiny(cell(), Stage.INFER)
    assert list(merge) == ["merge", "infer-base", "infer-adapter", "infer-merged"]
    assert all(merge[name] == infer[name] for name in list(merge)[1:])


def test_the_quick_start_streams_its_base_and_talks_to_its_merged_model() -> None:
    names = {"infer-base", "infer-adapter", "infer-merged", "infer-adapter-stream", "infer-merged-stream", "infer-adapter-interactive"}
    assert set(tiny(cell(recipe=PLAIN), Stage.INFER)) == names
    assert set(tiny(cell(), Stage.INFER)) == names | {"infer-base-stream", "infer-merged-interactive"}


def test_full_training_has_its_own_weights_to_ask_and_nothing_to_merge() -> None:
    full = cell(tuner=Tuner.FULL, recipe=PLAIN)
    assert list(tiny(full, Stage.INFER)) == ["infer-base", "infer-tuned", "infer-tuned-stream", "infer-tuned-interactive"]
    assert Stage.MERGE not in stages_of(full)
    with pytest.raises(NotBuilt, match="no adapter to merge"):
        tiny(full, Stage.MERGE)
    assert "--lora_rank" not in tiny(cell(tuner=Tuner.FULL), Stage.TRAIN)["train"].command.args


def test_the_interactive_form_types_what_a_person_would() -> None:
    step = tiny(cell(), Stage.INFER)["infer-adapter-interactive"]
    assert step.command.stdin == "a question\nclear\nanother\nclear\nexit\n"
    assert value(step, "--stream") == "true" and "--val_dataset" not in step.command.args


@pytest.mark.parametrize("query", ["exit", "Clear", " quit ", "two\nlines", "", "multi-line"])
def test_a_query_that_the_prompt_would_obey_is_refused(query: str) -> None:
    with pytest.raises(HarnessError, match="no single question"):
        tiny(cell(), Stage.INFER, queries=("fine", query))


def test_a_server_listens_on_loopback_and_answers_to_the_recipes_name() -> None:
    step = tiny(cell(), Stage.DEPLOY, port=18080)["deploy"]
    assert step.serves and value(step, "--host") == "127.0.0.1" and value(step, "--port") == "18080"
    assert value(step, "--served_model_name") == "npu-modelscope-qwen3-0_6b" and value(step, "--model") == "W/merged"
    plain = cell(tuner=Tuner.FULL, recipe=PLAIN)
    unnamed = tiny(plain, Stage.DEPLOY)["deploy"]
    assert value(unnamed, "--served_model_name") == plain.id and value(unnamed, "--model") == "W/train/v0/checkpoint-6"


def test_an_empty_place_is_refused_by_name() -> None:
    with pytest.raises(HarnessError, match=r"Places\.checkpoint"):
        tiny(cell(), Stage.MERGE, checkpoint="")
    with pytest.raises(HarnessError, match=r"Places\.datasets\['dpo'\]"):
        tiny(cell(Algorithm.DPO), Stage.TRAIN, datasets={"sft": "x"})


def test_algorithms_read_their_own_rows_and_say_who_they_are() -> None:
    rows = {a: value(tiny(cell(a), Stage.TRAIN)["train"], "--dataset") for a in Algorithm}
    assert rows[Algorithm.RM] == rows[Algorithm.SIMPO] == "data/dpo.jsonl" and rows[Algorithm.GKD] == "data/sft.jsonl"
    assert rows[Algorithm.PPO] == "data/grpo.jsonl#24"
    rloo = tiny(cell(Algorithm.RLOO), Stage.TRAIN)["train"]
    assert value(rloo, "--rlhf_type") == "grpo" and value(rloo, "--advantage_estimator") == "rloo"
    assert value(tiny(cell(Algorithm.RERANKER), Stage.TRAIN)["train"], "--task_type") == "reranker"


def test_an_engine_generates_only_where_the_trainer_has_it() -> None:
    grpo = real(cell(Algorithm.GRPO, engine=Engine.VLLM), Stage.TRAIN)["train"]
    assert value(grpo, "--use_vllm") == "true" and value(grpo, "--vllm_mode") == "colocate"
    dpo = cell(Algorithm.DPO, engine=Engine.VLLM)
    assert "--use_vllm" not in real(dpo, Stage.TRAIN)["train"].command.args
    assert value(real(dpo, Stage.INFER)["infer-base"], "--infer_backend") == "vllm"
    assert "sglang" in not_built(cell(Algorithm.GRPO, engine=Engine.SGLANG), Stage.TRAIN)


def test_rollout_starts_a_server_and_a_training_that_asks_it() -> None:
    steps = real(cell(Algorithm.GRPO, engine=Engine.VLLM), Stage.ROLLOUT, port=8123)
    assert steps["rollout"].serves and value(steps["rollout"], "--port") == "8123"
    assert value(steps["rollout-train"], "--vllm_mode") == "server" and value(steps["rollout-train"], "--vllm_server_port") == "8123"


def test_a_rollout_that_a_trainer_never_makes_is_not_built_but_stays_asked_for() -> None:
    ppo = cell(Algorithm.PPO, engine=Engine.VLLM)
    assert Stage.ROLLOUT in stages_of(ppo) and "goes unused" in not_built(ppo, Stage.ROLLOUT)
    assert "--use_vllm" not in real(ppo, Stage.TRAIN)["train"].command.args


@pytest.mark.parametrize("algorithm", list(Algorithm))
@pytest.mark.parametrize("engine", list(Engine))
@pytest.mark.parametrize("tuner", list(Tuner))
def test_commands_exist_for_the_stages_that_the_rules_require(algorithm: Algorithm, tuner: Tuner, engine: Engine) -> None:
    assert stages_of(cell(algorithm, tuner, engine=engine)) == required_stages(algorithm, tuner, engine)


def test_qlora_and_options_become_flags() -> None:
    quantised = tiny(cell(tuner=Tuner.QLORA), Stage.TRAIN)["train"]
    assert value(quantised, "--quant_method") == "bnb" and value(quantised, "--tuner_type") == "lora"
    asked = cell(packing=True, liger=True, attn_impl="flash_attention_2", lora_dropout=0.0, npu_model_patch=False, sequence_parallel_size=2)
    step = tiny(asked, Stage.TRAIN)["train"]
    for flag, wanted in {
        "--packing": "true",
        "--use_liger_kernel": "true",
        "--attn_impl": "flash_attention_2",
        "--lora_dropout": "0",
        "--enable_npu_model_patch": "false",
        "--sequence_parallel_size": "2",
    }.items():
        assert value(step, flag) == wanted, flag
    assert value(tiny(asked, Stage.INFER)["infer-base"], "--enable_npu_model_patch") == "false"


def test_what_cannot_be_asked_of_ms_swift_says_why_and_is_left_out() -> None:
    megatron = cell(strategy=Strategy.MEGATRON)
    assert "Megatron" in not_built(megatron, Stage.TRAIN) and contract_commands(megatron) == ()
    assert "one adapter" in not_built(cell(adapters=2), Stage.TRAIN)
    two = real(cell(Algorithm.DPO, adapters=2), Stage.TRAIN)["train"]
    assert value(two, "--ref_adapters") == value(two, "--adapters") == "W/train/v0/checkpoint-6"
    assert not_built(cell(context_parallel_size=2), Stage.TRAIN) == "context_parallel_size exists in Megatron-SWIFT only"


def test_a_setting_or_family_that_nobody_knows_is_named() -> None:
    with pytest.raises(HarnessError, match=r"learning_rat'.*Perhaps 'learning_rate'"):
        tiny(cell(recipe=replace(PLAIN, settings={"learning_rat": 1})), Stage.TRAIN)
    with pytest.raises(HarnessError, match="Perhaps 'qwen3'"):
        tiny(cell(model=Model("x", "x/x", None, "qwenn3", 1.0, {})), Stage.TRAIN)


def test_form_weights_and_hardware_must_agree() -> None:
    with pytest.raises(HarnessError, match="not for real weights"):
        plan_stage(cell(), Stage.TRAIN, form=Form.TINY, hardware=Hardware.CPU, weights=Weights.REAL, places=places())
    with pytest.raises(HarnessError, match="is for an NPU, not for cpu"):
        plan_stage(cell(), Stage.TRAIN, form=Form.NPU, hardware=Hardware.CPU, weights=Weights.REAL, places=places())


def test_a_pinned_revision_is_passed_and_told() -> None:
    pinned = cell(model=replace(QWEN3, revision="abc123"))
    step = real(pinned, Stage.TRAIN)["train"]
    assert value(step, "--model_revision") == "abc123" and "--model_revision" in {s.flag for s in step.substitutions}


def test_deadlines_grow_with_the_model_and_with_the_scale() -> None:
    assert tiny(cell(), Stage.TRAIN)["train"].deadline_s == 180
    small, large = cell(), cell(model=replace(QWEN3, params_b=32.0))
    assert deadline_s("train", small, Weights.REAL) < deadline_s("train", large, Weights.REAL)
    assert deadline_s("infer", small, Weights.TINY, 2.0) == 300


def test_commands_that_differ_in_ids_and_paths_only_are_one() -> None:
    one = tiny(cell(), Stage.TRAIN)["train"].command.argv
    moved = tiny(cell(model=replace(QWEN3, id="Qwen/Qwen3-8B")), Stage.TRAIN, work="/elsewhere", model="/other", datasets={"sft": "/a"})
    assert normalised(one) == normalised(moved["train"].command.argv)
    assert normalised(one) != normalised(tiny(cell(tuner=Tuner.FULL), Stage.TRAIN)["train"].command.argv)


def test_a_bad_number_or_a_planted_flag_survives_normalising() -> None:
    assert "abc" in normalised(("swift", "sft", "--model", "m", "--max_steps", "abc"))
    assert "--train_type" in normalised(("swift", "sft", "--train_type", "lora"))
    assert normalised(("swift", "sft", "--model", "a", "b")) != normalised(("swift", "sft", "--model", "a"))
    launched = ("accelerate", "launch", "--config_file", "/x.json", "--num_processes", "2", "/here/swift/cli/sft.py", "--model", "m")
    assert normalised(launched)[6] == "<sft.py>"


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1), min_size=1, max_size=4))
def test_a_shell_reads_a_pasted_line_as_the_same_words(words: list[str]) -> None:
    command = Command("swift", tuple(words), {"A_B": words[0]})
    line = shell_line(Step("x", command, "", 1.0))
    known = any(name in "".join(words) for name in ("$WORK_DIR", "$CKPT_DIR", "$MERGED_DIR", "$SWIFT_CLI_DIR", "$MODELSCOPE_API_TOKEN"))
    assert known or shlex.split(line) == [f"A_B={words[0]}", "swift", *words]


def test_a_pasted_line_expands_its_variables_and_nothing_else() -> None:
    hostile = "$CKPT_DIR/`touch x`$(y)\"'$HOME\\"
    line = shell_line(Step("x", Command("printf", ("%s", hostile)), "", 1.0))
    printed = subprocess.run(["sh", "-c", line], capture_output=True, text=True, env={"CKPT_DIR": "/ck pt", "HOME": "/root"}, check=True)
    assert printed.stdout == hostile.replace("$CKPT_DIR", "/ck pt")


def test_a_pasted_interactive_line_types_its_questions() -> None:
    step = Step("x", Command("cat", (), {}, "it's a 'question'\nclear\nexit\n"), "", 1.0)
    printed = subprocess.run(["sh", "-c", shell_line(step)], capture_output=True, text=True, check=True)
    assert printed.stdout == step.command.stdin


def test_a_wide_set_of_cells_makes_hundreds_of_distinct_commands() -> None:
    steps = [step for asked in wide() for step in contract_commands(asked)]
    assert len({normalised(step.command.argv) for step in steps}) > 300
    assert all(step.command.program in ("swift", "accelerate") for step in steps)
    assert set(commands.__all__) <= set(dir(commands))
