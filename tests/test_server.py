"""Talking to servers that lie, one way each: real processes, real sockets, and the cause that the proof must name."""

from __future__ import annotations

import json
import os
import socket
import sys
import uuid
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.aftermath import after_the_end, free_port, port_is_free, shared_memory_of
from harness.diagnose import diagnose
from harness.launch import Alive, launch
from harness.model import Command, Hardware, Metrics, Run, Step, StepResult, Witness
from harness.proof_deploy import REQUIRED_DEPLOY, ServerReport, prove_deploy
from harness.server import _completion, _joined, _json, converse, listening_ports

FAKE = str(Path(__file__).parent / "fixtures" / "fake_server.py")
MESSAGES = ({"role": "user", "content": "hello"},)
ANSWER = "four words of answer"


def serve(work: Path, lie: str, *, port: int | None = None, deadline_s: float = 10.0) -> tuple[StepResult, ServerReport]:
    """Launch the fake, talk to it, end it, look after it."""
    port = port or free_port()
    shm = f"/dev/shm/npu-matrix-test-{uuid.uuid4().hex}"
    step = Step("deploy", Command(sys.executable, (FAKE, str(port), lie, shm)), "out", 30.0, serves=True)
    reports: list[ServerReport] = []
    used: set[str] = set()

    def attend(alive: Alive) -> None:
        asked = {"model_name": "mine", "messages": MESSAGES, "max_tokens": 8}
        reports.append(converse(port=port, **asked, deadline_s=deadline_s, alive=alive.is_alive, pids=alive.pids))  # type: ignore[arg-type]
        used.update(shared_memory_of(alive.pids()))

    nonce = uuid.uuid4().hex
    try:
        run = launch(step, nonce=nonce, work=work, search_path="", base_env=dict(os.environ), attend=attend, grace_s=1.0)
        report = after_the_end(reports[0], frozenset(used), within_s=0.3)
    finally:
        for left in Path("/dev/shm").glob(f"{Path(shm).name}*"):
            left.unlink()
    return StepResult(step, run, (witness(run),), Metrics((), {}), diagnose(run.log_tail, run)), report


def witness(run: Run, answers: int = 3) -> Witness:
    generated = {"event": "generate", "device": "cpu", "prompt_ids": [[1, 2, 3, 4, 5]], "output_ids": [[6, 7, 8, 9]]}
    start = {"event": "start", "argv": list(run.argv[1:]), "python": "python", "swift_file": "swift/__init__.py"}
    versions = {"ms-swift": "4.6.0", "torch": "2.14.1", "transformers": "5.19.0", "python": "3.11.7"}
    began = datetime.fromisoformat(run.started_at).timestamp()
    events = tuple({**event, "time": began + run.duration_s / 2} for event in (start, *[generated] * answers))
    return Witness(run.nonce, 1, 0, 1, "w", versions, events)


def first_cause(result: StepResult, report: ServerReport) -> str:
    if result.outcome.cause != "none":
        return result.outcome.cause
    made = prove_deploy(result=result, report=report, hardware=Hardware.CPU, expected_answer=ANSWER)
    return next((c.cause for c in made if not c.ok), "none")


def test_an_honest_server_proves_everything_that_is_required(tmp_path: Path) -> None:
    result, report = serve(tmp_path, "")
    made = prove_deploy(result=result, report=report, hardware=Hardware.CPU, expected_answer=ANSWER)
    assert [c for c in made if not c.ok] == []
    assert set(REQUIRED_DEPLOY) <= {c.name for c in made}
    assert result.run.ended_by == "request" and result.outcome.cause == "none"


@pytest.mark.parametrize(
    ("lie", "cause"),
    [
        ("never_ready", "serve.never_ready"),
        ("wrong_port", "serve.wrong_port"),
        ("error_body", "serve.error_body"),
        ("no_choices", "serve.error_body"),
        ("empty", "serve.error_body"),
        ("model_list", "serve.model_list"),
        ("no_usage", "serve.no_usage"),
        ("wrong_usage", "serve.no_usage"),
        ("stream_malformed", "serve.stream_broken"),
        ("stream_without_end", "serve.stream_broken"),
        ("stream_lacks_text", "serve.stream_broken"),
        ("accepts_anything", "serve.accepts_bad_request"),
        ("bad_request_500", "serve.accepts_bad_request"),
        ("forgets", "serve.stream_broken"),
        ("dies_of_a_bad_request", "run.exit_nonzero"),
        ("dies_at_once", "run.exit_nonzero"),
        ("deaf", "serve.deaf_to_sigterm"),
        ("orphan", "serve.leftover"),
        ("shared_memory", "serve.leftover"),
        ("never_answers", "serve.error_body"),
    ],
)
def test_a_lie_gets_its_cause(tmp_path: Path, lie: str, cause: str) -> None:
    result, report = serve(tmp_path, lie, deadline_s=2.0 if lie.startswith("never") else 10.0)
    assert first_cause(result, report) == cause


def test_a_server_that_died_of_a_bad_request_is_known_to_have_died(tmp_path: Path) -> None:
    result, report = serve(tmp_path, "dies_of_a_bad_request")
    names = {c.name: c.cause for c in prove_deploy(result=result, report=report, hardware=Hardware.CPU, expected_answer=None) if not c.ok}
    assert names["deploy.lives_on"] == "serve.died" and names["deploy.ends_on_sigterm"] == "serve.died"


def test_another_process_on_the_port_is_not_taken_for_the_server(tmp_path: Path) -> None:
    class Stranger(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"data": [{"id": "mine"}]}')

        def log_message(self, *_: object) -> None:
            pass

    stranger = HTTPServer(("127.0.0.1", 0), Stranger)
    Thread(target=stranger.serve_forever, daemon=True).start()
    try:
        # The fake does not take this port: its "wrong_port" lie listens on the next one.
        result, report = serve(tmp_path, "wrong_port", port=stranger.server_port)
    finally:
        stranger.shutdown()
        stranger.server_close()
    assert report.served_by_run is False and report.plain is None
    assert first_cause(result, report) == "serve.port_taken"


def test_a_proxy_in_the_environment_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert serve(tmp_path, "")[1].ready_s is not None


def test_a_port_is_free_until_somebody_listens_on_it() -> None:
    port = free_port()
    assert port_is_free(port)
    with socket.create_server(("127.0.0.1", port)):
        assert not port_is_free(port)
        assert port in listening_ports([os.getpid()])
    assert port not in listening_ports([os.getpid(), 2**22 + 1])


def test_only_the_shared_memory_of_the_run_counts_as_left_behind() -> None:
    mine, other = (Path(f"/dev/shm/npu-matrix-test-{uuid.uuid4().hex}") for _ in range(2))
    report = ServerReport(port=free_port(), model_name="mine")
    other.touch()
    try:
        with mine.open("w"):
            used = shared_memory_of([os.getpid()])
        assert mine.name in used and other.name not in used
        assert after_the_end(report, used, within_s=0).shm_left == (mine.name,)
        mine.unlink()
        assert after_the_end(report, used, within_s=0).shm_left == ()
    finally:
        other.unlink()
        mine.unlink(missing_ok=True)


KEYS = st.sampled_from(["choices", "usage", "message", "delta", "error", "prompt_tokens"])
DOCUMENTS = st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner))


@given(st.binary() | st.text().map(str.encode) | DOCUMENTS.map(lambda document: json.dumps(document).encode()))
def test_no_body_makes_the_reading_of_an_answer_raise(body: bytes) -> None:
    assert _completion(_json(body), body).status == 200
    assert _joined(b"data: ".decode() + body.decode("utf-8", "replace")).status == 200
    assert _joined(body.decode("utf-8", "replace")).status == 200


def test_a_stream_is_whole_only_with_its_end_and_nothing_behind_it() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    chunk = "data: " + json.dumps({"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}], "usage": usage})
    whole = _joined(f"{chunk}\n\ndata: [DONE]\n\n")
    assert (whole.text, whole.broken, whole.chunks, whole.usage) == ("a", "", 1, (1, 1, 2))
    assert "no [DONE]" in _joined(f"{chunk}\n\n").broken
    assert "after [DONE]" in _joined(f"{chunk}\n\ndata: [DONE]\n\n{chunk}\n\n").broken
    assert "no event stream" in _joined('{"choices": []}').broken
