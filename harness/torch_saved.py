"""Files of torch.save without torch: zips of plain members, each checked against its checksum. Nothing that is pickled in them is run.

Layout (torch 2.1 and later): `<root>/data.pkl`, `<root>/byteorder`, and the bytes of each storage in `<root>/data/<number>`.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import HarnessError
from harness.mapped import View, map_file
from harness.plain_pickle import Made, Named, Stored, read_pickle
from harness.tensors import ITEM_BYTES, Bytes

_STORAGES = {
    "F64": "DoubleStorage", "F32": "FloatStorage", "F16": "HalfStorage", "BF16": "BFloat16Storage", "I64": "LongStorage",
    "I32": "IntStorage", "I16": "ShortStorage", "I8": "CharStorage", "U8": "ByteStorage", "BOOL": "BoolStorage",
}  # fmt: skip
_TENSOR = "torch._utils._rebuild_tensor_v2"
_NAMES = frozenset({_TENSOR, "collections.OrderedDict", *(f"torch.{name}" for name in _STORAGES.values())})
# Of one tensor: torch 2.14 writes seven members, and all but the tensor's bytes are below a kilobyte.
_MOST_MEMBERS, _LONGEST_MEMBER_BYTES = 16, 1 << 20
_LOCAL_HEADER_BYTES = 30
_DAMAGED = "The file is cut short or damaged: make it anew."
_TROUBLE = (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError, RuntimeError, struct.error)


def tensor_bytes(path: Path) -> int:
    """Bytes of tensor data in a file of torch.save. Raises HarnessError if it is no whole one. All of it is read, a part at a time."""
    try:
        data = map_file(path)
        with zipfile.ZipFile(View(data)) as archive:
            _plain(archive, len(data), path.name)
            broken = archive.testzip()
            if broken is None:
                return sum(member.file_size for member in archive.infolist() if "/data/" in member.filename)
    except _TROUBLE as error:
        raise HarnessError(path.name, f"not a whole file of torch.save ({error}).", _DAMAGED) from error
    raise HarnessError(path.name, f"{broken} does not match its checksum.", _DAMAGED)


def saved_tensor(data: Bytes, dtype: str, shape: tuple[int, ...], where: str) -> Bytes:
    """The one tensor in `data`, a file of torch.save, as bytes [*shape, bytes of an entry]: a view into `data`, maybe a strided one.

    `dtype` as safetensors writes it; no size of `shape` is 0. Raises HarnessError if the file is no whole one, or holds another tensor.
    """
    try:
        with zipfile.ZipFile(View(data)) as archive:
            _plain(archive, len(data), where)
            members = {member.filename.partition("/")[2]: member for member in archive.infolist()}
            if not {"data.pkl", "byteorder", "data/0"} <= members.keys() or not len(members) == len(archive.infolist()) <= _MOST_MEMBERS:
                raise HarnessError(where, f"not one tensor of torch.save: {sorted(members)[:8]}.", _DAMAGED)
            body = _member(data, members.pop("data/0"), where)
            if any(member.file_size > _LONGEST_MEMBER_BYTES for member in members.values()):
                raise HarnessError(where, "more than one tensor of torch.save.", _DAMAGED)
            small = {name: archive.read(member) for name, member in members.items()}
    except _TROUBLE as error:
        raise HarnessError(where, f"not a whole file of torch.save ({error}).", _DAMAGED) from error
    if small["byteorder"] != b"little":
        raise HarnessError(where, f"bytes in the order {small['byteorder'][:16]!r}, not little.", "Save it on a little-endian machine.")
    strides = _strides(read_pickle(small["data.pkl"], _NAMES, where), dtype, shape, len(body), where)
    return np.lib.stride_tricks.as_strided(
        body, (*shape, ITEM_BYTES[dtype]), (*(stride * ITEM_BYTES[dtype] for stride in strides), 1), writeable=False
    )


def _plain(archive: zipfile.ZipFile, length: int, where: str) -> None:
    """torch.save compresses nothing, so members that are packed or that share bytes are somebody's trap."""
    members = archive.infolist()
    packed = any(member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size for member in members)
    if packed or sum(member.file_size for member in members) > length:
        raise HarnessError(where, "its members are compressed or overlap, which torch.save never does.", _DAMAGED)


def _member(data: Bytes, member: zipfile.ZipInfo, where: str) -> Bytes:
    """The member's bytes in `data`, not copied."""
    head = data[member.header_offset : member.header_offset + _LOCAL_HEADER_BYTES].tobytes()
    if len(head) < _LOCAL_HEADER_BYTES or not head.startswith(b"PK\x03\x04"):
        raise HarnessError(where, "the tensor's bytes are not where the file says.", _DAMAGED)
    name_bytes, extra_bytes = struct.unpack_from("<HH", head, 26)
    start = member.header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes
    body = data[start : start + member.file_size]
    if len(body) != member.file_size or zlib.crc32(body.data) != member.CRC:
        raise HarnessError(where, f"{member.filename} does not match its checksum.", _DAMAGED)
    return body


def _strides(saved: Any, dtype: str, shape: tuple[int, ...], length: int, where: str) -> tuple[int, ...]:
    """The tensor's strides in entries, once everything that its pickle says fits the bytes that are there."""
    size = ITEM_BYTES[dtype]
    args = saved.args if isinstance(saved, Made) and saved.name == _TENSOR else ()
    storage, strides = (args[0], args[3]) if len(args) >= 4 else (None, None)
    pid = storage.pid if isinstance(storage, Stored) and isinstance(storage.pid, tuple) and len(storage.pid) == 5 else [None] * 5
    kind = pid[1].name if isinstance(pid[1], Named) else None
    if (kind, pid[2], pid[4], *args[1:3]) != (f"torch.{_STORAGES.get(dtype)}", "0", length // size, 0, shape):
        raise HarnessError(where, f"its tensor is not the {dtype} {list(shape)} that the checkpoint lists.", _DAMAGED)
    if not isinstance(strides, tuple) or len(strides) != len(shape) or not all(type(n) is int and 0 <= n < 2**48 for n in strides):
        raise HarnessError(where, "the strides of its tensor make no sense.", _DAMAGED)
    last = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    if (last + 1) * size > length:
        raise HarnessError(where, "its tensor reaches beyond its bytes.", _DAMAGED)
    return strides
