"""Trends in the reports: drawn from committed evidence and baselines, and checked without matplotlib as far as that goes.

A drawing says of what data it is, and by which matplotlib: bytes of two versions differ. So `report --check` compares bytes where the
versions agree, and the data otherwise. Where matplotlib is missing nothing can be drawn, and a missing or older drawing is no difference;
one that was edited always is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from harness.benchmark_codec import Baseline
from harness.benchmark_store import BenchmarkStore
from harness.errors import EvidenceError
from harness.model import Evidence
from harness.store import read_regular, write_atomically
from harness.trends import TrendPage, trend_pages
from harness.trends_draw import drawn, matplotlib_version, seal_of

FOLDER = "trends"
NOT_DRAWN = "trends are not drawn: matplotlib is missing (pip install -e '.[benchmark]')"
_AGAIN = "Write it anew with `python -m harness report`."
_LARGEST = 64 * 2**20


def trends_of(evidence: Iterable[Evidence], root: Path) -> tuple[tuple[TrendPage, ...], tuple[EvidenceError, ...]]:
    """What is to be drawn of evidence and of the baselines below `root`; and the damage that kept the baselines out."""
    baselines: tuple[Baseline, ...] = ()
    refused: tuple[EvidenceError, ...] = ()
    try:
        baselines = BenchmarkStore(root).all_baselines()
    except EvidenceError as error:
        refused = (error,)
    return trend_pages(evidence, baselines), refused


def write_trends(reports: Path, pages: Sequence[TrendPage]) -> tuple[Path, ...]:
    """Draw what is not drawn yet below `reports`, delete drawings of what is no more; the paths that were drawn or were as they should be.

    None where matplotlib is missing. Raises HostError if the disk refuses.
    """
    names = {page.name for page in pages}
    for path in _drawings(reports):
        if f"{FOLDER}/{path.name}" not in names:
            path.unlink()
    if matplotlib_version() is None:
        return ()
    for page in pages:
        path = reports / page.name
        if not path.is_file() or _sealed(path) != (page.digest, matplotlib_version()):
            write_atomically(path, drawn(page))
    return tuple(reports / page.name for page in pages)


def check_trends(reports: Path, pages: Sequence[TrendPage]) -> tuple[str, ...]:
    """What is not as the pages have it, a sentence each."""
    names = {page.name for page in pages}
    found = [
        f"reports/{FOLDER}/{path.name}: is a drawing of nothing. {_AGAIN}"
        for path in _drawings(reports)
        if f"{FOLDER}/{path.name}" not in names
    ]
    return (*found, *(f"reports/{page.name}: {what} {_AGAIN}" for page in pages if (what := _fault(reports / page.name, page))))


def _fault(path: Path, page: TrendPage) -> str:
    version = matplotlib_version()
    if not path.exists():
        return "is missing." if version else ""
    sealed = _sealed(path)
    if sealed is None:
        return "is not as it was drawn."
    data, by = sealed
    if data != page.digest:
        return "is drawn of other data than the evidence and baselines give." if version else ""
    return "differs from what its data give." if by == version and _text(path) != drawn(page) else ""


def _drawings(reports: Path) -> list[Path]:
    return sorted((reports / FOLDER).glob("*.svg"))


def _sealed(path: Path) -> tuple[str, str] | None:
    try:
        return seal_of(_text(path))
    except (EvidenceError, UnicodeDecodeError):
        return None


def _text(path: Path) -> str:
    return read_regular(path, str(path), _LARGEST).decode("utf-8")
