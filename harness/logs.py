"""Logs as files: all of one is read, in bounded memory, and an excerpt is kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from harness.decisive import Decisive
from harness.log_lines import EXCEPTION_IGNORED

HEAD_BYTES = 16 * 1024
TAIL_BYTES = 64 * 1024
_BLOCK_BYTES = 256 * 1024


@dataclass(frozen=True)
class Log:
    """`text`: the head and the tail of a log, and from between them the lines that decide. `error`: its first line of a level ERROR."""

    text: str
    error: str


def read_log(path: Path) -> Log:
    """Read all of a log. Undecodable bytes become U+FFFD."""
    found = Decisive()
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size <= HEAD_BYTES + TAIL_BYTES:
            file.seek(0)
            data = file.read(size)
            found.read(data)
            return Log(data.decode("utf-8", "replace"), found.error)
        head, tail = _head(file), _tail(file, size)
        between = len(head), size - len(tail)
        found.read(head)
        file.seek(between[0])
        for block in blocks(file, between[1] - between[0]):
            found.read(block, keep=True)
        # Python prints it above a traceback that means nothing: without it, the tail would seem to begin with a failure.
        lead = found.before + "\n" if EXCEPTION_IGNORED in found.before else ""
        found.read(tail)
    said = "of which these lines stand out:" if found.kept else "in which no line stands out."
    marks = [f"[... {between[1] - between[0]} bytes are left out here, {said}", *found.kept, f"... and the last {len(tail)} bytes:]"]
    return Log(head.decode("utf-8", "replace") + "\n".join(marks) + "\n" + lead + tail.decode("utf-8", "replace"), found.error)


def read_tail(path: Path, limit_bytes: int = TAIL_BYTES) -> str:
    """The last `limit_bytes` of a log as text, from a line's start when it was cut; undecodable bytes become U+FFFD."""
    with path.open("rb") as file:
        return _tail(file, file.seek(0, os.SEEK_END), limit_bytes).decode("utf-8", "replace")


def _head(file: IO[bytes]) -> bytes:
    """Ends with a line, where there is one to end."""
    file.seek(0)
    data = file.read(HEAD_BYTES)
    return data[: data.rfind(b"\n") + 1] or data


def _tail(file: IO[bytes], size: int, limit_bytes: int = TAIL_BYTES) -> bytes:
    file.seek(max(0, size - limit_bytes))
    data = file.read(limit_bytes)
    return (data.partition(b"\n")[2] or data) if size > limit_bytes else data


def blocks(file: IO[bytes], limit_bytes: int | None = None) -> Iterator[bytes]:
    """What is left of `file`, or `limit_bytes` of it, in blocks of whole lines; a line longer than a block comes in several."""
    rest = b""
    while limit_bytes is None or limit_bytes > 0:
        data = file.read(_BLOCK_BYTES if limit_bytes is None else min(_BLOCK_BYTES, limit_bytes))
        if not data:
            break
        limit_bytes = None if limit_bytes is None else limit_bytes - len(data)
        data = rest + data
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1 or (len(data) if len(data) > _BLOCK_BYTES else 0)
        rest = data[cut:]
        if cut:
            yield data[:cut]
    if rest:
        yield rest
