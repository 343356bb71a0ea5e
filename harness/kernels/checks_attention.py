"""The small functions around the NPU's attention in ms-swift and transformers: layouts of statistics, masks, windows, switches."""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from harness.kernels import candidates_flash
from harness.kernels.checks import Check, holds, refuses
from harness.kernels.installed_swift import RING, missing, package, patches
from harness.kernels.stand_in import bench

_ALL_TOKENS = 2147483647
_SPARSE_MODE = "NPU_FA2_SPARSE_MODE"


def checks() -> tuple[Check, ...]:
    ours = partial(missing, file="sequence_parallel/zigzag_ring_attn_npu.py")
    ring = (
        ("lse_layouts", "_reshape_npu_lse brings every layout of the statistics to [heads, tokens], and refuses others", _layouts),
        ("lse_normalised", "_normalize_flash_attn_lse gives [heads, tokens] of either order, with or without a batch of one", _normalised),
        (
            "softmax_statistics",
            "the statistics for the backward are the merged lse and ones, eight of each, and of the right size",
            _statistics,
        ),
        ("second_half", "_get_second_half_lse takes each sequence's second half, for few sequences and for many", _second_half),
        ("sparse_params", "mask, sparse mode and band follow from causal and the window", _sparse_params),
        ("call_arguments", "scale, dropout, sync, lengths and heads reach npu_fusion_attention, and its _grad, as they are", _arguments),
        ("dropout_refused", "the backward refuses dropout, whose mask it doesn't know, and says so", _dropout),
        ("npu_tensors", "is_npu_tensor looks at the device's kind, and batches of one are squeezed, others not", _npu_tensors),
    )
    flash = (
        ("sparse_mode", "NPU_FA2_SPARSE_MODE is 3 unless it says 2, and refuses other numbers", _sparse_mode),
        ("top_left", "causal masks count as aligned at the top left only with sparse mode 2 on an NPU", _top_left),
        ("mask", "the mask for a device is the compressed triangle, made once", _mask),
        ("dropout", "dropout reaches npu_fusion_attention as the probability to keep, in both functions", _keep),
        ("kvcache_refused", "attention over a paged cache is refused, and not computed wrongly", _kvcache),
    )
    return (
        *(Check(f"swift.zigzag_ring.{name}", what, run, ours) for name, what, run in ring),
        *(Check(f"transformers.npu_flash.{name}", what, run, candidates_flash.missing) for name, what, run in flash),
    )


def _npu() -> Any:
    return patches()[f"{RING}.zigzag_ring_attn_npu"]


def _is(found: torch.Tensor, right: torch.Tensor, told: str) -> None:
    holds(found.shape == right.shape and torch.equal(found.cpu(), right), f"{told}: {tuple(found.shape)} {found.flatten()[:6].tolist()}")
    holds(found.is_contiguous(), f"{told}: it isn't contiguous")


def _layouts() -> None:
    for heads, tokens in ((3, 5), (2, 8), (8, 5), (4, 8), (1, 7)):
        right = torch.arange(heads * tokens, dtype=torch.float32).view(heads, tokens)
        eight = right.unsqueeze(-1).expand(-1, -1, 8)
        layouts = {"[N, T]": right, "[T, N]": right.T, "[N, T, 8]": eight, "[T, N, 8]": eight.transpose(0, 1)}
        if tokens != 8 and heads != 8:
            layouts |= {"[T, N, 1]": right.T.unsqueeze(-1), "[N, T, 1]": right.unsqueeze(-1), "[T, 1, N]": right.T.unsqueeze(1)}
            layouts["[1, T, N]"] = right.T.unsqueeze(0)
        for name, layout in layouts.items():
            _is(_npu()._reshape_npu_lse(layout, tokens, heads), right, f"{name} with N {heads}, T {tokens}")
    for shape in ((3, 6), (6,), (2, 6, 7), (1, 2, 3, 4)):
        refuses(RuntimeError, str(shape), partial(_npu()._reshape_npu_lse, torch.zeros(shape), 5, 3))


def _normalised() -> None:
    right = torch.arange(15.0).view(3, 5)
    for name, given in {"[N, T]": right, "[T, N]": right.T, "[1, N, T]": right.unsqueeze(0), "[1, T, N]": right.T.unsqueeze(0)}.items():
        _is(_npu()._normalize_flash_attn_lse(given, 5), right, name)
    square = torch.arange(9.0).view(3, 3)
    _is(_npu()._normalize_flash_attn_lse(square, 3), square, "as many heads as tokens: [N, T] is left as it is")
    for shape in ((5,), (2, 3, 5), (3, 4)):
        refuses(RuntimeError, str(shape), partial(_npu()._normalize_flash_attn_lse, torch.zeros(shape), 5))


def _statistics() -> None:
    lse = torch.arange(15, dtype=torch.float32).view(3, 5) - 7
    for given in (lse, lse.unsqueeze(0), lse.T, lse.bfloat16()):
        largest, total = _npu()._npu_softmax_stats_from_global_lse(given, 5, 3)
        _is(largest, lse.T.unsqueeze(-1).repeat(1, 1, 8), "largest")
        _is(total, torch.ones(5, 3, 8), "sum")
        holds(largest.dtype == total.dtype == torch.float32, f"they are {largest.dtype}, {total.dtype}")
    refuses(RuntimeError, "num_heads=4", partial(_npu()._npu_softmax_stats_from_global_lse, lse, 5, 4))


def _second_half() -> None:
    for count in range(1, 10):
        lengths = [2 * (1 + (7 * n + count) % 5) for n in range(count)]
        ends = [0, *itertools.accumulate(lengths)]
        lse = torch.randn(3, ends[-1], generator=torch.Generator().manual_seed(count))
        right = torch.cat([lse[:, (a + b) // 2 : b] for a, b in itertools.pairwise(ends)], 1)
        for given in (lse, lse.unsqueeze(0)):
            found = _npu()._get_second_half_lse(given, torch.tensor(ends, dtype=torch.int32))
            holds(torch.equal(found, right), f"of {count} sequences of {lengths}")


def _sparse_params() -> None:
    device = torch.device("cpu")
    free = (-1, -1)
    for causal, window, mode, before, after in (
        (True, free, 3, _ALL_TOKENS, _ALL_TOKENS),
        (True, None, 3, _ALL_TOKENS, _ALL_TOKENS),
        (False, free, 0, _ALL_TOKENS, _ALL_TOKENS),
        (False, None, 0, _ALL_TOKENS, _ALL_TOKENS),
        (True, (5, 2), 4, 5, 0),
        (True, (5, -1), 4, 5, 0),
        (True, (-1, 2), 4, _ALL_TOKENS, 0),
        (False, (5, 2), 4, 5, 2),
        (False, (5, -1), 4, 5, _ALL_TOKENS),
        (False, (-1, 2), 4, _ALL_TOKENS, 2),
        (False, (0, 0), 4, 0, 0),
    ):
        found = dict(_npu()._get_npu_sparse_params(causal, window, device))
        mask = found.pop("atten_mask")
        right = {"sparse_mode": mode, "pre_tockens": before, "next_tockens": after}
        holds(found == right, f"causal {causal}, window {window}: {found} and not {right}")
        if mode:
            _is_triangle(mask, f"causal {causal}, window {window}")
        else:
            holds(mask is None, "there is a mask where all is seen")


def _is_triangle(mask: torch.Tensor, told: str) -> None:
    right = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
    holds(mask.dtype == torch.bool and torch.equal(mask.cpu(), right), f"{told}: the mask isn't True above the diagonal of 2048 x 2048")


def _arguments() -> None:
    q, kv = torch.zeros(6, 4, 16), torch.zeros(8, 2, 16)
    ends = torch.tensor([0, 2, 6], dtype=torch.int32), torch.tensor([0, 3, 8], dtype=torch.int32)
    for scale, dropout, deterministic in ((0.5, 0.0, False), (None, 0.25, True), (0.5, 0.25, False), (0.5, 0.0, True)):
        said = {"softmax_scale": scale, "dropout_p": dropout, "causal": True, "window_size": (3, 0), "deterministic": deterministic}
        right = {
            "head_num": 4,
            "input_layout": "TND",
            "keep_prob": 1 - dropout,
            "actual_seq_qlen": (2, 6),
            "actual_seq_kvlen": (3, 8),
            "sync": deterministic and dropout > 0,
            "sparse_mode": 4,
            "pre_tockens": 3,
            "next_tockens": 0,
            "softmax_layout": "TND",
        }
        call = partial(_npu()._call_npu_fusion_attention, q, kv, kv + 1, cu_seqlens_q=ends[0], cu_seqlens_kv=ends[1], **said)
        _passes(call, "npu_fusion_attention", {**right, "scale": scale or 0.25, "query": q, "key": kv, "value": kv + 1})
        if not dropout:
            lse = torch.arange(24.0).view(4, 6)
            statistics = {"softmax_max": lse.T.unsqueeze(-1).repeat(1, 1, 8), "softmax_sum": torch.ones(6, 4, 8), "attention_in": q + 3}
            call = partial(_npu()._call_npu_fusion_attention_grad, q + 2, q, kv, kv + 1, attention_out=q + 3, softmax_lse=lse)
            call = partial(call, cu_seqlens_q=ends[0], cu_seqlens_kv=ends[1], **said)
            wanted = {**right, "scale_value": scale or 0.25, "dy": q + 2, "query": q, "key": kv, "value": kv + 1, **statistics}
            _passes(call, "npu_fusion_attention_grad", wanted)


def _passes(call: Callable[[], object], operator: str, right: dict[str, Any]) -> None:
    """That `call` hands these arguments to the operator, by name."""
    given: dict[str, Any] = {}
    with bench().importable(), mock.patch.object(bench().torch_npu, operator, lambda **named: given.update(named)):
        call()
    _is_triangle(given.pop("atten_mask"), operator)
    for name, value in right.items():
        found = given.get(name, "nothing")
        same = torch.equal(found, value) if isinstance(value, torch.Tensor) and isinstance(found, torch.Tensor) else found == value
        holds(bool(same), f"{operator} is given {name} {found!r} and not {value!r}")
    harmless = {"softmax_in": None, "seed": 0, "offset": 0, "numels": 0}
    strange = {name: value for name, value in given.items() if name not in right and harmless.get(name, "?") != value}
    holds(not strange, f"{operator} is given {strange} too")


def _dropout() -> None:
    q = torch.zeros(2, 1, 8)
    ends = torch.tensor([0, 2], dtype=torch.int32)
    said = {"cu_seqlens_q": ends, "cu_seqlens_kv": ends, "softmax_scale": 1.0, "causal": True, "window_size": (-1, -1)}
    call = partial(_npu()._call_npu_fusion_attention_grad, q, q, q, q, attention_out=q, softmax_lse=torch.zeros(1, 2), **said)
    with bench().importable():
        refuses(NotImplementedError, "dropout_p=0", partial(call, dropout_p=0.1, deterministic=False))
    with bench().importable(), mock.patch.object(bench().torch_npu, "npu_fusion_attention_grad"):
        del bench().torch_npu.npu_fusion_attention_grad
        refuses(AttributeError, "npu_fusion_attention_grad", partial(call, dropout_p=0.0, deterministic=False))


def _npu_tensors() -> None:
    answers = {kind: _npu().is_npu_tensor(SimpleNamespace(device=SimpleNamespace(type=kind))) for kind in ("npu", "cpu", "cuda")}
    holds(answers == {"npu": True, "cpu": False, "cuda": False}, f"it says {answers}")
    one, two = torch.zeros(1, 3, 4), torch.zeros(2, 3, 4)
    shapes = [tuple(tensor.shape) for tensor in _npu()._squeeze_batch(one, two)]
    holds(shapes == [(3, 4), (2, 3, 4)], f"squeezed to {shapes}")


# transformers


def _integration(**environment: str) -> Any:
    """transformers' file, imported anew under another name, so that it reads the environment again."""
    folder = package("transformers")
    holds(folder is not None, "transformers is gone")
    assert folder is not None
    name = "transformers.integrations.harness_npu_flash_attention"
    spec = importlib.util.spec_from_file_location(name, folder / "integrations" / "npu_flash_attention.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(os.environ, environment):
        if _SPARSE_MODE not in environment:
            os.environ.pop(_SPARSE_MODE, None)
        spec.loader.exec_module(module)
    return module


def _sparse_mode() -> None:
    holds(_integration().SPARSE_MODE == 3, "without the variable the mode isn't 3")
    for said in ("2", "3"):
        holds(int(said) == _integration(**{_SPARSE_MODE: said}).SPARSE_MODE, f"{said} isn't taken")
    for said in ("4", "0"):
        refuses(ValueError, _SPARSE_MODE, partial(_integration, **{_SPARSE_MODE: said}))


def _top_left() -> None:
    for said, on_npu, right in (("2", True, True), ("3", True, False), ("2", False, False)):
        module = _integration(**{_SPARSE_MODE: said})
        with mock.patch.object(module, "is_torch_npu_available", lambda on_npu=on_npu: on_npu):
            holds(module.is_npu_fa2_top_left_aligned_causal_mask() is right, f"mode {said}, on an NPU {on_npu}: not {right}")


def _mask() -> None:
    module, device = _integration(), torch.device(bench().device)
    mask = module.get_attn_mask_npu(device)
    _is_triangle(mask, "get_attn_mask_npu")
    holds(module.get_attn_mask_npu(device) is mask, "it is made twice")


def _keep() -> None:
    module, given = _integration(), dict[str, Any]()
    q, ends = torch.zeros(2, 1, 8), torch.tensor([0, 2])
    for causal in (True, False):
        for call in (
            partial(module.npu_flash_attn_func, q[None], q[None], q[None]),
            partial(module.npu_flash_attn_varlen_func, q, q, q, ends, ends),
        ):
            given.clear()
            with mock.patch.object(module, "npu_fusion_attention", lambda *_, **named: given.update(named) or [None], create=True):
                call(dropout_p=0.25, causal=causal)
            holds(given["keep_prob"] == 0.75, f"{call.func.__name__} keeps {given['keep_prob']} with a dropout of 0.25")
            holds(given.get("sparse_mode", 0) == (3 if causal else 0), f"{call.func.__name__}: sparse mode {given.get('sparse_mode')}")


def _kvcache() -> None:
    refuses(NotImplementedError, "npu_flash_attn_with_kvcache", _integration().npu_flash_attn_with_kvcache)
