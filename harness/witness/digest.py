"""Canonical names of parameters, their digest, and how large they are. What is sharded where: sharding.py."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

WRAPPERS = {"_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module", "default", "modules_to_save"}
LORA_B = ("lora_B", "lora_embedding_B")
FSDP1 = "FullyShardedDataParallel"


def canonical(name: str) -> str:
    """A parameter's or module's name without what DDP, FSDP, compile, checkpointing and PEFT put around it.

    It is the name under which a checkpoint's safetensors file keeps the tensor, less the leading `base_model.model.`.
    """
    parts = [part for part in name.split(".") if part not in WRAPPERS]
    while parts and parts[0] == "module":
        parts = parts[1:]
    if parts[:2] == ["base_model", "model"]:
        parts = parts[2:]
    return ".".join(parts)


@contextmanager
def assembled(model: Any) -> Iterator[None]:
    """Inside, the parameters of an FSDP1 model have their own names and shapes; elsewhere its ranks hold slices of flat ones.

    A collective call, so every rank must make it. Nothing to do for any other wrapper: see `whole`.
    """
    if not any(type(module).__name__ == FSDP1 for module in model.modules()):
        yield
        return
    from torch.distributed.fsdp import FullyShardedDataParallel

    with FullyShardedDataParallel.summon_full_params(model, writeback=False):
        yield


def trainable(model: Any) -> list[tuple[str, Any]]:
    """(canonical name, parameter) of each trainable parameter, sorted by name."""
    named = [(canonical(name), p) for name, p in model.named_parameters() if p.requires_grad]
    return sorted(named, key=lambda pair: pair[0])


@contextmanager
def whole(parameter: Any) -> Iterator[Any]:
    """The parameter's full tensor, gathered where it is sharded: a collective call, so every rank must make it."""
    if hasattr(parameter, "full_tensor"):  # FSDP2's DTensor
        yield parameter.detach().full_tensor()
    elif hasattr(parameter, "ds_id"):  # ZeRO-3
        import deepspeed  # `zero` is an attribute of it, not a module to import from

        with deepspeed.zero.GatheredParameters([parameter]):
            yield parameter.detach()
    else:
        yield parameter.detach()


def trainable_digest(model: Any) -> str:
    """sha256 over the trainable parameters in order of name: `name\\ndtype\\nd0,d1\\n`, then the raw little-endian bytes."""
    total = hashlib.sha256()
    with assembled(model):
        for name, parameter in trainable(model):
            with whole(parameter) as tensor:
                total.update(head(name, dtype_name(tensor), tuple(tensor.shape)))
                total.update(raw_bytes(tensor))
    return total.hexdigest()


def head(name: str, dtype: str, shape: tuple[int, ...]) -> bytes:
    return f"{name}\n{dtype}\n{','.join(map(str, shape))}\n".encode()


def raw_bytes(tensor: Any) -> Any:
    """A buffer over the tensor's bytes; viewed as bytes because numpy has no bfloat16."""
    import torch

    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def dtype_name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def lora_b_max_abs(model: Any) -> float | None:
    """The largest absolute entry of any trainable LoRA B; None where there is none."""
    largest = []
    with assembled(model):
        for name, parameter in trainable(model):
            if any(part in LORA_B for part in name.split(".")):
                with whole(parameter) as tensor:
                    largest.append(float(tensor.abs().max()) if tensor.numel() else 0.0)
    if any(math.isnan(value) for value in largest):
        return math.nan  # max() could drop it
    return max(largest, default=None)


def global_numel(parameter: Any) -> int:
    return int(getattr(parameter, "ds_numel", None) or parameter.numel())


def local_numel(parameter: Any) -> int:
    """How many of the parameter's entries this rank holds."""
    if hasattr(parameter, "to_local"):
        return int(parameter.to_local().numel())
    shard = getattr(parameter, "ds_tensor", None)
    return int(parameter.numel() if shard is None else shard.numel())


def sizes(model: Any) -> dict[str, Any]:
    """Fields of `train_begin` about the parameters: counts, local and global, and the number of entries by dtype."""
    parameters = list(model.parameters())
    learning = [p for p in parameters if p.requires_grad]
    found: dict[str, Any] = {
        "param_class": type(learning[0]).__name__ if learning else None,
        "numel_local": sum(local_numel(p) for p in parameters),
    }
    with assembled(model):
        parameters = list(model.parameters())
        dtypes: Counter[str] = Counter()
        for parameter in parameters:
            dtypes[dtype_name(parameter)] += global_numel(parameter)
        learning = [p for p in parameters if p.requires_grad]
        return {
            **found,
            "dtypes": dict(sorted(dtypes.items())),
            "numel_global": sum(global_numel(p) for p in parameters),
            "trainable_tensors": len(learning),
            "trainable_numel": sum(global_numel(p) for p in learning),
        }
