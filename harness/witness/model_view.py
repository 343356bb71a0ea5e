"""What can be seen of a model from outside: its class under the wrappers, its LoRA modules, its patched classes."""

from __future__ import annotations

import functools
import sys
from typing import Any

from .digest import canonical


def inner(model: Any) -> Any:
    """The model under DDP, DeepSpeed and PEFT."""
    while True:
        if hasattr(model, "get_base_model"):
            model = model.get_base_model()
        elif hasattr(model, "module") and hasattr(model.module, "forward"):
            model = model.module
        else:
            return model


def adapter_modules(model: Any) -> list[str]:
    """Canonical names, sorted, of the modules that hold a LoRA."""
    return sorted({canonical(name) for name, module in model.named_modules() if getattr(module, "lora_A", None)})


def lora_settings(model: Any) -> dict[str, Any] | None:
    """r, lora_alpha, lora_dropout of the first adapter, and the scaling that its layers use; None without LoRA."""
    configs = getattr(model, "peft_config", None)
    name = next((n for n, config in (configs or {}).items() if hasattr(config, "lora_alpha")), None)
    if configs is None or name is None:
        return None
    config = configs[name]
    # attention modules have a `scaling` too, a number
    tables = [module.scaling for module in model.modules() if isinstance(getattr(module, "scaling", None), dict)]
    scalings = {table[name] for table in tables if name in table}
    scaling = sorted(scalings)[0] if len(scalings) == 1 else sorted(scalings)
    return {"r": config.r, "lora_alpha": config.lora_alpha, "lora_dropout": config.lora_dropout, "scaling": scaling}


def active_adapters(model: Any, asked: list[str] | None) -> list[str]:
    """Names of the adapters that a forward goes through; `asked` is generate's `adapter_names`, one a row."""
    if asked is not None:
        return sorted({name for name in asked if name != "__base__"})
    if not hasattr(model, "peft_config"):
        return []
    active = getattr(model, "active_adapters", [])
    return sorted([active] if isinstance(active, str) else active)


def attention(model: Any) -> str | None:
    """The attention implementation that the model's own configuration names, as transformers spells it."""
    config = getattr(inner(model), "config", None)
    config = getattr(config, "text_config", config)
    named = getattr(config, "_attn_implementation", None)
    return None if named is None else str(named)


def sequence_parallel() -> dict[str, int] | None:
    """Over how many ranks ms-swift splits a sequence: in all, by Ulysses and by the ring; None where it does not."""
    module = sys.modules.get("swift.sequence_parallel.sequence_parallel")
    found: Any = getattr(module, "sequence_parallel", None)
    if not getattr(found, "world_size", None) or found.world_size == 1:
        return None
    return {"size": found.world_size, "ulysses": found.sp_world_size or 1, "ring": found.rp_world_size or 1}


OFFLOAD = "swift.callbacks.activation_cpu_offload"


def offloading(model: Any) -> list[str]:
    """Classes, sorted, of modules whose own forward ms-swift wrapped to keep its activations in host memory.

    The wrapper takes over its original's name and module, so its code is asked where it was written.
    """
    own = ((type(module).__name__, module.__dict__.get("forward")) for module in model.modules())
    written = ((name, getattr(getattr(forward, "__func__", forward), "__globals__", {})) for name, forward in own if forward is not None)
    return sorted({name for name, names in written if names.get("__name__") == OFFLOAD})


NPU_PATCHES = "swift.model.npu_patch"


def patched(model: Any) -> dict[str, str]:
    """Class name to the module that its forward comes from, for each class whose forward was written elsewhere than the class, and for
    each class that ms-swift's NPU patches put in the place of the model's own."""
    found = {}
    for module in model.modules():
        kind = type(module)
        owner = next((c for c in kind.__mro__ if "forward" in c.__dict__), kind)
        forward = module.__dict__.get("forward") or owner.__dict__.get("forward")
        while isinstance(forward, functools.partial):
            forward = forward.func
        source = getattr(forward, "__module__", None)
        if source is not None and (source != owner.__module__ or source.startswith(NPU_PATCHES)):
            found[kind.__name__] = str(source)
    return dict(sorted(found.items()))
