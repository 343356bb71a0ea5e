"""What ms-swift's NPU patches do to each family, as the installed 4.6 has it: swift/model/npu_patch/model.py, *_PATCHES.

A patch is a bare setattr: where transformers renames its target it becomes a silent no-op with equal losses. So what must be seen is
written down here, and held against the classes that trained and the operators that were called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.compare import check
from harness.model import Comparison, Options, Witness

MODULE = "swift.model.npu_patch"


@dataclass(frozen=True)
class Patches:
    """`classes`: those of a live model that must come from the patches. `operators`: of torch_npu, called by a training step."""

    classes: frozenset[str]
    operators: frozenset[str]


FLASH = frozenset({"npu_fusion_attention"})
_DENSE = frozenset({"npu_rms_norm", "npu_rotary_mul", "npu_swiglu"})
_MOE = frozenset({"npu_rms_norm", "npu_rotary_mul", "npu_moe_token_permute", "npu_grouped_matmul", "npu_moe_token_unpermute", "npu_swiglu"})

PATCHES: Mapping[str, Patches] = {
    "qwen2": Patches(frozenset({"NpuRMSNorm", "Qwen2MLP"}), _DENSE),
    "qwen3": Patches(frozenset({"NpuRMSNorm", "Qwen3MLP"}), _DENSE),
    "qwen3_moe": Patches(frozenset({"NpuRMSNorm", "Qwen3MoeExperts", "Qwen3MoeSparseMoeBlock"}), _MOE),
}


def prove_patches(family: str, witness: Witness, options: Options) -> tuple[Comparison, ...]:
    """The patches of `family` live and called, or, with the switch off, none of them. A family without patches has nothing to show.

    Flash attention on an NPU is an operator of torch_npu too, whatever the switch.
    """
    end = witness.last("train_end") or {}
    # FSDP2 gives what it shards a class of its own, by its name behind FSDP.
    live = {name.removeprefix("FSDP") for name, module in dict(end.get("patched") or {}).items() if str(module).startswith(MODULE)}
    calls = {name: int(count) for name, count in dict(end.get("npu_calls") or {}).items()}
    wanted = PATCHES.get(family, Patches(frozenset(), frozenset()))
    if not options.npu_model_patch:
        wanted = Patches(frozenset(), frozenset())
    found_classes = ", ".join(sorted(live)) or "none"
    made = [check("train.patches", live == wanted.classes, "patch.not_live", ", ".join(sorted(wanted.classes)) or "none", found_classes)]
    if end.get("npu_calls") is None:
        return tuple(made)
    operators = wanted.operators | (FLASH if options.attn_impl == "flash_attn" else frozenset())
    silent = sorted(operators - {name for name, count in calls.items() if count})
    uninvited = sorted(name for name, count in calls.items() if count and not operators)
    text = ", ".join(f"{name} {count}" for name, count in sorted(calls.items())) or "none"
    expected = ", ".join(sorted(operators)) or "no call"
    made.append(check("train.patch_calls", not silent and not uninvited, "patch.not_called", expected, text))
    return tuple(made)
