"""npu_grouped_matmul of the real torch_npu against its golden, in every form that is documented and that ms-swift and vllm-ascend use.

The operator has no gradient: grouped_rows with turned weights is the gradient of x, grouped_reduction that of the weights.
"""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from harness.kernels import references_experts as golden
from harness.kernels.candidates_operators_dense import Given, answers, typed
from harness.kernels.kernel import DTYPES, Kernel, Kind, Params
from harness.kernels.model_shapes import SPARSE
from harness.kernels.npu import Operators
from harness.kernels.values import edged, normal

GMM = "npu_grouped_matmul"


def expert_kernels(operators: Operators) -> tuple[Kernel, ...]:
    return (grouped_rows(operators), grouped_listed(operators), grouped_reduction(operators), grouped_lists(operators))


def _group_list(sizes: list[int], counts: bool) -> torch.Tensor:
    return torch.tensor(sizes if counts else [sum(sizes[: i + 1]) for i in range(len(sizes))], dtype=torch.int64)


def _weights(generator: torch.Generator, groups: int, rows: int, columns: int, turned: bool) -> torch.Tensor:
    """[g, k, n]; `turned`: a view of [g, n, k], as a checkpoint's experts are given to the operator."""
    if turned:
        return normal(generator, groups, columns, rows).transpose(1, 2)
    return normal(generator, groups, rows, columns)


def _sizes(largest: int = 6) -> st.SearchStrategy[list[int]]:
    """Rows of two groups or more: `group_list` of counts mustn't have one element. At least one row in all."""
    return st.lists(st.integers(0, largest), min_size=2, max_size=6).filter(any)


# Square weights hide a transposition in the shapes: I == H, and 2I == H.
_SQUARE = ((16, 16), (8, 16), (16, 8))
_widths = st.one_of(st.tuples(st.integers(1, 33), st.integers(1, 33)), st.sampled_from(_SQUARE)).map(list)
_COMMON = {
    "counts": st.booleans(),
    "split": st.sampled_from((2, 3)),
    "turned": st.booleans(),
    "edge": st.sampled_from(("none", "none", "zeros", "nan")),
}
_HALVES = ("fp16", "bf16")


def grouped_rows(operators: Operators) -> Kernel:
    """x [m, k] and one [g, k, n], group_type 0. Weights turned: the gradient of x, as ms-swift takes it."""
    plain = {"counts": True, "split": 2, "turned": False, "bias": False, "edge": "none"}
    return Kernel(
        name=f"{GMM}_rows",
        what="every row times the matrix of its group",
        dtypes=tuple(DTYPES),
        params=st.fixed_dictionaries({"sizes": _sizes(), "widths": _widths, "bias": st.just(False), **_COMMON}),
        examples=(
            {**plain, "sizes": [1, 0], "widths": [8, 8]},
            {**plain, "sizes": [0, 3, 0, 4], "widths": [16, 16], "turned": True},
            {**plain, "sizes": [2, 0, 5], "widths": [16, 8], "counts": False, "split": 3},
            {**plain, "sizes": [0, 0, 0, 0, 0, 0, 0, 2], "widths": [24, 40], "counts": False},
            {**plain, "sizes": [259, 0, 1, 130], "widths": [48, 80]},  # groups of more rows than a tile has
            *({**plain, "sizes": [3, 0, 5], "widths": [shape.hidden, 2 * shape.expert], "turned": True} for shape in SPARSE),
            *({**plain, "sizes": [3, 0, 5], "widths": [shape.expert, shape.hidden]} for shape in SPARSE),
        ),
        **_over_rows(operators, listed=False),
    )


def grouped_listed(operators: Operators) -> Kernel:
    """x [m, k] and a list of [k, n], with a vector of bias each. In float32 only one weight is documented."""
    plain = {"counts": True, "split": 2, "turned": False, "bias": True, "edge": "none"}
    return Kernel(
        name=f"{GMM}_listed",
        what="every row times the matrix of its group, the matrices a list",
        dtypes=_HALVES,
        params=st.fixed_dictionaries({"sizes": _sizes(), "widths": _widths, "bias": st.booleans(), **_COMMON}),
        examples=(
            {**plain, "sizes": [2, 1, 5], "widths": [9, 24]},
            {**plain, "sizes": [0, 3, 0, 4], "widths": [16, 16], "turned": True, "counts": False, "split": 3},
            {**plain, "sizes": [3, 0, 5], "widths": [SPARSE[0].hidden, SPARSE[0].expert], "bias": False},
        ),
        **_over_rows(operators, listed=True),
    )


def _over_rows(operators: Operators, *, listed: bool) -> dict[str, Any]:
    """What the kernels of both forms share."""

    def inputs(params: Params, generator: torch.Generator) -> Given:
        sizes, (inner, outer) = params["sizes"], params["widths"]
        given = {"x": edged(normal(generator, sum(sizes), inner), params["edge"], generator)}
        given["weight"] = _weights(generator, len(sizes), inner, outer, params["turned"])
        return {**given, "bias": _bias(generator, len(sizes), outer)} if params["bias"] else given

    def candidate(given: Given, params: Params) -> Given:
        x, weight = operators.place(given["x"]), operators.place(given["weight"])
        named: dict[str, Any] = {"group_list": operators.place(_group_list(params["sizes"], params["counts"])), "group_type": 0}
        named["split_item"] = params["split"]
        if params["counts"]:  # cumulative is the default, and ms-swift leaves it out
            named["group_list_type"] = 1
        if params["bias"]:
            named["bias"] = list(_bias_of(x.dtype, operators.place(given["bias"])).unbind(0))
        [y] = operators.call(GMM, [x], list(weight.unbind(0)) if listed else [weight], **named)
        return answers(params, y=typed(GMM, "output", y, x.dtype))

    def exact(given: Given, params: Params) -> Given:
        biases = list(given["bias"].unbind(0)) if params["bias"] else None
        return answers(params, y=golden.grouped_rows(given["x"], list(given["weight"].unbind(0)), params["sizes"], biases))

    return {
        "kind": Kind.OPERATOR,
        "inputs": inputs,
        "candidate": candidate,
        "golden": exact,
        "counted": operators.counted,
        "must_run": (GMM,),
        "keep": frozenset({"bias"}),
        "plain": exact,
        "missing": operators.missing,
    }


def _bias(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Numbers that every dtype of a bias holds: it is float16 beside float16, else float32."""
    return normal(generator, *shape).bfloat16().double()


def _bias_of(dtype: torch.dtype, bias: torch.Tensor) -> torch.Tensor:
    return bias.to(torch.float16 if dtype == torch.float16 else torch.float32)


def grouped_reduction(operators: Operators) -> Kernel:
    """x turned [k, m] and dy [m, n], group_type 2: the gradient of the weights."""

    def inputs(params: Params, generator: torch.Generator) -> Given:
        rows, (inner, outer) = sum(params["sizes"]), params["widths"]
        return {"x": normal(generator, rows, inner), "dy": normal(generator, rows, outer)}

    def candidate(given: Given, params: Params) -> Given:
        x, dy = operators.place(given["x"]), operators.place(given["dy"])
        groups = operators.place(_group_list(params["sizes"], params["counts"]))
        [dw] = operators.call(
            GMM, [x.T], [dy], bias=None, group_list=groups, split_item=3, group_type=2, group_list_type=int(params["counts"])
        )
        return {"dw": typed(GMM, "output", dw, x.dtype)}

    def exact(given: Given, params: Params) -> Given:
        return {"dw": golden.grouped_reduction(given["x"], given["dy"], params["sizes"])}

    return Kernel(
        name=f"{GMM}_reduction",
        kind=Kind.OPERATOR,
        what="products over the rows of each group",
        dtypes=tuple(DTYPES),
        params=st.fixed_dictionaries({"sizes": _sizes(), "widths": _widths, "counts": st.booleans()}),
        examples=(
            {"sizes": [1, 0], "widths": [8, 8], "counts": True},
            {"sizes": [0, 3, 0, 4], "widths": [16, 16], "counts": True},
            {"sizes": [2, 0, 5], "widths": [16, 8], "counts": False},
            {"sizes": [259, 0, 1, 130], "widths": [48, 80], "counts": True},
            {"sizes": [3, 0, 5], "widths": [SPARSE[0].expert, 2 * SPARSE[0].expert], "counts": True},
        ),
        inputs=inputs,
        candidate=candidate,
        golden=exact,
        counted=operators.counted,
        must_run=(GMM,),
        plain=exact,
        missing=operators.missing,
    )


# How many tensors x and the output are, with group_list as whole numbers or none at all: the documented scenarios, and split_item.
_SCENARIOS = {"apart": (0,), "apart, deep": (0,), "one to many": (1,), "one to one": (2, 3), "many to one": (2, 3)}


def grouped_lists(operators: Operators) -> Kernel:
    """Lists of tensors: ungrouped (group_type -1; x of 2 to 6 dimensions), or grouped by a list of cumulative whole numbers.
    In float32 the documentation knows one tensor each alone."""

    def inputs(params: Params, generator: torch.Generator) -> Given:
        given: Given = {}
        for i, (rows, inner, outer) in enumerate(_parts(params)):
            lead = [2, rows] if params["scenario"] == "apart, deep" else [rows]
            given |= {f"x{i}": normal(generator, *lead, inner), f"weight{i}": normal(generator, inner, outer)}
            if params["bias"]:
                given[f"bias{i}"] = _bias(generator, outer)
        return given

    def candidate(given: Given, params: Params) -> Given:
        scenario, count = params["scenario"], len(params["sizes"])
        xs, weights = ([operators.place(given[f"{label}{i}"]) for i in range(count)] for label in ("x", "weight"))
        dtype = xs[0].dtype
        named: dict[str, Any] = {"split_item": params["split"]}
        if params["bias"]:
            named["bias"] = [_bias_of(dtype, operators.place(given[f"bias{i}"])) for i in range(count)]
        if scenario.startswith("apart"):
            named["group_type"] = -1
        elif scenario.startswith("one"):
            xs, named["group_list"] = [torch.cat(xs)], _group_list(params["sizes"], counts=False).tolist()
        else:
            named |= {"group_type": 0, "group_list": operators.place(_group_list(params["sizes"], counts=False))}
        found = operators.call(GMM, xs, weights, **named)
        if len(found) == 1 and scenario.endswith("one"):
            found = torch.split(found[0], params["sizes"])
        return {f"y{i}": typed(GMM, "output", y, dtype) for i, y in enumerate(found)}

    def exact(given: Given, params: Params) -> Given:
        found = {}
        for i in range(len(params["sizes"])):
            x, weight = given[f"x{i}"], given[f"weight{i}"]
            biases = [given[f"bias{i}"]] if params["bias"] else None
            rows = x.reshape(-1, x.shape[-1])
            found[f"y{i}"] = golden.grouped_rows(rows, [weight], [len(rows)], biases).reshape(*x.shape[:-1], -1)
        return found

    return Kernel(
        name=f"{GMM}_lists",
        kind=Kind.OPERATOR,
        what="lists of matrices, each with rows of its own",
        dtypes=_HALVES,
        params=st.fixed_dictionaries(
            {
                "form": st.sampled_from([(scenario, split) for scenario, splits in _SCENARIOS.items() for split in splits]),
                "sizes": st.lists(st.integers(1, 5), min_size=2, max_size=4),
                "widths": st.tuples(st.integers(1, 20), st.integers(1, 20)).map(list),
                "bias": st.booleans(),
            }
        ).map(_with_form),
        examples=tuple(
            {"scenario": scenario, "split": splits[0], "sizes": [2, 1, 4], "widths": [5, 8], "bias": True}
            for scenario, splits in _SCENARIOS.items()
        ),
        inputs=inputs,
        candidate=candidate,
        golden=exact,
        counted=operators.counted,
        must_run=(GMM,),
        keep=frozenset(f"bias{i}" for i in range(4)),
        plain=exact,
        missing=operators.missing,
    )


def _with_form(drawn: dict[str, Any]) -> dict[str, Any]:
    scenario, split = drawn["form"]
    return {**{name: value for name, value in drawn.items() if name != "form"}, "scenario": scenario, "split": split}


def _parts(params: Params) -> list[tuple[int, int, int]]:
    """(rows, k, n) of every product. Where each is apart its widths differ; else k, and n where the output is one, are common."""
    inner, outer = params["widths"]
    scenario = params["scenario"]
    own = 1 if scenario.startswith("apart") else 0
    wide = 1 if scenario in ("apart", "apart, deep", "one to many") else 0
    return [(rows, inner + own * i, outer + wide * i) for i, rows in enumerate(params["sizes"])]
