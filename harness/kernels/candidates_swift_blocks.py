"""ms-swift's NPU patches of whole mixture-of-experts blocks: with the routers of transformers 5 and with the linear gates of 4.57."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st

from harness.kernels.candidates_swift import ALL, QWEN3_5_MOE, QWEN3_MOE, QWEN3_VL_MOE, Family, counted, on_module
from harness.kernels.candidates_swift_experts import WEIGHTS, moe_config
from harness.kernels.installed_swift import patches
from harness.kernels.kernel import Kernel, Kind, Params
from harness.kernels.stand_in import bench

_PACKED = ("npu_moe_token_permute", "npu_grouped_matmul", "npu_swiglu", "npu_moe_token_unpermute")
_SHARED = ("shared_expert.gate_proj.weight", "shared_expert.up_proj.weight", "shared_expert.down_proj.weight", "shared_expert_gate.weight")
_EXPERTS = tuple(f"experts.{name}" for name in WEIGHTS)
_GATE = "gate.weight"
_LISTED = ("gate_proj", "up_proj", "down_proj")


def kernels() -> tuple[Kernel, ...]:
    routed = tuple(_routed(family) for family in (QWEN3_MOE, QWEN3_VL_MOE, QWEN3_5_MOE))
    return (*routed, _listed(), _gated(QWEN3_VL_MOE), _gated(QWEN3_5_MOE))


def _params(**more: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """One expert a token only where its weight isn't brought to one: that has no gradient to compare."""
    drawn = st.fixed_dictionaries(
        {
            "batch": st.integers(1, 3),
            "tokens": st.integers(4, 9),
            "hidden": st.sampled_from([16, 24]),
            "inner": st.sampled_from([4, 7, 10]),
            "experts": st.integers(1, 12),
            "chosen": st.integers(1, 12),
            "spread": st.sampled_from([0.5, 1.0, 2.0]),
            **more,
        }
    )
    return drawn.filter(lambda params: params["experts"] >= params["chosen"] > (params["normed"] is not False))


_USUAL = {"batch": 2, "tokens": 5, "hidden": 16, "inner": 6, "experts": 6, "chosen": 2, "spread": 1.0}


def _tokens_and_gate(params: Params, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """x [batch, tokens, H], and a gate that reads the scores of the experts off the first columns of x.

    Each token ranks the experts by numbers that differ and that 16 bits hold, and the gate multiplies by ones and zeros: so every dtype
    chooses the same experts, and what is compared is the arithmetic.
    """
    experts, rows = params["experts"], params["batch"] * params["tokens"]
    ranks = torch.stack([torch.randperm(experts, generator=generator) for _ in range(rows)]).double()
    x = torch.randn(rows, params["hidden"], generator=generator, dtype=torch.float64)
    x[:, :experts] = (ranks - experts // 2) * 0.25 * params["spread"]
    return {"x": x.view(params["batch"], params["tokens"], -1), _GATE: torch.eye(experts, params["hidden"], dtype=torch.float64)}


def _drawn(shapes: Mapping[str, tuple[int, ...]], generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {name: torch.randn(*shape, generator=generator, dtype=torch.float64) * shape[-1] ** -0.5 for name, shape in shapes.items()}


def _packed_shapes(params: Params) -> dict[str, tuple[int, ...]]:
    experts, hidden, inner = params["experts"], params["hidden"], params["inner"]
    return dict(zip(_EXPERTS, ((experts, 2 * inner, hidden), (experts, hidden, inner)), strict=True))


def _shared_shapes(params: Params) -> dict[str, tuple[int, ...]]:
    hidden, inner = params["hidden"], params["shared"]
    return dict(zip(_SHARED, ((inner, hidden), (inner, hidden), (hidden, inner), (1, hidden)), strict=True))


# The classes of transformers 5, whose gate is a router that gives scores, weights and choices


def _routed(family: Family) -> Kernel:
    name, shared = f"{family.prefix}SparseMoeBlock", family is QWEN3_5_MOE
    more = {"shared": st.sampled_from([8, 20]), "normed": st.booleans()}
    usual = {**_USUAL, "shared": 5, "normed": True}

    def inputs(params: Params, generator: torch.Generator) -> dict[str, torch.Tensor]:
        shapes = _packed_shapes(params) | (_shared_shapes(params) if shared else {})
        return _tokens_and_gate(params, generator) | _drawn(shapes, generator)

    def forward(given: Mapping[str, torch.Tensor], params: Params) -> dict[str, torch.Tensor]:
        block = family.get(name)(moe_config(params))
        return {"y": on_module(block, {name: value for name, value in given.items() if name != "x"}, given["x"])}

    return Kernel(
        name=family.kernel_name(f"{name}.forward"),
        kind=Kind.PATCH,
        what=f"{name}.forward, with its experts, patched with {', '.join(_PACKED)}",
        dtypes=ALL,
        params=_params(**more),
        examples=(usual, {**usual, "experts": 3, "chosen": 3, "normed": False, "tokens": 1}),
        inputs=inputs,
        candidate=lambda given, params: _under_patches(forward, given, params),
        golden=forward,
        plain=forward,
        counted=counted,
        must_run=_PACKED,
        differentiable=("x", _GATE, *_EXPERTS, *_SHARED),
        missing=partial(family.missing, name),
    )


def _under_patches(forward: Any, given: Mapping[str, torch.Tensor], params: Params) -> dict[str, torch.Tensor]:
    here = bench().placed(given)
    with patches().patched():
        found: dict[str, torch.Tensor] = forward(here, params)
        return found


# Blocks as transformers 4.57 has them, whose gate is a linear layer


def _listed() -> Kernel:
    """Qwen3-MoE of 4.57 holds its experts in a list, and gives the scores beside the output."""
    family = QWEN3_MOE
    name = f"{family.prefix}SparseMoeBlock"
    more = {"normed": st.sampled_from([True, False, None]), "wide": st.booleans()}
    usual = {**_USUAL, "normed": True, "wide": False}

    def inputs(params: Params, generator: torch.Generator) -> dict[str, torch.Tensor]:
        experts, hidden, inner = params["experts"], params["hidden"], params["inner"]
        shapes = dict(zip(_LISTED, ((experts, inner, hidden), (experts, inner, hidden), (experts, hidden, inner)), strict=True))
        return _tokens_and_gate(params, generator) | _drawn(shapes, generator)

    def candidate(given: dict[str, torch.Tensor], params: Params) -> dict[str, torch.Tensor]:
        here = bench().placed(given)
        weights = {layer: here[layer].float() if params["wide"] else here[layer] for layer in _LISTED}
        experts = [
            SimpleNamespace(**{layer: SimpleNamespace(weight=weights[layer][number]) for layer in _LISTED})
            for number in range(params["experts"])
        ]
        with patches().patched():
            y, scores = family.get(name).forward(_block(here, params, experts=experts, num_experts=params["experts"]), here["x"])
        return {"y": y, "scores": scores}

    def golden(given: dict[str, torch.Tensor], params: Params) -> dict[str, torch.Tensor]:
        x = given["x"].reshape(-1, params["hidden"])
        scores = x @ given[_GATE].T
        shares = _shares(scores, params["chosen"], normed=params["normed"] is True)
        y = sum(shares[:, number, None] * _expert(x, *(given[layer][number] for layer in _LISTED)) for number in range(params["experts"]))
        assert isinstance(y, torch.Tensor)
        return {"y": y.view(given["x"].shape), "scores": scores}

    return Kernel(
        name=family.kernel_name(f"{name}.forward.transformers_457"),
        kind=Kind.PATCH,
        what=f"{name}.forward for a block of transformers 4.57, patched with npu_grouped_matmul, npu_swiglu",
        dtypes=ALL,
        params=_params(**more),
        examples=(
            *({**usual, "normed": normed} for normed in (True, False, None)),
            {**usual, "wide": True, "experts": 9, "chosen": 1, "normed": False, "tokens": 2},
        ),
        inputs=inputs,
        candidate=candidate,
        golden=golden,
        plain=golden,
        counted=counted,
        must_run=("npu_grouped_matmul", "npu_swiglu"),
        differentiable=("x", _GATE, *_LISTED),
        missing=partial(family.missing, name),
    )


def _gated(family: Family) -> Kernel:
    """Qwen3-VL-MoE of 4.57 holds turned weights and calls the experts with the weights first; Qwen3.5-MoE adds an expert for all tokens."""
    name, turned = f"{family.prefix}SparseMoeBlock", family is QWEN3_VL_MOE
    more = {
        "normed": st.sampled_from([True, False, None]),
        "width_as": st.sampled_from(["hidden_size", "hidden_dim", ""]),
        "shared": st.sampled_from([8, 20]),
        "shared_as": st.just("none") if turned else st.sampled_from(["both", "both", "none", "no gate", "no expert"]),
    }
    usual = {**_USUAL, "normed": True, "width_as": "", "shared": 5, "shared_as": "none" if turned else "both"}

    def inputs(params: Params, generator: torch.Generator) -> dict[str, torch.Tensor]:
        drawn = _drawn(_packed_shapes(params) | _shared_shapes(params), generator)
        return _tokens_and_gate(params, generator) | drawn

    def candidate(given: dict[str, torch.Tensor], params: Params) -> dict[str, torch.Tensor]:
        here = bench().placed(given)
        weights = {short: here[name].transpose(1, 2) if turned else here[name] for short, name in zip(WEIGHTS, _EXPERTS, strict=True)}
        packed = SimpleNamespace(num_experts=params["experts"], **weights)
        with patches().patched():
            forward = family.get(f"{family.prefix}Experts").forward
            block = _block(here, params, experts=lambda *arguments: forward(packed, *arguments), **_shared_parts(here, params))
            return {"y": family.get(name).forward(block, here["x"])}

    def golden(given: dict[str, torch.Tensor], params: Params) -> dict[str, torch.Tensor]:
        x = given["x"].reshape(-1, params["hidden"])
        shares = _shares(x @ given[_GATE].T, params["chosen"], normed=params["normed"] is not False)
        y = torch.zeros_like(x)
        for number in range(params["experts"]):
            gate, up = given[_EXPERTS[0]][number].chunk(2)
            y = y + shares[:, number, None] * _expert(x, gate, up, given[_EXPERTS[1]][number])
        if params["shared_as"] == "both":
            gate, up, down, door = (given[name] for name in _SHARED)
            y = y + torch.sigmoid(x @ door.T) * _expert(x, gate, up, down)
        return {"y": y.view(given["x"].shape)}

    return Kernel(
        name=family.kernel_name(f"{name}.forward.linear_gate"),
        kind=Kind.PATCH,
        what=f"{name}.forward for a block whose gate is a linear layer, patched with {', '.join(_PACKED)}",
        dtypes=ALL,
        params=_params(**more),
        examples=(
            *(
                {**usual, "normed": normed, "width_as": width}
                for normed, width in ((True, "hidden_size"), (False, "hidden_dim"), (None, ""))
            ),
            {**usual, "shared_as": "none", "experts": 8, "chosen": 3},
        ),
        inputs=inputs,
        candidate=candidate,
        golden=golden,
        plain=golden,
        counted=counted,
        must_run=_PACKED,
        differentiable=("x", _GATE, *_EXPERTS, *_SHARED),
        missing=partial(family.missing, name),
    )


def _block(here: Mapping[str, torch.Tensor], params: Params, **parts: Any) -> Any:
    """What a patched forward finds as self. `normed` None: the attribute isn't there, as `width_as` "" leaves out the width."""
    gate = here[_GATE]
    block = SimpleNamespace(gate=lambda rows: F.linear(rows, gate), top_k=params["chosen"], **parts)
    if params["normed"] is not None:
        block.norm_topk_prob = params["normed"]
    if params.get("width_as"):
        setattr(block, params["width_as"], params["hidden"])
    return block


def _shared_parts(here: Mapping[str, torch.Tensor], params: Params) -> dict[str, Any]:
    gate, up, down, door = (here[name] for name in _SHARED)
    parts = {"shared_expert": lambda rows: _expert(rows, gate, up, down), "shared_expert_gate": lambda rows: F.linear(rows, door)}
    left_out = {"both": (), "none": tuple(parts), "no gate": ("shared_expert_gate",), "no expert": ("shared_expert",)}
    return {name: part for name, part in parts.items() if name not in left_out[params["shared_as"]]}


def _expert(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def _shares(scores: torch.Tensor, chosen: int, *, normed: bool) -> torch.Tensor:
    """[rows, experts]: the softmax of the chosen experts, brought to a sum of one if `normed`, and 0 for the others."""
    weights, index = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).topk(chosen, -1)
    weights = weights / weights.sum(-1, keepdim=True) if normed else weights
    return torch.zeros_like(scores).scatter(-1, index, weights.to(scores.dtype))
