"""Over how many ranks the parameters and the optimizer's state are spread, and by what, as the objects themselves say."""

from __future__ import annotations

from typing import Any

from .digest import FSDP1


def sharding(model: Any, wrapped: Any) -> dict[str, Any] | None:
    """{by, how, ranks}: `dtensor` with its placements, `fsdp1` with its strategy, `zero` with the engine's stage; None if whole."""
    stage = zero_stage(wrapped)
    if stage is not None:
        return {"by": "zero", "how": str(stage), "ranks": int(wrapped.dp_world_size)}
    flat = next((module for module in model.modules() if type(module).__name__ == FSDP1), None)
    if flat is not None:
        return {"by": "fsdp1", "how": flat.sharding_strategy.name, "ranks": int(flat.world_size)}
    spread = [p for p in model.parameters() if hasattr(p, "to_local") and hasattr(p, "placements")]
    if not spread:
        return None
    how = sorted({str(placement) for p in spread for placement in p.placements})
    return {"by": "dtensor", "how": ", ".join(how), "ranks": int(spread[0].device_mesh.size())}


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
