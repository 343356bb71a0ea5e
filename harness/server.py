"""A client for a server that is on trial: loopback only, no proxies, every wait bounded, and no answer that makes it raise."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx
import psutil

from harness.aftermath import HOST, after_the_end, free_port, port_is_free
from harness.proof_deploy import BAD_JSON, BAD_MODEL, NO_MESSAGES, Completion, ServerReport

__all__ = ["after_the_end", "await_models", "converse", "free_port", "listening_ports", "port_is_free"]

_POLL_S = 0.25
_DYING_S = 5.0
_LARGEST_BODY_BYTES = 4 * 2**20


@dataclass(frozen=True)
class _Reply:
    status: int | None
    body: bytes
    error: str = ""


def converse(
    *,
    port: int,
    model_name: str,
    messages: Sequence[Mapping[str, Any]],
    max_tokens: int,
    deadline_s: float,
    alive: Callable[[], bool],
    pids: Callable[[], Iterable[int]],
    other_model: str = "npu-matrix-no-such-model",
) -> ServerReport:
    """Wait for the server on `port`, ask it everything that the proof needs, and report. Ends within `deadline_s` seconds, or soon after
    `alive` says no. Give it less than the step's own deadline, or a server that is never ready is taken for a hang."""
    with _Talk(port, time.monotonic() + deadline_s, alive) as talk:
        report = _wait_until_ready(talk, ServerReport(port=port, model_name=model_name), pids)
        return _interview(talk, report, messages, max_tokens, other_model) if report.served_by_run else report


def await_models(*, port: int, deadline_s: float, alive: Callable[[], bool], pids: Callable[[], Iterable[int]]) -> ServerReport:
    """Wait, as `converse` does, for the server on `port`, and ask it nothing but which models it has."""
    with _Talk(port, time.monotonic() + deadline_s, alive) as talk:
        return _wait_until_ready(talk, ServerReport(port=port, model_name=""), pids)


def _interview(talk: _Talk, report: ServerReport, messages: Sequence[Mapping[str, Any]], max_tokens: int, other_model: str) -> ServerReport:
    body = {"model": report.model_name, "messages": list(messages), "temperature": 0, "max_tokens": max_tokens}
    plain = talk.complete(body)
    streamed = talk.complete_streamed({**body, "stream": True})
    refusals = {
        BAD_MODEL: talk.post(json.dumps({**body, "model": other_model}).encode()).status,
        BAD_JSON: talk.post(b'{"model": ').status,
        NO_MESSAGES: talk.post(json.dumps({k: v for k, v in body.items() if k != "messages"}).encode()).status,
    }
    again = talk.complete(body)
    # A server that no longer answers may still be on its way out: dead is told from deaf by waiting for that.
    deadline = time.monotonic() + (_DYING_S if again.status is None else 0.0)
    while (lives := talk.alive()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return replace(report, plain=plain, streamed=streamed, refusals=refusals, again=again, alive_after=lives, died=not lives)


def _wait_until_ready(talk: _Talk, report: ServerReport, pids: Callable[[], Iterable[int]]) -> ServerReport:
    began = time.monotonic()
    while talk.may_go_on():
        reply = talk.get("/v1/models")
        if reply.status == 200:
            ours = report.port in listening_ports(pids())
            return replace(report, ready_s=time.monotonic() - began, served_by_run=ours, models=_model_names(reply.body))
        if reply.status is None and (other := _serves_elsewhere(report.port, pids, talk)) is not None:
            return replace(report, other_port=other, waited_s=time.monotonic() - began)
        time.sleep(_POLL_S)
    return replace(report, died=not talk.alive(), waited_s=time.monotonic() - began)


def _serves_elsewhere(port: int, pids: Callable[[], Iterable[int]], talk: _Talk) -> int | None:
    """A port on which the run answers as the server it was to be; processes may well listen on others for their own ends."""
    for other in sorted(listening_ports(pids()) - {port}):
        with _Talk(other, talk.until, talk.alive, request_s=2.0) as stranger:
            if _model_names(stranger.get("/v1/models").body):
                return other
    return None


def listening_ports(pids: Iterable[int]) -> frozenset[int]:
    """The TCP ports on which `pids` listen."""
    ports = set()
    for pid in pids:
        try:
            process = psutil.Process(pid)
            # psutil 6 renamed connections.
            connections = getattr(process, "net_connections", None) or process.connections
            ports |= {c.laddr.port for c in connections(kind="tcp") if c.status == psutil.CONN_LISTEN}
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return frozenset(ports)


def _model_names(body: bytes) -> tuple[str, ...]:
    document = _json(body)
    data = document.get("data") if isinstance(document, dict) else None
    return tuple(str(model["id"]) for model in data if isinstance(model, dict) and "id" in model) if isinstance(data, list) else ()


class _Talk:
    """HTTP with one server until a point in time (monotonic seconds)."""

    def __init__(self, port: int, until: float, alive: Callable[[], bool], request_s: float = 120.0) -> None:
        self.until, self.alive, self.request_s = until, alive, request_s
        self.client = httpx.Client(base_url=f"http://{HOST}:{port}", trust_env=False, follow_redirects=False)

    def __enter__(self) -> _Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def may_go_on(self) -> bool:
        return self.alive() and time.monotonic() < self.until

    def get(self, path: str) -> _Reply:
        return self._exchange("GET", path, None)

    def post(self, content: bytes) -> _Reply:
        return self._exchange("POST", "/v1/chat/completions", content)

    def _exchange(self, method: str, path: str, content: bytes | None) -> _Reply:
        """A whole exchange, body included, within `request_s`: neither silence nor a trickle of bytes can hold it up for longer."""
        until = min(self.until, time.monotonic() + self.request_s)
        left_s = until - time.monotonic()
        if left_s <= 0:
            return _Reply(None, b"", "no time left to ask")
        headers = {"content-type": "application/json"} if content is not None else {}
        status, body = None, b""
        try:
            with self.client.stream(method, path, content=content, headers=headers, timeout=httpx.Timeout(left_s, connect=5.0)) as response:
                status = response.status_code
                for piece in response.iter_bytes():
                    body += piece
                    if time.monotonic() > until or len(body) > _LARGEST_BODY_BYTES:
                        return _Reply(status, body, f"no end of the answer after {len(body)} bytes and {self.request_s:g} s")
        except (httpx.HTTPError, httpx.InvalidURL) as fault:
            return _Reply(status, body, f"{type(fault).__name__}: {fault}")
        return _Reply(status, body)

    def complete(self, body: Mapping[str, Any]) -> Completion:
        reply = self.post(json.dumps(body).encode())
        if reply.error or reply.status != 200:
            return Completion(status=reply.status, error=reply.error or _quote(reply.body))
        return _completion(_json(reply.body), reply.body)

    def complete_streamed(self, body: Mapping[str, Any]) -> Completion:
        reply = self.post(json.dumps(body).encode())
        if reply.status != 200:
            return Completion(status=reply.status, error=reply.error or _quote(reply.body))
        got = _joined(reply.body.decode("utf-8", "replace"))
        return replace(got, broken=got.broken or reply.error)


def _completion(document: object, body: bytes) -> Completion:
    """A plain completion out of a 200's body, whatever it is."""
    said = error_in(document)
    if said:
        return Completion(status=200, error=said)
    choice = _first_choice(document)
    message = choice.get("message") if choice is not None else None
    if choice is None or not isinstance(message, dict):
        return Completion(status=200, error=f"no choices in {_quote(body)}")
    return Completion(
        status=200,
        text=str(message.get("content") or ""),
        finish_reason=str(choice.get("finish_reason") or ""),
        usage=_usage(document),
        broken="" if message.get("role") == "assistant" else f"role {message.get('role')!r}",
    )


def _joined(text: str) -> Completion:
    """The chunks of a server-sent event stream, joined. The first thing wrong with them is in `broken`, an error chunk in `error`."""
    if not text.lstrip().startswith("data:"):
        return Completion(status=200, error=error_in(_json(text.encode())), broken=f"no event stream: {_quote(text.encode())}")
    pieces: list[str] = []
    finish, usage, chunks, broken, done = "", None, 0, "", False
    for line in text.splitlines():
        if not line.strip() or line.startswith(":"):
            continue
        data = line.removeprefix("data:").strip()
        if done or not line.startswith("data:"):
            broken = broken or (f"after [DONE]: {line[:80]!r}" if done else f"not a data line: {line[:80]!r}")
        elif data == "[DONE]":
            done = True
        else:
            document = _json(data.encode())
            if said := error_in(document):
                return Completion(status=200, error=said, chunks=chunks)
            chunks += 1
            usage = _usage(document) or usage
            choice = _first_choice(document)
            if choice is None and _usage(document) is None:
                broken = broken or f"a chunk without choices: {data[:80]!r}"
            delta = (choice or {}).get("delta")
            pieces.append(str((delta if isinstance(delta, dict) else {}).get("content") or ""))
            finish = str((choice or {}).get("finish_reason") or finish)
    broken = broken or ("" if done else "no [DONE] at its end") or ("" if finish else "no finish_reason")
    return Completion(200, "".join(pieces), finish, usage, "", broken, chunks)


def error_in(document: object) -> str:
    """What an error document says (ms-swift's {"object": "error"}, or OpenAI's {"error": ...}); "" for anything else."""
    if isinstance(document, dict) and (document.get("object") == "error" or document.get("error") or "detail" in document):
        return _quote(json.dumps(document).encode())
    return ""


def _first_choice(document: object) -> dict[str, Any] | None:
    choices = document.get("choices") if isinstance(document, dict) else None
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None


def _usage(document: object) -> tuple[int, int, int] | None:
    usage = document.get("usage") if isinstance(document, dict) else None
    if not isinstance(usage, dict):
        return None
    prompt, completion, total = (usage.get(key) for key in ("prompt_tokens", "completion_tokens", "total_tokens"))
    # bool is an int to isinstance; a count is never one.
    return (prompt, completion, total) if type(prompt) is type(completion) is type(total) is int else None


def _json(body: bytes) -> object:
    """The document in `body`; None where it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _quote(body: bytes) -> str:
    return body.decode("utf-8", "replace").strip()[:300]
