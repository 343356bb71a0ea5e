"""Where the stand-in differs from the real torch_npu, and why that is meant. A test fails on a difference that isn't here, on an entry
that no longer covers one, and on a name that ms-swift, transformers, accelerate, DeepSpeed, trl or peft use and that is missing without
an entry of exactly that name."""

from __future__ import annotations

from .compare import DIFFERENT, EXTRA, MISSING, Accepted

UNUSED = "nothing under test calls it; asking for it raises an AttributeError that says SIMULATED NPU"
RENAMED = "the parameter has another name here; every caller passes it by position"
OURS_ONLY = "a name that a module of the stand-in imports for itself"
GRAPHS = "graph capture isn't simulated; DeepSpeed uses it in its inference engine alone"

ACCEPTED = (
    Accepted(MISSING, "torch_npu.*", UNUSED),
    Accepted(MISSING, "torch.npu.*", UNUSED),
    # Used by a library, so each by its own name.
    Accepted(MISSING, "torch.npu.NPUGraph", GRAPHS),
    Accepted(MISSING, "torch.npu.graph", GRAPHS),
    Accepted(MISSING, "torch.npu.npurt", "pinning of memory by ACL; DeepSpeed looks for it and does without"),
    Accepted(
        MISSING,
        "torch_npu.utils.patch_getenv",
        "ms-swift looks for it and, where it is, undoes what only the real torch_npu does to os.getenv",
    ),
    Accepted(DIFFERENT, "torch.npu.*Tensor", "deprecated constructors: a function does what the class does, isinstance apart"),
    Accepted(DIFFERENT, "torch.npu._lazy_call", RENAMED),
    Accepted(DIFFERENT, "torch.npu.can_device_access_peer", RENAMED),
    Accepted(DIFFERENT, "torch.npu.get_device_name", RENAMED),
    Accepted(DIFFERENT, "torch.npu.get_device_properties", RENAMED),
    Accepted(DIFFERENT, "torch.npu.set_autocast_enabled", RENAMED),
    Accepted(DIFFERENT, "torch.npu.is_bf16_supported", "the default of a parameter that changes nothing here"),
    Accepted(EXTRA, "torch.npu.device_index", OURS_ONLY),
    Accepted(EXTRA, "torch.npu.memory.*", OURS_ONLY),
    Accepted(EXTRA, "torch.npu.random.*", OURS_ONLY),
)
