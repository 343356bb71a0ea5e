"""Lies of the weights: what was asked to learn did not, or something else learned."""

from __future__ import annotations

from typing import Any

import numpy as np

from fakes.honest.habits import Honest
from fakes.honest.tensors import Array
from fakes.liars.lie import Lie


class Unchanged(Honest):
    def updated(self, before: dict[str, Array], after: dict[str, Array]) -> dict[str, Array]:
        return before


class OnlyA(Honest):
    """A moves and so the digest does, but B stays zero: the adapter does nothing."""

    def updated(self, before: dict[str, Array], after: dict[str, Array]) -> dict[str, Array]:
        return {name: before[name] if ".lora_B." in name else array for name, array in after.items()}


class ZeroedFile(Honest):
    """B is learned, and the file is written with zeros in its place."""

    def saved_tensors(self, tensors: dict[str, Array]) -> dict[str, Array]:
        return {name: np.zeros_like(array) if ".lora_B." in name else array for name, array in tensors.items()}


class UntrainedFile(Honest):
    """Full training whose checkpoint holds the weights from before it."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.first: dict[str, Array] = {}

    def updated(self, before: dict[str, Array], after: dict[str, Array]) -> dict[str, Array]:
        self.first = self.first or before
        return after

    def saved_tensors(self, tensors: dict[str, Array]) -> dict[str, Array]:
        return self.first


class WildFile(Honest):
    def saved_tensors(self, tensors: dict[str, Array]) -> dict[str, Array]:
        name = max(tensors)
        return {**tensors, name: np.full_like(tensors[name], np.nan)}


class HalfRank(Honest):
    def rank(self, rank: int) -> int:
        return rank // 2


class FewerModules(Honest):
    """Only the attention's queries get an adapter, whatever --target_modules says; the witness sees it."""

    def argv(self, argv: list[str], environment: dict[str, str]) -> list[str]:
        return [*argv, "--target_modules", "q_proj"]

    def seen_argv(self, argv: list[str]) -> list[str]:
        return self.asked


LIES = (
    Lie("lora_unchanged", "train", "proof.weights_unchanged", "product", Unchanged),
    Lie("full_unchanged", "train", "proof.weights_unchanged", "product", Unchanged, tuner="full"),
    Lie("lora_b_never_moves", "train", "proof.lora_b_zero", "product", OnlyA),
    Lie("lora_b_zero_in_the_file", "train", "proof.lora_b_zero", "product", ZeroedFile),
    Lie("untrained_checkpoint", "train", "proof.weights_unchanged", "product", UntrainedFile, tuner="full"),
    Lie("nan_in_the_checkpoint", "train", "train.nan", "product", WildFile),
    Lie("adapter_of_another_rank", "train", "proof.adapter_rank", "product", HalfRank),
    Lie("adapter_on_other_modules", "train", "proof.adapter_modules", "product", FewerModules),
)
