"""What ms-swift's flags mean on a page: which hold ids, sizes and devices, what a tiny run puts in their place, what a command needs.

A page's command is run as it stands but for these. Whatever else it says, right or wrong, reaches ms-swift.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.commands_flags import Change
from harness.commands_tables import ALGORITHMS, FAMILIES, TINY_NEW_TOKENS, TINY_SAVE_STEPS, TINY_STEPS
from harness.model import Algorithm, Hardware

TRAINING = ("sft", "pt", "rlhf")
SERVING = ("deploy", "rollout")
# Subcommands of `swift` that a tiny run knows how to judge.
KNOWN = (*TRAINING, "export", "merge-lora", "infer", "deploy")
WINDOWS = ("web-ui", "app")

MODEL_FLAGS = ("--model", "--ref_model", "--reward_model", "--teacher_model")
DATASET_FLAGS = ("--dataset", "--val_dataset")
# Flags whose values are files of the reader's own.
FILE_FLAGS = ("--external_plugins", "--custom_register_path", "--custom_dataset_info", "--model_kwargs", "--config_file", "--template_path")
# Folders and files that a command writes, so that later commands may read them.
OUTPUT_FLAGS = ("--output_dir", "--result_path", "--eval_output_dir")
DEFAULT_OUTPUT = "output"
DEFAULT_PORT, DEFAULT_HOST = 8000, "0.0.0.0"
# Variables that say which devices, and how many processes, a command takes.
DEVICE_VARIABLES = ("ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES", "NPU_VISIBLE_DEVICES")
RANKS_VARIABLE, PORT_VARIABLE, NODES_VARIABLE = "NPROC_PER_NODE", "MASTER_PORT", "NNODES"
TINY_RANKS = 2

STEPS = "a few steps of a tiny model"
ANSWER = "a few words are an answer"
UNMATCHED = "a tiny model's files don't tell its type to ms-swift"
UNASKED = "else the trainer asks the hub about a model that is in no hub"
LOOPBACK = "servers of the harness listen on loopback only"
NO_NPU = "this host has no NPU"

_TRAIN_STEPS: Mapping[str, int] = {
    "--save_steps": TINY_SAVE_STEPS,
    "--eval_steps": TINY_SAVE_STEPS,
    "--logging_steps": 1,
    "--max_completion_length": 16,
    "--response_length": 16,
    "--num_sample_generations": 0,
}
_ENGINES = {"vllm": "vllm", "sglang": "sglang", "lmdeploy": "lmdeploy"}
_REPORTERS = {"wandb": "wandb", "swanlab": "swanlab", "tensorboard": "tensorboard"}
_QUANTIZERS = {"bnb": "bitsandbytes", "gptq": "gptqmodel", "gptq_v2": "gptqmodel", "awq": "awq", "hqq": "hqq", "eetq": "eetq"}
_ATTENTION = {"flash_attn": "flash_attn", "flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_3"}
# Flag to what a value of it needs: (value, package); "" stands for any value but false.
_PACKAGES: Mapping[str, Mapping[str, str]] = {
    "--infer_backend": _ENGINES,
    "--report_to": _REPORTERS,
    "--quant_method": _QUANTIZERS,
    "--attn_impl": _ATTENTION,
    "--deepspeed": {"": "deepspeed"},
    "--use_vllm": {"": "vllm"},
    "--use_liger_kernel": {"": "liger_kernel"},
    "--use_ray": {"": "ray"},
    "--use_galore": {"": "galore_torch"},
    "--tuner_backend": {"unsloth": "unsloth"},
    "--tuner_type": {"reft": "pyreft"},
    "--eval_use_evalscope": {"": "evalscope"},
    "--to_mcore": {"": "megatron"},
    "--to_hf": {"": "megatron"},
    "--mcore_model": {"": "megatron"},
    "--to_ollama": {"": "ollama"},
}
_OFF = ("false", "False", "0", "none")

Given = Mapping[str, Sequence[str]]


def subcommand_of(word: str) -> str:
    """As ms-swift reads it: merge_lora is merge-lora."""
    return word.replace("_", "-")


def rows_of(subcommand: str, given: Given) -> str:
    """The kind of rows (harness.tiny.make_datasets) that a command reads: by its subcommand, --rlhf_type and --task_type."""
    for flag in ("--rlhf_type", "--task_type"):
        named = (given.get(flag) or ("",))[0]
        if named in {str(algorithm) for algorithm in ALGORITHMS}:
            return ALGORITHMS[Algorithm(named)].rows
    if subcommand == "rlhf":
        return "dpo"
    return "pt" if subcommand == "pt" else "sft"


def step_changes(subcommand: str, given: Given) -> tuple[Change, ...]:
    """How many steps are trained, how many words are answered. Flags that a page leaves out are added only where their default is long."""
    changes: list[Change] = []
    if subcommand in TRAINING:
        changes += [Change(flag, (str(number),), STEPS) for flag, number in _TRAIN_STEPS.items() if flag in given]
        changes.append(Change("--max_steps", (str(TINY_STEPS),), STEPS))
    if subcommand in ("infer", "deploy"):
        changes.append(Change("--max_new_tokens", (str(TINY_NEW_TOKENS),), ANSWER))
    return tuple(changes)


def device_changes(subcommand: str, hardware: Hardware) -> tuple[Change, ...]:
    if subcommand not in TRAINING:
        return ()
    offline = (Change("--check_model", ("false",), UNASKED),)
    # Without an accelerator the trainer refuses bfloat16, unless it is told that the CPU is meant.
    return (*offline, Change("--use_cpu", ("true",), NO_NPU)) if hardware is Hardware.CPU else offline


def type_changes(family: str, given: Given, flag: str = "--model") -> tuple[Change, ...]:
    """What ms-swift must be told of a tiny model in place of `flag`'s, where the page leaves it to the model's own files."""
    if family not in FAMILIES or flag not in ("--model", "--reward_model", "--teacher_model", "--ref_model"):
        return ()
    names = FAMILIES[family]
    told = [Change(f"{flag}_type", (names.model_type,), UNMATCHED)]
    told += [Change("--template", (names.template,), UNMATCHED)] if flag == "--model" else []
    return tuple(change for change in told if change.flag not in given)


def packages_needed(given: Given) -> tuple[tuple[str, str], ...]:
    """(flag and value, top-level module) of each option that a package stands behind."""
    found = []
    for flag, packages in _PACKAGES.items():
        for value in given.get(flag, ()) or (("true",) if flag in given else ()):
            package = packages.get(value) or ("" if value in _OFF else packages.get("", ""))
            if package:
                found.append((f"{flag} {value}", package))
    return tuple(found)


def publishes(given: Given) -> bool:
    return any(is_on(given, flag) for flag in ("--push_to_hub", "--push_to_ms_hub"))


def quantizes(given: Given) -> bool:
    return "--quant_bits" in given or "--quant_method" in given


def merges(subcommand: str, given: Given) -> bool:
    return subcommand == "merge-lora" or (subcommand == "export" and is_on(given, "--merge_lora"))


def converses(subcommand: str, given: Given) -> bool:
    """Whether the command asks questions of whoever sits before it: an inference without rows to answer."""
    rows = ("--val_dataset", "--dataset", "--cached_dataset", "--cached_val_dataset")
    return subcommand == "infer" and not any(flag in given for flag in rows) and not is_on(given, "--load_data_args")


def trains_adapter(given: Given) -> bool:
    """Whether a training is to leave an adapter: lora, ms-swift's default, and its kin; not full."""
    for flag in ("--tuner_type", "--train_type", "--sft_type"):
        if flag in given:
            return list(given[flag])[:1] != ["full"]
    return True


def is_on(given: Given, flag: str) -> bool:
    return flag in given and (list(given[flag]) or ["true"])[0].lower() in ("true", "1", "yes")
