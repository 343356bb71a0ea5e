"""Lies of the server: elsewhere, never, for a while only, or always yes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fakes.honest.habits import Honest
from fakes.liars.lie import Lie

Reply = tuple[int, dict[str, Any]]
_LONG_S = 300
# A server that nobody can find any more ends by itself after this long.
_STRANGER_S = 20


class AnotherPort(Honest):
    def port(self, port: int) -> int:
        return port + 1


class ErrorBody(Honest):
    def chat_reply(self, status: int, body: dict[str, Any]) -> Reply:
        return 200, {"object": "error", "message": "the stand-in has no answer", "type": "InternalServerError", "code": 500}


class NeverReady(Honest):
    def before_listening(self) -> None:
        time.sleep(_LONG_S)


class DiesAtOnce(Honest):
    def before_listening(self) -> None:
        print("the stand-in had enough", flush=True)
        os._exit(0)


class DiesAfterReady(Honest):
    """It dies on the first question after it was ready."""

    def chat_reply(self, status: int, body: dict[str, Any]) -> Reply:
        os._exit(0)


class DiesOfABadRequest(Honest):
    status = 0

    def body_fault(self, fault: str) -> str:
        if fault:
            os._exit(self.status)
        return fault


class FailsOfABadRequest(DiesOfABadRequest):
    status = 1


class AcceptsAnyModel(Honest):
    def knows_model(self, known: bool) -> bool:
        return True


class AcceptsAnyBody(Honest):
    """What can't be answered is answered all the same."""

    def body_fault(self, fault: str) -> str:
        return ""

    def knows_model(self, known: bool) -> bool:
        return True


class AnotherName(Honest):
    def models_reply(self, status: int, body: dict[str, Any]) -> Reply:
        return status, {**body, "data": [{**body["data"][0], "id": "default-model"}]}


class NoUsage(Honest):
    def chat_reply(self, status: int, body: dict[str, Any]) -> Reply:
        return status, {key: value for key, value in body.items() if key != "usage"}


class MiscountedUsage(Honest):
    def chat_reply(self, status: int, body: dict[str, Any]) -> Reply:
        return status, {**body, "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 100}}


class NoEndOfStream(Honest):
    def stream_lines(self, lines: Sequence[str]) -> Sequence[str]:
        return lines[:-1]


class StreamLosesAPiece(Honest):
    def stream_lines(self, lines: Sequence[str]) -> Sequence[str]:
        return lines[1:]


class AnotherAnswer(Honest):
    """A shorter answer than infer's, and the same one each time."""

    def length(self, most: int, streamed: bool, interactive: bool) -> int:
        return most - 2


class Canned(Honest):
    """Only the first answer is generated; the later ones come from a memory, and the witness sees none of them."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self.generated = 0

    def witnessed(self, event: dict[str, Any]) -> dict[str, Any] | None:
        self.generated += event["event"] == "generate"
        return None if event["event"] == "generate" and self.generated > 1 else event


class Deaf(Honest):
    def on_sigterm(self) -> bool:
        return False


class LeavesAWorker(Honest):
    """A worker outlives the server, in a session of its own."""

    def listening(self) -> None:
        quiet = subprocess.DEVNULL
        words = [sys.executable, "-S", "-c", f"import time; time.sleep({_LONG_S})"]
        subprocess.Popen(words, start_new_session=True, stdin=quiet, stdout=quiet, stderr=quiet)


class LeavesSharedMemory(Honest):
    def listening(self) -> None:
        # Whose it is stands in it: the drill ground removes its own.
        Path(f"/dev/shm/fake-swift-{os.getpid()}").write_text(os.getcwd(), encoding="utf-8")


class ServedByAStranger(Honest):
    """The port is held by a process that is no part of the run; the one that was started only waits."""

    def before_listening(self) -> None:
        if os.environ.get("FAKE_STRANGER"):
            threading.Timer(_STRANGER_S, os._exit, (0,)).start()
            return
        quiet = subprocess.DEVNULL
        clean = {"PATH": "/usr/bin:/bin", "FAKE_STRANGER": "1"}
        starter = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True)"
        words = [sys.executable, "-S", "-c", starter, sys.executable, sys.argv[0], "deploy", *self.asked]
        subprocess.run(words, env=clean, stdin=quiet, stdout=quiet, stderr=quiet, check=True)
        time.sleep(_LONG_S)


LIES = (
    Lie("served_on_another_port", "deploy", "serve.wrong_port", "product", AnotherPort),
    Lie("status_200_with_an_error", "deploy", "serve.error_body", "product", ErrorBody),
    Lie("never_ready", "deploy", "serve.never_ready", "product", NeverReady, deadline_s=3),
    Lie("dies_at_once", "deploy", "serve.died", "product", DiesAtOnce),
    Lie("dies_after_ready", "deploy", "serve.died", "product", DiesAfterReady),
    Lie("dies_of_a_bad_request", "deploy", "serve.died", "product", DiesOfABadRequest),
    Lie("fails_of_a_bad_request", "deploy", "run.exit_nonzero", "product", FailsOfABadRequest),
    Lie("accepts_any_model_name", "deploy", "serve.accepts_bad_request", "product", AcceptsAnyModel),
    Lie("accepts_any_body", "deploy", "serve.accepts_bad_request", "product", AcceptsAnyBody),
    Lie("lists_another_model", "deploy", "serve.model_list", "product", AnotherName),
    Lie("counts_no_tokens", "deploy", "serve.no_usage", "product", NoUsage),
    Lie("miscounts_tokens", "deploy", "serve.no_usage", "product", MiscountedUsage),
    Lie("stream_without_an_end", "deploy", "serve.stream_broken", "product", NoEndOfStream),
    Lie("stream_loses_a_piece", "deploy", "serve.stream_broken", "product", StreamLosesAPiece),
    Lie("serves_another_answer", "deploy", "serve.answer_differs", "product", AnotherAnswer),
    Lie("serves_unwitnessed_answers", "deploy", "infer.not_generated", "product", Canned),
    Lie("deaf_to_sigterm", "deploy", "serve.deaf_to_sigterm", "product", Deaf),
    Lie("leaves_a_worker", "deploy", "serve.leftover", "product", LeavesAWorker),
    Lie("leaves_shared_memory", "deploy", "serve.leftover", "product", LeavesSharedMemory),
    Lie("served_by_a_stranger", "deploy", "serve.port_taken", "environment", ServedByAStranger),
)
