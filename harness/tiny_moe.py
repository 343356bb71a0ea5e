"""What sets a tiny mixture of experts apart: the router and the experts of a layer, by the names of the published checkpoints.

Those name each expert's matrices; transformers packs them when it loads and unpacks them when it saves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EXPERTS, CHOSEN = 4, 2


def moe_settings(intermediate: int) -> Mapping[str, Any]:
    """What config.json says of the experts: every layer has them, and the weights of the chosen ones add up to 1."""
    return {
        "moe_intermediate_size": intermediate,
        "num_experts": EXPERTS,
        "num_experts_per_tok": CHOSEN,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "output_router_logits": False,
        "router_aux_loss_coef": 0.001,
    }


def moe_shapes(at: str, hidden: int, intermediate: int) -> Mapping[str, tuple[int, ...]]:
    """Parameter name to shape for the layer whose names begin with `at`."""
    shapes: dict[str, tuple[int, ...]] = {f"{at}mlp.gate.weight": (EXPERTS, hidden)}
    for expert in range(EXPERTS):
        for name in ("gate", "up"):
            shapes[f"{at}mlp.experts.{expert}.{name}_proj.weight"] = (intermediate, hidden)
        shapes[f"{at}mlp.experts.{expert}.down_proj.weight"] = (hidden, intermediate)
    return shapes
