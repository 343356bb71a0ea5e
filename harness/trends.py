"""Step time and memory over runs, as panels to draw: one for each cell, what was measured of it and on which hardware."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass

from harness.benchmark_codec import Baseline
from harness.benchmark_model import Measurement, Quantity
from harness.evidence import started
from harness.export_numbers import numbers_of
from harness.model import Evidence, Hardware, Stage, VerdictKind
from harness.support import worked_on

DRAWN = (Quantity.STEP_S, Quantity.PEAK_ALLOCATED_MIB, Quantity.PER_TOKEN_S)
# A single run of a stage shows where a cell stands; two make a trend.
LEAST_RUNS = 2
PANELS_OF_A_PAGE = 30
BASELINE, RUNS, EVIDENCE = "baseline", "runs", "evidence"
_MAD = 1.4826


@dataclass(frozen=True)
class Point:
    """One measurement. `median`, and `spread` as a standard deviation (1.4826 MAD), are in the quantity's unit; `at`: UTC."""

    at: str
    origin: str
    stack: str
    runs: int
    median: float
    spread: float


@dataclass(frozen=True)
class Panel:
    """`what`: train, or serve and how many requests at a time; `points` in the order of time."""

    cell: str
    what: str
    points: tuple[Point, ...]

    @property
    def baseline(self) -> Point | None:
        """The newest one."""
        return next((point for point in reversed(self.points) if point.origin == BASELINE), None)


@dataclass(frozen=True)
class TrendPage:
    """The panels of one quantity on one hardware; a number tells apart pages of more than PANELS_OF_A_PAGE."""

    quantity: Quantity
    hardware: Hardware
    number: int
    panels: tuple[Panel, ...]

    @property
    def name(self) -> str:
        more = f"--{self.number}" if self.number > 1 else ""
        return f"trends/{self.quantity}--{self.hardware}{more}.svg"

    @property
    def digest(self) -> str:
        """The sha256 of all that is drawn."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


def trend_pages(evidence: Iterable[Evidence], baselines: Iterable[Baseline], measured: Iterable[Measurement] = ()) -> tuple[TrendPage, ...]:
    """Pages by quantity and hardware, panels by cell. A panel needs a baseline, a run of benchmarks, or two pieces of evidence.

    `measured`: runs of benchmarks beside the baselines, which are the only ones that a repository holds.
    """
    found: dict[tuple[Quantity, Hardware], dict[tuple[str, str], list[Point]]] = defaultdict(lambda: defaultdict(list))
    for baseline in baselines:
        _add(found, baseline.measurement, BASELINE)
    for measurement in measured:
        _add(found, measurement, RUNS)
    for piece in evidence:
        hardware = worked_on(piece)
        if piece.stage is not Stage.TRAIN or piece.verdict.kind is not VerdictKind.PASSED or piece.hardware is None:
            continue
        for quantity, value in _drawn(numbers_of(piece)):
            point = Point(started(piece).isoformat(), EVIDENCE, piece.stack, 1, value, 0.0)
            found[quantity, hardware][piece.cell, f"train, {piece.weights}, {piece.launcher}"].append(point)
    return tuple(_pages(found))


def _add(found: dict[tuple[Quantity, Hardware], dict[tuple[str, str], list[Point]]], measurement: Measurement, origin: str) -> None:
    at_once = f" x{measurement.concurrency}" if measurement.concurrency else ""
    what = f"{measurement.kind}{at_once}, {measurement.weights}, {measurement.launcher}"
    at = max((repeat.at for repeat in measurement.repeats), default="")
    for quantity in DRAWN:
        if values := measurement.values(quantity):
            median = statistics.median(values)
            spread = _MAD * statistics.median(abs(value - median) for value in values)
            point = Point(at, origin, measurement.stack, len(values), median, spread)
            found[quantity, measurement.hardware][measurement.cell, what].append(point)


def _drawn(numbers: Mapping[str, float]) -> Iterator[tuple[Quantity, float]]:
    for quantity in DRAWN:
        if (value := numbers.get(str(quantity))) is not None:
            yield quantity, value


def _pages(found: Mapping[tuple[Quantity, Hardware], Mapping[tuple[str, str], list[Point]]]) -> Iterator[TrendPage]:
    order = list(Hardware)
    for quantity, hardware in sorted(found, key=lambda key: (DRAWN.index(key[0]), order.index(key[1]))):
        panels = [
            Panel(cell, what, tuple(sorted(points, key=lambda point: (point.at, point.origin, point.stack, point.median))))
            for (cell, what), points in sorted(found[quantity, hardware].items())
            if len(points) >= LEAST_RUNS or any(point.origin != EVIDENCE for point in points)
        ]
        for first in range(0, len(panels), PANELS_OF_A_PAGE):
            yield TrendPage(quantity, hardware, first // PANELS_OF_A_PAGE + 1, tuple(panels[first : first + PANELS_OF_A_PAGE]))
