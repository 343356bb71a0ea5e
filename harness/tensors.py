"""Tensors from safetensors bytes as plain numpy, bfloat16 included, and the digest that the witness takes of the same parameters.

Decoded by hand: numpy has no bfloat16, and a file that lies about its own layout has to be refused with a sentence of ours.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.errors import HarnessError

Bytes = npt.NDArray[np.uint8]
Doubles = npt.NDArray[np.float64]

ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "U16": 2, "U32": 4, "U64": 8, "BOOL": 1,
    "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip
_NUMPY = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1", "U8": "<u1", "U16": "<u2",
    "U32": "<u4", "U64": "<u8", "BOOL": "?",
}  # fmt: skip
_TORCH = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32", "I16": "int16",
    "I8": "int8", "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}  # fmt: skip
SAFETENSORS_DTYPE = {word: dtype for dtype, word in _TORCH.items()}
_LONGEST_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, eq=False)
class Tensor:
    """`raw`: the little-endian bytes, row by row. `dtype`: as safetensors writes it (F32, BF16)."""

    dtype: str
    shape: tuple[int, ...]
    raw: Bytes

    @property
    def plain_dtype(self) -> str:
        """`float32`, `bfloat16`: torch's word without its prefix."""
        return _TORCH[self.dtype]

    def values(self) -> Doubles:
        """As float64, exact for every dtype up to 32 bits. Raises HarnessError for the 8-bit floats."""
        if self.dtype == "BF16":
            return _widen(self.raw.view("<u2")).astype(np.float64).reshape(self.shape)
        if self.dtype not in _NUMPY:
            raise HarnessError("tensor", f"values of dtype {self.dtype} can't be read here.", "Compare its bytes instead.")
        return self.raw.view(_NUMPY[self.dtype]).astype(np.float64).reshape(self.shape)

    def same_bytes(self, other: Tensor) -> bool:
        return (self.dtype, self.shape) == (other.dtype, other.shape) and bool(np.array_equal(self.raw, other.raw))


@dataclass(frozen=True, eq=False)
class TensorFile:
    """The tensors of one model or adapter, over all its shards. `fault`: why it can't be trusted, "" if it can."""

    path: str
    tensors: Mapping[str, Tensor]
    fault: str = ""

    @property
    def usable(self) -> bool:
        return not self.fault and bool(self.tensors)


def parse_safetensors(data: Bytes, where: str) -> Mapping[str, Tensor]:
    """The tensors of one safetensors file, as views into `data`.

    Raises HarnessError if the header is cut or no JSON, or if the tensors do not cover the bytes after it exactly, end to end.
    """
    header, body = _header(data, where)
    tensors: dict[str, Tensor] = {}
    position = 0
    layout = [(name, *_entry(name, entry, where)) for name, entry in header.items() if name != "__metadata__"]
    for name, dtype, shape, begin, end in sorted(layout, key=lambda item: item[3:]):
        wanted = math.prod(shape) * ITEM_BYTES[dtype]
        if begin != position or end - begin != wanted:
            raise _damaged(where, f"tensor {name} lies at bytes {begin} to {end}, not at {position} to {position + wanted}")
        position = end
        tensors[name] = Tensor(dtype, shape, body[begin:end])
    if position != len(body):
        raise _damaged(where, f"the header describes {position} bytes of tensors and {len(body)} follow")
    return tensors


def _header(data: Bytes, where: str) -> tuple[Mapping[str, Any], Bytes]:
    if len(data) < 8:
        raise _damaged(where, f"{len(data)} bytes, too short for a header")
    length = int.from_bytes(bytes(data[:8]), "little")
    if not 2 <= length <= min(_LONGEST_HEADER_BYTES, len(data) - 8):
        raise _damaged(where, f"a header of {length} bytes in a file of {len(data)}")
    try:
        header = json.loads(bytes(data[8 : 8 + length]))
    except (ValueError, RecursionError) as error:
        raise _damaged(where, f"the header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise _damaged(where, "the header is not a JSON object")
    return header, data[8 + length :]


def _entry(name: str, entry: object, where: str) -> tuple[str, tuple[int, ...], int, int]:
    if isinstance(entry, dict):
        dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
        if dtype in ITEM_BYTES and _sizes(shape) and _sizes(offsets) and len(offsets) == 2:  # type: ignore[arg-type]
            return str(dtype), tuple(shape), offsets[0], offsets[1]  # type: ignore[arg-type,index]
    raise _damaged(where, f"the entry of tensor {name} makes no sense: {str(entry)[:120]}")


def _sizes(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**48 for n in value)


def _damaged(where: str, what: str) -> HarnessError:
    return HarnessError(where, f"{what}.", "The file is cut short or damaged: make it anew.")


def _widen(halves: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """bfloat16 is the upper half of a float32."""
    widened: npt.NDArray[np.float32] = (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return widened


def round_to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """float32 to bfloat16 bits, to nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    with np.errstate(over="ignore"):  # only a NaN's bits can overflow, and NaN is set apart
        carried = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded: npt.NDArray[np.uint16] = (carried >> np.uint32(16)).astype(np.uint16)
    rounded[np.isnan(values)] = 0x7FC0
    return rounded


def cast(tensor: Tensor, dtype: str) -> Tensor:
    """`tensor` in another float dtype, rounded as torch rounds. Raises HarnessError where this has no meaning."""
    if tensor.dtype == dtype:
        return tensor
    values = tensor.values()
    if dtype == "BF16":
        raw: npt.NDArray[Any] = round_to_bfloat16(values.astype(np.float32))
    elif dtype in ("F16", "F32", "F64"):
        with np.errstate(over="ignore"):
            raw = values.astype(_NUMPY[dtype])
    else:
        raise HarnessError("tensor", f"a cast from {tensor.dtype} to {dtype} has no meaning here.")
    return Tensor(dtype, tensor.shape, np.ascontiguousarray(raw).reshape(-1).view(np.uint8))


def canonical(name: str) -> str:
    """A tensor's name in an adapter or model file as the witness names the parameter."""
    return name.removeprefix("base_model.model.")


def digest(tensors: Mapping[str, Tensor]) -> str:
    """The witness's `trainable_digest` (harness/witness/digest.py), of the tensors of an adapter or model file."""
    total = hashlib.sha256()
    for name, tensor in sorted(((canonical(name), tensor) for name, tensor in tensors.items()), key=lambda pair: pair[0]):
        total.update(f"{name}\n{tensor.plain_dtype}\n{','.join(map(str, tensor.shape))}\n".encode())
        total.update(np.ascontiguousarray(tensor.raw).data)
    return total.hexdigest()
