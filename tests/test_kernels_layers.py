"""The goldens of the layers around the gated delta rule, against torch's own functions where it has them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from harness.kernels import references_layers as layers

tried = settings(max_examples=25, deadline=None, derandomize=True, database=None)


def normal(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("centred", [True, False])
def test_norms_are_those_of_torch(centred: bool, groups: int) -> None:
    x, weight, bias, residual = normal(2, 5, 12), normal(12, seed=1), normal(12, seed=2), normal(2, 5, 12, seed=3)
    y, total = layers.norm(x, weight, bias, residual, 1e-3, centred=centred, groups=groups)
    rows = (x + residual).reshape(10, 12)
    if centred:
        right = functional.group_norm(rows, groups, weight, bias, 1e-3)
    else:
        right = functional.rms_norm(rows.reshape(-1, 12 // groups), (12 // groups,), eps=1e-3).reshape(10, 12) * weight + bias
    torch.testing.assert_close(y.reshape(10, 12), right)
    torch.testing.assert_close(total, x + residual)


def test_a_gate_is_a_sigmoid_or_a_silu() -> None:
    y, gate = normal(4), normal(4, seed=1)
    torch.testing.assert_close(layers.gated(y, gate, "sigmoid"), y * torch.sigmoid(gate))
    torch.testing.assert_close(layers.gated(y, gate, "swish"), y * functional.silu(gate))


@tried
@given(st.integers(1, 4), st.lists(st.integers(1, 6), min_size=1, max_size=3), st.booleans(), st.booleans())
def test_the_convolution_is_torchs_and_can_be_continued(window: int, lengths: list[int], activated: bool, begun: bool) -> None:
    """Cut anywhere, a sequence goes on from the state that the first part left."""
    tokens, width = sum(lengths), 3
    x, weight, bias = normal(1, tokens, width), normal(width, window, seed=1), normal(width, seed=2)
    initial = normal(len(lengths), width, window, seed=3) if begun else None
    y, final = layers.causal_conv(x, weight, bias, None, initial, activated=activated, lengths=lengths)
    begin = 0
    for number, length in enumerate(lengths):
        part = x[0, begin : begin + length].t()
        before = torch.zeros(width, window, dtype=x.dtype) if initial is None else initial[number]
        padded = torch.cat([before[:, 1:], part], 1)
        right = functional.conv1d(padded[None], weight[:, None], bias, groups=width)[0].t()
        torch.testing.assert_close(y[0, begin : begin + length], functional.silu(right) if activated else right)
        torch.testing.assert_close(final[number], torch.cat([before, part], 1)[:, -window:])
        begin += length
    first, state = layers.causal_conv(x[:, :1], weight, bias, None, None, activated=activated, lengths=None)
    rest, _ = layers.causal_conv(x[:, 1:], weight, bias, None, state, activated=activated, lengths=None) if tokens > 1 else (first, None)
    whole, _ = layers.causal_conv(x, weight, bias, None, None, activated=activated, lengths=None)
    torch.testing.assert_close(whole, torch.cat([first, rest], 1) if tokens > 1 else first)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_loss_is_torchs_plus_its_punishment(smoothing: float) -> None:
    logits, target = normal(5, 7), torch.tensor([0, 6, -100, 3, 1])
    loss, punished = layers.cross_entropy(logits, target, smoothing=smoothing, scale=0.5, square=0.1, ignored=-100)
    right = functional.cross_entropy(logits * 0.5, target, reduction="none", label_smoothing=smoothing)
    expected = 0.1 * torch.logsumexp(logits * 0.5, 1).square() * (target != -100)
    torch.testing.assert_close(punished, expected)
    torch.testing.assert_close(loss, right + expected)


@pytest.mark.parametrize("interleaved", [True, False])
def test_rotary_embedding_turns_pairs_as_complex_numbers(interleaved: bool) -> None:
    x, angles = normal(1, 5, 2, 10), normal(9, 4, seed=1)
    found = layers.rotary(x, angles.cos(), angles.sin(), interleaved=interleaved, offset=2, lengths=[2, 3])
    turned = x[..., :8].unflatten(-1, (4, 2)) if interleaved else x[..., :8].unflatten(-1, (2, 4)).transpose(-1, -2)
    places = torch.tensor([2, 3, 2, 3, 4])
    right = torch.view_as_real(torch.view_as_complex(turned.contiguous()) * torch.exp(1j * angles[places])[None, :, None])
    right = (right if interleaved else right.transpose(-1, -2)).flatten(-2)
    torch.testing.assert_close(found[..., :8], right)
    assert torch.equal(found[..., 8:], x[..., 8:])
