"""transformers' flash attention on the NPU, its functions and the paths that unpad and pack, against plain attention in float64."""

from __future__ import annotations

import importlib
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from hypothesis import strategies as st

from harness.kernels.installed_swift import package
from harness.kernels.kernel import Kernel, Kind, KnownFailure, Params
from harness.kernels.stand_in import bench

ALL = ("fp32", "fp16", "bf16")
_INTEGRATION = "transformers.integrations.npu_flash_attention"
_CALLER = "transformers.modeling_flash_attention_utils"
_HEADS = st.sampled_from([[1, 1], [2, 1], [4, 2], [6, 2], [3, 3]])
WINDOW_IGNORED = KnownFailure(
    cause="npu_flash_attn_varlen_func has no parameter window_size, so that transformers drops a model's sliding window without a word",
    because="_process_flash_attention_kwargs passes on only what the function's signature names; every token then sees all before it",
    concerns=lambda case: 0 < case.params.get("window", 0) < case.params.get("tokens", 0),
)


def kernels() -> tuple[Kernel, ...]:
    return _batched(), _packed(), _called()


def missing() -> str:
    folder = package("transformers")
    if folder is not None and (folder / "integrations" / "npu_flash_attention.py").exists():
        return ""
    return "needs a transformers with integrations/npu_flash_attention.py; pip install 'transformers>=5'"


def counted() -> AbstractContextManager[Counter[str]]:
    return bench().counted()


@contextmanager
def _integration() -> Iterator[Any]:
    """The integration's module, with the bench's operator under the name that it binds only where torch_npu is there as it is imported."""
    module = importlib.import_module(_INTEGRATION)
    with mock.patch.object(module, "npu_fusion_attention", bench().torch_npu.npu_fusion_attention, create=True):
        yield module


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None, *, causal: bool, window: int = 0) -> torch.Tensor:
    """softmax(scale * q k^T) v for [tokens, heads, width], the last query beside the last key; `window`: tokens seen, 0 for all."""
    q, k, v = (tensor.transpose(0, 1) for tensor in (q, k, v))
    k, v = (tensor.repeat_interleave(len(q) // len(tensor), 0) for tensor in (k, v))
    queries, keys = q.shape[1], k.shape[1]
    back = torch.arange(queries)[:, None] + (keys - queries) - torch.arange(keys)
    hidden = (back < 0) & causal
    if window:
        hidden |= back >= window
    scores = (q @ k.transpose(1, 2) * (scale or q.shape[-1] ** -0.5)).masked_fill(hidden, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1)


def _drawn(shapes: Mapping[str, tuple[int, ...]], generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {name: torch.randn(*shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


# npu_flash_attn_func


def _batched() -> Kernel:
    usual = {"batch": 2, "heads": [4, 2], "tokens": 5, "before": 0, "width": 16, "causal": True, "scale": None}
    return Kernel(
        name="transformers.npu_flash_attn_func",
        kind=Kind.ATTENTION,
        what="npu_flash_attn_func with npu_fusion_attention",
        dtypes=ALL,
        params=st.fixed_dictionaries(
            {
                "batch": st.integers(1, 3),
                "heads": _HEADS,
                "tokens": st.integers(1, 9),
                "before": st.sampled_from([0, 0, 1, 6]),
                "width": st.sampled_from([8, 16, 40, 128]),
                "causal": st.booleans(),
                "scale": st.sampled_from([None, 0.3]),
            }
        ),
        examples=(usual, {**usual, "causal": False, "scale": 0.3}, {**usual, "before": 7}, {**usual, "tokens": 1, "before": 6}),
        inputs=_batched_inputs,
        candidate=_batched_candidate,
        golden=_batched_golden,
        plain=_batched_golden,
        counted=counted,
        must_run=("npu_fusion_attention",),
        differentiable=("q", "k", "v"),
        tries=30,
        missing=missing,
    )


def _batched_inputs(params: Params, generator: torch.Generator) -> dict[str, torch.Tensor]:
    heads, kv_heads = params["heads"]
    batch, tokens, keys, width = params["batch"], params["tokens"], params["tokens"] + params["before"], params["width"]
    shapes = {"q": (batch, tokens, heads, width), "k": (batch, keys, kv_heads, width), "v": (batch, keys, kv_heads, width)}
    return _drawn(shapes, generator)


def _batched_candidate(inputs: dict[str, torch.Tensor], params: Params) -> dict[str, torch.Tensor]:
    here = bench().placed(inputs)
    with _integration() as module:
        y = module.npu_flash_attn_func(here["q"], here["k"], here["v"], softmax_scale=params["scale"], causal=params["causal"])
    return {"y": y}


def _batched_golden(inputs: dict[str, torch.Tensor], params: Params) -> dict[str, torch.Tensor]:
    rows = zip(inputs["q"], inputs["k"], inputs["v"], strict=True)
    return {"y": torch.stack([attention(q, k, v, params["scale"], causal=params["causal"]) for q, k, v in rows])}


# npu_flash_attn_varlen_func


def _packed() -> Kernel:
    usual = {"lengths": [[3, 3], [5, 5], [1, 1]], "heads": [4, 2], "width": 16, "causal": True, "scale": None}
    lengths = st.tuples(st.integers(1, 7), st.sampled_from([0, 0, 2, 5])).map(lambda pair: [pair[0], sum(pair)])
    return Kernel(
        name="transformers.npu_flash_attn_varlen_func",
        kind=Kind.ATTENTION,
        what="npu_flash_attn_varlen_func with npu_fusion_attention, sequences packed behind each other",
        dtypes=ALL,
        params=st.fixed_dictionaries(
            {
                "lengths": st.lists(lengths, min_size=1, max_size=5),
                "heads": _HEADS,
                "width": st.sampled_from([8, 16, 40]),
                "causal": st.booleans(),
                "scale": st.sampled_from([None, 0.3]),
            }
        ),
        examples=(usual, {**usual, "causal": False, "scale": 0.3}, {**usual, "lengths": [[2, 6], [4, 5]]}, {**usual, "lengths": [[1, 9]]}),
        inputs=_packed_inputs,
        candidate=_packed_candidate,
        golden=_packed_golden,
        plain=_packed_golden,
        counted=counted,
        must_run=("npu_fusion_attention",),
        differentiable=("q", "k", "v"),
        tries=30,
        missing=missing,
    )


def _packed_inputs(params: Params, generator: torch.Generator) -> dict[str, torch.Tensor]:
    heads, kv_heads = params["heads"]
    queries, keys = (sum(pair[side] for pair in params["lengths"]) for side in (0, 1))
    width = params["width"]
    return _drawn({"q": (queries, heads, width), "k": (keys, kv_heads, width), "v": (keys, kv_heads, width)}, generator)


def _starts(params: Params, side: int) -> list[int]:
    return [0, *itertools.accumulate(pair[side] for pair in params["lengths"])]


def _packed_candidate(inputs: dict[str, torch.Tensor], params: Params) -> dict[str, torch.Tensor]:
    here = bench().placed(inputs)
    ends = [torch.tensor(_starts(params, side), dtype=torch.int32, device=here["q"].device) for side in (0, 1)]
    longest = [max(pair[side] for pair in params["lengths"]) for side in (0, 1)]
    with _integration() as module:
        said = {"softmax_scale": params["scale"], "causal": params["causal"]}
        return {"y": module.npu_flash_attn_varlen_func(here["q"], here["k"], here["v"], *ends, *longest, **said)}


def _packed_golden(inputs: dict[str, torch.Tensor], params: Params) -> dict[str, torch.Tensor]:
    spans = zip(itertools.pairwise(_starts(params, 0)), itertools.pairwise(_starts(params, 1)), strict=True)
    return {
        "y": torch.cat(
            [
                attention(inputs["q"][a:b], inputs["k"][c:d], inputs["v"][c:d], params["scale"], causal=params["causal"])
                for (a, b), (c, d) in spans
            ]
        )
    }


# _flash_attention_forward, which chooses between them


def _called() -> Kernel:
    usual = {"batch": 3, "heads": [4, 2], "tokens": 7, "width": 16, "causal": True, "scale": None, "form": "whole", "window": 0}
    forms = ("whole", "left", "right", "decoding", "chunk", "positions", "ends")
    return Kernel(
        name="transformers.flash_attention_forward",
        kind=Kind.ATTENTION,
        what="_flash_attention_forward, which unpads, packs and pads again around npu_flash_attn_func and npu_flash_attn_varlen_func",
        dtypes=ALL,
        params=st.fixed_dictionaries(
            {
                "batch": st.integers(1, 4),
                "heads": _HEADS,
                "tokens": st.integers(4, 10),
                "width": st.sampled_from([8, 16]),
                "causal": st.booleans(),
                "scale": st.sampled_from([None, 0.3]),
                "form": st.sampled_from(forms),
                "window": st.sampled_from([0, 0, 0, 20]),
            }
        ),
        examples=(*({**usual, "form": form} for form in forms), {**usual, "window": 3}, {**usual, "window": 3, "form": "positions"}),
        inputs=_called_inputs,
        candidate=_called_candidate,
        golden=_called_golden,
        plain=_called_golden,
        counted=counted,
        must_run=("npu_fusion_attention",),
        differentiable=("q", "k", "v"),
        tries=30,
        missing=missing,
        known=(WINDOW_IGNORED,),
    )


def _padding(params: Params) -> list[int]:
    """Padding tokens of each row; the first row has none."""
    return [row % 3 if params["form"] in ("left", "right", "decoding", "chunk") else 0 for row in range(params["batch"])]


def _queries(params: Params) -> int:
    tokens: int = params["tokens"]
    return {"decoding": 1, "chunk": 2}.get(params["form"], tokens)


def _called_inputs(params: Params, generator: torch.Generator) -> dict[str, torch.Tensor]:
    heads, kv_heads = params["heads"]
    batch, tokens, width = params["batch"], params["tokens"], params["width"]
    shapes = {"q": (batch, _queries(params), heads, width), "k": (batch, tokens, kv_heads, width), "v": (batch, tokens, kv_heads, width)}
    return _drawn(shapes, generator)


def _called_candidate(inputs: dict[str, torch.Tensor], params: Params) -> dict[str, torch.Tensor]:
    here = bench().placed(inputs)
    batch, tokens, device = params["batch"], params["tokens"], here["q"].device
    said: dict[str, Any] = {"attention_mask": None, "query_length": _queries(params)}
    if any(_padding(params)):
        seen = torch.ones(batch, tokens, dtype=torch.int64, device=device)
        for row, pads in enumerate(_padding(params)):
            seen[row, : pads if params["form"] != "right" else 0] = 0
            seen[row, tokens - pads if params["form"] == "right" else tokens :] = 0
        said["attention_mask"] = seen
    if params["form"] in ("positions", "ends"):
        here = {name: value.reshape(1, -1, *value.shape[2:]) for name, value in here.items()}
        said["query_length"] = batch * tokens
        if params["form"] == "positions":
            said["position_ids"] = torch.arange(tokens, device=device).repeat(batch).unsqueeze(0)
        else:
            ends = torch.arange(0, batch * tokens + 1, tokens, dtype=torch.int32, device=device)
            said |= {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": tokens, "max_length_k": tokens}
    said |= {"is_causal": params["causal"], "softmax_scale": params["scale"], "sliding_window": params["window"] or None}
    with _chosen_on_an_npu() as caller:
        y = caller._flash_attention_forward(here["q"], here["k"], here["v"], attn_implementation="flash_attention_2", **said)
    return {"y": y.view(batch, _queries(params), *y.shape[2:])}


@contextmanager
def _chosen_on_an_npu() -> Iterator[Any]:
    """transformers' caller, choosing its functions anew, as where torch_npu is; what it remembers of its choice is put back."""
    caller = importlib.import_module(_CALLER)
    remembered = ("_flash_fn", "_flash_varlen_fn", "_flash_with_kvcache_fn", "_pad_fn", "_unpad_fn")
    processing = ("_process_flash_kwargs_fn", "_process_with_kvcache_kwargs_fn")
    with ExitStack() as stack:
        stack.enter_context(_integration())
        for name in ("_loaded_implementation", *remembered, *processing):
            # Not every transformers remembers all of these.
            stack.enter_context(mock.patch.object(caller, name, None, create=True))
        if bench().stands_in:
            stack.enter_context(mock.patch.object(caller, "is_torch_npu_available", lambda: True))
        yield caller


def _called_golden(inputs: dict[str, torch.Tensor], params: Params) -> dict[str, torch.Tensor]:
    """Row by row, padding left out; where a query is padding the output is zero."""
    rows = []
    for row, pads in enumerate(_padding(params)):
        q, k, v = (inputs[name][row] for name in ("q", "k", "v"))
        kept = slice(0, len(k) - pads) if params["form"] == "right" else slice(pads, len(k))
        queries = kept if len(q) == len(k) else slice(0, len(q))
        found = attention(q[queries], k[kept], v[kept], params["scale"], causal=params["causal"], window=params["window"])
        rows.append(torch.zeros_like(q).index_copy(0, torch.arange(len(q))[queries], found))
    return {"y": torch.stack(rows)}
