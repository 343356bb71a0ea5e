"""Cells made by hand for the tests of commands and contract: no matrix.yaml is read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.commands import Places
from harness.model import Algorithm, Cell, Engine, Hardware, Model, Options, Recipe, Strategy, Tier, Tuner

QWEN3 = Model("qwen3_0_6b", "Qwen/Qwen3-0.6B", None, "qwen3", 0.6, {Hardware.A2: 1})
QUICK_START = Recipe(
    "quick_start",
    "npu-support",
    "quick start",
    ("AI-ModelScope/alpaca-gpt4-data-zh#1000",),
    {
        "split_dataset_ratio": 0.01,
        "torch_dtype": "bfloat16",
        "target_modules": "all-linear",
        "lora_rank": 8,
        "lora_alpha": 32,
        "num_train_epochs": 1,
        "per_device_train_batch_size": 1,
        "per_device_eval_batch_size": 1,
        "gradient_accumulation_steps": 8,
        "learning_rate": 1e-4,
        "max_length": 2048,
        "save_steps": 100,
        "eval_steps": 100,
        "save_total_limit": 2,
        "logging_steps": 10,
        "stream": True,
        "temperature": 0.0,
        "max_new_tokens": 512,
        "served_model_name": "npu-modelscope-qwen3-0_6b",
    },
)
PLAIN = Recipe("single_card", "npu-support", "single card", ("AI-ModelScope/blossom-math-v2",), {"learning_rate": 1e-4, "save_steps": 100})
KINDS = ("sft", "pt", "dpo", "kto", "grpo", "embedding", "seq_cls", "reranker", "val")


def cell(
    algorithm: Algorithm = Algorithm.SFT,
    tuner: Tuner = Tuner.LORA,
    strategy: Strategy = Strategy.SINGLE,
    engine: Engine = Engine.TRANSFORMERS,
    model: Model = QWEN3,
    recipe: Recipe = QUICK_START,
    devices: int | None = None,
    **options: Any,
) -> Cell:
    name = f"{model.key}-{algorithm}-{tuner}-{strategy}-{engine}"
    return Cell(
        name, model, algorithm, tuner, strategy, engine, Options(**options), (Hardware.A2,), Tier.PR, recipe, devices, name, "by hand", 1
    )


def places(**changes: Any) -> Places:
    known = Places(
        "W",
        "tiny",
        {kind: f"data/{kind}.jsonl" for kind in KINDS},
        ("a question", "another"),
        "witness.py",
        "reward.py",
        checkpoint="W/train/v0/checkpoint-6",
        resume_from="W/train/v0/checkpoint-3",
        merged="W/merged",
        swift_cli_dir="swift/cli",
        reward_model="W/rm",
        teacher_model="teacher",
    )
    return replace(known, **changes)


def wide() -> list[Cell]:
    """Every algorithm with every tuner and every strategy that has commands, and each option once."""
    built = [s for s in Strategy if s is not Strategy.MEGATRON]
    cells = [cell(a, t, s) for a in Algorithm for t in Tuner for s in built]
    cells += [cell(a, engine=e) for a in (Algorithm.SFT, Algorithm.DPO) for e in Engine]
    cells += [cell(a, t, s, Engine.VLLM) for a in (Algorithm.GRPO, Algorithm.RLOO, Algorithm.GKD) for t in Tuner for s in built]
    singles: list[dict[str, Any]] = [
        {"sequence_parallel_size": 2},
        {"packing": True, "attn_impl": "flash_attention_2"},
        {"padding_free": True, "attn_impl": "flash_attention_2"},
        {"liger": True},
        {"lora_dropout": 0.0},
        {"target_parameters": ("mlp.experts.gate_up_proj", "mlp.experts.down_proj"), "lora_dropout": 0.0},
        {"npu_model_patch": False},
        {"dtype": "bfloat16"},
        {"use_mcore_gdn": False},
    ]
    cells += [cell(strategy=s, recipe=PLAIN, **one) for one in singles for s in (Strategy.SINGLE, Strategy.ZERO3)]
    return [*cells, cell(Algorithm.DPO, adapters=2)]
