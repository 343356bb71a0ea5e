"""ms-swift's names for what matrix.yaml calls model families, algorithms and settings, and the constants of tiny and real runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.commands_flags import Flags
from harness.errors import HarnessError, did_you_mean
from harness.model import Algorithm, Cell, Engine, Stage, Strategy, Tuner, Weights

QUICK_START = "quick_start"
WITNESS_CALLBACK = "npu_matrix_witness"
REWARD = "npu_matrix_reward"  # a reward that varies: with a constant one GRPO's grad_norm is 0 and the run exits 0
TINY_STEPS, TINY_SAVE_STEPS = 6, 3
# Rows of one optimizer step, and at most so many at a time: one global batch whatever the number of ranks, so that strategies agree.
TINY_GLOBAL_BATCH, TINY_MICRO_BATCH = 4, 2
REAL_STEPS, REAL_SAVE_STEPS = 20, 10
TINY_NEW_TOKENS = 12


@dataclass(frozen=True)
class FamilyNames:
    """ms-swift's --model_type and --template. Both are passed for a tiny model: auto-match fails on a random checkpoint."""

    model_type: str
    template: str


FAMILIES: Mapping[str, FamilyNames] = {
    "qwen2": FamilyNames("qwen2", "qwen2_5"),
    "qwen3": FamilyNames("qwen3", "qwen3"),
    "qwen3_moe": FamilyNames("qwen3_moe", "qwen3"),
    "qwen2_5_vl": FamilyNames("qwen2_5_vl", "qwen2_5_vl"),
    "qwen2_5_omni": FamilyNames("qwen2_5_omni", "qwen2_5_omni"),
    "qwen3_vl_moe": FamilyNames("qwen3_vl_moe", "qwen3_vl"),
    "qwen3_omni_moe": FamilyNames("qwen3_omni_moe", "qwen3_omni"),
    "internvl": FamilyNames("internvl", "internvl_hf"),
    "ovis2_5": FamilyNames("ovis2_5", "ovis2_5"),
    "qwen3_5": FamilyNames("qwen3_5", "qwen3_5"),
    "qwen3_5_moe": FamilyNames("qwen3_5_moe", "qwen3_5"),
    "qwen3_next": FamilyNames("qwen3_next", "qwen3"),
}


def family_names(cell: Cell) -> FamilyNames:
    """Raises HarnessError for a family whose ms-swift names aren't known here."""
    if cell.model.family not in FAMILIES:
        raise HarnessError(
            f"{cell.id}: family {cell.model.family!r}", "its ms-swift names are unknown.", did_you_mean(cell.model.family, FAMILIES)
        )
    return FAMILIES[cell.model.family]


@dataclass(frozen=True)
class AlgorithmNames:
    """The subcommand, the flags that choose the algorithm, and the kind of rows that it reads."""

    subcommand: str
    flags: Flags
    rows: str


# Reward and teacher models, GRPO's reward and its lengths: ms-swift 4.6 examples/train/rlhf and examples/ascend/grpo/fsdp2.
_REWARD_MODEL = {
    "--reward_model": ("AI-ModelScope/Skywork-Reward-Llama-3.1-8B-v0.2",),
    "--response_length": ("512",),
    "--temperature": ("0.7",),
}
_GRPO = {"--rlhf_type": ("grpo",), "--reward_funcs": ("accuracy",), "--num_generations": ("2",), "--max_completion_length": ("128",)}

ALGORITHMS: Mapping[Algorithm, AlgorithmNames] = {
    Algorithm.PT: AlgorithmNames("pt", {}, "pt"),
    Algorithm.SFT: AlgorithmNames("sft", {}, "sft"),
    Algorithm.DPO: AlgorithmNames("rlhf", {"--rlhf_type": ("dpo",)}, "dpo"),
    Algorithm.RM: AlgorithmNames("rlhf", {"--rlhf_type": ("rm",)}, "dpo"),
    Algorithm.KTO: AlgorithmNames("rlhf", {"--rlhf_type": ("kto",)}, "kto"),
    Algorithm.ORPO: AlgorithmNames("rlhf", {"--rlhf_type": ("orpo",)}, "dpo"),
    Algorithm.SIMPO: AlgorithmNames("rlhf", {"--rlhf_type": ("simpo",)}, "dpo"),
    Algorithm.CPO: AlgorithmNames("rlhf", {"--rlhf_type": ("cpo",)}, "dpo"),
    Algorithm.GRPO: AlgorithmNames("rlhf", _GRPO, "grpo"),
    Algorithm.RLOO: AlgorithmNames("rlhf", {**_GRPO, "--advantage_estimator": ("rloo",)}, "grpo"),
    Algorithm.PPO: AlgorithmNames("rlhf", {"--rlhf_type": ("ppo",), **_REWARD_MODEL}, "grpo"),
    Algorithm.GKD: AlgorithmNames("rlhf", {"--rlhf_type": ("gkd",), "--teacher_model": ("Qwen/Qwen2.5-14B-Instruct",)}, "sft"),
    Algorithm.EMBEDDING: AlgorithmNames("sft", {"--task_type": ("embedding",), "--loss_type": ("infonce",)}, "embedding"),
    Algorithm.SEQ_CLS: AlgorithmNames("sft", {"--task_type": ("seq_cls",), "--num_labels": ("2",)}, "seq_cls"),
    # generative_reranker scores the words yes and no, which a tiny tokenizer lacks: loss ln 2, grad_norm 0, exit 0.
    Algorithm.RERANKER: AlgorithmNames("sft", {"--task_type": ("reranker",), "--loss_type": ("pointwise_reranker",)}, "reranker"),
}
ONLINE = (Algorithm.GRPO, Algorithm.RLOO, Algorithm.GKD)  # those whose trainer has a vLLM path in 4.6: PPO parses --use_vllm and ignores it
SCORERS = (Algorithm.RM, Algorithm.EMBEDDING, Algorithm.SEQ_CLS, Algorithm.RERANKER)

TUNERS: Mapping[Tuner, Flags] = {
    Tuner.LORA: {"--tuner_type": ("lora",)},
    Tuner.FULL: {"--tuner_type": ("full",)},
    Tuner.QLORA: {"--tuner_type": ("lora",), "--quant_method": ("bnb",), "--quant_bits": ("4",), "--bnb_4bit_compute_dtype": ("bfloat16",)},
}

# Names of a recipe's settings to ms-swift's flags: training on one side, generation on the other, since a document sets both.
TRAIN_SETTINGS: Mapping[str, str] = {
    "split_dataset_ratio": "--split_dataset_ratio",
    "torch_dtype": "--torch_dtype",
    "target_modules": "--target_modules",
    "lora_rank": "--lora_rank",
    "lora_alpha": "--lora_alpha",
    "num_train_epochs": "--num_train_epochs",
    "per_device_train_batch_size": "--per_device_train_batch_size",
    "per_device_eval_batch_size": "--per_device_eval_batch_size",
    "gradient_accumulation_steps": "--gradient_accumulation_steps",
    "learning_rate": "--learning_rate",
    "max_length": "--max_length",
    "group_by_length": "--group_by_length",
    "dataset_num_proc": "--dataset_num_proc",
    "dataloader_num_workers": "--dataloader_num_workers",
    "save_steps": "--save_steps",
    "eval_steps": "--eval_steps",
    "save_total_limit": "--save_total_limit",
    "logging_steps": "--logging_steps",
    "output_dir": "--output_dir",
    "gradient_checkpointing": "--gradient_checkpointing",
    "weight_decay": "--weight_decay",
    "warmup_ratio": "--warmup_ratio",
    "system": "--system",
}
GENERATION_SETTINGS: Mapping[str, str] = {"stream": "--stream", "temperature": "--temperature", "max_new_tokens": "--max_new_tokens"}
LORA_ONLY = ("target_modules", "lora_rank", "lora_alpha")
NOT_TRAINING = (*GENERATION_SETTINGS, "served_model_name")


def stages_of(cell: Cell) -> tuple[Stage, ...]:
    """The stages that answer a cell's question, in order (design, section 4). EVAL is never among them: it is contract only."""
    if cell.algorithm in SCORERS:
        return (Stage.TRAIN, Stage.RESUME)
    online = (Stage.ROLLOUT,) if cell.algorithm in (*ONLINE, Algorithm.PPO) and cell.engine is not Engine.TRANSFORMERS else ()
    if cell.algorithm in (Algorithm.PPO, Algorithm.GKD):
        return (Stage.TRAIN, Stage.INFER, *online)
    merge = () if cell.tuner is Tuner.FULL else (Stage.MERGE,)
    return (Stage.TRAIN, Stage.RESUME, *merge, Stage.INFER, Stage.DEPLOY, *online)


# The negative controls of a tiny resume, by the name of what they lose.
ZERO_MOMENTS, MODEL_ONLY = "zero_moments", "resume_only_model"
# Where --resume_only_model is no control. ms-swift 4.6.0 takes it for a folder to load the model from, which FSDP2's sharded checkpoint is
# not; DeepSpeed 0.19.8 loads the optimizer all the same, so that only the schedule starts anew.
NO_MODEL_ONLY = frozenset({Strategy.FSDP2, Strategy.ZERO2, Strategy.ZERO3})


def controls_of(strategy: Strategy) -> tuple[str, ...]:
    """The negative controls that the resume of a tiny training takes."""
    return tuple(name for name in (ZERO_MOMENTS, MODEL_ONLY) if not (name == MODEL_ONLY and strategy in NO_MODEL_ONLY))


# Strong, because at 1e-4 an optimizer that lost its moments moves the loss by 1.5e-4 only, and a trained adapter still answers like its
# base. Measured with ms-swift 4.6.0 on a cpu, 6 steps: LoRA at 0.02 with all 15 algorithms (every loss finite, every grad_norm > 0.01;
# PPO logs none); full at 0.003 with sft, dpo, pt, rm of both families (zeroed moments move the last losses by 4e-3 or more, every
# answer differs from the base's); at 0.01 some answers fall together.
TINY_LEARNING_RATE: Mapping[Tuner, float] = {Tuner.LORA: 0.02, Tuner.FULL: 0.003, Tuner.QLORA: 0.02}
# A reward model has little to learn, and at that rate Adam turns rounding into 5.7e-5 of the loss within six steps; here 3.2e-6.
TINY_REWARD_RATE = 0.001


def tiny_learning_rate(algorithm: Algorithm, tuner: Tuner) -> float:
    return TINY_REWARD_RATE if (algorithm, tuner) == (Algorithm.RM, Tuner.FULL) else TINY_LEARNING_RATE[tuner]


@dataclass(frozen=True)
class Deadline:
    """Seconds for a step: `tiny_s`; for real weights `start_s` (import, compile) plus `per_billion_s` (load, 20 steps) a billion."""

    tiny_s: float
    start_s: float
    per_billion_s: float


# Tiny: a cold command takes 10-20 s on two busy cores. Real: a 7B row loads in under 2 minutes from a disk of 200 MB/s and takes
# about 10 s a step; three times that, so that only a hang is ended.
DEADLINES: Mapping[str, Deadline] = {
    "train": Deadline(180, 1200, 240),
    "infer": Deadline(150, 900, 120),
    "deploy": Deadline(150, 900, 120),
    "export": Deadline(120, 600, 120),
    "eval": Deadline(300, 1800, 240),
    "rollout": Deadline(300, 1200, 120),
}
UNKNOWN_SIZE_B = 72.0


def deadline_s(phase: str, cell: Cell, weights: Weights, scale: float = 1.0) -> float:
    """Seconds until a step of `phase` is ended. A model of unknown size counts as a large one. Raises KeyError for an unknown phase."""
    deadline = DEADLINES[phase]
    if weights is Weights.TINY:
        return deadline.tiny_s * scale
    size_b = UNKNOWN_SIZE_B if cell.model.params_b is None else cell.model.params_b
    return (deadline.start_s + deadline.per_billion_s * size_b) * scale
