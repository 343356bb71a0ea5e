"""The load of a serving benchmark: streamed chat completions, as many at a time as asked, each timed where its bytes arrive."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx

from harness.aftermath import HOST
from harness.benchmark_repeat import Answered

_POLL_S = 0.1


class NoAnswer(Exception):
    """The server did not answer as a benchmark needs it; the text says what came instead."""


def wait_until_ready(port: int, *, until: float, alive: Callable[[], bool]) -> str:
    """The name of the model served on `port`. `until`: monotonic seconds. Raises NoAnswer."""
    with httpx.Client(base_url=f"http://{HOST}:{port}", trust_env=False, timeout=5.0) as client:
        while alive() and time.monotonic() < until:
            try:
                found = client.get("/v1/models")
                if found.status_code == 200:
                    return str(found.json()["data"][0]["id"])
            except (httpx.HTTPError, ValueError, LookupError, TypeError):
                pass  # not listening yet, or not yet with a model: asked again until it is, or the time is up
            time.sleep(_POLL_S)
    raise NoAnswer("the server ended before it was ready" if not alive() else "the server wasn't ready in time")


def round_of(
    port: int, model: str, questions: Sequence[str], *, concurrency: int, max_tokens: int, until: float
) -> tuple[tuple[Answered, ...], float]:
    """Ask every question once, `concurrency` at a time; the answers in order, and the seconds of the whole round. Raises NoAnswer."""
    with httpx.Client(base_url=f"http://{HOST}:{port}", trust_env=False, limits=httpx.Limits(max_connections=concurrency)) as client:
        began = time.perf_counter()
        with ThreadPoolExecutor(max_workers=concurrency) as threads:
            answers = tuple(threads.map(lambda q: _ask(client, model, q, max_tokens, until), questions))
        return answers, time.perf_counter() - began


def _ask(client: httpx.Client, model: str, question: str, max_tokens: int, until: float) -> Answered:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    left_s = until - time.monotonic()
    if left_s <= 0:
        raise NoAnswer("no time left to ask")
    first_s, tokens, began = None, None, time.perf_counter()
    try:
        with client.stream("POST", "/v1/chat/completions", json=body, timeout=httpx.Timeout(left_s)) as response:
            if response.status_code != 200:
                raise NoAnswer(f"HTTP {response.status_code}: {response.read().decode('utf-8', 'replace')[:200]}")
            for line in response.iter_lines():
                event = _event(line)
                if event is None:
                    continue
                if first_s is None and event.get("choices"):
                    first_s = time.perf_counter() - began
                usage = event.get("usage")
                tokens = usage["completion_tokens"] if isinstance(usage, dict) and "completion_tokens" in usage else tokens
                if time.monotonic() > until:
                    raise NoAnswer("the answer did not end in time")
    except (httpx.HTTPError, ValueError) as fault:
        raise NoAnswer(f"{type(fault).__name__}: {fault}") from fault
    total_s = time.perf_counter() - began
    if first_s is None or not isinstance(tokens, int) or tokens < 1:
        raise NoAnswer(f"the stream has {'no chunk with choices' if first_s is None else 'no usage'}")
    return Answered(first_s, total_s, tokens)


def _event(line: str) -> dict[str, object] | None:
    data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
    if not data or data == "[DONE]":
        return None
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError(f"a chunk that is no object: {data[:80]!r}")
    return found
