"""Commands of pages against the installed ms-swift: what it refuses, by the line of the flag, and nothing else."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path

import pytest

from harness.docs_check_facts import Finding
from harness.docs_commands import check_commands
from harness.docs_page import read_page, read_script
from harness.megatron_parsers import MEGATRON_CLASSES, megatron_parser_of, stand_ins

pytestmark = [
    pytest.mark.swift,
    pytest.mark.skipif(importlib.util.find_spec("swift") is None, reason="ms-swift is not installed in this environment"),
]
DOCS = Path(__file__).resolve().parent / "docs"


def check(text: str) -> tuple[Finding, ...]:
    return check_commands(read_script(text))


@pytest.mark.parametrize(
    ("text", "line", "says", "next_step"),
    [
        ("swift sft \\\n --tuner_type loar", 2, "--tuner_type loar: the installed ms-swift has nothing of this name", "Perhaps lora?"),
        ("swift sft --max_steps 1 \\\n --deepspeed=zero9", 2, "--deepspeed zero9", "Perhaps zero"),
        ("swift sft --deepspeed zero4", 1, "--deepspeed zero4: the installed", "Perhaps zero"),
        ("swift sft --fsdp fsdp3", 1, "--fsdp fsdp3", "Perhaps fsdp2?"),
        ("swift rlhf --rlhf_type grpo \\\n --reward_funcs accuracy fromat", 2, "--reward_funcs fromat", "Perhaps format?"),
        ("swift sft --model_type qwen33", 1, "--model_type qwen33", "Perhaps qwen3"),
        ("swift sft --template qwen33", 1, "--template qwen33", "Perhaps qwen3"),
    ],
)
def test_a_name_that_nothing_is_registered_under_is_told(text: str, line: int, says: str, next_step: str) -> None:
    (finding,) = check(text)
    assert finding.line == line and says in finding.message and next_step in finding.next_step


@pytest.mark.parametrize(
    "text",
    [
        "swift sft --deepspeed ds_config.json --tuner_type full --model_type qwen3 --template qwen3 --fsdp fsdp2",
        "swift sft --deepspeed zero2_offload --tuner_type longlora",
        "swift sft --tuner_type mine --external_plugins mine.py",
        "swift sft --tuner_type lora/full --deepspeed <config> --model_type $TYPE",
        "swift rlhf --rlhf_type grpo --reward_funcs accuracy format cosine repetition soft_overlong",
    ],
)
def test_registered_names_paths_and_names_of_the_reader_s_own_code_are_taken(text: str) -> None:
    assert check(text) == ()


@pytest.mark.parametrize(
    ("text", "line", "says", "next_step"),
    [
        ("swift sft \\\n  --model x \\\n  --lora_rnk 8", 3, "`swift sft`: --lora_rnk is unknown", "Perhaps --lora_rank?"),
        ("swift sft \\\n  --train_type lora", 2, "--train_type is unknown", "Perhaps --tuner_type?"),
        ("megatron sft \\\n --train_iters 3 \\\n --load x", 3, "--load is unknown", "Perhaps --mcore_model?"),
        ("swift sft \\\n  --torch_dtype \\\n  bf16", 2, "--torch_dtype bf16: no such choice", "Perhaps bfloat16?"),
        ("megatron sft \\\n --lr_decay_style cosinus", 2, "no such choice", "Perhaps cosine?"),
        ("swift sft --max_steps 3 \\\n  --learning_rate fast", 2, "--learning_rate fast: not a number", ""),
        ("swift deploy \\\n  --port=80a", 2, "--port 80a: not a whole number", ""),
        ("swift sft --max_steps 3 \\\n --dataset \\\n --model x", 2, "--dataset has no value", ""),
        ("swift sft \\\n --max_steps 3\\ \n --lora_rnk 8", 3, "--lora_rnk is unknown", "Perhaps --lora_rank?"),
        ("swift sft \\\n --max_steps 3 \\\n # --seed 1 \\\n --lora_rnk 8", 4, "--lora_rnk is unknown", "Perhaps --lora_rank?"),
        ("ls\nswift sftt --model x", 2, "`swift sftt` is no command", "Known: app, deploy,"),
        ("swift megatron rlhf --a 1", 1, "`swift megatron` is no command", "Known: "),
        ("swift --model x", 1, "`swift` is given no subcommand", "Known: "),
        ("megatron infer --model x", 1, "`megatron infer` is no command", "Known: export, pt, rlhf, sft."),
        ("megatron sft \\\n --bias_swiglu_fusion false", 2, "--bias_swiglu_fusion is unknown", "Remove it."),
        ("swift sft \\\n --tensor_model_parallel_size 2", 2, "--tensor_model_parallel_size is unknown", "Known to `megatron pt`"),
        ("swift infer \\\n --mcore_model x", 2, "--mcore_model is unknown", "Known to `swift export`"),
        ("swift sft --model x y", 1, "gets the word 'y', which belongs to no flag (behind --model)", "Remove it"),
        ("swift rlhf —rlhf_type grpo", 1, "gets the word '—rlhf_type'", "two plain hyphens"),
        ("swift sft --max_steps 3 \\\nswift infer --model y", 2, "`swift infer` is read as words of the", "Remove the backslash"),
        ("swift sft --lora 8", 1, "`swift sft` refuses --lora, which may be short for", "--lora_alpha"),
        ("accelerate launch --mixed_precision bf17 swift/cli/sft.py", 1, "`accelerate launch`: --mixed_precision bf17", "Perhaps bf16?"),
        ("accelerate launch --num_processes 2 \\\n swift/cli/sft.py \\\n --foo", 3, "`swift sft`: --foo is unknown", "Remove it."),
        ("torchrun --nproc_per_node 2 --foo 1 swift/cli/sft.py", 1, "`torchrun`: --foo is unknown", "Remove it."),
        ("python -m swift.cli.sft \\\n --foo 1", 2, "`swift sft`: --foo is unknown", "Remove it."),
        ("bash -c 'swift sft \\\n --foo 1'", 2, "`swift sft`: --foo is unknown", "Remove it."),
        ("ARGS='--seed 1 \\\n --foo 1'\nswift sft $ARGS", 2, "`swift sft`: --foo is unknown", "Remove it."),
        ("ARGS=(--seed 1\n --foo 1)\nswift sft \"${ARGS[@]}\"", 2, "`swift sft`: --foo is unknown", "Remove it."),
        ("N=two\nswift sft --max_steps $N", 1, "--max_steps two: not a whole number", ""),
        ("--lora_rank 8 \\\n--lora_rnk 8", 2, "--lora_rnk is unknown to every command", "Perhaps --lora_rank?"),
        ("--lora_rank eight", 1, "--lora_rank eight: not a whole number", ""),
        ("megatron rlhf --use_ray true", 1, "is given no --config", "Name the file of settings."),
        ("megatron sft --mcore_model Qwen3-mcore", 1, "--mcore_model Qwen3-mcore: the folder has to exist", "--to_mcore"),
    ],
)  # fmt: skip
def test_a_planted_fault_is_told_with_the_line_of_its_flag(text: str, line: int, says: str, next_step: str) -> None:
    (finding,) = [finding for finding in check(text) if says in finding.message]
    assert (finding.line, finding.note) == (2 if text.startswith("N=") else line, False)
    assert next_step in finding.next_step


@pytest.mark.parametrize(
    "text",
    [
        "swift sft --max_steps <n> --learning_rate xxx --torch_dtype [dtype] --lora_rank N --model <path>",
        "swift rollout --vllm_tensor_parallel_size [tp_size] --port <服务端口>",
        "swift sft --max_steps $STEPS --torch_dtype ${DTYPE} --lora_rank $(nproc) --gradient_accumulation_steps $((16 / 2)) $MORE",
        "swift sft $MODEL_ARGS --dataset $A $B \"${REST[@]}\"",
        "swift $CMD --foo 1",
        "swift sft ... --enable_npu_model_patch false",
        "swift sft xxx.yaml --max_steps 3",
        "swift sft --torch_dtype bfloat16/float16",
        "swift infer --model x --stream true --max_new_tokens 2048 > log 2>&1 &",
        "swift sft --ignore_args_error true --whatever 3",
        "megatron rlhf --use_ray true --config x.yaml --anything 1",
        "swift export --model x --to_mcore true --output_dir X-mcore/\nmegatron sft --mcore_model X-mcore --dataset a",
        "megatron sft --mcore_model megatron_output/vx-xxx/checkpoint-xxx",
        "swift sft --dataset 'a#500' \\\n  'b#500' \\\n  --gradient_checkpointing",
        "swift sft --learning-rate 1e-4 --lr_scheduler_kwargs '{\"min_lr\": 1e-6}'",
        "swift merge-lora --adapters x\nswift web-ui --lang zh\nswift app --model '<model>'\nswift sample --model x",
        "python train.py --foo 1\naccelerate launch train.py --foo 1\ntorchrun --foo\ndocker run --rm x",
        "--rm \\\n--network=host",
        "swift sft --model $(ls -dt $W/*/checkpoint-* | head -n 1)",
    ],
)  # fmt: skip
def test_what_ms_swift_takes_or_nobody_can_know_is_not_told(text: str) -> None:
    assert check(text) == ()


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("swift sft --max_step 3", 1, "takes --max_step for --max_steps"),
        ("swift sft --seed 1 \\\n --seed 2", 2, "--seed is given on line 1 already"),
    ],
)
def test_what_is_taken_but_hardly_meant_so_is_a_note(text: str, line: int, says: str) -> None:
    (finding,) = check(text)
    assert finding.note and finding.line == line and says in finding.message


def test_the_example_for_megatron_names_both_flags_by_their_lines() -> None:
    findings = check_commands(read_page((DOCS / "megatron_ascend.zh.md").read_text(encoding="utf-8")))
    faults = {finding.line: finding.message.partition(":")[0] for finding in findings if not finding.note}
    assert faults == {177: "--mcore_model Qwen2.5-7B-Instruct-mcore", 184: "`megatron sft`"}
    assert [(finding.line, finding.message.split()[0]) for finding in findings if finding.note] == [(169, "--bias_swiglu_fusion")]


def test_the_quick_start_is_accepted() -> None:
    assert check_commands(read_page((DOCS / "quick_start.zh.md").read_text(encoding="utf-8"))) == ()


def test_megatron_parses_without_megatron_and_leaves_no_stand_in_behind() -> None:
    finders = list(sys.meta_path)
    sizes = {name: len(megatron_parser_of(name)._actions) for name in MEGATRON_CLASSES}
    assert min(sizes.values()) > 400 and "--tensor_model_parallel_size" in megatron_parser_of("sft")._option_string_actions
    assert sys.meta_path == finders
    assert [name for name in sys.modules if name.startswith("swift.megatron")] == []
    for name in stand_ins():
        assert (name not in sys.modules and importlib.util.find_spec(name.split(".")[0]) is None) or "." in name


def test_a_long_page_takes_seconds() -> None:
    block = "swift sft \\\n" + "".join(f"  --max_steps {number} \\\n" for number in range(40)) + "  --seed 1\n\n"
    check("swift sft --seed 1\nmegatron sft --seed 1")
    began = time.process_time()
    findings = check(block * 50)
    assert time.process_time() - began < 10 and len(findings) == 39 * 50
