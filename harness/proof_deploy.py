"""Proof of serving: a server that answers, refuses, streams, counts its tokens, says the same as infer, and ends without a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.compare import check
from harness.diagnose import DEAF
from harness.model import Comparison, Hardware, StepResult, Witness
from harness.proof_infer import said
from harness.proof_process import prove_device, prove_process

BAD_MODEL, BAD_JSON, NO_MESSAGES = "a model name it does not serve", "a body that is no JSON", "a body without messages"

SAME_ANSWER = "deploy.same_answer"
# Every name that a pass must have compared; SAME_ANSWER besides, where infer's answer is known.
REQUIRED_DEPLOY = (
    "deploy.ready",
    "deploy.listener",
    "deploy.model_list",
    "deploy.answer",
    "deploy.usage",
    "deploy.finish_reason",
    "deploy.stream",
    "deploy.stream_usage",
    "deploy.stream_equals_plain",
    "deploy.refusals",
    "deploy.lives_on",
    "deploy.ends_on_sigterm",
    "deploy.no_process_left",
    "deploy.port_free",
    "deploy.no_shared_memory_left",
    "deploy.witness",
    "deploy.nonce",
    "deploy.witness_whole",
    "deploy.witnessed",
    "deploy.argv",
    "deploy.is_swift",
    "deploy.witness_sane",
    "deploy.device",
    "deploy.generated",
)


@dataclass(frozen=True)
class Completion:
    """One chat completion as it came. `status` is None where no answer came; `error` and `broken` are "" where nothing is wrong.

    `error`: the body (or the connection) says that it failed. `broken`: what of the protocol is violated. `usage` counts tokens:
    prompt, completion, total. `chunks` is 0 unless streamed.
    """

    status: int | None = None
    text: str = ""
    finish_reason: str = ""
    usage: tuple[int, int, int] | None = None
    error: str = ""
    broken: str = ""
    chunks: int = 0


@dataclass(frozen=True)
class ServerReport:
    """What talking to a server showed. Times in seconds since the conversation began; None: never came to that.

    `served_by_run`: the process that listens on `port` belongs to the run. `other_port`: one on which the run served instead.
    `refusals`: HTTP status by bad request. `port_free` and `shm_left` are looked at after the server's end.
    """

    port: int
    model_name: str
    ready_s: float | None = None
    waited_s: float = 0.0
    died: bool = False
    served_by_run: bool | None = None
    other_port: int | None = None
    models: tuple[str, ...] = ()
    plain: Completion | None = None
    streamed: Completion | None = None
    again: Completion | None = None
    refusals: Mapping[str, int | None] = field(default_factory=dict)
    alive_after: bool = False
    port_free: bool | None = None
    shm_left: tuple[str, ...] | None = None


def prove_deploy(
    *,
    result: StepResult,
    report: ServerReport,
    hardware: Hardware,
    expected_answer: str | None,
    device_names: Sequence[str] = (),
) -> tuple[Comparison, ...]:
    """Design section 4, row `deploy`. `expected_answer`: what infer gave for the same prompt at temperature 0, None where it is not known.

    A server that never got ready is not asked the rest: `missing_required` refuses a pass without it.
    """
    made = [_ready(report)]
    if made[0].ok:
        ours = report.served_by_run is True
        expected = f"port {report.port} held by this run"
        made.append(check("deploy.listener", ours, "serve.port_taken", expected, "this run" if ours else "another process"))
    if report.served_by_run:
        listed = report.model_name in report.models
        made.append(check("deploy.model_list", listed, "serve.model_list", report.model_name, ", ".join(report.models) or "no models"))
        made += _answers(report)
        made += _refusals(report)
    made += _end(result, report)
    process, witness = prove_process("deploy", result, "generate")
    made += process
    if witness is not None:
        events = witness.all("generate")
        made.append(prove_device("deploy", hardware, witness, events, device_names))
        made.append(_generated(report, witness))
    if expected_answer is not None and report.plain is not None:
        same = report.plain.text == expected_answer
        made.append(check(SAME_ANSWER, same, "serve.answer_differs", repr(expected_answer), repr(report.plain.text)))
    return tuple(made)


def _ready(report: ServerReport) -> Comparison:
    expected = f"an answer on port {report.port}"
    if report.ready_s is not None:
        return check("deploy.ready", True, "serve.never_ready", expected, f"after {report.ready_s:.1f} s")
    if report.other_port is not None:
        return check("deploy.ready", False, "serve.wrong_port", expected, f"it serves on port {report.other_port}")
    cause, found = ("serve.died", "it ended") if report.died else ("serve.never_ready", "none")
    return check("deploy.ready", False, cause, expected, f"{found} after {report.waited_s:.1f} s")


def _answers(report: ServerReport) -> list[Comparison]:
    plain, streamed, again = (c or Completion(error="never asked") for c in (report.plain, report.streamed, report.again))
    lives = report.alive_after and again.status == 200 and not again.error and again.text == plain.text
    state = f"{'alive' if report.alive_after else 'dead'}; {again.error or again.broken or repr(again.text)}"
    lived = check("deploy.lives_on", lives, "serve.died", f"alive after bad requests, and {plain.text!r} again", state)
    if report.died:  # what a dead server did not answer follows from that
        return [lived]
    made = [_answered("deploy.answer", plain, "serve.error_body")]
    if made[0].ok:
        made.append(_counted("deploy.usage", plain))
        finished = plain.finish_reason in ("stop", "length")
        made.append(check("deploy.finish_reason", finished, "serve.error_body", "stop or length", plain.finish_reason or "none"))
    made.append(_answered("deploy.stream", streamed, "serve.stream_broken"))
    if made[-1].ok:
        same = said(streamed.text) == said(plain.text)
        made.append(_counted("deploy.stream_usage", streamed))
        made.append(check("deploy.stream_equals_plain", same, "serve.stream_broken", repr(plain.text), repr(streamed.text)))
    return [*made, lived]


def _answered(name: str, got: Completion, cause: str) -> Comparison:
    """A status 200 that carries an error is a lie of its own; so is one without text."""
    good = got.status == 200 and not got.error and not got.broken and bool(got.text)
    if got.status == 200 and got.error:
        cause = "serve.error_body"
    found = got.error or got.broken or repr(got.text)
    return check(name, good, cause, "status 200 and a text", f"status {got.status}, {found}")


def _counted(name: str, got: Completion) -> Comparison:
    prompt, completion, total = got.usage or (0, 0, 0)
    good = prompt > 0 and completion > 0 and prompt + completion == total
    found = f"{prompt} + {completion}, total {total}" if got.usage else "no usage"
    return check(name, good, "serve.no_usage", "tokens of prompt + answer = total", found)


def _refusals(report: ServerReport) -> list[Comparison]:
    asked = {what: report.refusals.get(what) for what in (BAD_MODEL, BAD_JSON, NO_MESSAGES)}
    good = all(status is not None and 400 <= status < 500 for status in asked.values())
    found = ", ".join(f"{what}: {status or 'no answer'}" for what, status in asked.items())
    return [check("deploy.refusals", good, "serve.accepts_bad_request", "a 4xx each", found)]


def _end(result: StepResult, report: ServerReport) -> list[Comparison]:
    run = result.run
    if run.ended_by != "request":
        found = f"ended by {run.ended_by}, exit code {run.exit_code}"
        return [check("deploy.ends_on_sigterm", False, "serve.died", "it ran until it was asked to end", found)]
    deaf = next((note for note in run.notes if note.startswith(DEAF)), "")
    left = "none" if report.shm_left == () else "not looked at" if report.shm_left is None else ", ".join(report.shm_left)
    return [
        check("deploy.ends_on_sigterm", not deaf, "serve.deaf_to_sigterm", "it ends on SIGTERM", deaf or "; ".join(run.notes)),
        check("deploy.no_process_left", not run.leftovers, "serve.leftover", "no process left", "; ".join(run.leftovers) or "none"),
        check("deploy.port_free", report.port_free is True, "serve.leftover", f"port {report.port} free afterwards",
              {True: "free", False: "taken", None: "not looked at"}[report.port_free]),
        check("deploy.no_shared_memory_left", report.shm_left == (), "serve.leftover", "no shared memory left", left),
    ]  # fmt: skip


def _generated(report: ServerReport, witness: Witness) -> Comparison:
    """Each answer came out of a witnessed generate with as many tokens: a canned answer has none."""
    events = witness.all("generate")
    answers = [c for c in (report.plain, report.streamed, report.again) if c is not None and c.usage is not None]
    seen = [counts for event in events for counts in _token_counts(event)]
    unseen = [c.usage for c in answers if c.usage is not None and not any(_agree(c.usage, counts) for counts in seen)]
    good = bool(answers) and not unseen and len(events) >= len(answers)
    found = f"{len(events)} generated, tokens (prompt, answer) {seen}" + (f", none for {unseen}" if unseen else "")
    return check("deploy.generated", good, "infer.not_generated", f"{len(answers)} answers generated", found)


def _token_counts(event: Mapping[str, Any]) -> list[tuple[int, int]]:
    return [(len(prompt), len(output)) for prompt, output in zip(event.get("prompt_ids", ()), event.get("output_ids", ()), strict=False)]


def _agree(usage: tuple[int, int, int], counts: tuple[int, int]) -> bool:
    # Where the end token is the padding token too, one side counts it and the other does not.
    return usage[0] == counts[0] and abs(usage[1] - counts[1]) <= 1
