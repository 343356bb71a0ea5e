"""What a benchmark run found, as text: one row a measurement and quantity, median, spread, runs, and what the baseline says of it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from harness.benchmark_model import MEMORY, Label, Measurement, Quantity
from harness.benchmark_verdict import Compared, spread

COLUMNS = ("cell", "what", "quantity", "median", "spread", "runs", "baseline", "label")
_UNITS = {Quantity.STEP_S: "ms/step", Quantity.FIRST_TOKEN_S: "ms to first token", Quantity.PER_TOKEN_S: "ms/token"}


def unit_of(quantity: Quantity) -> str:
    """How the quantity is shown: seconds as milliseconds, everything else in its own unit."""
    return _UNITS.get(
        quantity, str(quantity).replace("_per_s", "/s").replace("_per_device", "/device").replace("_mib", " MiB").replace("_", " ")
    )


def amount(quantity: Quantity, value: float) -> str:
    shown = value * 1000 if quantity in _UNITS else value
    return f"{shown:.1f}" if quantity in MEMORY or shown >= 100 else f"{shown:.3g}"


def rows_of(measured: Iterable[tuple[Measurement, Sequence[Compared], Measurement | None]]) -> list[tuple[str, ...]]:
    """A row for every quantity that a measurement has; `label` is empty for those that follow from others and decide nothing."""
    rows: list[tuple[str, ...]] = []
    for measurement, compared, baseline in measured:
        labels = {one.quantity: one for one in compared}
        what = measurement.kind + (f" x{measurement.concurrency}" if measurement.concurrency else "")
        for quantity in Quantity:
            values = measurement.values(quantity)
            if not values:
                continue
            before = baseline.values(quantity) if baseline else ()
            one = labels.get(quantity)
            rows.append((
                measurement.cell,
                f"{what} on {measurement.hardware}",
                unit_of(quantity),
                amount(quantity, statistics.median(values)),
                f"{spread(values):.1%}",
                str(len(values)),
                amount(quantity, statistics.median(before)) if before else "-",
                told(one) if one else "",
            ))  # fmt: skip
    return rows


def told(compared: Compared) -> str:
    effect = f" {compared.effect:+.1%}" if compared.effect is not None and compared.label is not Label.OK else ""
    return f"{compared.label}{effect}"


def aligned(rows: Sequence[Sequence[str]], columns: Sequence[str] = COLUMNS) -> list[str]:
    """The rows under their columns' names, numbers to the right."""
    widths = [max(len(row[at]) for row in (columns, *rows)) for at in range(len(columns))]
    right = {"median", "spread", "runs", "baseline"}

    def line(row: Sequence[str]) -> str:
        return "  ".join(v.rjust(w) if c in right else v.ljust(w) for v, w, c in zip(row, widths, columns, strict=True)).rstrip()

    return [line(columns), *(line(row) for row in rows)]
