"""The proof of serving, on facts alone: an honest report passes, and each single fact changed fails with its own cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.diagnose import DEAF
from harness.model import Blame, Command, Hardware, Metrics, Outcome, Run, Step, StepResult, Witness
from harness.proof_deploy import BAD_JSON, BAD_MODEL, NO_MESSAGES, REQUIRED_DEPLOY, SAME_ANSWER, Completion, ServerReport, prove_deploy

ARGS = ("deploy", "--model", "m", "--port", "8000")
STEP = Step("deploy", Command("swift", ARGS), "out", 60.0, serves=True)
ENDED = ("ended 0.4 s after SIGTERM, with status 0",)
RUN = Run("deploy", "n1", STEP.command.argv, {}, "2026-01-01", 9.0, None, "request", "log", "", notes=ENDED)
COMPLETION = Completion(200, "four words of answer", "stop", (5, 4, 9))
REPORT = ServerReport(
    port=8000,
    model_name="mine",
    ready_s=3.0,
    served_by_run=True,
    models=("mine",),
    plain=COMPLETION,
    streamed=replace(COMPLETION, chunks=4),
    again=COMPLETION,
    refusals={BAD_MODEL: 400, BAD_JSON: 422, NO_MESSAGES: 422},
    alive_after=True,
    port_free=True,
    shm_left=(),
)
BEGAN = 1767225600.0  # 2026-01-01T00:00:00Z
TOKENS = {"prompt_ids": [[1, 2, 3, 4, 5]], "output_ids": [[6, 7, 8, 9]]}
GENERATE: dict[str, Any] = {"event": "generate", "time": BEGAN + 4, "device": "cpu", **TOKENS}
PLACE = {"python": "/site/bin/python", "swift_file": "/site/swift/__init__.py"}
START: dict[str, Any] = {"event": "start", "time": BEGAN, "argv": ["deploy.py", *ARGS[1:]], **PLACE}
VERSIONS = {"ms-swift": "4.6.0", "torch": "2.14.1", "transformers": "5.19.0", "python": "3.11.9"}
WITNESS = Witness("n1", 7, 0, 1, "w", VERSIONS, (START, GENERATE, GENERATE, GENERATE))


def witness_of(event: dict[str, Any]) -> Witness:
    return replace(WITNESS, events=(WITNESS.events[0], event, event, event))


def result(run: Run = RUN, witnesses: tuple[Witness, ...] = (WITNESS,)) -> StepResult:
    return StepResult(STEP, run, witnesses, Metrics((), {}), Outcome("none", Blame.UNKNOWN))


def failures(report: ServerReport = REPORT, of: StepResult | None = None, **more: Any) -> dict[str, str]:
    settings: dict[str, Any] = {"hardware": Hardware.CPU, "expected_answer": COMPLETION.text, **more}
    made = prove_deploy(result=of or result(), report=report, **settings)
    assert len({c.name for c in made}) == len(made)
    assert all(c.expected and c.found for c in made)
    return {c.name: c.cause for c in made if not c.ok}


def test_an_honest_server_passes_and_compares_all_that_is_required() -> None:
    assert failures() == {}
    made = prove_deploy(result=result(), report=REPORT, hardware=Hardware.CPU, expected_answer=COMPLETION.text)
    assert {*REQUIRED_DEPLOY, SAME_ANSWER} <= {c.name for c in made}


@pytest.mark.parametrize(
    ("changes", "name", "cause"),
    [
        ({"ready_s": None, "served_by_run": None}, "deploy.ready", "serve.never_ready"),
        ({"ready_s": None, "served_by_run": None, "died": True}, "deploy.ready", "serve.died"),
        ({"ready_s": None, "served_by_run": None, "other_port": 8001}, "deploy.ready", "serve.wrong_port"),
        ({"served_by_run": False}, "deploy.listener", "serve.port_taken"),
        ({"models": ("another",)}, "deploy.model_list", "serve.model_list"),
        ({"models": ()}, "deploy.model_list", "serve.model_list"),
        ({"plain": Completion(200, error='{"object": "error"}')}, "deploy.answer", "serve.error_body"),
        ({"plain": replace(COMPLETION, text="")}, "deploy.answer", "serve.error_body"),
        ({"plain": None}, "deploy.answer", "serve.error_body"),
        ({"plain": replace(COMPLETION, usage=None)}, "deploy.usage", "serve.no_usage"),
        ({"plain": replace(COMPLETION, usage=(5, 4, 10))}, "deploy.usage", "serve.no_usage"),
        ({"plain": replace(COMPLETION, usage=(5, 0, 5))}, "deploy.usage", "serve.no_usage"),
        ({"plain": replace(COMPLETION, finish_reason="")}, "deploy.finish_reason", "serve.error_body"),
        ({"streamed": replace(COMPLETION, broken="no [DONE] at its end")}, "deploy.stream", "serve.stream_broken"),
        ({"streamed": replace(COMPLETION, error="{}")}, "deploy.stream", "serve.error_body"),
        ({"streamed": replace(COMPLETION, text="four words")}, "deploy.stream_equals_plain", "serve.stream_broken"),
        ({"streamed": replace(COMPLETION, usage=None)}, "deploy.stream_usage", "serve.no_usage"),
        ({"refusals": {**REPORT.refusals, BAD_MODEL: 200}}, "deploy.refusals", "serve.accepts_bad_request"),
        ({"refusals": {**REPORT.refusals, BAD_JSON: 500}}, "deploy.refusals", "serve.accepts_bad_request"),
        ({"refusals": {**REPORT.refusals, NO_MESSAGES: None}}, "deploy.refusals", "serve.accepts_bad_request"),
        ({"refusals": {}}, "deploy.refusals", "serve.accepts_bad_request"),
        ({"alive_after": False}, "deploy.lives_on", "serve.died"),
        ({"again": replace(COMPLETION, status=None, error="refused")}, "deploy.lives_on", "serve.died"),
        ({"again": replace(COMPLETION, text="something else")}, "deploy.lives_on", "serve.died"),
        ({"port_free": False}, "deploy.port_free", "serve.leftover"),
        ({"port_free": None}, "deploy.port_free", "serve.leftover"),
        ({"shm_left": ("torch_7_x",)}, "deploy.no_shared_memory_left", "serve.leftover"),
        ({"shm_left": None}, "deploy.no_shared_memory_left", "serve.leftover"),
    ],
)
def test_each_fact_of_the_report_that_is_wrong_is_told(changes: dict[str, Any], name: str, cause: str) -> None:
    found = failures(replace(REPORT, **changes))
    assert found[name] == cause
    assert next(iter(found)) == name, "something else is blamed first"


@pytest.mark.parametrize(
    ("change", "name", "cause"),
    [
        (lambda r: replace(r, ended_by="exit", exit_code=0, notes=()), "deploy.ends_on_sigterm", "serve.died"),
        (lambda r: replace(r, notes=(f"{DEAF}: python (pid 7) lived 10 s",)), "deploy.ends_on_sigterm", "serve.deaf_to_sigterm"),
        (lambda r: replace(r, leftovers=("python (pid 7)",)), "deploy.no_process_left", "serve.leftover"),
    ],
)
def test_a_server_that_ends_badly_is_told(change: Callable[[Run], Run], name: str, cause: str) -> None:
    assert failures(of=result(change(RUN))) == {name: cause}


@pytest.mark.parametrize(
    ("witnesses", "name", "cause"),
    [
        ((), "deploy.witness", "proof.witness_missing"),
        ((replace(WITNESS, nonce="another"),), "deploy.nonce", "proof.witness_nonce"),
        ((replace(WITNESS, events=WITNESS.events[:1]),), "deploy.witnessed", "proof.witness_missing"),
        ((replace(WITNESS, events=({**START, "argv": []}, *WITNESS.events[1:])),), "deploy.argv", "proof.argv"),
        ((witness_of({**GENERATE, "device": "npu:0"}),), "deploy.device", "proof.device"),
        ((replace(WITNESS, events=WITNESS.events[:3]),), "deploy.generated", "infer.not_generated"),
        ((witness_of({**GENERATE, "prompt_ids": [[1]]}),), "deploy.generated", "infer.not_generated"),
        ((witness_of({**GENERATE, "output_ids": [[1]]}),), "deploy.generated", "infer.not_generated"),
    ],
)
def test_an_answer_that_nobody_was_witnessed_to_generate_is_told(witnesses: tuple[Witness, ...], name: str, cause: str) -> None:
    assert failures(of=result(witnesses=witnesses)) == {name: cause}


def test_an_end_token_that_one_side_does_not_count_is_no_lie() -> None:
    assert failures(of=result(witnesses=(witness_of({**GENERATE, "output_ids": [[6, 7, 8]]}),))) == {}


def test_the_served_answer_must_be_the_one_that_infer_gave() -> None:
    assert failures(expected_answer="another answer") == {SAME_ANSWER: "serve.answer_differs"}
    assert failures(expected_answer=None) == {}


def test_npu_work_is_not_taken_from_a_cpu() -> None:
    assert failures(hardware=Hardware.A2)["deploy.device"] == "proof.device"
