"""What a person may call a run: a folder, an export, a run of benchmarks, a stack, a version or commit of ms-swift, a day."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from harness.benchmark_codec import baseline_from_json, from_json
from harness.benchmark_store import BenchmarkStore
from harness.errors import EvidenceError, HarnessError
from harness.export_lines import line_of
from harness.export_rows import row_of, rows_of_baseline, rows_of_runs
from harness.export_store import folder_of, import_export, store_rows
from harness.store import PARITY_FOLDER, Store, json_files, read_regular

BASELINES = "baselines"
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_SHOWN = 8


@dataclass(frozen=True)
class Side:
    """One side of a comparison, as an imported export. `what`: how the name was read; `refused`: what had to be left out."""

    name: str
    what: str
    path: Path
    refused: tuple[EvidenceError, ...]


def find_side(name: str, store: Store, scratch: Path) -> Side:
    """The rows that `name` means, written below `scratch` (or the imported export itself).

    Raises HarnessError for a name that means nothing here, with the names that do; EvidenceError for a path that holds nothing.
    """
    path, benchmarks = Path(name), BenchmarkStore(store.root)
    refused: list[EvidenceError] = []
    if path.is_dir():
        return _side(name, "the folder", _in_folder(path, store, refused), scratch, refused)
    if path.is_file():
        found = import_export(scratch, path)
        if found.path is None:
            raise EvidenceError(name, f"holds no line of an export ({found.faults} refused).", "Name a file that `export` wrote.")
        return Side(name, "the export", found.path, found.refused)
    if name in benchmarks.runs():
        return _side(name, "the run of benchmarks", _in_folder(benchmarks.measured / name, store, refused), scratch, refused)
    if name == BASELINES and benchmarks.baselines.is_dir():
        return _side(name, "the baselines", _in_folder(benchmarks.baselines, store, refused), scratch, refused)
    exports = [export for export in folder_of(store.root).glob("*.jsonl") if len(name) >= 6 and export.name.startswith(name)]
    if len(exports) == 1:
        return Side(name, "the imported export", exports[0], ())
    rows = list(store_rows(store, benchmarks, refused))
    what, meant = _selector(name)
    chosen = [row for row in rows if meant(row)]
    if not chosen:
        raise HarnessError(name, "is no run that is known here.", _known(rows, benchmarks, store))
    return _side(name, what, iter(chosen), scratch, refused)


def _selector(name: str) -> tuple[str, Callable[[Mapping[str, Any]], bool]]:
    """What of a store's rows the name means: all up to a day, or those of a stack, a version or a commit."""
    if _DAY.fullmatch(name):
        try:
            date.fromisoformat(name)
        except ValueError as error:
            raise HarnessError(name, f"is no date ({error}).", "Write it as 2026-11-30.") from error
        return "what was known on", lambda row: row["started_at"][:10] <= name

    def meant(row: Mapping[str, Any]) -> bool:
        if name in (row["stack"], row.get("ms_swift")):
            return True
        commit = json.loads(row["versions"]).get("swift_commit", "")
        return bool(_COMMIT.fullmatch(name)) and commit.startswith(name)

    return "the stack, version or commit", meant


def _known(rows: list[dict[str, Any]], benchmarks: BenchmarkStore, store: Store) -> str:
    days = sorted({row["started_at"][:10] for row in rows})
    commits = {json.loads(text).get("swift_commit", "")[:12] for text in {row["versions"] for row in rows}} - {""}
    groups = {
        "stacks": sorted({row["stack"] for row in rows}),
        "ms-swift": sorted({row["ms_swift"] for row in rows if "ms_swift" in row}),
        "commits": sorted(commits),
        "days": [days[0], days[-1]] if len(days) > 1 else days,
        "runs of benchmarks": list(benchmarks.runs())[-_SHOWN:] + ([BASELINES] if benchmarks.baselines.is_dir() else []),
        "exports": [path.stem[:12] for path in sorted(folder_of(store.root).glob("*.jsonl"))],
    }
    told = [f"{what}: {', '.join(names[:_SHOWN])}{' ...' if len(names) > _SHOWN else ''}" for what, names in groups.items() if names]
    return f"Known: {'; '.join(told) or 'nothing yet'}; or a folder of evidence, or a file that `export` wrote."


def _in_folder(folder: Path, store: Store, refused: list[EvidenceError]) -> Iterator[dict[str, Any]]:
    """The rows of every piece and measurement below a folder; of a checkout those of its reports."""
    reports = folder / "reports"
    places = [place for place in (reports / "evidence", reports / "baselines") if place.is_dir()] or [folder]
    for place in places:
        paths, unread = json_files(place)
        refused += unread
        for path in (path for path in paths if path.parent.name != PARITY_FOLDER):
            try:
                yield from _rows(path, store)
            except EvidenceError as error:
                refused.append(error)


def _rows(path: Path, store: Store) -> list[dict[str, Any]]:
    where = str(path)
    try:
        text = read_regular(path, where).decode("utf-8")
        found = json.loads(text)
        record = found.get("record") if isinstance(found, dict) else None
    except (ValueError, RecursionError):
        record = None  # whatever it is, `load` says what is wrong with it
    if record == "measurement":
        return list(rows_of_runs(from_json(text, where), path.parent.name))
    if record == "baseline":
        return list(rows_of_baseline(baseline_from_json(text, where)))
    return [row_of(store.load(path))]


def _side(name: str, what: str, rows: Iterator[dict[str, Any]], scratch: Path, refused: list[EvidenceError]) -> Side:
    file = scratch / "side.jsonl"
    file.write_text("".join(map(line_of, {row["sha256"]: row for row in map(_sealed, rows)}.values())), encoding="utf-8")
    found = import_export(scratch, file)
    if found.path is None:
        raise EvidenceError(name, f"holds no evidence and no measurement ({len(refused)} files refused).", "Name another run.")
    return Side(name, what, found.path, (*refused, *found.refused))


def _sealed(row: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(line_of(row)))
