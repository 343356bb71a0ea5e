"""Lies of the checkpoint: gone, cut, hollow, or somebody else's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from fakes.honest.habits import Honest
from fakes.honest.tensors import Array, read_safetensors, torch_load, torch_save, write_safetensors
from fakes.liars.lie import Lie

_WEIGHTS = "adapter_model.safetensors"


class Missing(Honest):
    def saved(self, folder: Path) -> None:
        if folder.name == "checkpoint-6":
            shutil.rmtree(folder)


class NoOptimizer(Honest):
    def saved(self, folder: Path) -> None:
        (folder / "optimizer.pt").unlink()


class HollowOptimizer(Honest):
    def saved(self, folder: Path) -> None:
        whole = torch_load(folder / "optimizer.pt")
        torch_save(folder / "optimizer.pt", {**whole, "state": {}})


class Truncated(Honest):
    def saved(self, folder: Path) -> None:
        path = folder / _WEIGHTS
        path.write_bytes(path.read_bytes()[:-1000])


class Earlier(Honest):
    """checkpoint-6 is checkpoint-3 under another name, nonce and all."""

    def saved(self, folder: Path) -> None:
        if folder.name == "checkpoint-6":
            shutil.rmtree(folder)
            shutil.copytree(folder.with_name("checkpoint-3"), folder)


class Inherited(Honest):
    """Nothing is saved: the folder is left from an earlier run with another nonce."""

    def saved(self, folder: Path) -> None:
        path = folder / "npu_matrix_nonce.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "nonce": "0123456789abcdef"}))


class Unsigned(Honest):
    """A checkpoint without a nonce, as one saved before the harness ever ran."""

    def saved(self, folder: Path) -> None:
        (folder / "npu_matrix_nonce.json").unlink()


class Swapped(Honest):
    """This run's nonce on weights that it never had."""

    def saved(self, folder: Path) -> None:
        arrays, dtypes = read_safetensors(folder / _WEIGHTS)
        write_safetensors(folder / _WEIGHTS, {name: array * np.float32(0.5) for name, array in arrays.items()}, dtypes)


class OldWeights(Honest):
    """checkpoint-6 gets the weights of step 3, saved and signed as if they were the last."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.kept: dict[str, Array] = {}

    def saved_tensors(self, tensors: dict[str, Array]) -> dict[str, Array]:
        self.kept = self.kept or tensors
        return self.kept


LIES = (
    Lie("checkpoint_missing", "train", "proof.checkpoint_missing", "product", Missing),
    Lie("optimizer_missing", "train", "proof.checkpoint_missing", "product", NoOptimizer),
    Lie("optimizer_hollow", "train", "proof.optimizer", "product", HollowOptimizer),
    Lie("checkpoint_truncated", "train", "proof.checkpoint_damaged", "product", Truncated),
    Lie("checkpoint_renamed", "train", "proof.checkpoint_stale", "product", Earlier),
    Lie("checkpoint_of_another_run", "train", "proof.checkpoint_stale", "product", Inherited),
    Lie("checkpoint_unsigned", "train", "proof.checkpoint_stale", "product", Unsigned),
    Lie("checkpoint_swapped", "train", "proof.checkpoint_stale", "product", Swapped),
    Lie("checkpoint_of_an_earlier_step", "train", "proof.checkpoint_stale", "product", OldWeights),
)
