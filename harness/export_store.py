"""Exports on disk: what a store holds written as lines, and lines of another host verified and kept (.harness/exports, not committed)."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import uuid
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any, cast

from harness.benchmark_store import BenchmarkStore
from harness.errors import EvidenceError, HarnessError, HostError, did_you_mean
from harness.export_columns import check_row
from harness.export_lines import line_of, opened
from harness.export_rows import row_of, rows_of_baseline, rows_of_runs
from harness.store import Store, json_files, utc_now

# A row has about 1.5 kB; what is a thousand times that is something else.
LARGEST_LINE = 2**20
_FAST_CLOCK = timedelta(days=1)
# Faults are told one by one up to here, and counted beyond.
TOLD_FAULTS = 100
_AGAIN = "Export it again where it came from."
CURRENT, HISTORY, BENCHMARKS = PARTS = ("current", "history", "benchmarks")


@dataclass(frozen=True)
class Written:
    """What an export holds, and what had to be left out of it."""

    lines: int
    refused: tuple[EvidenceError, ...]


@dataclass(frozen=True)
class Imported:
    """`path`: where the `lines` that hold are kept (None: none did). `refused`: the first faults; `faults`: how many there are."""

    path: Path | None
    lines: int
    faults: int
    refused: tuple[EvidenceError, ...]


def folder_of(root: Path) -> Path:
    return root / ".harness" / "exports"


def export(store: Store, benchmarks: BenchmarkStore, path: Path, parts: Collection[str] = PARTS) -> Written:
    """Write a line for each piece and each run of a benchmark, to a file that ends in .jsonl or .jsonl.gz. Raises HostError."""
    refused: list[EvidenceError] = []
    lines = 0
    with _whole(path.parent, lambda: path, packed=path.suffix == ".gz") as file:
        for row in store_rows(store, benchmarks, refused, parts):
            file.write(line_of(row).encode("utf-8"))
            lines += 1
    return Written(lines, tuple(refused))


def import_export(root: Path, path: Path, now: Callable[[], datetime] = utc_now) -> Imported:
    """Verify every line of an export and keep those that hold, under the sha256 of what is kept. A damaged line costs that line.

    Raises EvidenceError for what can't be read, HostError if the disk refuses.
    """
    digest, lines, faults, refused = hashlib.sha256(), 0, 0, []
    before = now() + _FAST_CLOCK

    def name() -> Path | None:
        return folder_of(root) / f"{digest.hexdigest()}.jsonl" if lines else None

    with _whole(folder_of(root), name) as kept:
        for number, line in _lines(path):
            where = f"{path}:{number}"
            try:
                if isinstance(line, EvidenceError):
                    raise line
                check_row(opened(line, where), where, before)
            except EvidenceError as error:
                faults += 1
                refused += [error] if faults <= TOLD_FAULTS else []
                continue
            raw = line.encode("utf-8")
            digest.update(raw)
            kept.write(raw)
            lines += 1
    return Imported(name(), lines, faults, tuple(refused))


def imported(root: Path, names: Iterable[str] = ()) -> tuple[Path, ...]:
    """The imported exports, or those whose name begins with one of `names`. Raises HarnessError for a name that none has, or where there
    is none at all."""
    known = sorted(folder_of(root).glob("[0-9a-f]*.jsonl"))
    if not known:
        raise HarnessError(".harness/exports", "holds no export.", "Run `python -m harness import FILE.jsonl` first.")
    found: dict[Path, None] = {}
    for name in names:
        meant = [path for path in known if path.name.startswith(name)]
        if len(meant) != 1:
            what = "is no imported export." if not meant else f"begins the names of {len(meant)} exports."
            raise HarnessError(name, what, did_you_mean(name, [path.stem[:12] for path in known]))
        found[meant[0]] = None
    return tuple(found) or tuple(known)


def store_rows(
    store: Store, benchmarks: BenchmarkStore, refused: list[EvidenceError], parts: Collection[str] = PARTS
) -> Iterator[dict[str, Any]]:
    """The rows of a store and of the benchmarks beside it; what can't be read is added to `refused`."""
    paths = sorted((store.reports / "evidence").glob("*/*.json")) if CURRENT in parts else []
    if HISTORY in parts:
        history, unread = json_files(store.history)
        paths += history
        refused += unread
    told: set[bytes] = set()
    for path in paths:
        try:
            piece = store.load(path)
        except EvidenceError as error:
            refused.append(error)
            continue
        if (sha := bytes.fromhex(piece.sha256)) not in told:
            told.add(sha)
            yield row_of(piece)
    if BENCHMARKS not in parts:
        return
    for run in benchmarks.runs():
        try:
            for measurement in benchmarks.measurements(run):
                yield from rows_of_runs(measurement, run)
        except EvidenceError as error:
            refused.append(error)
    try:
        for baseline in benchmarks.all_baselines():
            yield from rows_of_baseline(baseline)
    except EvidenceError as error:
        refused.append(error)


def _lines(path: Path) -> Iterator[tuple[int, str | EvidenceError]]:
    """Line numbers from 1 and their texts, or what keeps a line from being one. Raises EvidenceError for what can't be opened."""
    number = 0
    try:
        with cast(IO[bytes], gzip.open(path) if path.suffix == ".gz" else open(path, "rb")) as file:
            while raw := file.readline(LARGEST_LINE):
                number += 1
                if not raw.endswith(b"\n"):
                    yield number, EvidenceError(f"{path}:{number}", _unended(file), _AGAIN)
                    continue
                try:
                    yield number, raw.decode("utf-8")
                except UnicodeDecodeError as error:
                    yield number, EvidenceError(f"{path}:{number}", f"is no UTF-8 text (byte {error.start}).", _AGAIN)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        yield number + 1, EvidenceError(f"{path}:{number + 1}", f"can't be unpacked, nor what follows ({error}).", _AGAIN)
    except OSError as error:
        what = f"can't be read ({error.strerror or error})."
        raise EvidenceError(str(path), what, "Name a file that `python -m harness export` wrote.") from error


def _unended(file: IO[bytes]) -> str:
    """What is wrong with a line that has no end within LARGEST_LINE bytes; the rest of it is read away."""
    if not (rest := file.readline(LARGEST_LINE)):
        return "is cut short: it has no line end."
    while rest and not rest.endswith(b"\n"):
        rest = file.readline(LARGEST_LINE)
    return f"has more than {LARGEST_LINE} bytes."


@contextlib.contextmanager
def _whole(folder: Path, name: Callable[[], Path | None], *, packed: bool = False) -> Iterator[IO[bytes]]:
    """A file that appears whole, under the name that it has at its end, or not at all. Raises HostError if the disk refuses."""
    spare = folder / f".{uuid.uuid4().hex}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(spare, "wb") as plain:
            if packed:
                with gzip.GzipFile("", "wb", 6, plain, mtime=0) as zipped:  # no name and no time: the same rows give the same bytes
                    yield cast(IO[bytes], zipped)
            else:
                yield plain
            plain.flush()
            os.fsync(plain.fileno())
        if final := name():
            os.replace(spare, final)
    except OSError as error:
        raise HostError(str(folder), f"could not be written to ({error.strerror}).", "Free space or mend it, then try again.") from error
    finally:
        spare.unlink(missing_ok=True)
