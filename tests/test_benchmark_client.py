"""The client of serving benchmarks against a server that answers as a test says."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from harness.benchmark_client import NoAnswer, round_of, wait_until_ready

CHUNK = {"choices": [{"delta": {"content": "x"}}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}


@contextmanager
def server(chunks: list[object], *, status: int = 200, pause_s: float = 0.05) -> Iterator[tuple[int, list[int]]]:
    """The port, and how many requests were in flight whenever one began."""
    busy, lock, flights = [0], threading.Lock(), []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, json.dumps({"data": [{"id": "tiny"}]}).encode())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            with lock:
                busy[0] += 1
                flights.append(busy[0])
            self.send_response(status)
            self.end_headers()
            for chunk in chunks:
                time.sleep(pause_s)
                said = chunk if isinstance(chunk, str) else json.dumps(chunk)
                self.wfile.write(f"data: {said}\n\n".encode())
                self.wfile.flush()
            with lock:
                busy[0] -= 1

        def _send(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        yield http.server_port, flights
        http.shutdown()


def ask(port: int, concurrency: int = 1, questions: int = 2, seconds: float = 10.0):
    return round_of(port, "tiny", ["hi"] * questions, concurrency=concurrency, max_tokens=4, until=time.monotonic() + seconds)


def test_the_first_token_is_timed_where_it_arrives_and_tokens_are_the_servers_count() -> None:
    with server([CHUNK, CHUNK, CHUNK, CHUNK, USAGE, "[DONE]"]) as (port, _):
        assert wait_until_ready(port, until=time.monotonic() + 5, alive=lambda: True) == "tiny"
        answers, wall_s = ask(port)
    assert len(answers) == 2 and all(a.tokens == 4 for a in answers)
    assert all(0.04 < a.first_token_s < a.total_s for a in answers)
    assert all(a.total_s - a.first_token_s > 0.15 for a in answers) and wall_s >= sum(a.total_s for a in answers) * 0.9


def test_as_many_requests_as_asked_are_in_flight_at_once() -> None:
    with server([CHUNK, USAGE, "[DONE]"], pause_s=0.2) as (port, flights):
        ask(port, concurrency=3, questions=6)
    assert max(flights) == 3


@pytest.mark.parametrize(
    ("chunks", "status", "says"),
    [
        ([CHUNK, "[DONE]"], 200, "no usage"),
        ([USAGE, "[DONE]"], 200, "no chunk with choices"),
        (["[1, 2]"], 200, "no object"),
        (["{"], 200, "JSONDecodeError"),
        ([], 500, "HTTP 500"),
    ],
)
def test_an_answer_that_cant_be_timed_is_no_answer(chunks: list[object], status: int, says: str) -> None:
    with server(chunks, status=status) as (port, _), pytest.raises(NoAnswer, match=says):
        ask(port)


def test_a_server_that_drips_for_ever_is_left_at_the_deadline() -> None:
    with server([CHUNK] * 100) as (port, _), pytest.raises(NoAnswer, match="in time"):
        ask(port, seconds=0.3)


def test_a_server_that_died_is_told_from_one_that_is_late() -> None:
    with pytest.raises(NoAnswer, match="ended before"):
        wait_until_ready(9, until=time.monotonic() + 5, alive=lambda: False)
    with pytest.raises(NoAnswer, match="in time"):
        wait_until_ready(9, until=time.monotonic() - 1, alive=lambda: True)
