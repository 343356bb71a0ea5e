"""Whether a witness can be of this run at all: of ms-swift, of one training, at a time and of a length that the run had."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

from harness.compare import check
from harness.metrics import as_logged
from harness.model import Comparison, Metrics, Run, Witness

# A run's start is written in whole seconds, and two clocks are read: the launcher's and the process's.
CLOCK_S = 2.0
_NEEDED = ("ms-swift", "torch", "transformers", "python")
# Amounts of an event, none of which can be below zero.
_AMOUNTS = (
    "seconds", "witness_seconds", "peak_allocated_mib", "peak_reserved_mib", "rss_mib", "peak_rss_mib", "tokens",
    "numel_local", "numel_global",
)  # fmt: skip


def prove_swift(stage: str, witness: Witness) -> Comparison:
    """That the process says which ms-swift it is, on which torch and transformers, by which interpreter."""
    start = witness.last("start") or {}
    lacking = [name for name in _NEEDED if not witness.versions.get(name)]
    lacking += [name for name in ("python", "swift_file") if not (isinstance(start.get(name), str) and start[name])]
    told = ", ".join(f"{name} {witness.versions[name]}" for name in _NEEDED if name in witness.versions)
    found = f"without {', '.join(dict.fromkeys(lacking))}" if lacking else told
    return check(f"{stage}.is_swift", not lacking, "proof.not_swift", f"versions of {', '.join(_NEEDED)}, and where ms-swift is", found)


def prove_sane(stage: str, witness: Witness, everyone: Sequence[Witness], run: Run) -> Comparison:
    """That nothing in the witness is impossible. `everyone`: all processes that left one under this run."""
    odd = [*_odd_counts(witness, [w for w in everyone if w.nonce == run.nonce]), *_odd_times(witness, run), *_odd_amounts(witness, run)]
    return check(f"{stage}.witness_sane", not odd, "proof.witness_fault", "one work, at the time of the run", "; ".join(odd[:4]) or "so")


def prove_logged(stage: str, metrics: Metrics, witness: Witness) -> tuple[Comparison, ...]:
    """A sound log's rows against what the trainer was witnessed to log: loss, grad_norm and learning_rate, to the last digit."""
    logged = [(row.step, row.loss, row.grad_norm, row.learning_rate) for row in metrics.rows]
    seen = [(e.get("step"), *(as_logged(e.get(name)) for name in ("loss", "grad_norm", "learning_rate"))) for e in witness.all("log")]
    differ = [f"step {one[0]}: log {one[1:]}, witness {other[1:]}" for one, other in zip(logged, seen, strict=False) if one != other]
    if len(logged) != len(seen):
        differ.append(f"{len(logged)} rows logged, {len(seen)} witnessed")
    found = "; ".join(differ[:3]) or f"{len(seen)} rows equal"
    return (check(f"{stage}.log_witnessed", bool(seen) and not differ, "proof.log_differs", "rows as the trainer logged them", found),)


def _odd_counts(witness: Witness, everyone: Sequence[Witness]) -> Iterator[str]:
    for event in ("start", "train_begin", "train_end", "end"):
        if (count := len(witness.all(event))) > 1:
            yield f"{count} events {event} in one process"
    trained = [w.pid for w in everyone if w.rank in (0, -1) and w.all("train_begin")]
    if len(trained) > 1:
        yield f"rank 0 of a training in {len(trained)} processes: {trained}"


def _odd_times(witness: Witness, run: Run) -> Iterator[str]:
    began = _seconds(run.started_at)
    if began is None:
        yield f"a run that began at {run.started_at!r}, which is no time"
        return
    ended = began + run.duration_s
    times = [_number(event.get("time")) for event in witness.events if event.get("event") != "fault"]
    if any(time is None for time in times):
        yield "an event without a time"
    known = [time for time in times if time is not None]
    if known and min(known) < began - CLOCK_S:
        yield f"an event {began - min(known):.0f} s before the run began"
    # The run's start is cut to whole seconds, so its end may be a second later than it says.
    if known and max(known) > ended + 1 + CLOCK_S:
        yield f"an event {max(known) - ended:.0f} s after the run ended"


def _odd_amounts(witness: Witness, run: Run) -> Iterator[str]:
    total = 0.0
    for event in witness.events:
        for name in (name for name in _AMOUNTS if event.get(name) is not None):
            value = _number(event[name])
            if value is None or value < 0:
                yield f"{name} {event[name]!r} of a {event.get('event')}"
            elif name == "seconds":
                total += value
        if event.get("event") == "step" and "seconds" in event and event["seconds"] is None:
            yield f"step {event.get('step')} took an unknown time"
    if total > run.duration_s + CLOCK_S:
        yield f"steps of {total:.1f} s in a run of {run.duration_s:.1f} s"


def _seconds(moment: str) -> float | None:
    """Since the epoch; a moment without a zone is UTC."""
    try:
        found = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()


def _number(value: object) -> float | None:
    """A finite number; None for anything else, text included: the witness writes NaN as text."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)
