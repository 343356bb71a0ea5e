"""Sharded checkpoints of torch.distributed.checkpoint, read without torch: `.metadata` says which file holds which part of which tensor.

As torch 2.14 writes them (FSDP2 with SHARDED_STATE_DICT): `.metadata` is a pickle of torch.distributed.checkpoint.metadata.Metadata, and
each part lies in a `.distcp` file, at an offset, as a file of torch.save of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import HarnessError
from harness.mapped import map_file
from harness.plain_pickle import Made, Named, read_pickle
from harness.tensors import ITEM_BYTES, SAFETENSORS_DTYPE, Bytes, Tensor, TensorFile
from harness.torch_saved import saved_tensor

_DCP = "torch.distributed.checkpoint"
_SIZE = "torch.Size"
_ALLOWED = frozenset(
    {
        *(f"{_DCP}.metadata.{name}" for name in ("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties")),
        *(f"{_DCP}.metadata.{name}" for name in ("ChunkStorageMetadata", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING")),
        f"{_DCP}.filesystem._StorageInfo",
        *(f"torch.{word}" for word in SAFETENSORS_DTYPE),
        _SIZE, "torch.serialization._get_layout", "pathlib.PosixPath", "pathlib._local.PosixPath",
    }
)  # fmt: skip
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")
# torch 2.14 writes 260 bytes for a part, so this is a quarter of a million parts: a thousand tensors over 256 ranks.
_LONGEST_METADATA_BYTES = 1 << 26
_MOST_DIMENSIONS, _LARGEST = 16, 2**48
_MOST_PARTS = 4096
_DAMAGED = "The checkpoint is incomplete, damaged, or of another version of torch: make it anew."
_MOMENT = re.compile(r".*\.exp_avg(_sq)?")

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class _Place:
    file: str
    offset: int
    length: int


@dataclass(frozen=True)
class _Part:
    """A box of a tensor: `offsets` and `sizes` in entries, and where its bytes are."""

    offsets: Sizes
    sizes: Sizes
    place: _Place


@dataclass(frozen=True)
class _Entry:
    """A tensor as the metadata has it, its parts covering it exactly once."""

    dtype: str
    shape: Sizes
    parts: tuple[_Part, ...]


class _Assembled(Tensor):
    """A tensor put together from its parts each time its bytes are asked for, so that a model need not fit into memory."""

    def __init__(self, dtype: str, shape: Sizes, parts: Sequence[tuple[Sizes, Bytes]]) -> None:
        for name, value in (("dtype", dtype), ("shape", shape), ("_parts", parts)):
            object.__setattr__(self, name, value)

    @property
    def raw(self) -> Bytes:
        parts: Sequence[tuple[Sizes, Bytes]] = self.__dict__["_parts"]
        whole = np.empty((*self.shape, ITEM_BYTES[self.dtype]), dtype=np.uint8)
        for offsets, part in parts:
            whole[tuple(slice(at, at + size) for at, size in zip(offsets, part.shape, strict=False))] = part
        return whole.reshape(-1)


def read_distcp(folder: Path) -> TensorFile:
    """Every tensor of the sharded checkpoint in `folder`, by its name in the saved state dict.

    A fault if there is a file that is missing, damaged or not what the metadata says, or an entry that is covered never or twice. The files
    are mapped; all of them are read once for their checksums, and a tensor is assembled when its bytes are asked for. Metadata of more than
    64 MiB and tensors of more than 4096 parts are refused.
    """
    where = f"{folder.name}/.metadata"
    try:
        data = map_file(folder / ".metadata")
        if len(data) > _LONGEST_METADATA_BYTES:
            raise _damaged(where, f"{len(data)} bytes, more than are read here")
        entries = _entries(read_pickle(data.tobytes(), _ALLOWED, where), where)
        _disjoint([part.place for entry in entries.values() for part in entry.parts], where)
        return TensorFile(str(folder), _tensors(folder, entries))
    except (HarnessError, OSError) as error:
        return TensorFile(str(folder), {}, str(error))


def optimizer_moments(optimizer: TensorFile) -> tuple[int, int]:
    """Entries and bytes of AdamW's two moments (exp_avg, exp_avg_sq) in a sharded checkpoint of an optimizer."""
    moments = [tensor for name, tensor in optimizer.tensors.items() if _MOMENT.fullmatch(name)]
    counts = [(math.prod(tensor.shape), ITEM_BYTES[tensor.dtype]) for tensor in moments]
    return sum(entries for entries, _ in counts), sum(entries * size for entries, size in counts)


def _tensors(folder: Path, entries: Mapping[str, _Entry]) -> Mapping[str, Tensor]:
    maps: dict[str, Bytes] = {}
    tensors: dict[str, Tensor] = {}
    for name, entry in entries.items():
        found: list[tuple[Sizes, Bytes]] = []
        for part in entry.parts:
            file, start = part.place.file, part.place.offset
            if file not in maps:
                maps[file] = map_file(folder / file)
            if start + part.place.length > len(maps[file]):
                raise _damaged(f"{folder.name}/{file}", f"{len(maps[file])} bytes, too short for {name}")
            where = f"{folder.name}/{file}, {name}"
            found.append((part.offsets, saved_tensor(maps[file][start : start + part.place.length], entry.dtype, part.sizes, where)))
        tensors[name] = _Assembled(entry.dtype, entry.shape, tuple(found))
    return tensors


def _entries(metadata: Any, where: str) -> Mapping[str, _Entry]:
    """The tensors that the metadata lists. What is no tensor (a learning rate, a list of names) is passed over."""
    listed, stored, paths = (_field(metadata, "Metadata", key) for key in ("state_dict_metadata", "storage_data", "planner_data"))
    if not isinstance(listed, dict) or not isinstance(stored, dict):
        raise _damaged(where, "not the metadata of a sharded checkpoint")
    places = _places(stored, where)
    entries: dict[str, _Entry] = {}
    for name, what in listed.items():
        if _is(what, "BytesStorageMetadata"):
            continue
        short = _short(name, paths.get(name) if isinstance(paths, dict) else None)
        if not isinstance(name, str) or short in entries:
            raise _damaged(where, f"two tensors of the name {str(short)[:80]}")
        entries[short] = _entry(name, what, places, where)
    return entries


def _entry(name: str, what: Any, places: Mapping[tuple[str, Sizes], _Place], where: str) -> _Entry:
    dtype, chunks = _dtype(what), _field(what, "TensorStorageMetadata", "chunks")
    shape = _sizes(_field(what, "TensorStorageMetadata", "size"))
    if dtype is None or shape is None or not isinstance(chunks, list):
        raise _damaged(where, f"the entry of {name[:80]} makes no sense")
    boxes: list[tuple[Sizes, Sizes]] = []
    for chunk in chunks:
        offsets, sizes = (_sizes(_field(chunk, "ChunkStorageMetadata", key)) for key in ("offsets", "sizes"))
        if offsets is None or sizes is None:
            raise _damaged(where, f"a part of {name[:80]} makes no sense")
        if math.prod(sizes):  # a rank that has no row of a short tensor writes an empty part
            boxes.append((offsets, sizes))
    _cover(shape, boxes, f"{where}, {name[:80]}")
    missing = [offsets for offsets, _ in boxes if (name, offsets) not in places]
    if missing:
        raise _damaged(where, f"no file for the part of {name[:80]} at {list(missing[0])}")
    return _Entry(dtype, shape, tuple(_Part(offsets, sizes, places[name, offsets]) for offsets, sizes in boxes))


def _dtype(what: Any) -> str | None:
    """As safetensors writes it: the first of a tensor's saved properties."""
    properties = _field(what, "TensorStorageMetadata", "properties")
    state = properties.state if isinstance(properties, Made) and _is(properties, "TensorProperties") else None
    dtype = state[0] if isinstance(state, tuple) and state else None
    return SAFETENSORS_DTYPE.get(dtype.name.removeprefix("torch.")) if isinstance(dtype, Named) else None


def _cover(shape: Sizes, boxes: Sequence[tuple[Sizes, Sizes]], where: str) -> None:
    """Raises HarnessError unless the boxes (offsets, sizes) fill `shape`, each entry once."""
    if len(boxes) > _MOST_PARTS:
        raise _damaged(where, f"{len(boxes)} parts, more than are read here")
    for offsets, sizes in boxes:
        if not len(offsets) == len(sizes) == len(shape) or any(at + n > end for at, n, end in zip(offsets, sizes, shape, strict=True)):
            raise _damaged(where, f"a part {list(sizes)} at {list(offsets)} of a tensor {list(shape)}")
    covered = sum(math.prod(sizes) for _, sizes in boxes)
    if covered != math.prod(shape):
        raise _damaged(where, f"its parts hold {covered} entries, not {math.prod(shape)}")
    starts = np.array([offsets for offsets, _ in boxes], dtype=np.int64).reshape(len(boxes), len(shape))
    ends = starts + np.array([sizes for _, sizes in boxes], dtype=np.int64).reshape(starts.shape)
    for n in range(len(boxes)):
        if np.any(np.all((starts[n + 1 :] < ends[n]) & (starts[n] < ends[n + 1 :]), axis=1)):
            raise _damaged(where, f"its part at {starts[n].tolist()} overlaps another")


def _disjoint(places: Sequence[_Place], where: str) -> None:
    """Raises HarnessError if two parts share bytes of a file: one of them isn't what it is said to be."""
    end: dict[str, int] = {}
    for place in sorted(places, key=lambda place: place.offset):
        if place.offset < end.get(place.file, 0):
            raise _damaged(where, f"two parts share bytes of {place.file}")
        end[place.file] = place.offset + place.length


def _short(name: Any, path: Any) -> Any:
    """accelerate saves {"model": state dict}; the planner's path says so, where a name alone would not."""
    if isinstance(path, tuple) and len(path) == 2 and isinstance(path[1], str) and path[0] == "model" and name == f"model.{path[1]}":
        return path[1]
    return name


def _places(stored: Mapping[Any, Any], where: str) -> Mapping[tuple[str, Sizes], _Place]:
    """(name, offsets) of each part of a tensor to its place."""
    places: dict[tuple[str, Sizes], _Place] = {}
    for index, info in stored.items():
        name, at = (_field(index, "MetadataIndex", key) for key in ("fqn", "offset"))
        if isinstance(name, str) and at is None:
            continue  # of something that is no tensor
        offsets, place = _sizes(at), _place(info)
        if not isinstance(name, str) or offsets is None or place is None or (name, offsets) in places:
            raise _damaged(where, "a part whose place makes no sense")
        places[name, offsets] = place
    return places


def _place(info: Any) -> _Place | None:
    """Only a plain file beside the metadata, and bytes as they were written: a transform would have to be undone."""
    if not isinstance(info, Made) or info.name != f"{_DCP}.filesystem._StorageInfo" or info.field("transform_descriptors"):
        return None
    file, offset, length = info.field("relative_path"), info.field("offset"), info.field("length")
    if not isinstance(file, str) or not _FILE_NAME.fullmatch(file) or not _counts((offset, length)):
        return None
    return _Place(file, offset, length)


def _is(value: Any, name: str) -> bool:
    return isinstance(value, Made) and value.name == f"{_DCP}.metadata.{name}"


def _field(value: Any, name: str, key: str) -> Any:
    """Field `key` of what the metadata holds as a dataclass `name`; None if it is none, or has no such field."""
    return value.field(key) if isinstance(value, Made) and _is(value, name) else None


def _sizes(value: Any) -> Sizes | None:
    """The entries of a torch.Size; None if it isn't one, or too large to be one of a tensor."""
    if not isinstance(value, Made) or value.name != _SIZE or len(value.args) != 1:
        return None
    found = value.args[0]
    if not isinstance(found, tuple) or len(found) > _MOST_DIMENSIONS or not _counts(found):
        return None
    return found if math.prod(n for n in found if n) < _LARGEST else None


def _counts(values: tuple[Any, ...]) -> bool:
    return all(type(n) is int and 0 <= n < _LARGEST for n in values)


def _damaged(where: str, what: str) -> HarnessError:
    return HarnessError(where, f"{what}.", _DAMAGED)
