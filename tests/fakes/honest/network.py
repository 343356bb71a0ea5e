"""A small language model over a checkpoint's own tensors: not a transformer, but every weight matters, and gradients are exact.

A position's state is a sum of embeddings, faded with distance and signed by place; each matrix then adds a bounded part of itself,
each vector rescales. That is enough for losses that fall, moments that matter, and a LoRA whose merge can be recomputed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fakes.honest.tensors import Array

_DECAY, _SHARE, _TINY = 0.95, 0.5, np.float32(1e-6)
_SIGNS: dict[int, Array] = {}


@dataclass(frozen=True)
class Adapter:
    """LoRA of one adapter: A and B by the name of the weight they belong to."""

    a: dict[str, Array]
    b: dict[str, Array]
    scaling: float


@dataclass
class Gradients:
    weights: dict[str, Array] = field(default_factory=dict)
    head: Array | None = None

    def add(self, name: str, value: Array) -> None:
        self.weights[name] = self.weights[name] + value if name in self.weights else value


def fit(rows: Array, width: int) -> Array:
    """Tile or cut the last axis to `width`."""
    have = rows.shape[-1]
    if have >= width:
        return rows[..., :width]
    return np.concatenate([rows] * (-(-width // have)), axis=-1)[..., :width]


def unfit(rows: Array, width: int) -> Array:
    """The adjoint of `fit`: from the fitted width back to `width`."""
    have = rows.shape[-1]
    out = np.zeros((*rows.shape[:-1], width), np.float32)
    for start in range(0, have, width):
        part = rows[..., start : start + width]
        out[..., : part.shape[-1]] += part
    return out


def fading(count: int) -> Array:
    """[count, count]: how much each earlier position weighs in each later one."""
    steps = np.arange(count)
    faded: Array = np.tril(_DECAY ** (steps[:, None] - steps[None, :]).clip(0)).astype(np.float32)
    return faded


def signs(count: int, width: int) -> Array:
    """[count, width] of +1 and -1, fixed by place: the order of words matters, and a repeated word does not drown the others."""
    if width not in _SIGNS:
        _SIGNS[width] = np.random.RandomState(7).choice(np.asarray([-1, 1], np.float32), (4096, width))
    return _SIGNS[width][:count]


class Network:
    """`weights` of a checkpoint, with an adapter or without. All arrays float32; ids index the embedding's rows."""

    def __init__(self, weights: Mapping[str, Array], adapter: Adapter | None = None, score: Array | None = None) -> None:
        self.weights, self.adapter, self.score = weights, adapter, score
        self.embedding_name = next(name for name in weights if name.endswith("embed_tokens.weight"))
        self.embedding = weights[self.embedding_name]
        self.output_name = next((name for name in weights if name.endswith("lm_head.weight")), self.embedding_name)
        outside = {self.embedding_name, self.output_name, "score.weight"}
        self.body = [name for name in sorted(weights) if name not in outside]

    def _product(self, name: str, states: Array) -> Array:
        """states @ W^T, the adapter's part added beside it, as PEFT does when nothing is merged."""
        out: Array = states @ self.weights[name].T
        if self.adapter and name in self.adapter.a:
            out = out + np.float32(self.adapter.scaling) * ((states @ self.adapter.a[name].T) @ self.adapter.b[name].T)
        return out

    def states(self, ids: Sequence[int]) -> tuple[Array, list[tuple[str, Array, Array]], Array]:
        """(states [T, d], a tape for backward, rms of the summed embeddings [T, 1])."""
        summed = fading(len(ids)) @ (self.embedding[list(ids)] * signs(len(ids), self.embedding.shape[1]))
        rms = np.sqrt((summed**2).mean(-1, keepdims=True) + _TINY)
        state, tape = summed / rms, []
        width = state.shape[-1]
        for name in self.body:
            weight = self.weights[name]
            if weight.ndim == 1:
                tape.append((name, state, state))
                state = state * (1 + np.float32(0.1) * fit(weight, width))
            else:
                bounded = np.tanh(self._product(name, fit(state, weight.shape[-1])))
                tape.append((name, state, bounded))
                state = state + np.float32(_SHARE) * fit(bounded, width)
        return state, tape, rms

    def logits(self, ids: Sequence[int]) -> Array:
        """[T, vocabulary]: what follows each position."""
        logits: Array = self.states(ids)[0] @ self.weights[self.output_name].T
        return logits

    def backward(self, ids: Sequence[int], d_state: Array, state_tape: tuple[Array, list[tuple[str, Array, Array]], Array]) -> Gradients:
        """Gradients of every effective weight for the gradient `d_state` [T, d] of the last states."""
        gradients = Gradients()
        _, tape, rms = state_tape
        width = d_state.shape[-1]
        for name, before, bounded in reversed(tape):
            weight = self.weights[name]
            if weight.ndim == 1:
                gradients.add(name, unfit((np.float32(0.1) * before * d_state).sum(0), weight.shape[0]))
                d_state = d_state * (1 + np.float32(0.1) * fit(weight, width))
                continue
            d_out: Array = unfit(np.float32(_SHARE) * d_state, weight.shape[0]) * (1 - bounded**2)
            gradients.add(name, d_out.T @ fit(before, weight.shape[-1]))
            effective: Array = weight
            if self.adapter and name in self.adapter.a:
                effective = weight + np.float32(self.adapter.scaling) * (self.adapter.b[name] @ self.adapter.a[name])
            d_state = d_state + unfit(d_out @ effective, width)
        fade, sign = fading(len(ids)), signs(len(ids), width)
        normal = (fade @ (self.embedding[list(ids)] * sign)) / rms
        d_summed = (d_state - normal * (d_state * normal).mean(-1, keepdims=True)) / rms
        d_embedding = np.zeros_like(self.embedding)
        np.add.at(d_embedding, list(ids), (fade.T @ d_summed) * sign)
        gradients.add(self.embedding_name, d_embedding)
        return gradients


def answer_loss(network: Network, ids: Sequence[int], start: int, pull: float | None = None) -> tuple[float, int, float, Gradients]:
    """(mean loss, tokens, summed log-probability, gradients) over the tokens from `start` on.

    `pull` None: gradients of the mean negative log-probability; else of -pull * summed log-probability.
    """
    taped = network.states(ids)
    state = taped[0][start - 1 : -1]
    output = network.weights[network.output_name]
    logits = state @ output.T
    logits = logits - logits.max(-1, keepdims=True)
    probabilities = np.exp(logits)
    probabilities /= probabilities.sum(-1, keepdims=True)
    targets, count = np.asarray(ids[start:]), len(ids) - start
    log_p = float(np.log(probabilities[np.arange(count), targets] + 1e-30).sum())
    d_logits = probabilities
    d_logits[np.arange(count), targets] -= 1
    d_logits *= np.float32(1 / count if pull is None else pull)
    d_state = np.zeros_like(taped[0])
    d_state[start - 1 : -1] = d_logits @ output
    gradients = network.backward(ids, d_state, taped)
    gradients.add(network.output_name, d_logits.T @ state)
    return -log_p / count, count, log_p, gradients


def score_of(network: Network, ids: Sequence[int], pull: float) -> tuple[float, Gradients]:
    """(the reward head's score of the last position, gradients of pull * score)."""
    assert network.score is not None
    taped = network.states(ids)
    last = taped[0][-1]
    d_state = np.zeros_like(taped[0])
    d_state[-1] = np.float32(pull) * network.score[0]
    gradients = network.backward(ids, d_state, taped)
    gradients.head = np.float32(pull) * last[None, :]
    return float(last @ network.score[0]), gradients
