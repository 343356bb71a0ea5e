"""Whether a statement of a page did what it is for: besides exit code 0, what it left on disk or said. A 0 that did nothing fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.artifacts import read_answers, read_checkpoint
from harness.diagnose import diagnose
from harness.docs_run_plan import Kind, Unit
from harness.docs_run_said import ABORT_BECAUSE, aborted_at_exit, answers_in, asked_of_a_hub, reply_to, results_named
from harness.model import Run
from harness.proof_deploy import ServerReport

Weights = Mapping[Path, int]


@dataclass(frozen=True)
class Judged:
    """`said`: what is there, or what is wrong. `cause`: a cause id where a process failed, else empty."""

    ok: bool
    said: str
    cause: str = ""


def weights_under(folder: Path) -> Weights:
    """Each file of weights under a folder, with the time of its last write (ns)."""
    files = [path for pattern in ("*.safetensors", "*.bin", "*.distcp") for path in folder.rglob(pattern)]
    return {path: path.stat().st_mtime_ns for path in files if path.is_file() and not path.name.startswith("training_args")}


def judge_unit(unit: Unit, run: Run, page: Path, before: Weights) -> Judged:
    """`before`: weights_under(page) as it was when the statement began."""
    if run.ended_by != "exit" or run.exit_code != 0:
        return _failed(unit, run)
    outcome = diagnose(run.log_tail, run)
    if outcome.cause != "none" and unit.kind not in (Kind.SET, Kind.SHELL):
        return Judged(False, f"exit code 0, but {outcome.line}", outcome.cause)
    new = sorted({path.parent for path, when in weights_under(page).items() if before.get(path) != when})
    match unit.kind:
        case Kind.TRAIN:
            return _trained(unit, new, page)
        case Kind.MERGE:
            return _merged(new, page)
        case Kind.EXPORT:
            return Judged(bool(new), f"left {_named(new, page)}" if new else "exit code 0, but no new weights are there")
        case Kind.INFER:
            return _answered(run, page)
        case Kind.ASK:
            ok, said = reply_to(unit.asked, run.log_tail)
            return Judged(ok, said)
        case _:
            return Judged(True, "exit code 0")


def judge_ready(report: ServerReport | None, run: Run | None) -> Judged:
    """Of a server that was waited for; `run` if it has ended by itself meanwhile."""
    if report is None or report.ready_s is None:
        if run is not None and run.ended_by != "request":
            failed = _told(run)
            return Judged(False, f"ended before it answered: {failed.said}", failed.cause)
        where = f", but on port {report.other_port}" if report and report.other_port else ""
        return Judged(False, f"did not answer /v1/models{where} after {report.waited_s if report else 0:.0f} s", "serve.never_ready")
    if not report.served_by_run:
        return Judged(False, f"another process answers on port {report.port}", "serve.port_taken")
    if not report.models:
        return Judged(False, "answers, but /v1/models lists no model", "serve.model_list")
    return Judged(True, f"ready after {report.ready_s:.1f} s, serves {', '.join(report.models)}")


def judge_end(run: Run, port_left: bool) -> Judged:
    """Of a server that was asked to end: SIGTERM to its group must be enough, and leave nothing."""
    if run.ended_by != "request":
        return Judged(False, f"ended before it was asked to: {_told(run).said}", "serve.died")
    left = [f"left running: {one}" for one in run.leftovers] + (["its port is still taken"] if port_left else [])
    return Judged(not left, "; ".join(left) or "ended on SIGTERM, nothing left", "run.orphan" if left else "")


def _failed(unit: Unit, run: Run) -> Judged:
    if unit.kind is Kind.INFER and aborted_at_exit(run.log_tail, run.exit_code):
        return Judged(False, ABORT_BECAUSE, "run.signal")
    return _told(run)


def _told(run: Run) -> Judged:
    """How a process that failed ended, and what of its log says why."""
    how, outcome = _how(run), diagnose(run.log_tail, run)
    if asked := asked_of_a_hub(run.log_tail):
        because = f"a hub was asked for {asked!r}: here that is no folder, nor a model that the installed ms-swift knows"
        return Judged(False, f"{how}; {because}", outcome.cause)
    return Judged(False, outcome.line if outcome.line.startswith(how) else f"{how}; {outcome.line}", outcome.cause)


def _how(run: Run) -> str:
    if run.ended_by == "exit":
        return f"exit code {run.exit_code}"
    return f"ended by {run.ended_by}" + (f" ({run.notes[0]})" if run.notes else "")


def _trained(unit: Unit, new: list[Path], page: Path) -> Judged:
    folders = [folder for folder in new if folder.name.startswith("checkpoint-")]
    if not folders:
        return Judged(False, "exit code 0, but no checkpoint-* with weights is there")
    for folder in folders:
        found = read_checkpoint(folder)
        if found.weights is None or found.weights.fault:
            return Judged(False, f"{_named([folder], page)} can't be read: {found.fault or 'no weights'}", "ckpt.load")
        if unit.leaves_adapter and not found.is_adapter:
            return Judged(False, f"{_named([folder], page)} holds no adapter")
    return Judged(True, f"left {_named(folders, page)} with {'an adapter' if unit.leaves_adapter else 'weights'}")


def _merged(new: list[Path], page: Path) -> Judged:
    for folder in new:
        found = read_checkpoint(folder)
        if found.weights is not None and found.weights.tensors and not found.is_adapter and found.config is not None and not found.fault:
            return Judged(True, f"left {_named([folder], page)} with {len(found.weights.tensors)} tensors")
    return Judged(False, "exit code 0, but no folder with a whole model is there")


def _answered(run: Run, page: Path) -> Judged:
    answers = answers_in(run.log_tail)
    if not answers and (named := results_named(run.log_tail)):
        answers = tuple(row.response.strip() for row in read_answers(page / named).rows)
    if not answers:
        return Judged(False, "exit code 0, but no answer was printed")
    if not all(answers):
        return Judged(False, f"exit code 0, but {answers.count('')} of {len(answers)} answers are empty")
    return Judged(True, f"answered {answers[0][:60]!r}" + (f" and {len(answers) - 1} more" if answers[1:] else ""))


def _named(folders: list[Path], page: Path) -> str:
    return ", ".join(str(folder.relative_to(page)) for folder in folders)
