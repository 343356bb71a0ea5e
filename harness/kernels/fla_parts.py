"""What the candidates of fla share: whether it is there, how its parts are found, and the inputs of its steps.

fla 0.6.0 keeps gates as running sums times 1 / ln 2, for exp2; the goldens take them to the base e. Gradients of gates are to the base e.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch.utils import deterministic

from harness.kernels.delta_rule import CHUNK, chunk_cumsum, l2norm, spans
from harness.kernels.interpreter import Engine, missing_triton, prepared
from harness.kernels.kernel import Params
from harness.kernels.launches import counted
from harness.kernels.values import normal

Named = dict[str, torch.Tensor]
_FENCE = 8192  # numbers, more than the largest block of any of the kernels
_HOW = "`pip install 'flash-linear-attention>=0.6'`"

# T beside one and two chunks, widths of 16 and beside it. One token of one head is an example's to give, with many heads: alone, its
# gradients hang on one sum, which now and then cancels, and then no dtype computes it well.
TOKENS = st.sampled_from([16, 31, 63, 64, 65, 100, 130])
WIDTHS = st.sampled_from([8, 16, 24, 32, 40, 64, 72])
LENGTHS = st.none() | st.lists(st.sampled_from([1, 2, 15, 63, 64, 65, 70]), min_size=1, max_size=4).filter(lambda drawn: sum(drawn) >= 16)


def missing() -> str:
    """ "" or how to get fla, or the fla that these candidates know."""
    if without := missing_triton():
        return without
    if importlib.util.find_spec("fla") is None:
        return f"fla is not installed: {_HOW}"
    version = importlib.metadata.version("fla-core")
    if tuple(map(int, version.split(".")[:2])) < (0, 6):
        return f"fla-core is {version}, whose steps have other arguments: {_HOW}"
    return ""


def fla(module: str, name: str) -> Any:
    """`fla.<module>.<name>`, imported when a case asks for it."""
    return getattr(importlib.import_module(f"fla.{module}"), name)


def there(inputs: Mapping[str, torch.Tensor]) -> Named:
    """The inputs where kernels run here; gradients come back to those given.

    In the interpreter numbers stand between NaN, so that a kernel that reads beyond its tensor can't miss it.
    """
    place = prepared()
    if place.engine is not Engine.INTERPRETED:
        return {name: value.to(place.device) for name, value in inputs.items()}
    return {name: _fenced(value) if value.is_floating_point() else value for name, value in inputs.items()}


def _fenced(value: torch.Tensor) -> torch.Tensor:
    if not value.is_contiguous():
        return value
    fence = value.new_full((_FENCE,), math.nan)
    return torch.cat([fence, value.flatten(), fence])[_FENCE:-_FENCE].view(value.shape)


@contextlib.contextmanager
def launched() -> Iterator[Counter[str]]:
    """Launches. In the interpreter fresh memory is NaN meanwhile, so that what a kernel doesn't write can't pass for what it should."""
    if prepared().engine is not Engine.INTERPRETED:
        with counted() as seen:
            yield seen
        return
    memory: Any = deterministic
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    memory.fill_uninitialized_memory = True
    try:
        with np.errstate(all="ignore"), counted() as seen:  # infinities and NaN are the case's, no news to anybody
            yield seen
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        memory.fill_uninitialized_memory = filled


def boundaries(lengths: Any) -> torch.Tensor | None:
    """cu_seqlens of sequences of these lengths, where kernels run here."""
    if lengths is None:
        return None
    return torch.tensor([0, *lengths]).cumsum(0).to(prepared().device)


def shape(params: Params) -> tuple[int, int, int, int, int, int]:
    """(B, T, H, HV, K, V): with `lengths`, B is 1 and T their sum."""
    lengths = params.get("lengths")
    rows, tokens = (1, sum(lengths)) if lengths else (params["B"], params["T"])
    return rows, tokens, params["H"], params["H"] * params["share"], params["K"], params["V"]


def shapes(**more: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Parameters that shape() reads, and `more`."""
    return st.fixed_dictionaries(
        {
            "B": st.integers(1, 2),
            "T": TOKENS,
            "H": st.integers(1, 2),
            "share": st.integers(1, 3),
            "K": WIDTHS,
            "V": WIDTHS,
            "lengths": LENGTHS,
            "gate": st.sampled_from(["mild", "strong", "none"]),
            **more,
        }
    )


def case(T: int = 65, **given: Any) -> dict[str, Any]:
    """One example of what shapes() draws."""
    return {"B": 1, "T": T, "H": 1, "share": 1, "K": 16, "V": 24, "lengths": None, "gate": "mild", **given}


def gates(generator: torch.Generator, kind: str, *size: int) -> torch.Tensor:
    """Logarithms of decays [B, T, HV]: mild about -0.8, strong about -3 a token, whose sums over a chunk leave exp's range."""
    drawn = normal(generator, *size)
    return torch.nn.functional.logsigmoid(drawn) if kind == "mild" else -4 * torch.nn.functional.softplus(drawn)


def running_gates(generator: torch.Generator, params: Params, size: int = CHUNK) -> Named:
    """By params["gate"]: {"g": running sums within chunks}; vector: {"gk": the same for each key's element}; gamma: {"gamma": one gate for
    all tokens of a head [HV]}; none: {}."""
    rows, tokens, _, heads, width, _ = shape(params)
    kind, lengths = params["gate"], params["lengths"]
    if kind == "none":
        return {}
    if kind == "gamma":
        return {"gamma": gates(generator, "mild", heads)}
    if kind == "vector":
        return {"gk": chunk_cumsum(gates(generator, "mild", rows, tokens, heads, width) / 8, size, lengths=lengths)}
    return {"g": chunk_cumsum(gates(generator, kind, rows, tokens, heads), size, lengths=lengths)}


def keys(generator: torch.Generator, rows: int, tokens: int, heads: int, width: int) -> torch.Tensor:
    """Of length 1, as the rule assumes them: longer ones make its states explode."""
    return l2norm(normal(generator, rows, tokens, heads, width))


def betas(generator: torch.Generator, rows: int, tokens: int, heads: int) -> torch.Tensor:
    return torch.sigmoid(normal(generator, rows, tokens, heads))


def chunks_of(params: Params, size: int = CHUNK) -> int:
    rows, tokens, *_ = shape(params)
    return len(spans(rows, tokens, params["lengths"]).chunks(size))
