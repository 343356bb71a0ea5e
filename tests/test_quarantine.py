"""A quarantine says why, where and until when; what it holds runs and is told, turns nothing red, and shows nothing green."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from evidence_samples import sample
from fakes.install import install, write_executable
from hypothesis import given
from hypothesis import strategies as st
from matrix_samples import CELLS, MATRIX, no_gap, no_rule, required_stages
from test_doors import CELL, CPU, OTHER, SMALL, Place, place  # noqa: F401
from test_matrix_errors import SMALL as DECLARED
from test_matrix_errors import line_of, refusal

from harness.errors import MatrixError
from harness.evidence import sealed
from harness.host import HostRequest
from harness.matrix import parse_matrix
from harness.matrix_quarantine import LONGEST_DAYS, in_force, refuse_dates
from harness.model import Evidence, Hardware, Mark, MarkKind, Quarantine, Stage, VerdictKind
from harness.session import Session
from harness.store import utc_now
from harness.support import support_table

TODAY = date(2026, 6, 10)
TRAIN, MERGE = Stage.TRAIN, Stage.MERGE
ENTRY = """quarantine:
  - when: {{model: [{model}], stage: [train]}}
    because: the switch of this host loses packets
    issue: https://example.org/17
    until: {until}
"""


def written(until: date, model: str = "qwen3_8b") -> str:
    return ENTRY.format(model=model, until=until)


# --- what is declared


def test_an_entry_is_read_with_its_lines() -> None:
    matrix = parse_matrix(DECLARED + written(TODAY), "matrix.yaml")
    (one,) = matrix.quarantine
    assert str(one) == f"quarantined until {TODAY}: the switch of this host loses packets (https://example.org/17)"
    assert (one.line, one.until_line) == tuple(
        line_of(DECLARED + written(TODAY), part) for part in ("- when: {model: [qwen3_8b]", "until: ")
    )
    cell = next(c for c in matrix.cells if c.model.key == "qwen3_8b")
    other = next(c for c in matrix.cells if c.model.key != "qwen3_8b")
    assert in_force(matrix, cell, TRAIN, TODAY) is one
    assert in_force(matrix, cell, TRAIN, TODAY + timedelta(days=1)) is None, "its last day is over"
    assert in_force(matrix, cell, MERGE, TODAY) is None
    assert in_force(matrix, other, TRAIN, TODAY) is None
    assert in_force(matrix, cell, TRAIN, None) is None
    assert parse_matrix(DECLARED, "matrix.yaml").quarantine == ()


WRONG = {
    "no reason": ("    because: the switch of this host loses packets\n", "", "- when: {model: [qwen3_8b], s", "key 'because' is missing"),
    "a blank reason": ("the switch of this host loses packets", '" "', 'because: " "', "because is ' '"),
    "no issue": ("    issue: https://example.org/17\n", "", "- when: {model: [qwen3_8b], s", "key 'issue' is missing"),
    "no end": (f"    until: {TODAY}\n", "", "- when: {model: [qwen3_8b], s", "key 'until' is missing"),
    "an end that never comes": (f"until: {TODAY}", "until: forever", "until: forever", "until is 'forever'"),
    "an end in no calendar": (f"until: {TODAY}", "until: 2026-02-30", "until: 2026-02-30", "until: "),
    "no fields": ("{model: [qwen3_8b], stage: [train]}", "{}", "when: {}", "a quarantine that names no field would match every cell"),
    "a model that is not there": ("[qwen3_8b], stage", "[qwen3_9b], stage", "- when: {model: [qwen3_9b]", "Perhaps 'qwen3_8b'?"),
    "an unknown field": ("stage: [train]", "stagge: [train]", "stagge", "key 'stagge' is unknown. Perhaps 'stage'?"),
    "no such cell": ("stage: [train]", "algorithm: [ppo]", "- when: {model: [qwen3_8b], a", "Only its algorithm keeps it from matching."),
    "no such stage": ("stage: [train]", "stage: [rollout]", "- when: {model: [qwen3_8b], s", "matches no stage of any cell"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_has_no_meaning_is_refused_with_its_line(name: str) -> None:
    old, new, where, says = WRONG[name]
    entry = written(TODAY)
    assert entry.count(old) == 1
    text = DECLARED + entry.replace(old, new)
    told = refusal(text)
    assert told.startswith(f"matrix.yaml:{line_of(text, where)}: ") and says in told, told


@given(st.integers(-400, 400), st.none() | st.integers(-400, 400))
def test_an_entry_counts_until_its_day_is_over_and_for_no_more_than_ninety_days(days: int, as_of: int | None) -> None:
    until = TODAY + timedelta(days=days)
    matrix = replace(MATRIX, quarantine=(Quarantine({"model": ("small",)}, "b", "i", until, 3, 7),))
    expired = days < (0 if as_of is None else as_of)
    try:
        refuse_dates(matrix, today=TODAY, as_of=None if as_of is None else TODAY + timedelta(days=as_of))
    except MatrixError as error:
        assert error.where == f"{MATRIX.source}:7" and error.exit_code == 3
        over = f"quarantine expired on {until}: mend it, or set a new date with a reason."
        assert error.what == over if expired else "more than 90 days" in error.what
        assert expired or days > LONGEST_DAYS
    else:
        assert not expired and days <= LONGEST_DAYS


def test_a_run_is_refused_by_the_clock_of_its_door(tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").write_text(DECLARED + written(utc_now().date()), encoding="utf-8")
    Session.open(HostRequest(root=tmp_path))
    with pytest.raises(MatrixError, match="quarantine expired on"):
        Session.open(HostRequest(root=tmp_path), now=lambda: utc_now() + timedelta(days=1))


# --- marks


def mark(*evidence: Evidence, when: Mapping[str, tuple[Any, ...]], until: date = TODAY, as_of: date = TODAY) -> Mark:
    matrix = replace(MATRIX, quarantine=(Quarantine(when, "the switch", "#17", until, 3, 7),))
    table = support_table(matrix, evidence, as_of, required_stages=required_stages, ruling=no_rule, gap=no_gap)
    return next(m for m in table.marks if m.cell == "small")


STAGES = (TRAIN, Stage.RESUME, MERGE, Stage.INFER, Stage.DEPLOY)
GOOD = tuple(sample("small", s, tiny_key="tiny-qwen3", hardware=Hardware.CPU) for s in STAGES)
BAD = (sample("small", TRAIN, VerdictKind.FAILED, tiny_key="tiny-qwen3"), *GOOD[1:])
HELD = "quarantined until 2026-06-10: the switch (#17)"


def test_a_failing_mark_stays_failing_and_says_until_when_it_is_held() -> None:
    found = mark(*BAD, when={"stage": (TRAIN,)})
    assert (found.kind, found.because.endswith(f"; {HELD}")) == (MarkKind.FAILING, True)
    for plain in (mark(*BAD, when={"stage": (MERGE,)}), mark(*BAD, when={"model": ("big",)})):
        assert plain.kind is MarkKind.FAILING and "quarantined" not in plain.because


def test_what_is_held_never_shows_green_and_does_again_when_it_is_over() -> None:
    assert mark(*GOOD, when={"model": ("big",)}).kind is MarkKind.WIRED
    found = mark(*GOOD, when={"stage": (Stage.DEPLOY,)})
    assert found.kind is MarkKind.UNTESTED and f"but is {HELD}" in found.because
    assert len(found.evidence) == 5
    real = [sealed(replace(e, hardware=Hardware.SIM)) for e in GOOD]
    assert mark(*GOOD, *real, when={"model": ("small",)}).kind is MarkKind.UNTESTED, "no other place makes it green"
    assert mark(*GOOD, when={"model": ("small",)}, as_of=TODAY + timedelta(days=1)).kind is MarkKind.WIRED


# --- the run


def session(*kept: Evidence, selected: tuple[Stage, ...], stage: Stage = TRAIN) -> Session:
    matrix = replace(MATRIX, quarantine=(Quarantine({"model": ("small",), "stage": (stage,)}, "the switch", "#17", TODAY, 3, 7),))
    ours = Session(HostRequest(root=Path()), matrix, today=TODAY)
    ours._kept, ours._selected = list(kept), {("tiny-qwen3", one) for one in selected}
    return ours


def test_a_held_failure_that_no_item_tells_of_is_told_and_turns_nothing_red() -> None:
    ours = session(BAD[0], selected=(MERGE,))
    assert ours.untold == []
    assert any(line.startswith(f"not green, but {HELD}: small train: failed") for line in ours.summary())
    assert session(BAD[0], selected=(MERGE,), stage=MERGE).untold == [BAD[0]]
    assert ours.quarantine(CELLS[1], TRAIN) is None


def declare(place: Place, entry: str) -> None:  # noqa: F811
    (place.root / "matrix.yaml").write_text(SMALL + entry, encoding="utf-8")


def harness(place: Place, *words: str) -> subprocess.CompletedProcess[str]:  # noqa: F811
    argv = [sys.executable, "-m", "harness", *words]
    return subprocess.run(argv, cwd=place.root, env=place.env, capture_output=True, text=True, timeout=60)


def test_through_the_door_a_held_failure_runs_is_told_and_does_not_turn_the_run_red(place: Place) -> None:  # noqa: F811
    until = utc_now().date() + timedelta(days=LONGEST_DAYS)
    declare(place, written(until, "qwen2_5_0_5b_instruct"))
    code, output = place.door(*CPU, "-rx", "-k", f"{CELL} and (train or merge)")
    assert code == 0 and "2 xfailed" in output, output
    assert f"quarantined until {until}: the switch of this host loses packets" in output
    assert place.kept() == {(CELL, "train"): "failed", (CELL, "merge"): "blocked"}
    assert f"quarantined until {until}" in (place.root / "reports" / "support.md").read_text()
    code, output = place.door(*CPU, "-k", f"{CELL} and merge")
    assert code == 5 and "1 xfailed" in output, "nothing of what was selected ran"
    code, output = place.door(*CPU, "-k", f"({CELL} or {OTHER}) and train")
    assert code == 1 and "1 failed" in output and "1 xfailed" in output, output


def test_through_the_door_a_held_pass_passes_and_its_mark_is_not_green(place: Place) -> None:  # noqa: F811
    declare(place, written(utc_now().date(), "qwen2_5_0_5b_instruct"))
    install(place.programs)
    code, output = place.door(*CPU, "-k", f"{CELL} and train")
    assert code == 0 and "1 passed" in output, output
    shown = json.loads(harness(place, "show", CELL, "--json").stdout)
    assert [m["mark"] for m in shown["marks"]] == ["untested"]


def test_through_the_door_an_expired_entry_fails_by_name_before_anything_starts(place: Place) -> None:  # noqa: F811
    yesterday = utc_now().date() - timedelta(days=1)
    entry = written(yesterday, "qwen2_5_0_5b_instruct")
    declare(place, entry)
    started = place.root / "started"
    write_executable(place.programs / "swift", f"#!/bin/sh\ntouch {started}\n")
    says = f"matrix.yaml:{line_of(SMALL + entry, 'until: 2')}: quarantine expired on {yesterday}: mend it, or set a new date with a reason"
    for suite in (CPU, ("-m", "contract")):
        code, output = place.door(*suite, "-k", CELL)
        assert code == 4 and says in output, output
    assert not started.exists()
    done = harness(place, "report")
    assert done.returncode == 3 and says in done.stderr, done.stderr
    assert harness(place, "report", "--as-of", str(yesterday)).returncode == 0
    assert harness(place, "list").returncode == 0, "what only reads is refused by no date"


def test_through_the_door_an_entry_without_a_near_end_is_refused(place: Place) -> None:  # noqa: F811
    declare(place, written(utc_now().date() + timedelta(days=LONGEST_DAYS + 2), "qwen2_5_0_5b_instruct"))
    code, output = place.door(*CPU, "-k", CELL)
    assert code == 4 and "lasts more than 90 days" in output, output
