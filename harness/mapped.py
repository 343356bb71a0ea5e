"""Files as bytes that are read from the disk as they are used: a model may be larger than memory."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from harness.tensors import Bytes


def map_file(path: Path) -> Bytes:
    """The file's bytes. Raises OSError."""
    if path.stat().st_size == 0:
        return np.zeros(0, dtype=np.uint8)
    return np.memmap(path, dtype=np.uint8, mode="r")


class View(io.RawIOBase):
    """Mapped bytes as a file to read. What is asked for beyond their end is never allocated."""

    def __init__(self, data: Bytes) -> None:
        self._data, self._at = data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence])
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        end = len(self._data) if size is None or size < 0 else self._at + size
        found = self._data[self._at : end].tobytes()
        self._at += len(found)
        return found
