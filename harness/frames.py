"""A million rows as one pandas frame: words as categories, numbers as numbers, long texts left in the file and found again by their place.

A chunk of lines is parsed at a time, so that memory holds the frame and one chunk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.errors import EvidenceError, HarnessError
from harness.export_columns import MEASURES

if TYPE_CHECKING:
    import pandas as pd

# Parsed rows of this much text stay in a core's cache while column after column is taken from them: twice as fast as 8 MiB.
CHUNK_BYTES = 256 * 2**10
# What tables ask of every row; the rest of the few rows that they ask more of is read again (see rows_at).
FRAME_WORDS = (
    "record", "cell", "stage", "weights", "hardware", "asked", "stack", "launcher", "tiny_key", "versions", "verdict", "cause",
    "model", "algorithm", "tuner", "strategy",
)  # fmt: skip
FRAME_NUMBERS = ("attempt", "ranks", "concurrency", *MEASURES)
_AGAIN = "Delete it and import the export again."


def need_pandas() -> Any:
    """The module pandas. Raises HarnessError, with the command that installs it."""
    try:
        import pandas
    except ImportError as error:
        raise HarnessError("pandas", f"is needed for tables and is not installed ({error}).", "pip install -e '.[benchmark]'") from error
    return pandas


def read_frames(paths: Sequence[Path]) -> pd.DataFrame:
    """The rows of imported exports, a row that stands in several of them once.

    Columns: FRAME_WORDS (categories, "" where a row says nothing), FRAME_NUMBERS (float64, NaN where it says nothing),
    `at` (microseconds since 1970, UTC), `file` (which of `paths`) and `place` (the byte at which its line begins).

    Raises EvidenceError for a file that is not what was imported: its name is the sha256 of its content.
    """
    pandas = need_pandas()
    words: dict[str, dict[str, int]] = {name: {} for name in FRAME_WORDS}
    codes: dict[str, list[np.ndarray]] = {name: [] for name in (*FRAME_WORDS, *FRAME_NUMBERS, "at", "file", "place", "same")}
    for number, path in enumerate(paths):
        for rows, places in _chunks(path):
            for name, known in words.items():
                codes[name].append(np.array([known.setdefault(row.get(name, ""), len(known)) for row in rows], np.int32))
            for name in FRAME_NUMBERS:
                codes[name].append(np.array([row.get(name, np.nan) for row in rows], np.float64))
            codes["at"].append(np.array([row["started_at"][:-6] for row in rows], "datetime64[us]").astype(np.int64))
            codes["file"].append(np.full(len(rows), number, np.int32))
            codes["place"].append(places)
            # 64 bits of the hash: that two of a million different rows share them has a chance of 1 in 37 million.
            codes["same"].append(np.array([int(row["sha256"][:16], 16) for row in rows], np.uint64))
    return _frame(pandas, words, codes)


def rows_at(paths: Sequence[Path], frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """The whole rows that a part of a frame stands for, in the order of files and places."""
    for number, places in frame.sort_values(["file", "place"]).groupby("file")["place"]:
        with open(paths[int(number)], "rb") as file:
            for place in places:
                file.seek(int(place))
                yield json.loads(file.readline())


def _frame(pandas: Any, words: dict[str, dict[str, int]], codes: dict[str, list[np.ndarray]]) -> pd.DataFrame:
    columns: dict[str, Any] = {}
    for name in list(codes):
        whole = np.concatenate(codes.pop(name)) if codes[name] else np.array([], np.float64)
        columns[name] = _categories(pandas, words[name], whole) if name in words else whole
    frame = pandas.DataFrame(columns, copy=False)
    twice = frame["same"].duplicated()
    return frame.drop(columns="same") if not twice.any() else frame[~twice].drop(columns="same").reset_index(drop=True)


def _categories(pandas: Any, known: dict[str, int], codes: np.ndarray) -> Any:
    """In the order of the words, not of their first rows, so that tables are in one order whatever file came first."""
    order = sorted(known)
    place = np.empty(len(order), np.int32)
    place[[known[word] for word in order]] = np.arange(len(order))
    return pandas.Categorical.from_codes(place[codes] if len(codes) else [], categories=order)


def _chunks(path: Path) -> Iterator[tuple[list[dict[str, Any]], np.ndarray]]:
    """Rows and the places of their lines. A line holds no line end but its last byte, so that chunks can be cut at any."""
    digest, rest, at = hashlib.sha256(), b"", 0
    for block in _blocks(path):
        digest.update(block)
        whole, end, tail = (rest + block).rpartition(b"\n")
        if not end:
            rest = tail
            continue
        ends = np.flatnonzero(np.frombuffer(whole, np.uint8) == ord("\n"))
        places = np.concatenate([np.array([at]), ends + (at + 1)])
        try:
            rows = json.loads(b"[" + whole.replace(b"\n", b",") + b"]")
        except ValueError as error:
            raise EvidenceError(str(path), f"is not what was imported ({error}).", _AGAIN) from error
        yield rows, places
        at += len(whole) + 1
        rest = tail
    if rest or digest.hexdigest() != path.stem:
        raise EvidenceError(str(path), "is not what was imported: its content has another sha256.", _AGAIN)


def _blocks(path: Path) -> Iterable[bytes]:
    try:
        with open(path, "rb") as file:
            while block := file.read(CHUNK_BYTES):
                yield block
    except OSError as error:
        raise EvidenceError(str(path), f"can't be read ({error.strerror}).", _AGAIN) from error
