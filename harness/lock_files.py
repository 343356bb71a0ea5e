"""Lock files of this host, shared by every harness process of one user: who holds one keeps it until it, and all it gave it to, are gone.

A lock is flock on an open file, which the kernel takes back with the last process that has it open: no pid is trusted, nothing goes stale.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.errors import HostError

# Names a folder that several users, containers or TMPDIRs of one host are to share.
FOLDER_VARIABLE = "NPU_MATRIX_LEASES"
_RECORD_BYTES = 1024


def host_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of this user's locks. /tmp where it is, since a TMPDIR of one's own would hide one harness from the other."""
    if environment.get(FOLDER_VARIABLE):
        return Path(environment[FOLDER_VARIABLE]).absolute()
    top = Path("/tmp") if os.access("/tmp", os.W_OK) else Path(tempfile.gettempdir())
    return top / f"npu-matrix-leases-{os.getuid()}"


def made(folder: Path) -> Path:
    """`folder`, created if missing. Raises HostError where it can't be, or is somebody else's to write into."""
    mend = f"Mend it, or name another folder in {FOLDER_VARIABLE}."
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as fault:
        raise HostError(str(folder), f"can't hold the leases of this host ({fault.strerror}).", mend) from fault
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise HostError(str(folder), "is a link, or belongs to another user, so its locks can't be relied on.", mend)
    return folder


def try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock of `path` (created if missing); None where somebody holds it. Raises HostError."""
    descriptor = _opened(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as fault:
        os.close(descriptor)
        raise _unlockable(path, fault) from fault
    return descriptor


@contextlib.contextmanager
def gate(path: Path) -> Iterator[None]:
    """Hold the lock of `path` for a moment, waiting for whoever has it: nobody keeps it longer than it takes to look at some files."""
    descriptor = _opened(path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as fault:
            raise _unlockable(path, fault) from fault
        yield
    finally:
        os.close(descriptor)


def write(descriptor: int, record: Mapping[str, Any]) -> None:
    """Put `record` in place of what the file held. Always of one length, since to cut a file takes milliseconds on some file systems."""
    text = json.dumps(record).encode()
    assert len(text) <= _RECORD_BYTES, "a record is a few numbers and a name"
    os.pwrite(descriptor, text.ljust(_RECORD_BYTES), 0)


def read(path: Path) -> dict[str, Any]:
    """What the holder of a lock wrote into it; empty where that is not there, or was cut short by its death."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as fault:
        raise HostError(str(path), f"can't be opened for a lease ({fault.strerror}).", f"Mend it, or set {FOLDER_VARIABLE}.") from fault


def _unlockable(path: Path, fault: OSError) -> HostError:
    return HostError(str(path), f"its file system knows no locks ({fault.strerror}).", f"Name a local folder in {FOLDER_VARIABLE}.")
