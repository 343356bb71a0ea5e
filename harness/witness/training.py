"""The callback of training runs: what is trained, where, under which wrapper, and how it changed."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

from . import digest, model_view, operators, sharding
from .device import Device, simulated
from .record import Session, rss_mib, session

CONTROL_VARIABLE = "NPU_MATRIX_CONTROL"
ZERO_MOMENTS = "zero_moments"
MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
LOGGED = ("loss", "grad_norm", "learning_rate")
ARGUMENTS = (
    "learning_rate", "seed", "data_seed", "max_steps", "per_device_train_batch_size", "gradient_accumulation_steps", "lr_scheduler_type",
    "weight_decay", "warmup_ratio", "warmup_steps", "save_steps", "logging_steps", "num_train_epochs", "max_grad_norm", "output_dir",
)  # fmt: skip


class Training:
    """Mixed into ms-swift's TrainerCallback by hooks.py. Each event is guarded: a failure here never ends the run."""

    trainer: Any

    def __init__(self, args: Any, trainer: Any) -> None:
        super().__init__(args, trainer)  # type: ignore[call-arg]
        self._began: float | None = None
        self._counter: operators.Counter | None = None
        opened = session()
        if opened is not None:
            opened.training = True

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        opened = session()
        if opened is not None:
            with opened.guard("on_train_begin"):
                acted = self._control(opened)
                opened.emit(
                    "train_begin",
                    **self._where(),
                    **self._what(),
                    **acted,
                    arguments=arguments(args, self.trainer),
                    global_step=state.global_step,
                    max_steps=state.max_steps,
                )
                if operators.asked():
                    self._counter = operators.Counter()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        opened = session()
        if opened is not None:
            with opened.guard("on_step_begin"):
                if self._counter is not None:
                    self._counter.start()
                Device.of(self.trainer.model).synchronize()
                self._began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        opened = session()
        if opened is None:
            return
        with opened.guard("on_step_end"):
            device = Device.of(self.trainer.model)
            device.synchronize()
            seconds = None if self._began is None else time.perf_counter() - self._began
            self._began = None
            if self._counter is not None:
                self._counter.stop()
            counted = str(getattr(args, "include_num_input_tokens_seen", "no")).lower() not in ("no", "false")
            opened.emit(
                "step",
                step=state.global_step,
                seconds=seconds,
                tokens=state.num_input_tokens_seen if counted else None,
                peak_allocated_mib=device.peak_allocated_mib(),
                peak_reserved_mib=device.peak_reserved_mib(),
                rss_mib=rss_mib(),
            )

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        opened = session()
        if opened is not None and isinstance(logs, dict) and "loss" in logs:
            with opened.guard("on_log"):
                opened.emit("log", step=state.global_step, **{name: number(logs.get(name)) for name in LOGGED})

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        opened = session()
        if opened is None:
            return
        with opened.guard("on_save"):
            folder = os.path.abspath(os.path.join(args.output_dir, f"checkpoint-{state.global_step}"))
            seen = digest.trainable_digest(self.trainer.model)
            opened.emit("save", step=state.global_step, dir=folder, trainable_digest=seen)
            if state.is_world_process_zero:
                with open(os.path.join(folder, "npu_matrix_nonce.json"), "w", encoding="utf-8") as file:
                    json.dump({"nonce": opened.nonce, "step": state.global_step, "trainable_digest": seen}, file)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        opened = session()
        if opened is None:
            return
        with opened.guard("on_train_end"):
            model = self.trainer.model
            opened.emit(
                "train_end",
                global_step=state.global_step,
                trainable_digest=digest.trainable_digest(model),
                first_moments_numel=sharding.first_moments_numel(getattr(self.trainer, "optimizer", None)),
                lora_b_max_abs=digest.lora_b_max_abs(model),
                patched=model_view.patched(model),
                offloading=model_view.offloading(model),
                operators=None if self._counter is None else self._counter.calls(),
                npu_calls=operators.npu_calls(),
            )

    def _where(self) -> dict[str, Any]:
        import torch.distributed

        device = Device.of(self.trainer.model)
        accelerator = getattr(self.trainer, "accelerator", None)
        spread = torch.distributed.is_available() and torch.distributed.is_initialized()
        return {
            "device": device.name,
            "device_name": device.product(),
            "simulated": device.kind == "npu" and simulated(),
            "distributed_type": str(getattr(accelerator, "distributed_type", None)).rsplit(".", 1)[-1],
            "zero_stage": sharding.zero_stage(getattr(self.trainer, "model_wrapped", None)),
            "sharding": sharding.sharding(self.trainer.model, getattr(self.trainer, "model_wrapped", None)),
            "backend": torch.distributed.get_backend() if spread else None,
        }

    def _what(self) -> dict[str, Any]:
        model = self.trainer.model
        return {
            "wrapped_class": type(getattr(self.trainer, "model_wrapped", model)).__name__,
            "model_class": type(model_view.inner(model)).__name__,
            **digest.sizes(model),
            "trainable_digest": digest.trainable_digest(model),
            "adapter_modules": model_view.adapter_modules(model),
            "lora": model_view.lora_settings(model),
            "attn_impl": model_view.attention(model),
            "sequence_parallel": model_view.sequence_parallel(),
            "padding_free": bool(getattr(getattr(self.trainer, "template", None), "padding_free", False)),
        }

    def _control(self, opened: Session) -> dict[str, Any]:
        """Act on NPU_MATRIX_CONTROL, then say what was done and the norm of the optimizer's moments."""
        asked = os.environ.get(CONTROL_VARIABLE) or None
        optimizer = getattr(self.trainer, "optimizer", None)
        zeroed = None
        with opened.guard(CONTROL_VARIABLE):
            if asked == ZERO_MOMENTS:
                zeroed = zero_moments(optimizer)
                if zeroed == 0:
                    raise RuntimeError("the optimizer holds no moments to set to zero: was it resumed from a checkpoint?")
            elif asked is not None:
                raise ValueError(f"{CONTROL_VARIABLE}={asked} is unknown. Known: {ZERO_MOMENTS}")
        return {"control": asked, "moments_zeroed": zeroed, "optimizer_moment_norm": moment_norm(optimizer)}


def arguments(args: Any, trainer: Any) -> dict[str, Any]:
    """What the trainer goes by: its own arguments, its template's max_length, and the data sets that ms-swift says it read.

    An argument that this trainer does not have is left out; `dataset` is None where ms-swift saved no args.json.
    """
    found = {name: getattr(args, name) for name in ARGUMENTS if hasattr(args, name)}
    found["lr_scheduler_type"] = getattr(found.get("lr_scheduler_type"), "value", found.get("lr_scheduler_type"))
    saved = Path(str(args.output_dir)) / "args.json"
    found["dataset"] = json.loads(saved.read_text(encoding="utf-8")).get("dataset") if saved.is_file() else None
    return {**found, "max_length": getattr(getattr(trainer, "template", None), "max_length", None)}


def number(value: Any) -> Any:
    """A plain number of a logged value, which may be a tensor of one entry; anything else as it is."""
    return value.item() if hasattr(value, "item") else value


def moments(optimizer: Any) -> list[Any]:
    """The moment tensors of the innermost optimizer; those of a new one do not exist yet."""
    while hasattr(optimizer, "optimizer"):  # accelerate's and DeepSpeed's wrappers
        optimizer = optimizer.optimizer
    states = getattr(optimizer, "state", {}).values()
    return [state[key] for state in states for key in MOMENTS if isinstance(state, dict) and key in state]


def zero_moments(optimizer: Any) -> int:
    """Set every moment to zero in place; how many there were."""
    found = moments(optimizer)
    for tensor in found:
        tensor.zero_()
    return len(found)


def moment_norm(optimizer: Any) -> float | None:
    """Euclidean norm over this rank's moments; None while there are none."""
    found = moments(optimizer)
    local = [m.to_local() if hasattr(m, "to_local") else m for m in found]
    return math.sqrt(sum(float(m.double().pow(2).sum()) for m in local)) if found else None
