"""swift deploy: an OpenAI-like server on --host and --port, plain and streamed, that ends on SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fakes.honest.answers import Speaker
from fakes.honest.arguments import Arguments
from fakes.honest.habits import Honest
from fakes.honest.witness import Witness


def body_fault(body: Any) -> str:
    """What makes a chat request unacceptable; empty if nothing does."""
    if not isinstance(body, dict):
        return "the body is not a JSON object"
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) and "role" in m and "content" in m for m in messages):
        return "messages must be a list of {role, content}"
    most = body.get("max_tokens", 1)
    return "" if most is None or (isinstance(most, int) and not isinstance(most, bool)) else "max_tokens must be a whole number"


def serve(arguments: Arguments, habits: Honest, witness: Witness) -> None:
    """Blocks until SIGTERM or SIGINT; raises SystemExit(143) after SIGTERM, as uvicorn under ms-swift ends."""
    speaker = Speaker.of(arguments, habits, witness)
    habits.before_listening()
    name = arguments.text("served_model_name") or arguments.text("model").rstrip("/").rsplit("/", 1)[-1]
    address = (arguments.text("host", "0.0.0.0"), habits.port(arguments.whole("port", 8000)))
    server = ThreadingHTTPServer(address, handler_of(speaker, habits, name))
    server.daemon_threads = True
    signal.signal(signal.SIGTERM, _ending(habits, witness))
    habits.listening()
    print(f"INFO:     Uvicorn running on http://{address[0]}:{address[1]} (Press CTRL+C to quit)", file=sys.stderr, flush=True)
    server.serve_forever(poll_interval=0.05)


def _ending(habits: Honest, witness: Witness) -> Callable[[int, Any], None]:
    def end(number: int, frame: Any) -> None:
        if habits.on_sigterm():
            witness.end()
            sys.stdout.flush()
            os._exit(143)

    return end


class Handler(BaseHTTPRequestHandler):
    """One request. The server's own speaker, habits and name are set on a subclass."""

    protocol_version = "HTTP/1.1"
    speaker: Speaker
    habits: Honest
    name: str

    def log_message(self, *words: Any) -> None:
        print(f'INFO:     "{self.command} {self.path}"', file=sys.stderr, flush=True)

    def reply(self, status: int, body: dict[str, Any] | None) -> None:
        raw = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def do_GET(self) -> None:
        path = self.path.rstrip("/")
        if path in ("/health", "/ping"):
            self.reply(200, None)
        elif path == "/v1/models":
            listed = {"id": self.name, "object": "model", "created": int(time.time()), "owned_by": "ms-swift"}
            self.reply(*self.habits.models_reply(200, {"data": [listed], "object": "list"}))
        else:
            self.reply(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.rstrip("/") != "/v1/chat/completions":
            self.reply(404, {"detail": "Not Found"})
            return
        body, fault = _read(raw)
        if fault := self.habits.body_fault(fault):
            self.reply(422, {"detail": fault})
        elif not self.habits.knows_model(body.get("model") == self.name):
            self.reply(400, {"message": f"`{body.get('model')}` is not in the model_list: `[{self.name!r}]`.", "object": "error"})
        elif body.get("stream"):
            self.stream(body)
        else:
            self.complete(body)

    def speak(self, body: dict[str, Any]) -> tuple[str, dict[str, int]]:
        most = body.get("max_tokens") or self.speaker.arguments.whole("max_new_tokens", 64)
        text, tokens, asked = self.speaker.answer(body.get("messages") or [], most, streamed=bool(body.get("stream")))
        return text, {"prompt_tokens": asked, "completion_tokens": len(tokens), "total_tokens": asked + len(tokens)}

    def complete(self, body: dict[str, Any]) -> None:
        text, usage = self.speak(body)
        message = {"role": "assistant", "content": text, "tool_calls": None}
        choice = {"index": 0, "message": message, "finish_reason": "length", "logprobs": None}
        self.reply(*self.habits.chat_reply(200, {**self.head("chat.completion"), "choices": [choice], "usage": usage}))

    def head(self, kind: str) -> dict[str, Any]:
        return {"model": self.name, "id": f"chatcmpl-{time.time_ns():x}", "object": kind, "created": int(time.time())}

    def stream(self, body: dict[str, Any]) -> None:
        text, usage = self.speak(body)
        half = max(1, len(text) // 2)
        lines = []
        for content, ending in ((text[:half], None), (text[half:], None), ("", "length")):
            choice = {"index": 0, "delta": {"role": "assistant", "content": content}, "finish_reason": ending, "logprobs": None}
            lines.append(json.dumps({**self.head("chat.completion.chunk"), "choices": [choice], "usage": usage}))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        for line in self.habits.stream_lines([*lines, "[DONE]"]):
            self.wfile.write(f"data: {line}\n\n".encode())
            self.wfile.flush()
        self.close_connection = True


def _read(raw: bytes) -> tuple[dict[str, Any], str]:
    """(body, what is wrong with it)."""
    try:
        body = json.loads(raw)
    except ValueError as error:
        return {}, f"JSON decode error: {error}"
    return body if isinstance(body, dict) else {}, body_fault(body)


def handler_of(speaker: Speaker, habits: Honest, name: str) -> type[Handler]:
    return type("BoundHandler", (Handler,), {"speaker": speaker, "habits": habits, "name": name})
