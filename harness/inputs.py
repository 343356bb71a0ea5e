"""What a cell's commands read, held against what was put there: a model or data set that changes under a run proves nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Device, inode, size in bytes, time of the last write in ns: what a file that is written anew has of its own.
Stamp = tuple[int, int, int, int]


@dataclass(frozen=True)
class Pins:
    """Folder to {file name: sha256}, or to None for a folder that is too large to be read again; and each file's stamp."""

    folders: Mapping[Path, Mapping[str, str] | None]
    stamps: Mapping[Path, Mapping[str, Stamp]]


def pin(folders: Mapping[Path, Mapping[str, bytes] | None]) -> Pins:
    """Pin `folders` to the bytes that their files must hold; None: to their files' stamps only, as they are now."""
    hashes = {
        folder: None if files is None else {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        for folder, files in folders.items()
    }
    return Pins(hashes, {folder: _stamps(folder) for folder in folders})


def changes(pins: Pins) -> tuple[str, ...]:
    """Every file that is not as it was pinned, one sentence each; none if all is."""
    found: list[str] = []
    for folder, hashes in pins.folders.items():
        now = _stamps(folder)
        before = pins.stamps[folder]
        found += [f"{folder / name} is new" for name in sorted(now.keys() - before.keys())]
        found += [f"{folder / name} is gone" for name in sorted(before.keys() - now.keys())]
        for name in sorted(now.keys() & before.keys()):
            if hashes is not None and _sha256(folder / name) != hashes.get(name):
                found.append(f"{folder / name} holds other bytes")
            elif now[name] != before[name]:
                found.append(f"{folder / name} was written anew")
    return tuple(found)


def _stamps(folder: Path) -> dict[str, Stamp]:
    """Of the files in the folder, links followed: a hub's cache keeps its files elsewhere. Dangling ones have a stamp of zeros.

    Hidden files are left out: hubs keep their notes in them, and no loader reads them.
    """
    found: dict[str, Stamp] = {}
    visible = [path for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []
    for path in visible:
        try:
            stat = path.stat()
        except FileNotFoundError:
            found[path.name] = (0, 0, 0, 0)
            continue
        if not path.is_dir():
            found[path.name] = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
    return found


def _sha256(path: Path) -> str | None:
    """None for a file that can't be read, which equals no pin."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None
