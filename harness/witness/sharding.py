"""Over how many ranks the parameters and the optimizer's state are spread, and by what, as the objects themselves say."""

from __future__ import annotations

from typing import Any

from .digest import FSDP1

# FSDP1's strategies that free what a module's forward gathered.
FREES = ("FULL_SHARD", "HYBRID_SHARD")


def sharding(model: Any, wrapped: Any) -> dict[str, Any] | None:
    """{by, how, ranks, units, kept}; None if whole. `dtensor` with its placements, `fsdp1` with its strategies, `zero` with its stage.

    `units`: modules below the root whose parameters are gathered apart from all others; `kept`: those of them that stay gathered from
    their forward to their backward. Both None for `zero`, and where this torch does not tell.
    """
    stage = zero_stage(wrapped)
    if stage is not None:
        return {"by": "zero", "how": str(stage), "ranks": int(wrapped.dp_world_size), "units": None, "kept": None}
    flat = [module for module in model.modules() if type(module).__name__ == FSDP1]
    if flat:
        names = [module.sharding_strategy.name for module in flat]
        units = {"units": len(names) - 1, "kept": sum(name not in FREES for name in names[1:])}
        return {"by": "fsdp1", "how": ", ".join(sorted(set(names))), "ranks": int(flat[0].world_size), **units}
    spread = [p for p in model.parameters() if hasattr(p, "to_local") and hasattr(p, "placements")]
    if not spread:
        return None
    how = sorted({str(placement) for p in spread for placement in p.placements})
    return {"by": "dtensor", "how": ", ".join(how), "ranks": int(spread[0].device_mesh.size()), **_fsdp2_units(model)}


def _fsdp2_units(model: Any) -> dict[str, int | None]:
    """Private names of torch, the only place where it says so. The first is the root, which always stays gathered."""
    states = {id(state): state for module in model.modules() if (state := getattr(module, "_get_fsdp_state", lambda: None)()) is not None}
    below = [getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)] for state in [*states.values()][1:]]
    groups = [group for found in below for group in found if group is not None]
    if not all(hasattr(group, "post_forward_mesh_info") for group in groups):
        return {"units": len(groups), "kept": None}
    return {"units": len(groups), "kept": sum(group.post_forward_mesh_info is None for group in groups)}


def zero_stage(wrapped: Any) -> int | None:
    """What the DeepSpeed engine itself goes by; None where the model runs in no engine."""
    stage = getattr(wrapped, "zero_optimization_stage", None)
    return int(stage()) if callable(stage) else None


def first_moments_numel(optimizer: Any) -> int | None:
    """Entries of Adam's first moments on this rank: as many as it has parameters to step, 0 before the first step."""
    while hasattr(optimizer, "optimizer"):  # accelerate's and DeepSpeed's wrappers
        optimizer = optimizer.optimizer
    states = getattr(optimizer, "state", None)
    if states is None:
        return None
    firsts = [state["exp_avg"] for state in states.values() if isinstance(state, dict) and "exp_avg" in state]
    return sum(int((m.to_local() if hasattr(m, "to_local") else m).numel()) for m in firsts)
