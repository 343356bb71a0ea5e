"""Lies of merging: in the files, and in what the merged model says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fakes.honest.habits import Honest
from fakes.honest.tensors import Array
from fakes.liars.lie import Lie

Tensors = dict[str, Array]


class BaseAsMerged(Honest):
    def merged(self, merged: Tensors, base: Tensors, product: Tensors) -> Tensors:
        return base


class AnotherScale(Honest):
    def merged(self, merged: Tensors, base: Tensors, product: Tensors) -> Tensors:
        return {**merged, **{name: base[name] + np.float32(0.5) * added for name, added in product.items()}}


class OneModuleOnly(Honest):
    """Every module is merged but one."""

    def merged(self, merged: Tensors, base: Tensors, product: Tensors) -> Tensors:
        left_out = max(product)
        return {**merged, left_out: base[left_out]}


class TensorMissing(Honest):
    def merged(self, merged: Tensors, base: Tensors, product: Tensors) -> Tensors:
        return {name: array for name, array in merged.items() if name != "model.norm.weight"}


class NormChanged(Honest):
    def merged(self, merged: Tensors, base: Tensors, product: Tensors) -> Tensors:
        return {**merged, "model.norm.weight": merged["model.norm.weight"] * np.float32(1.01)}


class TooSmallToSee(Honest):
    """Training moves the weights by less than float32 can add to them."""

    def updated(self, before: Tensors, after: Tensors) -> Tensors:
        return {name: array * np.float32(1e-16) if ".lora_B." in name and not before[name].any() else self._kept(before[name], array, name)
                for name, array in after.items()}  # fmt: skip

    def _kept(self, before: Array, after: Array, name: str) -> Array:
        return before * np.float32(1.01) if ".lora_B." in name else after


class SaysSomethingElse(Honest):
    """The merged files are right; the model that is loaded from them has a slightly different weight."""

    def weights(self, weights: Tensors, adapters: list[str]) -> Tensors:
        name = max(name for name in weights if ".layers." in name and weights[name].ndim == 2)
        return {**weights, name: weights[name] * np.float32(1.01)}


class OtherConfig(Honest):
    """The weights are right; the config beside them turns positions faster."""

    def finish(self, method: str, code: int) -> int:
        path = _output(self.asked) / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "rope_theta": 500.0}))
        return code


class HalfTokenizer(Honest):
    def finish(self, method: str, code: int) -> int:
        (_output(self.asked) / "tokenizer_config.json").unlink()
        return code


def _output(argv: list[str]) -> Path:
    return Path(argv[argv.index("--output_dir") + 1])


LIES = (
    Lie("merged_config_changed", "merge", "merge.config_differs", "product", OtherConfig),
    Lie("merged_without_tokenizer_config", "merge", "merge.config_differs", "product", HalfTokenizer),
    Lie("base_copied_as_merged", "merge", "merge.not_merged", "product", BaseAsMerged),
    Lie("merged_with_another_scale", "merge", "merge.wrong_values", "product", AnotherScale),
    Lie("one_module_not_merged", "merge", "merge.wrong_values", "product", OneModuleOnly),
    Lie("merged_tensor_missing", "merge", "merge.tensors_missing", "product", TensorMissing),
    Lie("merged_norm_changed", "merge", "merge.base_changed", "product", NormChanged),
    Lie("adapter_too_small_to_see", "merge", "merge.blind", "harness", TooSmallToSee, steps=()),
    Lie("merged_model_says_something_else", "merge", "merge.logits_differ", "product", SaysSomethingElse, steps=("infer-merged",)),
)
