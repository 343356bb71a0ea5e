"""Panels as one SVG, whose bytes depend on what is drawn and on matplotlib's version alone, and which says both of itself."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import io
import re
import textwrap
from typing import Any

from harness.benchmark_model import MEMORY, Quantity
from harness.benchmark_table import unit_of
from harness.model import Hardware
from harness.trends import BASELINE, EVIDENCE, Panel, TrendPage

COLUMNS = 3
_PANEL_INCHES = (3.6, 2.3)
_HEAD_INCHES = 0.9
_MOST_DATES = 5
_INK, _FAINT, _BASE = "#1f4e79", "#b8cfe6", "#c0392b"
_SEAL = re.compile(r"<!-- npu-matrix trend: data sha256 ([0-9a-f]{64}), drawing sha256 ([0-9a-f]{64}), matplotlib (\S+) -->\n\Z")
_NAMES = {
    Quantity.STEP_S: "Time of a training step",
    Quantity.PEAK_ALLOCATED_MIB: "Peak of allocated device memory",
    Quantity.PER_TOKEN_S: "Time of an output token",
}
_WARNINGS = {
    Hardware.SIM: "SIMULATED NPU in host memory: says nothing about NPU hardware",
    Hardware.CPU: "plain CPU: says nothing about NPU hardware",
}
# Nothing of a person's own matplotlibrc may reach the file.
_SETTINGS = {"svg.hashsalt": "npu-matrix", "svg.fonttype": "path", "font.family": ["DejaVu Sans"], "font.size": 7.0, "path.simplify": False}


def matplotlib_version() -> str | None:
    """Of the matplotlib that is installed; None where none is."""
    try:
        return importlib.metadata.version("matplotlib")
    except importlib.metadata.PackageNotFoundError:
        return None


def drawn(page: TrendPage) -> str:
    """The SVG of a page; its last line seals it. Raises ImportError where matplotlib is missing."""
    buffer = io.BytesIO()
    _save(page, buffer, "svg")
    text = buffer.getvalue().decode("utf-8")
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    digest = hashlib.sha256(text.encode("utf-8")).hexdigest()
    return f"{text}<!-- npu-matrix trend: data sha256 {page.digest}, drawing sha256 {digest}, matplotlib {matplotlib_version()} -->\n"


def seal_of(text: str) -> tuple[str, str] | None:
    """(sha256 of what was drawn, version of matplotlib) that an SVG says of itself; None where it is not as it was drawn."""
    found = _SEAL.search(text)
    if found is None or hashlib.sha256(text[: found.start()].encode("utf-8")).hexdigest() != found[2]:
        return None
    return found[1], found[3]


def _save(page: TrendPage, file: Any, form: str) -> None:
    """As svg, or as png to look at."""
    matplotlib = importlib.import_module("matplotlib")
    figures = importlib.import_module("matplotlib.figure")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        columns = min(COLUMNS, len(page.panels))
        rows = -(-len(page.panels) // COLUMNS)
        width, height = _PANEL_INCHES[0] * max(columns, 2), _PANEL_INCHES[1] * rows + _HEAD_INCHES
        figure = figures.Figure(figsize=(width, height))
        top = 1 - _HEAD_INCHES / height
        grid = figure.add_gridspec(rows, columns, left=0.55 / width, right=1 - 0.15 / width, top=top - 0.3 / height, bottom=0.35 / height)
        grid.update(hspace=0.65, wspace=0.32)
        figure.text(0.15 / width, 1 - 0.2 / height, _title(page), fontsize=11, fontweight="bold", va="top", color="#222222")
        figure.text(0.15 / width, 1 - 0.45 / height, _legend(page), fontsize=7, va="top", color="#444444")
        for number, panel in enumerate(page.panels):
            axes = figure.add_subplot(grid[number // COLUMNS, number % COLUMNS])
            _panel(axes, panel, page)
        metadata = {"Date": None, "Creator": None} if form == "svg" else None
        figure.savefig(file, format=form, metadata=metadata, facecolor="white")


def _title(page: TrendPage) -> str:
    return f"{_NAMES[page.quantity]} ({unit_of(page.quantity)}) on {page.hardware}"


def _legend(page: TrendPage) -> str:
    words = "filled: median of benchmark runs, band: their spread (1.4826 MAD); hollow: one run of evidence; dashed: newest baseline"
    warning = _WARNINGS.get(page.hardware)
    return f"{warning}\n{words}" if warning else words


def _panel(axes: Any, panel: Panel, page: TrendPage) -> None:
    scale = 1.0 if page.quantity in MEMORY else 1000.0  # seconds are shown as milliseconds, see unit_of
    places = range(len(panel.points))
    axes.set_title("\n".join([*textwrap.wrap(panel.cell, 48), panel.what]), fontsize=7, loc="left", color="#222222", pad=3)
    measured = [(at, point) for at, point in zip(places, panel.points, strict=True) if point.origin != EVIDENCE]
    single = [(at, point) for at, point in zip(places, panel.points, strict=True) if point.origin == EVIDENCE]
    if measured:
        x = [at for at, _ in measured]
        low, middle, high = ([scale * (p.median + sign * p.spread) for _, p in measured] for sign in (-1, 0, 1))
        axes.fill_between(x, low, high, color=_FAINT, linewidth=0)
        axes.errorbar(x, middle, [m - a for m, a in zip(middle, low, strict=True)], color=_INK, linewidth=1, elinewidth=3, ecolor=_FAINT)
        axes.plot(x, middle, "o", color=_INK, markersize=3.5)
        promoted = [(at, p) for at, p in measured if p.origin == BASELINE]
        axes.plot([at for at, _ in promoted], [scale * p.median for _, p in promoted], "D", color=_BASE, markersize=4.5)
    if single:
        axes.plot([at for at, _ in single], [scale * p.median for _, p in single], "o", markerfacecolor="white", color=_INK, markersize=3.5)
    if (baseline := panel.baseline) is not None:
        axes.axhline(scale * baseline.median, color=_BASE, linewidth=0.8, linestyle="--")
        told = f"baseline {scale * baseline.median:.4g} of {baseline.at[:10]}"
        axes.text(0.99, 0.03, told, transform=axes.transAxes, ha="right", va="bottom", fontsize=5.5, color=_BASE)
    if page.hardware in _WARNINGS:
        word = "simulated" if page.hardware is Hardware.SIM else "plain CPU"
        axes.text(0.5, 0.5, word, transform=axes.transAxes, ha="center", va="center", fontsize=15, color="#eeeeee", zorder=0)
    _frame(axes, panel, scale)


def _frame(axes: Any, panel: Panel, scale: float) -> None:
    """From zero, so that a change looks as large as it is; one place a measurement, the first and the last dated."""
    last = len(panel.points) - 1
    axes.set_ylim(0, 1.25 * scale * max(point.median + point.spread for point in panel.points))
    axes.set_xlim(-0.5, last + 0.5)
    shown = sorted({round(step * last / max(1, _MOST_DATES - 1)) for step in range(_MOST_DATES)})
    axes.set_xticks(shown, [panel.points[at].at[:10] for at in shown], fontsize=5.5)
    axes.tick_params(length=2, pad=2, colors="#444444")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
