"""Sharded checkpoints written by hand, honest and forged, as torch.distributed.checkpoint would; no torch is needed."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.plain_pickle import Made, Named, Stored
from harness.tensors import ITEM_BYTES, Tensor

REAL = Path(__file__).parent / "fixtures" / "fsdp2_lora" / "checkpoint-6"
DCP = "torch.distributed.checkpoint"
STORAGES = {"F32": "FloatStorage", "BF16": "BFloat16Storage", "F16": "HalfStorage", "F64": "DoubleStorage", "I64": "LongStorage"}
WORDS = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64", "I64": "int64"}

Sizes = tuple[int, ...]


def pickled(value: Any) -> bytes:
    """Protocol 4, of plain data and of what `read_pickle` gives for calls, names and persistent ids."""
    return b"\x80\x04" + _ops(value) + b"."


def _ops(value: Any) -> bytes:
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, int):
        size = value.bit_length() // 8 + 1
        return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if isinstance(value, str):
        text = value.encode()
        return b"X" + struct.pack("<I", len(text)) + text
    if isinstance(value, (tuple, list)):
        body = b"(" + b"".join(map(_ops, value))
        return body + b"t" if isinstance(value, tuple) else b"]" + body + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(_ops(key) + _ops(item) for key, item in value.items()) + b"u"
    if isinstance(value, Named):
        module, _, name = value.name.rpartition(".")
        return f"c{module}\n{name}\n".encode()
    if isinstance(value, Stored):
        return _ops(value.pid) + b"Q"
    assert isinstance(value, Made)
    called = _ops(Named(value.name)) + _ops(value.args) + b"R"
    return called if value.state is None else called + _ops(value.state) + b"b"


def size(*entries: Any) -> Made:
    return Made("torch.Size", (entries,))


def meta(kind: str, state: Any) -> Made:
    return Made(f"{DCP}.metadata.{kind}", (), state)


def torch_saved(raw: bytes, shape: Sizes, strides: Sizes, dtype: str, **changed: Any) -> bytes:
    """A file of torch.save with one tensor. `changed`: members (name to bytes), or `compression`, `offset`, `numel`."""
    storage = Stored(("storage", Named(f"torch.{STORAGES[dtype]}"), "0", "cpu", changed.get("numel", len(raw) // ITEM_BYTES[dtype])))
    args = (storage, changed.get("offset", 0), shape, strides, False, Made("collections.OrderedDict", ()))
    members = {"data.pkl": pickled(Made("torch._utils._rebuild_tensor_v2", args)), "byteorder": b"little", "data/0": raw, "version": b"3\n"}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", changed.get("compression", zipfile.ZIP_STORED)) as archive:
        for name, content in (members | changed.get("members", {})).items():
            archive.writestr(f"archive/{name}", content)
    return file.getvalue()


def row_order(shape: Sizes) -> Sizes:
    return tuple(int(np.prod(shape[n + 1 :], dtype=np.int64)) for n in range(len(shape)))


@dataclass
class Forge:
    """A checkpoint in the making; a test bends what it likes before `write`."""

    files: dict[str, bytes] = field(default_factory=dict)
    listed: dict[str, Made] = field(default_factory=dict)
    stored: dict[Made, Made] = field(default_factory=dict)
    paths: dict[str, Any] = field(default_factory=dict)

    def tensor(self, name: str, tensor: Tensor, boxes: Sequence[tuple[Sizes, Sizes]] | None = None) -> Forge:
        """`tensor` cut into `boxes` (offsets, sizes), box n in the file of rank n; as a whole if there are none."""
        boxes = [((0,) * len(tensor.shape), tensor.shape)] if boxes is None else boxes
        whole = tensor.raw.reshape(*tensor.shape, ITEM_BYTES[tensor.dtype])
        chunks = []
        for rank, (offsets, sizes) in enumerate(boxes):
            chunks.append(meta("ChunkStorageMetadata", {"offsets": size(*offsets), "sizes": size(*sizes)}))
            cut = whole[tuple(slice(at, at + n) for at, n in zip(offsets, sizes, strict=True))]
            self.place(name, offsets, f"__{rank}_0.distcp", torch_saved(cut.tobytes(), sizes, row_order(sizes), tensor.dtype))
        properties = meta("TensorProperties", (Named(f"torch.{WORDS[tensor.dtype]}"), None, False, None, False))
        self.listed[name] = meta("TensorStorageMetadata", {"properties": properties, "size": size(*tensor.shape), "chunks": chunks})
        return self

    def place(self, name: str, offsets: Sizes, file: str, content: bytes) -> None:
        before = self.files.get(file, b"")
        self.files[file] = before + content
        index = meta("MetadataIndex", {"fqn": name, "offset": size(*offsets), "index": 0})
        where = {"relative_path": file, "offset": len(before), "length": len(content)}
        self.stored[index] = Made(f"{DCP}.filesystem._StorageInfo", (), where)

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        state = {"state_dict_metadata": self.listed, "planner_data": self.paths, "storage_data": self.stored, "version": "1.0.0"}
        (folder / ".metadata").write_bytes(pickled(meta("Metadata", state)))
        return folder


def floats(*shape: int, dtype: str = "F32", seed: int = 0) -> Tensor:
    count = int(np.prod(shape, dtype=np.int64)) * ITEM_BYTES[dtype]
    return Tensor(dtype, shape, np.random.default_rng(seed).integers(0, 100, count, dtype=np.uint8))


def optimizer(numel: int) -> Forge:
    """AdamW's state of two parameters with `numel` entries in all, and what is no tensor in it."""
    forge = Forge()
    for name, count in (("a", 1), ("b", numel - 1)):
        for moment in ("exp_avg", "exp_avg_sq"):
            forge.tensor(f"optimizer.state.{name}.{moment}", floats(count))
        forge.tensor(f"optimizer.state.{name}.step", floats())
    forge.listed["optimizer.param_groups.0.lr"] = meta("BytesStorageMetadata", {})
    index = meta("MetadataIndex", {"fqn": "optimizer.param_groups.0.lr"})
    forge.stored[index] = Made(f"{DCP}.filesystem._StorageInfo", (), {"relative_path": "__0_0.distcp", "offset": 0, "length": 4})
    return forge


def contents(tensors: Mapping[str, Tensor]) -> dict[str, tuple[str, Sizes, bytes]]:
    return {name: (tensor.dtype, tensor.shape, tensor.raw.tobytes()) for name, tensor in tensors.items()}
