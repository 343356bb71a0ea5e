"""Shapes of the documented models' layers (matrix.yaml's families), each from its checkpoint's config.json; only tokens are few here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelShape:
    """Widths of one model. `rotary`: how much of `head` is rotated. `expert`: an expert's intermediate width, 0 for a dense model."""

    model: str
    hidden: int
    heads: int
    kv_heads: int
    head: int
    intermediate: int
    vocabulary: int
    rotary: int = 0
    expert: int = 0

    @property
    def rotated(self) -> int:
        return self.rotary or self.head


MODELS = (
    ModelShape("Qwen2.5-0.5B", 896, 14, 2, 64, 4864, 151936),
    ModelShape("Qwen2.5-7B", 3584, 28, 4, 128, 18944, 152064),
    ModelShape("Qwen2.5-VL-3B", 2048, 16, 2, 128, 11008, 151936),
    ModelShape("Qwen3-0.6B", 1024, 16, 8, 128, 3072, 151936),
    ModelShape("Qwen3-8B", 4096, 32, 8, 128, 12288, 151936),
    ModelShape("Qwen3-32B", 5120, 64, 8, 128, 25600, 151936),
    ModelShape("Qwen3-30B-A3B", 2048, 32, 4, 128, 6144, 151936, expert=768),
    # Widths that transformers' Qwen3_5MoeTextConfig has by default; a quarter of each head is rotated.
    ModelShape("Qwen3.5-35B-A3B", 2048, 16, 2, 256, 512, 248320, rotary=64, expert=512),
)
SPARSE = tuple(shape for shape in MODELS if shape.expert)
