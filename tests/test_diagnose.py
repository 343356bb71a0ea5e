"""Reading why a run ended: the exit outranks what the log claims, the earliest decisive line decides, noise never does."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.causes import CAUSES, blame_of
from harness.diagnose import CHATTY, SILENT, diagnose
from harness.logs import read_log
from harness.model import Blame, Run
from harness.symptom_table import SYMPTOMS
from harness.symptoms import words_of

FIXTURES = Path(__file__).parent / "fixtures"
LOGS = [row for row in csv.DictReader((FIXTURES / "PROVENANCE.tsv").open(encoding="utf-8"), delimiter="\t") if row["cause"]]
TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n    f()\nValueError: no such thing\n'


def ended(exit_code: int | None = 1, ended_by: str = "exit", notes: tuple[str, ...] = (), leftovers: tuple[str, ...] = ()) -> Run:
    return Run("train", "n", (), {}, "2026-01-01", 1.0, exit_code, ended_by, "log", "", None, leftovers, "", notes)


@pytest.mark.parametrize("row", LOGS, ids=[row["file"] for row in LOGS])
def test_logs_of_real_failures_get_their_cause(row: dict[str, str]) -> None:
    text = (FIXTURES / row["file"]).read_text(encoding="utf-8")
    outcome = diagnose(text, ended(0 if row["cause"] == "none" else 1))
    assert outcome.cause == row["cause"]
    assert outcome.cause == "none" or (outcome.line in text and outcome.remedy)


def test_a_clean_log_and_exit_0_is_healthy() -> None:
    outcome = diagnose("{'loss': 6.5, 'grad_norm': 1.2}\nlast_model_checkpoint: out\n", ended(0))
    assert (outcome.cause, outcome.line) == ("none", "")


def test_success_printed_with_exit_1_is_a_failure() -> None:
    assert diagnose("Training finished successfully!\n", ended(1)).cause == "run.exit_nonzero"


def test_a_traceback_with_exit_0_is_a_failure_and_its_exception_is_quoted() -> None:
    outcome = diagnose(TRACEBACK + "done\n", ended(0))
    assert (outcome.cause, outcome.line) == ("run.traceback_exit_0", "ValueError: no such thing")


@pytest.mark.parametrize("prefix", ["[rank0]: ", "(worker pid=7) "])
def test_a_traceback_of_one_rank_counts_too(prefix: str) -> None:
    text = "".join(prefix + line + "\n" for line in TRACEBACK.splitlines())
    assert diagnose(text, ended(0)).cause == "run.traceback_exit_0"


def test_exceptions_ignored_at_interpreter_shutdown_are_no_failure() -> None:
    assert diagnose("Exception ignored in: <function f>\n" + TRACEBACK, ended(0)).cause == "none"


def test_the_traceback_of_a_library_written_in_c_is_not_pythons() -> None:
    assert diagnose("        TraceBack (most recent call last):\n", ended(0)).cause == "none"


def test_an_unknown_exception_is_quoted() -> None:
    outcome = diagnose(TRACEBACK, ended(1))
    assert outcome.cause == "run.exit_nonzero" and "ValueError: no such thing" in outcome.line


@pytest.mark.parametrize("row", ["{'loss': nan, 'x': 1.0}", '{"loss": "inf"}', "{'grad_norm': -Infinity}", "{'grad_norm': 'NaN'}"])
def test_a_metric_that_is_not_finite_is_a_cause_whatever_the_exit_code(row: str) -> None:
    assert {diagnose(row, ended(code)).cause for code in (0, 1)} == {"train.nan"}


def test_a_word_that_merely_contains_nan_is_none() -> None:
    assert diagnose("{'loss': 0.5, 'name': 'nano', 'note': 'inference'}", ended(0)).cause == "none"


def test_a_renamed_option_says_what_it_may_be_called_now() -> None:
    outcome = diagnose("ValueError: remaining_argv: ['--train_type', 'lora']", ended(1))
    assert (outcome.cause, outcome.blame) == ("args.unknown", Blame.PRODUCT) and "tuner_type" in outcome.remedy


def test_the_earliest_decisive_line_wins_over_what_follows_from_it() -> None:
    text = "EI0006: Getting socket times out\nRuntimeError: NPU out of memory. Tried\nEJ0003: Failed to bind\n"
    assert diagnose(text, ended(1)).cause == "mem.npu_oom"


def test_a_symptom_of_something_else_decides_when_nothing_else_is_said() -> None:
    assert diagnose("EI0006: Getting socket times out\n", ended(1)).cause == "comm.connect_timeout"


def test_device_memory_held_by_another_process_is_not_blamed_on_the_product() -> None:
    def blame(name: str) -> Blame:
        return diagnose((FIXTURES / "logs" / f"{name}.txt").read_text(encoding="utf-8"), ended(1)).blame

    assert blame("oom_external_usage_vllm_ascend_19") is Blame.ENVIRONMENT
    assert blame("oom_ray_repeated_vllm_ascend_1127") is Blame.PRODUCT


@pytest.mark.parametrize("run", [ended(-9, "signal"), ended(137), ended(247)], ids=["direct", "from_a_shell", "from_swifts_wrapper"])
def test_death_by_sigkill_is_a_signal_and_a_lack_of_memory_only_if_somebody_says_so(run: Run) -> None:
    outcome = diagnose("step 3\n", run)
    assert outcome.cause == "run.signal" and "SIGKILL" in outcome.line
    assert diagnose("step 3\nMemory cgroup out of memory: Killed process 7 (python)\n", run).cause == "mem.host_oom"


def test_hangs_are_told_apart_and_a_decisive_line_explains_them() -> None:
    silent, chatty = (ended(None, "deadline", (f"{how}: at the deadline",)) for how in (SILENT, CHATTY))
    assert diagnose("step 1\n", silent).cause == "run.deadline_silent"
    assert diagnose("step 1\n", chatty).cause == "run.deadline_chatty"
    assert diagnose("OSError: [Errno 98] Address already in use\n", silent).cause == "comm.port_in_use"


def test_a_server_that_was_asked_to_end_is_judged_by_its_proof_and_not_by_its_last_words() -> None:
    assert diagnose("INFO: Shutting down\n" + TRACEBACK, ended(None, "request")).cause == "none"


def test_a_child_left_behind_is_a_cause_of_its_own() -> None:
    outcome = diagnose("done\n", ended(0, leftovers=("python (pid 7), left its process group",)))
    assert outcome.cause == "run.orphan" and "pid 7" in outcome.line


def test_what_was_never_started_says_why() -> None:
    outcome = diagnose("", ended(None, "not started", ("program 'swift' is not on the search path",)))
    assert outcome.cause == "run.not_started" and "'swift'" in outcome.line


def test_colours_carriage_returns_and_ranks_do_not_hide_a_line() -> None:
    text = " 10%|#  | 1/10\r\x1b[31m[rank1]: RuntimeError: NPU out of memory. Tried to allocate 2 GiB [repeated 6x across cluster]\x1b[0m\n"
    assert diagnose(text, ended(1)).line == "[rank1]: RuntimeError: NPU out of memory. Tried to allocate 2 GiB"


def test_every_symptom_names_a_cause_of_the_table_and_a_remedy() -> None:
    assert {symptom.cause for symptom in SYMPTOMS} <= set(CAUSES)
    assert all(symptom.remedy.endswith(".") for symptom in SYMPTOMS)


@given(st.text(), st.integers(-64, 255), st.sampled_from(["exit", "signal", "deadline", "request", "interrupt", "not started"]))
def test_no_log_makes_it_raise_and_only_a_clean_end_is_healthy(text: str, code: int, ended_by: str) -> None:
    outcome = diagnose(text, ended(code, ended_by))
    assert outcome.cause in CAUSES
    assert outcome.cause != "none" or ended_by == "request" or (ended_by == "exit" and code == 0)


@given(st.text(max_size=60))
def test_the_blame_is_the_tables(text: str) -> None:
    outcome = diagnose(text, ended(1))
    assert outcome.blame is blame_of(outcome.cause)


def excerpt(tmp_path: Path, *parts: str) -> str:
    path = tmp_path / "log"
    path.write_text("".join(parts), encoding="utf-8")
    return read_log(path).text


CHATTER = "".join(f"Train:  50%|#####     | {at}/3000 [00:01<00:01]\n" for at in range(3000))


@pytest.mark.parametrize("row", LOGS, ids=[row["file"] for row in LOGS])
def test_a_failure_buried_in_a_long_log_gets_the_cause_that_it_has_alone(row: dict[str, str], tmp_path: Path) -> None:
    text = (FIXTURES / row["file"]).read_text(encoding="utf-8")
    code = 0 if row["cause"] == "none" else 1
    outcome = diagnose(excerpt(tmp_path, CHATTER, text, "\n", CHATTER), ended(code))
    alone = diagnose(text, ended(code))
    if alone.cause.startswith("run."):
        assert outcome.cause == alone.cause
    else:
        assert (outcome.cause, outcome.blame, outcome.line) == (alone.cause, alone.blame, alone.line)


@settings(max_examples=25, deadline=None)
@given(before=st.integers(0, 150_000), after=st.integers(0, 150_000), long=st.booleans())
def test_a_traceback_is_found_wherever_it_stands_in_a_log(
    before: int, after: int, long: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def fill(size: int) -> str:
        return "x" * size + "\n" if long else "a line\n" * (size // 7)

    outcome = diagnose(excerpt(tmp_path_factory.mktemp("log"), fill(before), TRACEBACK, fill(after)), ended(0))
    assert (outcome.cause, outcome.line) == ("run.traceback_exit_0", "ValueError: no such thing")


@settings(max_examples=15, deadline=None)
@given(after=st.integers(60_000, 70_000))
def test_what_python_ignores_at_its_end_stays_ignored_where_an_excerpt_cuts(after: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    ignored = "Exception ignored in: <function f>\n" + TRACEBACK
    text = excerpt(tmp_path_factory.mktemp("log"), CHATTER, ignored * 30, "y" * (after % 77) + "\n", "z\n" * (after // 2 - 1500))
    assert diagnose(text, ended(0)).cause == "none"


def test_the_earliest_of_the_buried_symptoms_decides_and_an_excerpt_has_a_bound(tmp_path: Path) -> None:
    many = "".join(f"{TRACEBACK}EI0006: Getting socket times out {at}\nNPU out of memory. Tried {at}\n" for at in range(2000))
    text = excerpt(tmp_path, CHATTER, "EJ0003: first\n", many, CHATTER)
    assert diagnose(text, ended(1)).cause == "comm.port_in_use" and len(text) < 90_000
    assert diagnose(excerpt(tmp_path, CHATTER, "NPU out \x1b[31mof memory\x1b[0m\n", CHATTER), ended(1)).cause == "mem.npu_oom"
    assert diagnose(excerpt(tmp_path, CHATTER, "{'loss': nan}\n", CHATTER), ended(0)).cause == "train.nan"


def test_every_symptom_has_words_to_look_for_first() -> None:
    assert {s.id: w for s in SYMPTOMS for w in words_of(s.pattern) if len(w) < 4} == {}
