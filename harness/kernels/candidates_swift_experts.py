"""ms-swift's NPU patches of packed experts, and the two grouped matrix products with gradients of their own that it builds on."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import strategies as st

from harness.kernels.candidates_swift import ALL, QWEN3_5_MOE, QWEN3_MOE, QWEN3_VL_MOE, Family, counted, on_module
from harness.kernels.installed_swift import PATCH, missing, patches
from harness.kernels.kernel import Kernel, Kind, KnownFailure, Params
from harness.kernels.stand_in import bench

WEIGHTS = ("gate_up_proj", "down_proj")
# transformers 5 stores weights as linear layers do: [experts, 2 I, H] and [experts, H, I]; Qwen3-VL-MoE of 4.57 the other way.
STORED, TURNED = "linear", "turned"
ORIENTATION_GUESSED = KnownFailure(
    cause="_normalize_packed_expert_weights guesses from the shape which way the weights lie, and guesses wrong where 2 I == H or I == H",
    because="with 2 I == H the first product, with I == H the second one takes the transposed weight, in silence",
    concerns=lambda case: case.params.get("stored") == STORED and case.params["hidden"] in (case.params["inner"], 2 * case.params["inner"]),
)
_INDICES = {"int64": torch.int64, "int32": torch.int32, "int16": torch.int16, "int8": torch.int8, "uint8": torch.uint8}


def kernels() -> tuple[Kernel, ...]:
    return (*(_experts(family) for family in (QWEN3_MOE, QWEN3_VL_MOE, QWEN3_5_MOE)), _by_counts(), _by_ends())


def _experts(family: Family) -> Kernel:
    name = f"{family.prefix}Experts"
    common = {"tokens": 9, "hidden": 16, "inner": 12, "experts": 6, "chosen": 2, "seed_of_choice": "any", "order": "index first"}
    usual = {**common, "full": False, "index": "int64", "stored": STORED, "wide": False, "lead": 1}
    return Kernel(
        name=family.kernel_name(f"{name}.forward"),
        kind=Kind.PATCH,
        what=f"{name}.forward patched with npu_moe_token_permute, npu_grouped_matmul, npu_swiglu, npu_moe_token_unpermute",
        dtypes=ALL,
        params=_experts_params(),
        examples=(
            usual,
            {**usual, "order": "weights first", "full": True, "index": "int32", "stored": TURNED, "lead": 3},
            {**usual, "experts": 130, "chosen": 8, "index": "int16", "inner": 5},
            {**usual, "experts": 4, "chosen": 4, "index": "uint8", "order": "weights first"},
            {**usual, "seed_of_choice": "one", "index": "int8", "wide": True, "order": "weights first"},
            {**usual, "seed_of_choice": "last", "stored": TURNED, "inner": 8},
            {**usual, "seed_of_choice": "last", "stored": TURNED, "inner": 16},
            {**usual, "tokens": 1, "lead": 1, "chosen": 1},
            {**usual, "inner": 8},
            {**usual, "inner": 16},
        ),
        inputs=experts_inputs,
        candidate=lambda inputs, params: _experts_candidate(family, inputs, params),
        golden=lambda inputs, params: _experts_golden(family, inputs, params),
        plain=lambda inputs, params: _experts_golden(family, inputs, params),
        counted=counted,
        must_run=("npu_moe_token_permute", "npu_grouped_matmul", "npu_swiglu", "npu_moe_token_unpermute"),
        differentiable=("x", "routing", *WEIGHTS),
        tries=40,
        missing=partial(family.missing, name),
        known=(ORIENTATION_GUESSED,),
    )


def _experts_params() -> st.SearchStrategy[dict[str, Any]]:
    drawn: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
        {
            "tokens": st.sampled_from([1, 2, 5, 12, 33]),
            "hidden": st.sampled_from([6, 16, 40]),
            "inner": st.sampled_from([4, 7, 12, 24]),
            "experts": st.integers(1, 20),
            "chosen": st.integers(1, 20),
            "seed_of_choice": st.sampled_from(["any", "one", "last"]),
            "order": st.sampled_from(["index first", "weights first"]),
            "full": st.booleans(),
            "index": st.sampled_from(sorted(_INDICES)),
            "stored": st.sampled_from([STORED, TURNED]),
            "wide": st.booleans(),
            "lead": st.sampled_from([1, 2]),
        }
    )

    def has_one_meaning(params: dict[str, Any]) -> bool:
        """With as many chosen as there are, full weights have the shape of chosen ones; nobody makes that call."""
        return bool(params["chosen"] <= params["experts"] - params["full"])

    return drawn.filter(has_one_meaning)


def experts_inputs(params: Params, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Tokens [lead, tokens, H], choices [rows, chosen] without repetition, their weights ("full": of all experts), and WEIGHTS."""
    hidden, inner, experts, rows = params["hidden"], params["inner"], params["experts"], params["lead"] * params["tokens"]

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    if params["seed_of_choice"] == "any":
        preference = torch.rand(rows, experts, generator=generator)
    else:
        # All tokens take the same experts, the last ones or a run in the middle: the others get none.
        preference = torch.arange(experts).expand(rows, experts).double()
        preference = preference if params["seed_of_choice"] == "last" else -(preference - experts // 2).abs() + 0.1 * (preference % 2)
    index = preference.topk(params["chosen"], dim=-1).indices
    shapes = {"gate_up_proj": (experts, 2 * inner, hidden), "down_proj": (experts, hidden, inner)}
    weights = {name: drawn(*shape) * shape[-1] ** -0.5 for name, shape in shapes.items()}
    if params["stored"] == TURNED:
        weights = {name: weight.transpose(1, 2).contiguous() for name, weight in weights.items()}
    share = torch.rand(rows, experts if params["full"] else params["chosen"], generator=generator, dtype=torch.float64) + 0.1
    lead = (params["lead"],) if params["lead"] > 1 else ()
    return {
        "x": drawn(*lead, params["tokens"], hidden),
        "index": index.to(_INDICES[params["index"]]),
        "routing": share / share.sum(-1, keepdim=True),
        **weights,
    }


def experts_module(family: Family, params: Params) -> torch.nn.Module:
    """With parameters to be replaced; transformers' own forward is the eager one."""
    module: torch.nn.Module = family.get(f"{family.prefix}Experts")(moe_config(params))
    return module


def moe_config(params: Params) -> Any:
    return SimpleNamespace(
        hidden_size=params["hidden"],
        intermediate_size=params["inner"],
        moe_intermediate_size=params["inner"],
        shared_expert_intermediate_size=params.get("shared", 1),
        num_experts=params["experts"],
        num_experts_per_tok=params["chosen"],
        norm_topk_prob=params.get("normed", True),
        hidden_act="silu",
        _experts_implementation="eager",
    )


def _experts_candidate(family: Family, inputs: dict[str, torch.Tensor], params: Params) -> dict[str, torch.Tensor]:
    here = bench().placed(inputs)
    # Mixed precision: weights and shares in float32 over activations of 16 bits, which the patch brings to the activations' dtype.
    weights = {name: here[name].float() if params["wide"] else here[name] for name in WEIGHTS}
    routing = here["routing"].float() if params["wide"] else here["routing"]
    pair = (here["index"], routing) if params["order"] == "index first" else (routing, here["index"])
    with patches().patched():
        return {"y": on_module(experts_module(family, params), weights, here["x"], *pair)}


def _experts_golden(family: Family, inputs: Mapping[str, torch.Tensor], params: Params) -> dict[str, torch.Tensor]:
    """The class as transformers has it, given what it takes: chosen weights, rows of tokens, weights as a linear layer stores them."""
    index, x, routing = inputs["index"].long(), inputs["x"], inputs["routing"]
    weights = {name: inputs[name].transpose(1, 2) if params["stored"] == TURNED else inputs[name] for name in WEIGHTS}
    chosen = routing.gather(-1, index) if params["full"] else routing
    y = on_module(experts_module(family, params), weights, x.reshape(-1, x.shape[-1]), index, chosen)
    return {"y": y.view(x.shape)}


# The products


def _by_counts() -> Kernel:
    return _product("GmmFunction", lambda x, weight, sizes: (x, weight, torch.tensor(sizes, device=x.device)))


def _by_ends() -> Kernel:
    return _product("NpuGmmFunction", lambda x, weight, sizes: (x, weight, torch.tensor(sizes, device=x.device).cumsum(0), list(sizes)))


def _product(function: str, arguments: Any) -> Kernel:
    def candidate(inputs: dict[str, torch.Tensor], params: Params) -> dict[str, torch.Tensor]:
        here = bench().placed(inputs)
        apply = getattr(patches()[f"{PATCH}.model"], function).apply
        return {"y": apply(*arguments(here["x"], _weight(here, params), params["sizes"]))}

    def golden(inputs: dict[str, torch.Tensor], params: Params) -> dict[str, torch.Tensor]:
        pieces = zip(torch.split(inputs["x"], params["sizes"]), _weight(inputs, params), strict=True)
        return {"y": torch.cat([rows @ matrix for rows, matrix in pieces])}

    return Kernel(
        name=f"swift.{function}",
        kind=Kind.PATCH,
        what=f"{function}, npu_grouped_matmul with a gradient of ms-swift's own",
        dtypes=ALL,
        params=st.fixed_dictionaries(
            {
                "sizes": st.lists(st.sampled_from([0, 0, 1, 2, 5, 9]), min_size=1, max_size=9).filter(any),
                "reduced": st.sampled_from([4, 7, 16]),
                "width": st.sampled_from([4, 6, 16, 33]),
                "turned": st.booleans(),
            }
        ),
        examples=(
            {"sizes": [3, 0, 5, 1], "reduced": 7, "width": 12, "turned": False},
            {"sizes": [0, 4, 0], "reduced": 8, "width": 8, "turned": True},
        ),
        inputs=_product_inputs,
        candidate=candidate,
        golden=golden,
        plain=golden,
        counted=counted,
        must_run=("npu_grouped_matmul",),
        differentiable=("x", "weight"),
        tries=40,
        missing=missing,
    )


def _product_inputs(params: Params, generator: torch.Generator) -> dict[str, torch.Tensor]:
    groups, reduced, width = len(params["sizes"]), params["reduced"], params["width"]
    shape = (groups, width, reduced) if params["turned"] else (groups, reduced, width)
    x = torch.randn(sum(params["sizes"]), reduced, generator=generator, dtype=torch.float64)
    return {"x": x, "weight": torch.randn(*shape, generator=generator, dtype=torch.float64)}


def _weight(inputs: Mapping[str, torch.Tensor], params: Params) -> torch.Tensor:
    """As the patch hands it over: often a transposed view."""
    return inputs["weight"].transpose(1, 2) if params["turned"] else inputs["weight"]
