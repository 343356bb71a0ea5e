"""`swift sft`, `pt` and `rlhf`, and FSDP1's `accelerate launch`: as documented, then cut down for a real or a tiny run."""

from __future__ import annotations

import math
from dataclasses import replace

from harness.commands_devices import DOCUMENTED_NPUS, documented_devices, documented_train_env, ranks, strategy_flags, train_env
from harness.commands_flags import Change, Draft, Flags, NotBuilt, Places, finished, scalar
from harness.commands_tables import (
    ALGORITHMS,
    LORA_ONLY,
    NOT_TRAINING,
    ONLINE,
    REAL_SAVE_STEPS,
    REAL_STEPS,
    REWARD,
    TINY_GLOBAL_BATCH,
    TINY_MICRO_BATCH,
    TINY_SAVE_STEPS,
    TINY_STEPS,
    TRAIN_SETTINGS,
    TUNERS,
    WITNESS_CALLBACK,
    deadline_s,
    family_names,
    tiny_learning_rate,
)
from harness.errors import HarnessError, did_you_mean
from harness.model import Algorithm, Cell, Engine, Hardware, Step, Strategy, Tuner, Weights

TINY = "a tiny model on a small data set"
BOUNDED = "cut to a bounded run"
WITNESSED = "the witness records what the process saw of itself"
MULTI_ADAPTER = (Algorithm.DPO, Algorithm.KTO, Algorithm.GRPO, Algorithm.RLOO)


def train_step(
    name: str, cell: Cell, places: Places, hardware: Hardware, weights: Weights, *, scale: float = 1.0, control: str = ""
) -> Step:
    """A training run. `name` "train" starts afresh; any other resumes from `places.resume_from`.

    `control`: "zero_moments" or "only_model", the negative controls of resume. Raises NotBuilt, and HarnessError for a missing place.
    """
    output_dir = f"{places.work}/{name}"
    names = ALGORITHMS[cell.algorithm]
    changes = [Change("--output_dir", (output_dir,), "a new folder for every run")]
    changes += _tiny_changes(cell, places, hardware) if weights is Weights.TINY else _real_changes(cell, places)
    changes += _witness_changes(places, weights, cell)
    env = train_env(cell, places, hardware, weights)
    if name != "train":
        changes.append(Change("--resume_from_checkpoint", (places.need("resume_from", name),), "the documented way to resume"))
    if control == "only_model":
        changes.append(Change("--resume_only_model", ("true",), "negative control: a correct resume check must fail on it"))
    elif control == "zero_moments":
        env["NPU_MATRIX_CONTROL"] = "zero_moments"
    draft = Draft(
        name,
        names.subcommand,
        documented_train_flags(cell),
        tuple(changes),
        output_dir,
        deadline_s("train", cell, weights, scale),
        documented_train_env(cell),
        env,
    )
    return finished(draft, _accelerate(cell, places, hardware, weights, names.subcommand) if cell.strategy is Strategy.FSDP1 else None)


def documented_train_step(cell: Cell, places: Places, *, resume: bool = False) -> Step:
    """The command as a document has it, nothing cut: what a person pastes."""
    names = ALGORITHMS[cell.algorithm]
    changes = [Change("--output_dir", (places.work,), "a variable to paste")]
    if resume:
        changes.append(Change("--resume_from_checkpoint", (places.need("resume_from", "resume"),), "the documented way to resume"))
    env = documented_train_env(cell)
    draft = Draft(
        "resume" if resume else "train", names.subcommand, documented_train_flags(cell), tuple(changes), places.work, 0.0, env, env
    )
    if cell.strategy is not Strategy.FSDP1:
        return replace(finished(draft), substitutions=())
    launch: dict[str, tuple[str, ...]] = {"--config_file": (places.fsdp_config,)}
    if documented_devices(cell) != DOCUMENTED_NPUS:  # which the configuration names itself
        launch["--num_processes"] = (str(documented_devices(cell)),)
    return replace(finished(draft, (launch, (), f"{places.swift_cli_dir}/{names.subcommand}.py")), substitutions=())


def documented_train_flags(cell: Cell) -> Flags:
    """Algorithm, model, data, settings, tuner, strategy, options. Raises HarnessError for an unknown setting, NotBuilt as the parts do."""
    flags: dict[str, tuple[str, ...]] = dict(ALGORITHMS[cell.algorithm].flags)
    flags["--model"] = (cell.model.id,)
    flags["--dataset"] = cell.recipe.dataset
    for name, value in cell.recipe.settings.items():
        if name in NOT_TRAINING or (name in LORA_ONLY and cell.tuner is Tuner.FULL):
            continue
        if name not in TRAIN_SETTINGS:
            known = (*TRAIN_SETTINGS, *NOT_TRAINING)
            raise HarnessError(
                f"recipe {cell.recipe.key!r}, setting {name!r}", "no flag of ms-swift is known for it.", did_you_mean(name, known)
            )
        flags[TRAIN_SETTINGS[name]] = (scalar(value),)
    flags |= TUNERS[cell.tuner]
    flags |= strategy_flags(cell)
    flags |= option_flags(cell)
    flags |= _engine_flags(cell)
    flags["--output_dir"] = flags.pop("--output_dir", ("output",))
    return flags


def option_flags(cell: Cell) -> Flags:
    """The cell's options as flags of training. Raises NotBuilt for those that only Megatron has."""
    options = cell.options
    megatron_only = ("context_parallel_size", "pipeline_parallel_size", "expert_parallel_size", "expert_tensor_parallel_size")
    for name in megatron_only:
        if getattr(options, name) != 1:
            raise NotBuilt(cell, f"{name} exists in Megatron-SWIFT only")
    if options.tensor_parallel_size != 1 and cell.engine is Engine.TRANSFORMERS:
        raise NotBuilt(cell, "tensor_parallel_size exists in Megatron-SWIFT and in the rollout engines only")
    flags: dict[str, tuple[str, ...]] = {}
    if options.sequence_parallel_size != 1:
        flags["--sequence_parallel_size"] = (str(options.sequence_parallel_size),)
    for flag, wanted in (("--packing", options.packing), ("--padding_free", options.padding_free), ("--use_liger_kernel", options.liger)):
        if wanted:
            flags[flag] = ("true",)
    if options.attn_impl is not None:
        flags["--attn_impl"] = (options.attn_impl,)
    if options.lora_dropout is not None:
        flags["--lora_dropout"] = (scalar(options.lora_dropout),)
    if options.target_parameters:
        flags["--target_parameters"] = options.target_parameters
    if not options.npu_model_patch:
        flags["--enable_npu_model_patch"] = ("false",)
    if options.dtype is not None:
        flags["--torch_dtype"] = (options.dtype,)
    return flags


def _engine_flags(cell: Cell) -> Flags:
    """Which engine generates during training; nothing for an algorithm that generates nothing, whose engine serves inference only."""
    if cell.algorithm not in ONLINE:
        return {}
    if cell.engine is Engine.SGLANG:
        raise NotBuilt(cell, "ms-swift's rlhf has no sglang rollout: --use_vllm is its only engine switch")
    if cell.engine is Engine.TRANSFORMERS:
        return {"--use_vllm": ("false",)}
    return {
        "--use_vllm": ("true",),
        "--vllm_mode": ("colocate",),
        "--vllm_gpu_memory_utilization": ("0.4",),
        "--vllm_tensor_parallel_size": (str(cell.options.tensor_parallel_size),),
    }


def _witness_changes(places: Places, weights: Weights, cell: Cell) -> list[Change]:
    rewarded = cell.algorithm in (Algorithm.GRPO, Algorithm.RLOO) and weights is Weights.TINY
    plugins = tuple(p for p in (places.plugin, places.need("reward_plugin", "the reward") if rewarded else "") if p)
    changes = [Change("--external_plugins", plugins, WITNESSED if places.plugin else "the reward of a tiny run")] if plugins else []
    if places.plugin:
        changes.append(Change("--callbacks", (WITNESS_CALLBACK,), WITNESSED))
    return changes


def _real_changes(cell: Cell, places: Places) -> list[Change]:
    changes = [
        Change("--max_steps", (str(REAL_STEPS),), BOUNDED),
        Change("--save_steps", (str(REAL_SAVE_STEPS),), "two checkpoints in a bounded run, one of them to resume from"),
        Change("--logging_steps", ("1",), "every step is a proof"),
    ]
    if places.model != cell.model.id:
        changes.append(Change("--model", (places.model,), "the pinned checkpoint on this host"))
    elif cell.model.revision is not None:
        changes.append(Change("--model_revision", (cell.model.revision,), "the pinned revision"))
    if cell.algorithm is Algorithm.PPO:
        batch = [int(cell.recipe.settings.get(name, 1)) for name in ("per_device_train_batch_size", "gradient_accumulation_steps")]
        changes += _ppo_bound(cell.recipe.dataset[0], REAL_STEPS * math.prod(batch) * ranks(cell, places))
    return [*changes, *_adapter_changes(cell, places)]


def _tiny_changes(cell: Cell, places: Places, hardware: Hardware) -> list[Change]:
    names = family_names(cell)
    micro, accumulated = tiny_batch(cell, places)
    flags: list[tuple[str, str | None]] = [
        ("--model", places.model),
        ("--model_type", names.model_type),
        ("--template", names.template),
        ("--dataset", places.dataset(ALGORITHMS[cell.algorithm].rows)),
        ("--split_dataset_ratio", "0"),
        ("--max_length", "256"),
        ("--max_steps", str(TINY_STEPS)),
        ("--save_steps", str(TINY_SAVE_STEPS)),
        ("--logging_steps", "1"),
        ("--eval_steps", None),
        ("--per_device_train_batch_size", str(micro)),
        ("--gradient_accumulation_steps", str(accumulated)),
        ("--learning_rate", scalar(tiny_learning_rate(cell.algorithm, cell.tuner))),
        ("--dataset_num_proc", "1"),
        ("--dataloader_num_workers", "0"),
        ("--seed", "42"),
        ("--save_only_model", "false"),
    ]
    if cell.tuner is not Tuner.FULL:
        flags += [("--lora_rank", "4"), ("--lora_alpha", "8")]
    changes = [Change(flag, None if value is None else (value,), TINY) for flag, value in flags]
    changes.append(Change("--report_to", ("none",), "a tiny run reports to its own log only"))
    changes.append(Change("--check_model", ("false",), "else the trainer asks the hub, about 22 s of retries offline"))
    if cell.options.dtype is None:
        because = "exact comparison; float32 alone means fp16 mixed precision"
        changes += [
            Change("--torch_dtype", ("float32",), because),
            Change("--fp16", ("false",), because),
            Change("--bf16", ("false",), because),
        ]
    if cell.tuner is not Tuner.FULL and cell.options.lora_dropout is None:
        changes.append(Change("--lora_dropout", ("0",), "ranks draw other masks than one process: without any, strategies agree"))
    if hardware is Hardware.CPU:
        changes.append(Change("--use_cpu", ("true",), "this host has no NPU"))
    return [*changes, *_tiny_online_changes(cell, places), *_adapter_changes(cell, places)]


def tiny_batch(cell: Cell, places: Places) -> tuple[int, int]:
    """(rows a rank, accumulated micro batches) of a tiny run, which multiply to the global batch over the data-parallel ranks.

    Raises HarnessError for ranks that the global batch can't be shared out to.
    """
    parallel = max(1, ranks(cell, places) // cell.options.sequence_parallel_size)
    if TINY_GLOBAL_BATCH % parallel:
        raise HarnessError(cell.id, f"{TINY_GLOBAL_BATCH} rows, a tiny batch, don't divide by {parallel} ranks.", "Lease 1, 2 or 4.")
    micro = min(TINY_MICRO_BATCH, TINY_GLOBAL_BATCH // parallel)
    return micro, TINY_GLOBAL_BATCH // (parallel * micro)


def _tiny_online_changes(cell: Cell, places: Places) -> list[Change]:
    names = family_names(cell)
    match cell.algorithm:
        case Algorithm.GRPO | Algorithm.RLOO:
            return [
                Change("--reward_funcs", (REWARD,), "a reward that varies on random answers: else grad_norm is 0"),
                Change("--max_completion_length", ("16",), TINY),
                Change("--log_completions", ("true",), "the completions are part of the proof"),
            ]
        case Algorithm.PPO:
            rows = places.dataset(ALGORITHMS[cell.algorithm].rows)
            return [
                Change("--reward_model", (places.need("reward_model", "ppo"),), TINY),
                Change("--reward_model_type", (names.model_type,), TINY),
                Change("--response_length", ("16",), TINY),
                *_ppo_bound(rows, TINY_STEPS * TINY_GLOBAL_BATCH),
            ]
        case Algorithm.GKD:
            return [
                Change(
                    "--teacher_model",
                    (places.need("teacher_model", "gkd"),),
                    "a teacher of other weights: with equal ones loss and grad_norm are 0",
                ),
                Change("--teacher_model_type", (names.model_type,), TINY),
                Change("--max_completion_length", ("16",), TINY),
            ]
        case _:
            return []


def _ppo_bound(dataset: str, rows: int) -> list[Change]:
    because = "PPO ignores --max_steps: its rows bound it"
    return [
        Change("--dataset", (f"{dataset.split('#')[0]}#{rows}",), because),
        Change("--num_train_epochs", ("1",), because),
        Change("--num_ppo_epochs", ("1",), because),
        Change("--num_sample_generations", ("0",), because),
    ]


def _adapter_changes(cell: Cell, places: Places) -> list[Change]:
    """Two adapters in one training are a policy and its reference. Raises NotBuilt for what ms-swift can't train."""
    if cell.options.adapters == 1:
        return []
    if cell.options.adapters > 2 or cell.algorithm not in MULTI_ADAPTER or cell.tuner is Tuner.FULL:
        raise NotBuilt(cell, "ms-swift trains one adapter; a second one exists only as --ref_adapters of dpo, kto and grpo")
    checkpoint = places.need("checkpoint", "a second adapter")
    because = "two adapters: the policy and its reference start from an earlier one"
    return [Change("--adapters", (checkpoint,), because), Change("--ref_adapters", (checkpoint,), because)]


def _accelerate(cell: Cell, places: Places, hardware: Hardware, weights: Weights, subcommand: str) -> tuple[Flags, tuple[Change, ...], str]:
    documented: Flags = {"--config_file": (places.fsdp_config,)}
    changes = [
        Change("--num_processes", (str(ranks(cell, places)),), "one process for each device lent to this run"),
        Change("--main_process_port", (str(places.master_port),), "a free port, so that runs side by side don't meet"),
    ]
    if weights is Weights.TINY and cell.options.dtype is None:
        changes.append(Change("--mixed_precision", ("no",), "exact comparison"))
    if hardware is Hardware.CPU:
        changes.append(Change("--cpu", (), "this host has no NPU"))
    return documented, tuple(changes), f"{places.need('swift_cli_dir', 'accelerate launch')}/{subcommand}.py"
