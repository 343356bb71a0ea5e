"""The goldens of the gated delta rule: the recurrence and the form in chunks, written independently, agree, gradients included."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.kernels import delta_rule as forward
from harness.kernels import delta_rule_backward as backward

SIZE = 4  # of chunks, so that a few tokens make several
CLOSE = {"rtol": 1e-9, "atol": 1e-10}
tried = settings(max_examples=25, deadline=None, derandomize=True, database=None)
LENGTHS = st.none() | st.lists(st.integers(1, 9), min_size=1, max_size=3)
Named = dict[str, torch.Tensor]


def drawn(lengths: list[int] | None, share: int, seed: int, rows: int = 2, tokens: int = 9) -> Named:
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    rows, tokens = (1, sum(lengths)) if lengths else (rows, tokens)
    heads, k, v = 2, 3, 5
    count = len(lengths) if lengths else rows
    return {
        "q": normal(rows, tokens, heads, k),
        "k": forward.l2norm(normal(rows, tokens, heads, k)),
        "v": normal(rows, tokens, heads * share, v),
        "g": -normal(rows, tokens, heads * share).abs(),
        "beta": torch.sigmoid(normal(rows, tokens, heads * share)),
        "initial": normal(count, heads * share, k, v),
    }


@tried
@given(LENGTHS, st.integers(1, 3), st.integers(0, 99), st.sampled_from([None, 0.3]))
def test_the_recurrence_and_the_chunks_agree_and_so_do_their_gradients(
    lengths: list[int] | None, share: int, seed: int, scale: float | None
) -> None:
    answers = []
    for rule in (forward.recurrence, lambda *args, **named: forward.in_chunks(*args, **named, size=SIZE)):
        x = {name: value.clone().requires_grad_() for name, value in drawn(lengths, share, seed).items()}
        o, final = rule(x["q"], x["k"], x["v"], x["g"], x["beta"], scale=scale, initial=x["initial"], lengths=lengths)
        answers.append((o, final, *torch.autograd.grad(o.sin().sum() + final.cos().sum(), list(x.values()))))
    for one, other in zip(*answers, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def test_one_token_is_worked_by_hand() -> None:
    q, k = torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[0.6, 0.8]]]])
    v, g, beta = torch.tensor([[[[3.0]]]]), torch.tensor([[[-0.5]]]), torch.tensor([[[0.25]]])
    o, final = forward.recurrence(q, k, v, g, beta, scale=2.0, initial=torch.tensor([[[[1.0], [-1.0]]]]))
    decayed = torch.tensor([1.0, -1.0]) * torch.tensor(-0.5).exp()
    state = decayed + 0.25 * torch.tensor([0.6, 0.8]) * (3.0 - (0.6 * decayed[0] + 0.8 * decayed[1]))
    torch.testing.assert_close(final.flatten(), state)
    torch.testing.assert_close(o.flatten(), 2.0 * (state[0] + 2.0 * state[1]).reshape(1))


def test_a_head_of_q_serves_neighbouring_heads_of_v() -> None:
    x = torch.arange(2.0).reshape(1, 1, 2, 1)
    assert forward.shared_heads(x, 6).flatten().tolist() == [0, 0, 0, 1, 1, 1]


def test_sequences_do_not_see_each_other() -> None:
    x = drawn([3, 5], 1, 1)
    parts = {name: value[:, :3] for name, value in x.items() if name != "initial"}
    whole, _ = forward.in_chunks(*[x[n] for n in ("q", "k", "v", "g", "beta")], initial=x["initial"], lengths=[3, 5], size=SIZE)
    alone, _ = forward.in_chunks(*[parts[n] for n in ("q", "k", "v", "g", "beta")], initial=x["initial"][:1], size=SIZE)
    torch.testing.assert_close(whole[:, :3], alone)


def test_running_sums_begin_anew_in_each_chunk_and_sequence() -> None:
    ones = torch.ones(1, 7, 1)
    assert forward.chunk_cumsum(ones, 4).flatten().tolist() == [1, 2, 3, 4, 1, 2, 3]
    assert forward.chunk_cumsum(ones, 4, reverse=True).flatten().tolist() == [4, 3, 2, 1, 3, 2, 1]
    assert forward.chunk_cumsum(ones, 4, lengths=[2, 5]).flatten().tolist() == [1, 2, 1, 2, 3, 4, 1]


@tried
@given(LENGTHS, st.integers(0, 99))
def test_the_solved_triangle_is_the_inverse(lengths: list[int] | None, seed: int) -> None:
    x = drawn(lengths, 1, seed)
    running = forward.chunk_cumsum(x["g"], SIZE, lengths=lengths)
    a = forward.scaled_dot_kkt(x["k"], x["beta"], running, SIZE, lengths=lengths)
    solved = forward.solve_tril(a, lengths=lengths)
    for row, begin, end, _ in forward.spans(a.shape[0], a.shape[1], lengths).chunks(SIZE):
        count = end - begin
        lower = a[row, begin:end, 0, :count] + torch.eye(count, dtype=a.dtype)
        torch.testing.assert_close(lower @ solved[row, begin:end, 0, :count], torch.eye(count, dtype=a.dtype), **CLOSE)
        assert not solved[row, begin:end, 0, count:].any()


def test_decays_of_strong_gates_are_no_infinity_times_zero() -> None:
    g = -torch.arange(0.0, 4000.0, 1000.0, dtype=torch.float64).reshape(4, 1)
    found = forward.decays(g, diagonal=True)
    assert torch.equal(found, torch.eye(4, dtype=torch.float64)[None])


def test_lengths_that_do_not_fill_the_row_are_refused() -> None:
    with pytest.raises(ValueError, match="sequences of"):
        forward.spans(1, 5, [2, 2])
    with pytest.raises(ValueError, match="sequences of"):
        forward.spans(2, 4, [2, 2])


@tried
@given(LENGTHS, st.integers(1, 2), st.integers(0, 99), st.booleans())
def test_the_backward_steps_put_together_are_the_gradient_of_the_rule(
    lengths: list[int] | None, share: int, seed: int, gated: bool
) -> None:
    """As fla's and MindSpeed's backward pass puts them together."""
    x, scale = drawn(lengths, share, seed), 0.7
    if not gated:
        x["g"] = torch.zeros_like(x["g"])
    leaves = {name: value.clone().requires_grad_() for name, value in x.items()}
    arguments = [leaves[name] for name in ("q", "k", "v", "g", "beta")]
    o, final = forward.recurrence(*arguments, scale=scale, initial=leaves["initial"], lengths=lengths)
    do, dht = torch.cos(o.detach()), torch.sin(final.detach())
    right = torch.autograd.grad([o, final], list(leaves.values()), [do, dht])

    q, k, v, beta = x["q"], x["k"], x["v"], x["beta"]
    g = forward.chunk_cumsum(x["g"], SIZE, lengths=lengths) if gated else None
    solved = forward.solve_tril(forward.scaled_dot_kkt(k, beta, g, SIZE, lengths=lengths), lengths=lengths)
    w, u = forward.wy(k, v, beta, solved, g, lengths=lengths)
    run = forward.chunk_states(k, w, u, g, SIZE, initial=x["initial"], lengths=lengths)
    local = backward.local_values(q, k, do, g, scale, SIZE, lengths=lengths)
    states = backward.states(q, k, w, do, local, g, scale, SIZE, dht=dht, lengths=lengths)
    outputs = backward.outputs(q, k, run.new_values, run.entering, do, states.dh, g, scale, SIZE, dv=states.values, lengths=lengths)
    assert outputs.dw is not None
    through = backward.representation(k, v, beta, g, outputs.dw, states.values, SIZE, lengths=lengths)
    torch.testing.assert_close(outputs.dq, right[0], **CLOSE)
    torch.testing.assert_close(outputs.dk + through["dk"], right[1], **CLOSE)
    torch.testing.assert_close(through["dv"], right[2], **CLOSE)
    if gated:
        assert outputs.dg is not None
        summed = forward.chunk_cumsum(outputs.dg + through["dg"], SIZE, reverse=True, lengths=lengths)
        torch.testing.assert_close(summed, right[3], **CLOSE)
    torch.testing.assert_close(through["db"], right[4], **CLOSE)
    torch.testing.assert_close(states.initial, right[5], **CLOSE)
