"""Tensors on disk: safetensors, and the zip archives that torch.save writes. Pure numpy, so that a fake starts fast."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import io
import json
import pickle
import struct
import sys
import types
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

_ITEM = {"F32": "<f4", "BF16": "<u2", "F16": "<f2"}


def to_bytes(array: Array, dtype: str) -> bytes:
    """Little-endian bytes of `array` in the safetensors dtype `dtype` (F32, BF16 rounded to nearest even, F16)."""
    if dtype != "BF16":
        return np.ascontiguousarray(array, dtype=_ITEM[dtype]).tobytes()
    bits = np.ascontiguousarray(array, dtype="<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def from_bytes(raw: bytes, dtype: str, shape: tuple[int, ...]) -> Array:
    flat = np.frombuffer(raw, dtype=_ITEM[dtype])
    if dtype == "BF16":
        flat = (flat.astype("<u4") << 16).view("<f4")
    array: Array = flat.astype(np.float32).reshape(shape).copy()
    return array


def rounded(array: Array, dtype: str) -> Array:
    """`array` as it would read after a round trip through `dtype`."""
    return array if dtype == "F32" else from_bytes(to_bytes(array, dtype), dtype, array.shape)


def read_safetensors(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """(arrays as float32, dtypes), both by name. Raises ValueError for a file that is cut short."""
    blob = path.read_bytes()
    (size,) = struct.unpack("<Q", blob[:8])
    header = json.loads(blob[8 : 8 + size])
    header.pop("__metadata__", None)
    arrays, dtypes = {}, {}
    for name, entry in header.items():
        start, end = (8 + size + offset for offset in entry["data_offsets"])
        if end > len(blob):
            raise ValueError(f"{path}: incomplete metadata, file not fully covered")
        arrays[name] = from_bytes(blob[start:end], entry["dtype"], tuple(entry["shape"]))
        dtypes[name] = entry["dtype"]
    return arrays, dtypes


def write_safetensors(path: Path, arrays: Mapping[str, Array], dtypes: Mapping[str, str]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    chunks, offset = [], 0
    for name in sorted(arrays):
        raw = to_bytes(arrays[name], dtypes[name])
        header[name] = {"dtype": dtypes[name], "shape": list(arrays[name].shape), "data_offsets": [offset, offset + len(raw)]}
        chunks.append(raw)
        offset += len(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(chunks))


def read_model(folder: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """All weights of a model folder, sharded or not."""
    arrays: dict[str, Array] = {}
    dtypes: dict[str, str] = {}
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise FileNotFoundError(f"Error no file named model.safetensors found in directory {folder}.")
    for path in files:
        more, kinds = read_safetensors(path)
        arrays.update(more)
        dtypes.update(kinds)
    return arrays, dtypes


TORCH_NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def trainable_digest(arrays: Mapping[str, Array], dtypes: Mapping[str, str]) -> str:
    """The digest of harness/witness/README.md; `arrays` by the names of a checkpoint's file."""
    digest = hashlib.sha256()
    plain = {name.removeprefix("base_model.model."): name for name in arrays}
    for short in sorted(plain):
        name = plain[short]
        digest.update(f"{short}\n{TORCH_NAMES[dtypes[name]]}\n{','.join(map(str, arrays[name].shape))}\n".encode())
        digest.update(to_bytes(arrays[name], dtypes[name]))
    return digest.hexdigest()


class _Storage:
    """Stands for a torch storage inside a pickle: only its persistent id is ever written."""

    def __init__(self, key: str, numel: int) -> None:
        self.key, self.numel = key, numel


class _Tensor:
    def __init__(self, storage: _Storage, shape: tuple[int, ...]) -> None:
        self.storage, self.shape = storage, shape

    def __reduce__(self) -> tuple[Any, ...]:
        strides = tuple(int(np.prod(self.shape[i + 1 :], dtype=np.int64)) for i in range(len(self.shape)))
        rebuild = sys.modules["torch._utils"]._rebuild_tensor_v2
        return rebuild, (self.storage, 0, self.shape, strides, False, collections.OrderedDict())


def _rebuild_tensor_v2(storage: Any, offset: int, shape: tuple[int, ...], *rest: Any) -> Any:
    return storage[offset : offset + int(np.prod(shape, dtype=np.int64))].reshape(shape).copy()


@contextlib.contextmanager
def _pretend_torch() -> Iterator[None]:
    """pickle writes a global by import, so the two names that torch.load looks up must exist meanwhile, and no longer."""
    if "torch" in sys.modules:
        yield
        return
    torch, inner = types.ModuleType("torch"), types.ModuleType("torch._utils")
    storage = type("FloatStorage", (), {"__module__": "torch"})

    def rebuild(*parts: Any) -> Any:
        return _rebuild_tensor_v2(*parts)

    rebuild.__module__, rebuild.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    torch.FloatStorage, inner._rebuild_tensor_v2 = storage, rebuild  # type: ignore[attr-defined]
    torch._utils = inner  # type: ignore[attr-defined]
    sys.modules.update({"torch": torch, "torch._utils": inner})
    try:
        yield
    finally:
        del sys.modules["torch"], sys.modules["torch._utils"]


class _Pickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, protocol=2)
        self.storages: dict[str, bytes] = {}

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return NotImplemented
        key = str(len(self.storages))
        self.storages[key] = to_bytes(value, "F32")
        return _Tensor(_Storage(key, value.size), value.shape).__reduce__()

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, _Storage):
            return ("storage", sys.modules["torch"].FloatStorage, value.key, "cpu", value.numel)
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(stream)
        self.archive, self.root = archive, root

    def find_class(self, module: str, name: str) -> Any:
        known = {("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor_v2, ("torch", "FloatStorage"): np.ndarray}
        return known.get((module, name)) or super().find_class(module, name)

    def persistent_load(self, pid: Any) -> Any:
        return np.frombuffer(self.archive.read(f"{self.root}/data/{pid[2]}"), dtype="<f4").astype(np.float32)


def torch_save(path: Path, value: Any) -> None:
    """Write `value` (plain values and float32 arrays) so that torch.load reads the arrays back as tensors."""
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    with _pretend_torch():
        pickler.dump(value)
    root = path.stem
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(f"{root}/data.pkl", stream.getvalue())
        archive.writestr(f"{root}/byteorder", "little")
        for key, raw in pickler.storages.items():
            archive.writestr(f"{root}/data/{key}", raw)
        archive.writestr(f"{root}/version", "3\n")


def torch_load(path: Path) -> Any:
    """What torch_save wrote, with numpy arrays for tensors."""
    with zipfile.ZipFile(path) as archive:
        root = archive.namelist()[0].split("/")[0]
        return _Unpickler(io.BytesIO(archive.read(f"{root}/data.pkl")), archive, root).load()
