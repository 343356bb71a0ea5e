"""fla's layers beside the delta rule: short causal convolution, gates, SwiGLU, the loss and rotary embedding, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from harness.kernels import fla_parts as parts
from harness.kernels.fla_parts import Named
from harness.kernels.kernel import Kernel, Kind, Params
from harness.kernels.references_layers import causal_conv, cross_entropy, rotary
from harness.kernels.values import integers, normal

_YES = st.booleans()
_LENGTHS = st.none() | st.lists(st.sampled_from([1, 2, 3, 4, 17, 64, 66]), min_size=1, max_size=4)


def kernels() -> tuple[Kernel, ...]:
    return (_conv(), _conv_update(), _swiglu(), _cross_entropy(), _rotary(), _gate())


def _kernel(name: str, what: str, drawn: dict[str, Any], examples: tuple[dict[str, Any], ...], **rest: Any) -> Kernel:
    usual: dict[str, Any] = {"quick_examples": 2, "half_examples": 4, "tries": 8, "quick_tries": 0, "missing": parts.missing}
    return Kernel(
        name=f"fla.{name}",
        kind=Kind.TRITON,
        what=what,
        dtypes=("fp32", "fp16", "bf16"),
        params=st.fixed_dictionaries(drawn),
        examples=examples,
        counted=parts.launched,
        **(usual | rest),
    )


def _rows(params: Params) -> tuple[int, int]:
    return (1, sum(params["lengths"])) if params["lengths"] else (params["B"], params["T"])


_CONV_DRAWN: dict[str, Any] = {
    "B": st.integers(1, 2),
    "T": st.sampled_from([1, 3, 4, 63, 64, 65, 70]),
    "D": st.sampled_from([8, 16, 40]),
    "W": st.sampled_from([2, 3, 4]),
    "lengths": _LENGTHS,
    "bias": _YES,
    "residual": _YES,
    "initial": _YES,
    "final": _YES,
    "activated": _YES,
    "sliced": _YES,  # x is a part of a wider tensor
}


def _conv_case(T: int, **given: Any) -> dict[str, Any]:
    plain = {"B": 1, "T": T, "D": 16, "W": 4, "lengths": None}
    return {**plain, **dict.fromkeys(("bias", "residual", "initial", "final", "activated", "sliced"), False), **given}


_WHOLE = {"bias": True, "residual": True, "initial": True, "final": True, "activated": True}
_CONV_EXAMPLES = (
    _conv_case(70, B=2, D=24, **_WHOLE),
    _conv_case(0, lengths=[1, 3, 66, 2], D=40, **_WHOLE),
    _conv_case(65, B=2, D=24, bias=True, activated=True, sliced=True),
    _conv_case(70, W=3, initial=True, final=True),
    _conv_case(2, B=2, W=4, initial=True, final=True, activated=True),
    _conv_case(0, lengths=[64, 5], W=2, final=True, residual=True),
    _conv_case(1, B=3, D=40, activated=True, initial=True),
    _conv_case(64, W=4),
    _conv_case(130, W=4, final=True, activated=True, bias=True),
)


def _conv_inputs(params: Params, generator: torch.Generator) -> Named:
    rows, tokens = _rows(params)
    width, count = params["D"], len(params["lengths"]) if params["lengths"] else rows
    x = normal(generator, rows, tokens, width * (2 if params["sliced"] else 1))
    given = {"x": x[..., -width:] if params["sliced"] else x, "weight": normal(generator, width, params["W"])}
    if params["bias"]:
        given["bias"] = normal(generator, width)
    if params["residual"]:
        given["residual"] = normal(generator, rows, tokens, width)
    if params["initial"]:
        given["initial"] = normal(generator, count, width, params["W"])
    return given


def _conv() -> Kernel:
    def candidate(inputs: Named, params: Params) -> Named:
        x = parts.there(inputs)
        y, final = parts.fla("modules.convolution", "causal_conv1d")(
            x["x"],
            x["weight"],
            x.get("bias"),
            residual=x.get("residual"),
            initial_state=x.get("initial"),
            output_final_state=params["final"],
            activation="silu" if params["activated"] else None,
            cu_seqlens=parts.boundaries(params["lengths"]),
        )
        return {"y": y, **_parted(final)} if params["final"] else {"y": y}

    return _kernel(
        "causal_conv1d",
        "fla.modules.convolution.causal_conv1d, which ms-swift takes for Qwen3-Next and Qwen3.5",
        _CONV_DRAWN,
        _CONV_EXAMPLES,
        inputs=_conv_inputs,
        candidate=candidate,
        golden=_conv_golden,
        must_run=("causal_conv1d_fwd_kernel", "causal_conv1d_bwd_kernel"),
        differentiable=("x", "weight", "bias", "residual", "initial"),
    )


def _conv_golden(inputs: Named, params: Params) -> Named:
    x = inputs
    given = (x["x"], x["weight"], x.get("bias"), x.get("residual"), x.get("initial"))
    y, final = causal_conv(*given, activated=params["activated"], lengths=params["lengths"])
    return {"y": y, **_parted(final)} if params["final"] else {"y": y}


def _parted(final: torch.Tensor) -> Named:
    """The final state, its oldest token apart: fla gives it no gradient, since no window reaches back so far."""
    return {"final": final[..., 1:], "oldest": final[..., 0].detach()}


def _conv_update() -> Kernel:
    """One more token for each sequence, in place of the oldest in its cache."""

    def candidate(inputs: Named, params: Params) -> Named:
        x = parts.there(inputs)
        y, cache = parts.fla("modules.convolution", "causal_conv1d_update")(
            x["x"],
            cache=x["initial"],
            residual=x.get("residual"),
            weight=x["weight"],
            bias=x.get("bias"),
            activation="silu" if params["activated"] else None,
        )
        return {"y": y, **_parted(cache)}

    def case(B: int, D: int, **given: Any) -> dict[str, Any]:
        return {**_conv_case(1, B=B, D=D), "initial": True, "final": True, **given}

    drawn = {**_CONV_DRAWN, **{name: st.just(True) for name in ("initial", "final")}, "T": st.just(1), "lengths": st.none()}
    return _kernel(
        "causal_conv1d_update",
        "fla.modules.convolution.causal_conv1d_update",
        drawn,
        (case(3, 24, **_WHOLE), case(2, 40, W=3, sliced=True), case(1, 16, W=2, activated=True), case(2, 8, bias=True)),
        inputs=_conv_inputs,
        candidate=candidate,
        golden=_conv_golden,
        must_run=("causal_conv1d_update_kernel",),
    )


def _swiglu() -> Kernel:
    def inputs(params: Params, generator: torch.Generator) -> Named:
        wide = normal(generator, 2, params["T"], 2 * params["D"]) * params["factor"]
        x, y = wide.chunk(2, -1)
        return {"x": x, "y": y} if params["sliced"] else {"x": x.contiguous(), "y": y.contiguous()}

    def candidate(inputs: Named, params: Params) -> Named:
        x = parts.there(inputs)
        return {"z": parts.fla("modules.activations", "swiglu")(x["x"], x["y"])}

    def golden(inputs: Named, params: Params) -> Named:
        return {"z": inputs["x"] * torch.sigmoid(inputs["x"]) * inputs["y"]}

    def case(T: int, D: int, sliced: bool, factor: float) -> dict[str, Any]:
        return {"T": T, "D": D, "sliced": sliced, "factor": factor}

    drawn = {
        "T": st.sampled_from([1, 3, 17, 50]),
        "D": st.sampled_from([1, 7, 40, 100]),
        "sliced": _YES,
        "factor": st.sampled_from([1.0, 8.0]),
    }
    return _kernel(
        "swiglu",
        "fla.modules.activations.swiglu",
        drawn,
        (case(3, 40, True, 1.0), case(70, 33, False, 8.0), case(1, 1, False, 1.0), case(2, 3, False, 0.0)),
        inputs=inputs,
        candidate=candidate,
        golden=golden,
        must_run=("swiglu_fwd_kernel", "swiglu_fwdbwd_kernel"),
        differentiable=("x", "y"),
    )


def _cross_entropy() -> Kernel:
    def inputs(params: Params, generator: torch.Generator) -> Named:
        target = integers(generator, params["V"], params["N"])
        target[:: params["every"]] = params["ignored"]
        return {"logits": normal(generator, params["N"], params["V"]) * 3, "target": target}

    def candidate(inputs: Named, params: Params) -> Named:
        x = parts.there(inputs)
        loss, punished = parts.fla("modules.fused_cross_entropy.ops", "cross_entropy_loss")(
            x["logits"],
            x["target"],
            label_smoothing=params["smoothing"],
            logit_scale=params["scale"],
            lse_square_scale=params["square"],
            ignore_index=params["ignored"],
        )
        return {"loss": loss, "punished": punished}

    def golden(inputs: Named, params: Params) -> Named:
        options = {"smoothing": params["smoothing"], "scale": params["scale"], "square": params["square"], "ignored": params["ignored"]}
        loss, punished = cross_entropy(inputs["logits"], inputs["target"], **options)
        return {"loss": loss, "punished": punished}

    def case(N: int, V: int, **given: Any) -> dict[str, Any]:
        return {"N": N, "V": V, "smoothing": 0.0, "scale": 1.0, "square": 0.0, "ignored": -100, "every": 3, **given}

    drawn = {
        "N": st.integers(2, 9),
        "V": st.sampled_from([3, 16, 100, 300]),
        "smoothing": st.sampled_from([0.0, 0.1]),
        "scale": st.sampled_from([1.0, 0.7]),
        "square": st.sampled_from([0.0, 1e-2]),
        "ignored": st.sampled_from([-100, 1]),
        "every": st.sampled_from([3, 100]),
    }
    # More than 4096 words are several blocks backward, more than 65536 forward too.
    blocks = (case(2, 70000, smoothing=0.1, square=1e-2, every=100), case(3, 5000, scale=0.5, square=1e-2))
    return _kernel(
        "fused_cross_entropy",
        "fla.modules.fused_cross_entropy's loss",
        drawn,
        (case(7, 100, smoothing=0.1, scale=0.7, square=1e-2), case(5, 33, ignored=1), *blocks, case(2, 3, every=1)),
        inputs=inputs,
        candidate=candidate,
        golden=golden,
        must_run=("cross_entropy_fwd_kernel", "cross_entropy_bwd_kernel"),
        differentiable=("logits",),
    )


def _rotary() -> Kernel:
    def inputs(params: Params, generator: torch.Generator) -> Named:
        rows, tokens = _rows(params)
        longest = tokens + params["offset"]
        angles = normal(generator, longest, params["R"]) * 3
        x = normal(generator, rows, tokens, params["H"], 2 * params["R"] + params["rest"])
        return {"x": x, "cos": angles.cos(), "sin": angles.sin()}

    def candidate(inputs: Named, params: Params) -> Named:
        x = parts.there(inputs)
        options = {"interleaved": params["interleaved"], "seqlen_offsets": params["offset"]}
        return {"y": parts.fla("modules.rotary", "rotary_embedding")(**x, **options, cu_seqlens=parts.boundaries(params["lengths"]))}

    def golden(inputs: Named, params: Params) -> Named:
        options = {"interleaved": params["interleaved"], "offset": params["offset"], "lengths": params["lengths"]}
        return {"y": rotary(inputs["x"], inputs["cos"], inputs["sin"], **options)}

    def case(T: int, **given: Any) -> dict[str, Any]:
        return {"B": 1, "T": T, "H": 2, "R": 16, "rest": 0, "interleaved": False, "offset": 0, "lengths": None, **given}

    drawn = {
        "B": st.integers(1, 2),
        "T": st.sampled_from([1, 5, 17, 40]),
        "H": st.sampled_from([1, 2, 5]),
        "R": st.sampled_from([4, 16, 20, 32]),
        "rest": st.sampled_from([0, 8]),
        "interleaved": _YES,
        "offset": st.sampled_from([0, 3]),
        "lengths": st.none() | st.lists(st.integers(1, 20), min_size=1, max_size=3),
    }
    examples = (
        case(17, B=2, rest=8, offset=3),
        case(0, lengths=[3, 17, 1], interleaved=True),
        case(9, interleaved=True, R=20, offset=2, H=5),
        case(1),
    )
    return _kernel(
        "rotary_embedding",
        "fla.modules.rotary.rotary_embedding",
        drawn,
        examples,
        inputs=inputs,
        candidate=candidate,
        golden=golden,
        must_run=("rotary_embedding_kernel",),
        differentiable=("x",),
    )


def _gate() -> Kernel:
    """The decay of a head, -exp(A_log) softplus(g + dt_bias), and beta's sigmoid, as Qwen3-Next's kernels fuse them."""

    def inputs(params: Params, generator: torch.Generator) -> Named:
        heads = params["HV"]
        given = {"g": normal(generator, 2, params["T"], heads) * params["factor"], "A_log": normal(generator, heads)}
        return given | {"dt_bias": normal(generator, heads)} if params["bias"] else given

    def candidate(inputs: Named, params: Params) -> Named:
        x = parts.there(inputs)
        return {"decay": parts.fla("ops.gated_delta_rule.gate", "fused_gdn_gate")(x["g"], x["A_log"], x.get("dt_bias"))}

    def golden(inputs: Named, params: Params) -> Named:
        x = inputs
        moved = x["g"] + x["dt_bias"] if params["bias"] else x["g"]
        return {"decay": -x["A_log"].exp() * torch.nn.functional.softplus(moved)}

    def case(T: int, HV: int, bias: bool, factor: float) -> dict[str, Any]:
        return {"T": T, "HV": HV, "bias": bias, "factor": factor}

    drawn = {"T": st.sampled_from([1, 17, 40]), "HV": st.integers(1, 5), "bias": _YES, "factor": st.sampled_from([1.0, 10.0])}
    return _kernel(
        "fused_gdn_gate",
        "fla.ops.gated_delta_rule.gate.fused_gdn_gate",
        drawn,
        (case(40, 3, True, 1.0), case(17, 2, False, 10.0), case(1, 4, True, 10.0)),
        inputs=inputs,
        candidate=candidate,
        golden=golden,
        must_run=("gdn_gate_fwd_kernel", "gdn_gate_bwd_kernel"),
        differentiable=("g", "A_log", "dt_bias"),
        keep=frozenset({"A_log", "dt_bias"}),
    )
