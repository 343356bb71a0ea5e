"""The one place that names what the witness takes from ms-swift, transformers, accelerate and peft.

HOOKS lists every name; tests/test_witness_hooks.py looks each up in the installed versions.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from . import generation, record, training

CALLBACK_NAME = "npu_matrix_witness"


class Hook(NamedTuple):
    module: str
    attribute: str
    use: str


HOOKS = (
    Hook("swift.callbacks", "callbacks_map", "--callbacks looks names up here; the witness adds its own"),
    Hook("swift.callbacks.base", "TrainerCallback", "built as callback(args, trainer), kept as .args and .trainer"),
    Hook("swift.template", "Template.generate", "called by infer, deploy and RL sampling with the transformers engine; wrapped"),
    Hook("swift.template", "Template.get_generate_ids", "cuts the prompt off what was generated"),
    Hook("swift.template", "Template.tokenizer", "pad_token_id, to cut padding"),
    Hook("transformers", "TrainerCallback.on_train_begin", "called after the checkpoint's weights, optimizer and scheduler were loaded"),
    Hook("transformers", "TrainerCallback.on_step_begin", "before the first micro batch of an optimizer step"),
    Hook("transformers", "TrainerCallback.on_step_end", "after the optimizer step"),
    Hook("transformers", "TrainerCallback.on_log", "called before ms-swift rounds the row to 8 digits and appends it to logging.jsonl"),
    Hook("transformers", "TrainerCallback.on_save", "after <output_dir>/checkpoint-<step> was written"),
    Hook("transformers", "TrainerCallback.on_train_end", "after the last step"),
    Hook("transformers", "TrainerState.num_input_tokens_seen", "tokens, where --include_num_input_tokens_seen asks for them"),
    Hook("transformers.trainer_callback", "TrainerState.is_world_process_zero", "one rank writes the nonce into a checkpoint"),
    Hook("transformers", "Trainer._load_optimizer_and_scheduler", "runs before on_train_begin; the control relies on it"),
    Hook("accelerate", "Accelerator.distributed_type", "what accelerate takes the run for"),
    Hook("accelerate.utils", "DeepSpeedPlugin.zero_stage", "the ZeRO stage in force"),
    Hook("accelerate.optimizer", "AcceleratedOptimizer.state", "wraps torch's optimizer as .optimizer"),
    Hook("peft", "PeftModel.get_base_model", "the model under the adapter"),
    Hook("peft", "PeftModel.active_adapters", "which adapters a forward goes through"),
    Hook("peft", "LoraConfig.lora_alpha", "peft_config of a LoRA has it"),
    Hook("peft.tuners.lora", "LoraLayer.adapter_layer_names", "lora_A, lora_B and scaling by adapter name"),
)


def install() -> None:
    """Register the callback, wrap generation, open the session. Doing it again changes nothing."""
    callbacks: Any = importlib.import_module("swift.callbacks").callbacks_map
    if CALLBACK_NAME not in callbacks:
        callbacks[CALLBACK_NAME] = callback_class()
    template: Any = importlib.import_module("swift.template").Template
    for kind in [template, *_descendants(template)]:
        generate = kind.__dict__.get("generate")
        if generate is not None and not getattr(generate, generation.MARK, False):
            kind.generate = generation.wrapped(generate)
    record.session()


def callback_class() -> type:
    """ms-swift's TrainerCallback with the witness's events."""
    swift_callback: Any = importlib.import_module("swift.callbacks.base").TrainerCallback
    return type("NpuMatrixWitness", (training.Training, swift_callback), {})


def _descendants(kind: Any) -> list[Any]:
    children = list(kind.__subclasses__())
    return children + [deeper for child in children for deeper in _descendants(child)]
