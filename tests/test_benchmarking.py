"""A run of benchmarks: in turns, confirmed, kept as it comes, and never green without a comparison."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness import benchmarking
from harness.benchmark_codec import Baseline
from harness.benchmark_model import Kind, Label, Question
from harness.benchmark_store import BenchmarkStore
from harness.benchmarking import Benchmarks, Broken
from harness.commands_benchmark import BENCHMARK_STEPS, benchmark_train_step
from harness.door_benchmark import outcome_of
from harness.model import Cell, Weights
from tests.benchmark_samples import measurement

BASE = (1.0, 1.01, 0.99, 1.005)


def question(name: str) -> Question:
    return Question(SimpleNamespace(id=name), Kind.TRAIN)  # type: ignore[arg-type]


class Place:
    """Benchmarks whose runs take as long as `times` says, run after run."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, times: dict[str, list[Any]], repeats: int = 4, **facts: Any) -> None:
        self.store, self.ran = BenchmarkStore(root), []
        self.stop = threading.Event()

        @contextmanager
        def lend(cell: Cell) -> Iterator[tuple[None, None]]:
            yield None, None

        def once(asked: Question, **_: Any) -> tuple[Any, ...]:
            self.ran.append(asked.cell.id)
            taken = times[asked.cell.id].pop(0)
            if isinstance(taken, Exception):
                raise taken
            return (measurement(taken, cell=asked.cell.id, **facts),)

        monkeypatch.setattr(benchmarking, "measure_once", once)
        self.benchmarks = Benchmarks(
            [question(name) for name in times],
            matrix=None,  # type: ignore[arg-type]
            lend=lend,  # type: ignore[arg-type]
            store=self.store,
            repeats=repeats,
            stop=self.stop,
            clean=lambda text: text.replace("secret", "<redacted>"),
        )

    def baseline(self, name: str, *times: float) -> None:
        self.store.promote(Baseline(measurement(*times, cell=name), "2026-11-30", "first"))


def test_cells_are_measured_in_turns_and_every_run_is_on_disk_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path, monkeypatch, {"a": [1.0] * 2, "b": [2.0] * 2}, repeats=2)
    place.benchmarks.answer(question("a"))
    assert place.ran == ["a", "b", "a", "b"]
    assert {m.cell: len(m.repeats) for m in place.store.measurements(place.benchmarks.run)} == {"a": 2, "b": 2}


def test_without_a_baseline_an_item_is_skipped_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path, monkeypatch, {"a": list(BASE)})
    outcome, why = outcome_of(place.benchmarks.answer(question("a")))
    assert outcome == "skipped" and "no baseline" in why


def test_a_slower_cell_alone_is_measured_again_and_then_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path, monkeypatch, {"a": [1.5 * t for t in BASE] * 2, "b": list(BASE)})
    place.baseline("a", *BASE)
    place.baseline("b", *BASE)
    outcome, why = outcome_of(place.benchmarks.answer(question("a")))
    assert outcome == "failed" and "slower" in why and "confirmed" in why
    assert outcome_of(place.benchmarks.answer(question("b")))[0] == "passed"
    assert place.ran.count("a") == 8 and place.ran.count("b") == 4
    assert [len(m.repeats) for m in place.store.measurements(f"{place.benchmarks.run}-confirming")] == [4]


def test_a_slow_quarter_of_an_hour_is_not_a_regression(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path, monkeypatch, {"a": [*(1.5 * t for t in BASE), *BASE]})
    place.baseline("a", *BASE)
    answer = place.benchmarks.answer(question("a"))
    assert outcome_of(answer)[0] == "passed"
    assert {c.label for _, compared in answer.measured for c in compared} == {Label.OK}


def test_a_run_that_proves_nothing_fails_its_cell_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path, monkeypatch, {"a": [1.0, Broken("a train: the secret crashed")], "b": list(BASE)})
    place.baseline("b", *BASE)
    outcome, why = outcome_of(place.benchmarks.answer(question("a")))
    assert (outcome, why) == ("failed", "a train: the <redacted> crashed")
    assert outcome_of(place.benchmarks.answer(question("b")))[0] == "passed"
    assert len(next(m for m in place.store.measurements(place.benchmarks.run) if m.cell == "a").repeats) == 1, "what was measured is kept"


def test_a_quantity_that_nobody_witnesses_any_more_is_no_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path, monkeypatch, {"a": list(BASE)}, memory_mib=None)
    place.baseline("a", *BASE)
    outcome, why = outcome_of(place.benchmarks.answer(question("a")))
    assert outcome == "skipped" and "peak_allocated_mib: insufficient data" in why


def test_an_ended_run_measures_nothing_more_and_is_no_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path, monkeypatch, {"a": list(BASE)})
    place.stop.set()
    assert outcome_of(place.benchmarks.answer(question("a")))[0] == "failed" and not place.ran


def test_a_benchmarks_command_trains_longer_and_shows_what_differs() -> None:
    from harness.model import Command, Step, Substitution

    command = Command("swift", ("sft", "--max_steps", "6", "--save_steps", "3"))
    step = Step("train", command, "out", 60.0, (Substitution("--max_steps", "", "6", "tiny"),))
    longer = benchmark_train_step(step, None, Weights.TINY)  # type: ignore[arg-type]
    args = longer.command.args
    assert args[args.index("--max_steps") + 1] == args[args.index("--save_steps") + 1] == str(BENCHMARK_STEPS)
    shown = {s.flag: s.used for s in longer.substitutions}
    assert shown == {"--max_steps": str(BENCHMARK_STEPS), "--save_steps": str(BENCHMARK_STEPS), "--include_num_input_tokens_seen": "true"}
