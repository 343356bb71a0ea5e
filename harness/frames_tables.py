"""Tables of a frame of exported rows (harness.frames): what was measured how often, the newest of every key, numbers and their spread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from harness.benchmark_model import MEMORY, Quantity
from harness.evidence import MEASURED
from harness.export_rows import EVIDENCE
from harness.model import Stage, VerdictKind
from harness.retries import PASSES

if TYPE_CHECKING:
    import pandas as pd

KEY = ["cell", "stage", "weights", "hardware", "stack"]
PLACE = ["cell", "stage", "concurrency", "weights", "hardware", "stack", "launcher"]
# What a mark may depend on: of pieces that agree in all of it, only those that rank first can give one.
_FOLDED = ["cell", "stage", "weights", "hardware", "asked", "tiny_key", "versions"]
# What may stand under a key and in a mark (harness.store.KEPT).
_KEPT = [*map(str, MEASURED), str(VerdictKind.BLOCKED)]
# The standard deviation that the median absolute deviation stands for where noise is normal, as harness.benchmark_verdict.spread has it.
_MAD = 1.4826


def evidence_of(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["record"] == EVIDENCE]


def counts(frame: pd.DataFrame) -> pd.DataFrame:
    """How many pieces of evidence say what: columns stage, verdict, cause, pieces."""
    return evidence_of(frame).groupby(["stage", "verdict", "cause"], observed=True).size().rename("pieces").reset_index()


def newest(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the pieces that stand under their key (cell, stage, weights, hardware, stack); see harness.evidence.rank.

    Two of one key, one second and one attempt are told apart by their hash only, which a frame does not hold: both are given.
    """
    found = evidence_of(frame)
    return first_of(found[found["verdict"].isin(_KEPT)], KEY)


def candidates(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows among which are all that a mark can be folded from: the others say nothing to harness.support, which leaves out a pass that
    nobody witnessed, or are outranked by one that does and agrees with them in all that it asks."""
    found = evidence_of(frame)
    unwitnessed = found["verdict"].isin([str(kind) for kind in PASSES]) & (found["hardware"] == "")
    return first_of(found[found["verdict"].isin(_KEPT) & ~unwitnessed], _FOLDED)


def first_of(frame: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Of the rows that agree in `key` those that rank first: what measured something, then the newest, then the latest attempt."""
    if frame.empty:
        return frame
    group = np.zeros(len(frame), np.int64)
    for name in key:
        codes = frame[name].cat.codes.to_numpy().astype(np.int64)
        # Numbered anew after each word, so that the product of two numbers always fits.
        _, group = np.unique(group * (int(codes.max()) + 1) + codes, return_inverse=True)
    measured = frame["verdict"].isin([str(kind) for kind in MEASURED]).to_numpy()
    ranks = (measured, frame["at"].to_numpy(), frame["attempt"].to_numpy())
    order = np.lexsort((*reversed(ranks), group))
    last = np.append(np.flatnonzero(np.diff(group[order])), len(order) - 1)
    best = order[last]  # of group n the n-th
    ties = np.logical_and.reduce([values == values[best][group] for values in ranks])
    return frame[ties]


def benchmarks(frame: pd.DataFrame) -> pd.DataFrame:
    """Median and relative spread of every quantity of benchmark runs, baselines' own runs apart.

    Columns: those of PLACE, record (repeat or baseline), quantity, runs, median, spread (1.4826 median absolute deviation / median).
    """
    runs = frame[frame["record"] != EVIDENCE]
    key = ["record", *PLACE]
    told = runs[[*key, *(str(q) for q in Quantity)]].fillna({"concurrency": 0.0})
    long = told.melt(id_vars=key, var_name="quantity", value_name="value").dropna(subset=["value"])
    return _spread(long, [*key, "quantity"])


def memory(frame: pd.DataFrame) -> pd.DataFrame:
    """Peak memory (MiB) of trainings that passed: columns model, algorithm, tuner, strategy, ranks, weights, hardware, stack, quantity,
    runs, median, spread."""
    found = evidence_of(frame)
    found = found[(found["stage"] == str(Stage.TRAIN)) & (found["verdict"] == str(VerdictKind.PASSED))]
    key = ["model", "algorithm", "tuner", "strategy", "ranks", "weights", "hardware", "stack"]
    told = found[[*key, *(str(q) for q in Quantity if q in MEMORY)]]
    long = told.melt(id_vars=key, var_name="quantity", value_name="value").dropna(subset=["value", "ranks"])
    return _spread(long, [*key, "quantity"])


def _spread(long: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    grouped = long.groupby(key, observed=True, sort=True)["value"]
    away = (long["value"] - grouped.transform("median")).abs()
    table: Any = grouped.agg(runs="size", median="median")
    table["spread"] = _MAD * away.groupby([long[name] for name in key], observed=True, sort=True).median() / table["median"].abs()
    return table.reset_index()
