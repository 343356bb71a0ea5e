"""ms-swift's zigzag ring attention on the NPU, forward and backward over 1, 2 and 4 ranks, against plain attention in float64."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from hypothesis import strategies as st

from harness.kernels.candidates_swift import ALL, counted
from harness.kernels.installed_swift import RING, missing, patches
from harness.kernels.kernel import Kernel, Kind, Params
from harness.kernels.ring_threads import Ring, Seat, ThreadComm
from harness.kernels.stand_in import bench

_SOURCE = "sequence_parallel/zigzag_ring_attn_npu.py"


def kernels() -> tuple[Kernel, ...]:
    usual = {"ranks": 2, "chunks": [2, 3], "heads": [4, 2], "width": 16, "scale": 0.0, "left": -1}
    return (
        Kernel(
            name="swift.zigzag_ring_attention",
            kind=Kind.ATTENTION,
            what="zigzag_ring_flash_attn_varlen_func on an NPU: npu_forward with npu_fusion_attention, npu_backward with its _grad",
            dtypes=ALL,
            params=_params(),
            examples=(
                usual,
                {**usual, "ranks": 1, "chunks": [5]},
                {**usual, "ranks": 4, "chunks": [1], "heads": [2, 2]},
                {**usual, "ranks": 4, "chunks": [2, 1, 3, 1, 2, 1, 1, 4], "width": 8},
                {**usual, "chunks": [1, 2, 1, 3, 2]},
                {**usual, "chunks": [3, 1, 2, 2]},
                {**usual, "ranks": 1, "chunks": [4, 2], "left": 3, "scale": 0.4},
                {**usual, "ranks": 4, "chunks": [3], "heads": [3, 1], "scale": 0.7},
            ),
            inputs=_inputs,
            candidate=_candidate,
            golden=_golden,
            plain=_golden,
            counted=counted,
            must_run=("npu_fusion_attention", "npu_fusion_attention_grad"),
            differentiable=("q", "k", "v"),
            tries=20,
            quick_tries=3,
            missing=lambda: missing(file=_SOURCE),
        ),
    )


def _params() -> st.SearchStrategy[dict[str, Any]]:
    """`chunks`: of each sequence a 2 * ranks-th part in tokens. A window (`left` tokens back) has a meaning on one rank only."""
    ranks = st.sampled_from([1, 2, 4])
    shape = st.fixed_dictionaries(
        {
            "ranks": ranks,
            "chunks": st.lists(st.integers(1, 4), min_size=1, max_size=8),
            "heads": st.sampled_from([[1, 1], [2, 1], [4, 2], [3, 3]]),
            "width": st.sampled_from([8, 16, 40]),
            "scale": st.sampled_from([0.0, 0.0, 0.5]),
            "left": st.sampled_from([-1, -1, 0, 2]),
        }
    )
    return shape.map(lambda params: params if params["ranks"] == 1 else {**params, "left": -1})


def _inputs(params: Params, generator: torch.Generator) -> dict[str, torch.Tensor]:
    heads, kv_heads = params["heads"]
    tokens = sum(_lengths(params))
    shapes = {"q": heads, "k": kv_heads, "v": kv_heads}
    return {name: torch.randn(tokens, n, params["width"], generator=generator, dtype=torch.float64) for name, n in shapes.items()}


def _lengths(params: Params) -> list[int]:
    return [2 * params["ranks"] * chunk for chunk in params["chunks"]]


def _ends(params: Params) -> list[int]:
    return [0, *itertools.accumulate(_lengths(params))]


def _rows(params: Params, rank: int) -> torch.Tensor:
    """Where the tokens of a rank are: of each sequence, cut into 2 * ranks parts, the part `rank` from the start and that from the end."""
    last = 2 * params["ranks"] - 1
    parts = []
    for start, chunk in zip(_ends(params), params["chunks"], strict=False):
        parts += [torch.arange(chunk) + start + chunk * part for part in (rank, last - rank)]
    return torch.cat(parts)


def _candidate(inputs: dict[str, torch.Tensor], params: Params) -> dict[str, torch.Tensor]:
    here = bench().placed(inputs)
    y, lse = _RingAttention.apply(here["q"], here["k"], here["v"], params)
    return {"y": y, "lse": lse}


class _RingAttention(torch.autograd.Function):
    """All ranks at once. Autograd's engine has one thread a device, in which ranks would wait for each other: it sees one function."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, params: Params) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.recorder = _Recorder(params["ranks"])
        ctx.rows = [_rows(params, rank).to(q.device) for rank in range(params["ranks"])]
        ends = torch.tensor(_ends(params), dtype=torch.int32, device=q.device)
        said = {"max_seqlen": max(_lengths(params)), "causal": True, "softmax_scale": params["scale"] or None, "return_attn_probs": True}
        window = (params["left"], 0 if params["left"] >= 0 else -1)

        def work(seat: Seat) -> tuple[torch.Tensor, ...]:
            local = [tensor[ctx.rows[seat.rank]].unsqueeze(0) for tensor in (q, k, v)]
            ring_attention = patches()[f"{RING}.zigzag_ring_attn"].zigzag_ring_flash_attn_varlen_func
            out, lse, _ = ring_attention(*local, cu_seqlens=ends, window_size=window, group=seat, **said)
            return out[0], lse[0].transpose(0, 1)

        with ctx.recorder.in_place():
            y, lse = _joined(ctx.recorder.ring.run(work), ctx.rows)
        ctx.mark_non_differentiable(lse)
        return y, lse

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        def work(seat: Seat) -> tuple[torch.Tensor, ...]:
            given = ctx.recorder.backward(seat, gradients[0][ctx.rows[seat.rank]].unsqueeze(0))
            return tuple(gradient[0] for gradient in given)

        with ctx.recorder.in_place():
            return (*_joined(ctx.recorder.ring.run(work), ctx.rows), None)


def _joined(parts: Sequence[tuple[torch.Tensor, ...]], rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The ranks' tensors [own tokens, ...] as whole ones [tokens, ...]."""
    whole = []
    for pieces in zip(*parts, strict=True):
        joined = torch.cat(pieces)
        whole.append(torch.empty_like(joined).index_copy_(0, torch.cat(list(rows)), joined))
    return whole


class _Recorder:
    """In the place of ms-swift's autograd function: calls its forward and its backward itself, for the rank that is the call's group."""

    def __init__(self, ranks: int) -> None:
        self.ring = Ring(ranks)
        self._module: Any = patches()[f"{RING}.zigzag_ring_attn"]
        self._function: Any = self._module.ZigZagRingFlashAttnVarlenFunc
        self._saved: dict[int, Any] = {}
        self._arguments = 0

    @contextmanager
    def in_place(self) -> Iterator[None]:
        on_npu = patches()[f"{RING}.zigzag_ring_attn_npu"]
        ranks = SimpleNamespace(get_world_size=lambda group: group.ring.size, get_rank=lambda group: group.rank)
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(self._module, "ZigZagRingFlashAttnVarlenFunc", self))
            stack.enter_context(mock.patch.object(self._module, "dist", ranks))
            for module in (self._module, on_npu):
                stack.enter_context(mock.patch.object(module, "RingComm", ThreadComm))
            if bench().stands_in:
                stack.enter_context(mock.patch.object(self._module, "is_npu_tensor", lambda tensor: True))
            yield

    def apply(self, *arguments: Any) -> Any:
        seat = next(argument for argument in arguments if isinstance(argument, Seat))
        self._saved[seat.rank], self._arguments = _Saved(), len(arguments)
        return self._function.forward(self._saved[seat.rank], *arguments)

    def backward(self, seat: Seat, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = self._function.backward(self._saved[seat.rank], dy)
        if len(given) != self._arguments or any(gradient is not None for gradient in given[3:]):
            raise ValueError(f"backward gives {len(given)} gradients for {self._arguments} arguments, or one beside those of q, k, v")
        return tuple(given[:3])


class _Saved:
    """What autograd hands to a function as ctx."""

    saved_tensors: tuple[torch.Tensor, ...] = ()

    def save_for_backward(self, *tensors: torch.Tensor) -> None:
        self.saved_tensors = tensors


def _golden(inputs: Mapping[str, torch.Tensor], params: Params) -> dict[str, torch.Tensor]:
    """Each sequence by itself: softmax(scale * q k^T, causal and within the window) v, and the log of the softmax's sum."""
    scale, ends = params["scale"] or params["width"] ** -0.5, _ends(params)
    outputs, sums = [], []
    for start, end in itertools.pairwise(ends):
        q, k, v = (inputs[name][start:end].transpose(0, 1) for name in ("q", "k", "v"))
        k, v = (tensor.repeat_interleave(len(q) // len(tensor), 0) for tensor in (k, v))
        back = torch.arange(end - start)[:, None] - torch.arange(end - start)
        hidden = (back < 0) | (back > params["left"] if params["left"] >= 0 else torch.tensor(False))
        scores = (q @ k.transpose(1, 2) * scale).masked_fill(hidden, -torch.inf)
        outputs.append((scores.softmax(-1) @ v).transpose(0, 1))
        sums.append(scores.detach().logsumexp(-1).transpose(0, 1))
    return {"y": torch.cat(outputs), "lse": torch.cat(sums)}
