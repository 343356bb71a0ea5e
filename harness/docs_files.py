"""A page's file as it lies on the disk."""

from __future__ import annotations

from pathlib import Path

from harness.errors import HarnessError

# The largest page known has 60 kB.
LARGEST_BYTES = 16 * 2**20
_NEXT = "Name a page of Markdown, a text or a shell script."


def page_bytes(path: Path) -> bytes:
    """All bytes of the file, byte order mark and line ends included. Raises HarnessError for what is no readable file of a page's size."""
    try:
        if not path.is_file():
            what = "is a folder." if path.is_dir() else "is no file." if path.exists() else "does not exist."
            raise HarnessError(str(path), what, _NEXT)
        if path.stat().st_size > LARGEST_BYTES:
            raise HarnessError(str(path), f"has more than {LARGEST_BYTES} bytes.", _NEXT)
        return path.read_bytes()
    except OSError as error:
        raise HarnessError(str(path), f"can't be read: {error.strerror}.", _NEXT) from error
