"""Mutants that are equivalent, each with its proof in one line; and faults that no operator of edits.py or statements.py makes."""

from __future__ import annotations

from dataclasses import dataclass

_MODEL = "swift.model.npu_patch.model"


@dataclass(frozen=True)
class Proof:
    """Mutant `name` of `module` is equivalent `because`; it holds only while the text before and after is what it was proved for."""

    module: str
    name: str
    before: str
    after: str
    because: str


@dataclass(frozen=True)
class Curated:
    """A fault by its text, which stands once in the module."""

    name: str
    module: str
    kind: str
    before: str
    after: str


PROOFS: tuple[Proof, ...] = (
    Proof(
        "swift.sequence_parallel.zigzag_ring_attn_npu",
        "zigzag_ring_attn_npu._reshape_npu_lse:copy-removed:4",
        "lse.contiguous()",
        "lse",
        "contiguous() changes where values lie, not what they are, and whoever reads them goes by strides",
    ),
    Proof(
        _MODEL,
        "model._qwen3_moe_forward_transformers_457:argument-dropped:7",
        "torch.sort(flatten_indices.float(), stable=True)",
        "torch.sort(flatten_indices.float())",
        "the order of one expert's tokens is free: the same indices permute the tokens and put the results back",
    ),
    Proof(
        "swift.model.npu_patch.vllm_ascend",
        "vllm_ascend.patch_vllm_ascend_runtime:flag-turned:1",
        "False",
        "True",
        "nothing in the function reads colocate",
    ),
    Proof(
        "swift.model.npu_patch.megatron_checkpoint",
        "megatron_checkpoint._restore_mindspeed_optimizer_step_tensors:constant-changed:2",
        "1",
        "2",
        "the count is asked only whether it is 0, and told in a warning",
    ),
)
CURATED: tuple[Curated, ...] = (
    Curated(
        "curated.up_before_gate",
        _MODEL,
        "operands swapped",
        "torch.cat((self.gate_proj(hidden_state), self.up_proj(hidden_state)), dim=-1)",
        "torch.cat((self.up_proj(hidden_state), self.gate_proj(hidden_state)), dim=-1)",
    ),
    Curated(
        "curated.gate_for_up",
        _MODEL,
        "operand repeated",
        "torch.cat([gate_res, up_res], dim=-1)",
        "torch.cat([gate_res, gate_res], dim=-1)",
    ),
    Curated(
        "curated.weight_of_ones",
        _MODEL,
        "weight ignored",
        "npu_rms_norm(hidden_states, self.weight, ",
        "npu_rms_norm(hidden_states, torch.ones_like(self.weight), ",
    ),
    Curated("curated.scale_in_16_bits", _MODEL, "cast added", "(1.0 + self.weight).to(", "(1.0 + self.weight).to(torch.bfloat16).to("),
    Curated(
        "curated.first_choice_counted",
        _MODEL,
        "tokens not counted",
        "router_indices.to(torch.float), bins",
        "router_indices[:, :1].to(torch.float), bins",
    ),
    Curated(
        "curated.expert_gradient_lost",
        _MODEL,
        "gradient lost",
        "return grad_input, grad_weight, None",
        "return grad_input, grad_weight * 0, None",
    ),
    Curated(
        "curated.tokens_in_another_order",
        _MODEL,
        "index by another",
        "sorted_indices // self.top_k",
        "sorted_indices % hidden_states.shape[0]",
    ),
    Curated(
        "curated.probabilities_not_normalised",
        _MODEL,
        "step left out",
        "    routing_weights = routing_weights.to(hidden_states.dtype)\n    return routing_weights, router_indices",
        "    return routing_weights.to(hidden_states.dtype) * 0.5, router_indices",
    ),
)
