"""logging.jsonl is read whatever state it is in: real rows become numbers, everything else is told, nothing is dropped in silence."""

from __future__ import annotations

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from harness.metrics import duplicated_steps, parse_logging

ROW = '{"loss": 6.57396889, "grad_norm": 1.58976293, "learning_rate": 0.01707107, "token_acc": 0.0, "global_step/max_steps": "1/4"}'
CONSOLE = "{'loss': 2.0832541, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.0, 'global_step/max_steps': '2/2046'}"


def test_a_row_of_ms_swift_is_read_with_its_step() -> None:
    (row,) = parse_logging(ROW).rows
    assert (row.step, row.max_steps, row.loss, row.grad_norm, row.learning_rate) == (1, 4, 6.57396889, 1.58976293, 0.01707107)
    assert row.raw["token_acc"] == 0.0


def test_rows_at_the_end_and_evaluations_are_no_steps() -> None:
    found = parse_logging(
        ROW
        + '\n{"eval_loss": 5.5, "global_step/max_steps": "1/4"}'
        + '\n{"train_runtime": 0.23, "train_loss": 6.28, "global_step/max_steps": "4/4"}'
        + '\n{"last_model_checkpoint": "checkpoint-4", "log_history": [{"loss": 6.5, "step": 1}], "memory": 0}\n'
    )
    assert [row.step for row in found.rows] == [1]
    assert found.faults == ()
    assert found.summary["train_loss"] == 6.28
    assert found.summary["eval_loss"] == 5.5
    assert found.summary["last_model_checkpoint"] == "checkpoint-4"


def test_numbers_written_as_strings_are_numbers() -> None:
    (row,) = parse_logging('{"loss": "6.574", "grad_norm": "inf", "learning_rate": "0", "global_step/max_steps": "1/4"}').rows
    assert (row.loss, row.grad_norm, row.learning_rate) == (6.574, math.inf, 0.0)


def test_nan_is_kept_bare_or_quoted() -> None:
    for written in ("NaN", '"NaN"', '"nan"'):
        (row,) = parse_logging(ROW.replace("6.57396889", written)).rows
        assert row.loss is not None and math.isnan(row.loss)


def test_a_value_that_is_no_number_is_a_fault_and_none() -> None:
    for written in ('"abc"', "true", "[1]", "{}"):
        found = parse_logging(ROW.replace("6.57396889", written))
        assert found.rows[0].loss is None
        assert len(found.faults) == 1 and "line 1" in found.faults[0]


def test_megatron_counts_iterations() -> None:
    (row,) = parse_logging('{"loss": 1.5, "grad_norm": 2.0, "iteration": "7/10"}').rows
    assert (row.step, row.max_steps) == (7, 10)


def test_a_console_row_with_bare_nan_behind_a_progress_bar_is_read() -> None:
    bar = "Train:   0%|          | 1/2046 [00:14<8:16:53, 14.58s/it]"
    found = parse_logging(f"{bar}{CONSOLE}\n{bar}[h264 @ 0x7fc6] mmco: unref short failure\n")
    assert found.faults == ()
    assert found.rows[0].step == 2
    assert found.rows[0].grad_norm is not None and math.isnan(found.rows[0].grad_norm)


def test_two_rows_on_one_line_are_two_rows() -> None:
    assert [row.step for row in parse_logging(ROW + ROW.replace("1/4", "2/4")).rows] == [1, 2]


def test_a_half_row_is_a_fault() -> None:
    for cut in (1, 10, len(ROW) - 1):
        found = parse_logging(ROW + "\n" + ROW[:cut])
        assert len(found.rows) == 1 and len(found.faults) == 1


def test_text_that_is_neither_row_nor_progress_is_a_fault() -> None:
    assert parse_logging("Training finished!\n").faults == ("line 1: not a whole row: Training finished!",)


def test_a_step_counter_that_counts_nothing_is_a_fault() -> None:
    for counter in ('"1 of 4"', "1", '"/4"', "null", '"-1/4"'):
        found = parse_logging(ROW.replace('"1/4"', counter))
        assert found.rows == () and len(found.faults) == (0 if counter == "null" else 1)


def test_rows_of_two_runs_show_as_duplicates() -> None:
    found = parse_logging((ROW + "\n" + ROW.replace("1/4", "2/4") + "\n") * 2)
    assert [row.step for row in found.rows] == [1, 2, 1, 2]
    assert duplicated_steps(found) == (1, 2)


@given(st.text())
def test_no_text_raises(text: str) -> None:
    parse_logging(text)


@given(st.text(alphabet="{}[]'\":,0123456789.eE+-naifNIlosgrd_/ \n"))
def test_no_text_that_looks_like_rows_raises(text: str) -> None:
    parse_logging(text)


def test_hostile_rows_are_faults() -> None:
    deep = '{"a":' * 5000
    huge = '{"loss": ' + "9" * 400 + ', "global_step/max_steps": "1/4"}'
    longest = '{"loss": ' + "9" * 5000 + ', "global_step/max_steps": "1/4"}'
    assert parse_logging(deep).faults
    assert parse_logging(huge).rows[0].loss == math.inf
    assert parse_logging(longest).faults


numbers = st.floats(allow_nan=False) | st.integers(-(10**6), 10**6)


@given(st.lists(st.tuples(st.integers(1, 10**6), numbers, numbers), max_size=8), st.integers(1, 10**6))
def test_what_json_writes_is_read_back(rows: list[tuple[int, float, float]], total: int) -> None:
    text = "\n".join(json.dumps({"loss": loss, "grad_norm": norm, "global_step/max_steps": f"{k}/{total}"}) for k, loss, norm in rows)
    found = parse_logging(text)
    assert found.faults == ()
    assert [(row.step, row.max_steps, row.loss, row.grad_norm) for row in found.rows] == [(k, total, a, b) for k, a, b in rows]


@given(st.integers(0, len(ROW) - 1))
def test_a_file_cut_anywhere_never_gives_a_row_that_was_not_there(cut: int) -> None:
    found = parse_logging(ROW + "\n" + ROW.replace("1/4", "2/4")[:cut])
    assert [row.step for row in found.rows] == [1]
    assert bool(found.faults) == bool(cut)
