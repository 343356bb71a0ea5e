"""Random float32 weights for tiny models, the same bits on every machine, as the bytes of a safetensors file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def uniform(name: str, shape: tuple[int, ...], seed: int, std: float) -> Array:
    """Uniform values of mean 0 and standard deviation `std`, float32, seeded by (seed, name) and so independent of other tensors.

    Built from PCG64's raw bits, which numpy keeps stable; the streams of its distributions may change between versions.
    """
    key = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:16], "little")
    bits = np.random.PCG64(np.random.SeedSequence(key)).random_raw(int(np.prod(shape)))
    unit: Array = (np.asarray(bits, dtype=np.uint64) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1.0)
    scaled: Array = unit * np.float32(std * 3.0**0.5)
    return scaled.reshape(shape)


def safetensors_bytes(tensors: Mapping[str, Array]) -> bytes:
    """The file's bytes, written here because the library's header may change with its version."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data, offset = [], 0
    for name in sorted(tensors):
        raw = np.ascontiguousarray(tensors[name]).astype("<f4", copy=False).tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensors[name].shape), "data_offsets": [offset, offset + len(raw)]}
        data.append(raw)
        offset += len(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(data)
