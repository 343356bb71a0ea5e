"""What a command of a page printed: the answers of `swift infer`, what a server answered to curl, and how an inference died after it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

# ms-swift prints 50 dashes under each answer; before it the prompt of its conversation, or the mark of a row that is answered streamed.
_ANSWER = re.compile(r"(?:<<< |^\[RESPONSE\] )(?P<answer>(?:(?!<<< |^\[RESPONSE\] ).)*?)\n-{50}$", re.DOTALL | re.MULTILINE)
_RESULTS = re.compile(r"The inference results have been saved to result_path: `([^`]+)`")
_ASKED_OF_HUB = re.compile(
    r"with url: /api/v1/(?:models|datasets)/(?P<modelscope>[\w.-]+(?:/[\w.-]+)*?)(?:/(?:repo|revisions|resolve)\b|[?\s])"
    r"|(?:^|\s)'?(?P<hf>[\w./-]+)'? is not the path to a directory containing a file named"
)
_NO_THOUGHT = re.compile(r"<think>\s*</think>")
ABORTED = "terminate called without an active exception"
ABORT_BECAUSE = (
    f'ms-swift answered, then aborted at its exit ("{ABORTED}", SIGABRT): a defect of ms-swift 4.6, not of the page. About one cold '
    "streamed inference in ten ends so, by a daemon thread that outlives the interpreter. Not retried: run it again to tell them apart."
)


def answers_in(log: str) -> tuple[str, ...]:
    """What a conversing or streaming `swift infer` answered, empty answers included, thoughts that are empty left out."""
    return tuple(_NO_THOUGHT.sub("", match["answer"]).strip() for match in _ANSWER.finditer(log))


def results_named(log: str) -> str:
    """The file that `swift infer` says it wrote its answers to; "" if it says none."""
    named = _RESULTS.findall(log)
    return str(named[-1]) if named else ""


def asked_of_a_hub(log: str) -> str:
    """What a failed command wanted of a hub, where there is none to ask; "" if it asked for nothing."""
    found = _ASKED_OF_HUB.search(log)
    return (found["modelscope"] or found["hf"]) if found else ""


def aborted_at_exit(log: str, exit_code: int | None) -> bool:
    """Whether an inference gave an answer and was then aborted: `swift` passes SIGABRT on as 250, a shell as 134."""
    return exit_code in (-6, 134, 250) and ABORTED in log and any(answers_in(log))


def reply_to(url: str, printed: str) -> tuple[bool, str]:
    """(whether what curl printed is an answer of the kind that `url` asks for, the answer or what is wrong with it)."""
    documents = list(_documents(printed))
    if refusal := next((document for document in documents if _refuses(document)), None):
        return False, f"the server refused it: {json.dumps(refusal, ensure_ascii=False)[:200]}"
    path = url.partition("?")[0].rstrip("/")
    if path.endswith("/models"):
        names = [str(m.get("id")) for d in documents for m in d.get("data") or () if isinstance(m, dict)]
        return bool(names), f"serves {', '.join(names)}" if names else _no("list of models", printed)
    if not path.endswith("/completions"):
        return bool(printed.strip()), printed.strip()[:80] or "nothing was printed"
    said = "".join(_content(choice) for document in documents for choice in _choices(document)).strip()
    return bool(said), f"answered {said[:60]!r}" if said else _no("choices with content", printed)


def _no(what: str, printed: str) -> str:
    body = " ".join(line for line in printed.split("\n") if not re.match(r"\s*(?:% Total|Dload|\d+ +\d|--:--|$)", line)).strip()
    return f"the answer holds no {what}: {body[:200] or 'nothing was printed'}"


def _documents(text: str) -> Iterator[Mapping[str, Any]]:
    """Every JSON object that stands in `text`, outermost ones only: curl's progress, if any, stands around them."""
    decoder, at = json.JSONDecoder(), text.find("{")
    while at >= 0:
        try:
            document, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            if isinstance(document, dict):
                yield document
        at = text.find("{", end)


def _refuses(document: Mapping[str, Any]) -> bool:
    """ms-swift's {"object": "error"}, FastAPI's {"detail": ...}, or OpenAI's {"error": ...}."""
    return document.get("object") == "error" or "detail" in document or bool(document.get("error"))


def _choices(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    choices = document.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def _content(choice: Mapping[str, Any]) -> str:
    """Of a chat, a streamed chat's piece, or a plain completion."""
    for name in ("message", "delta"):
        message = choice.get(name)
        if isinstance(message, dict):
            return _NO_THOUGHT.sub("", str(message.get("content") or ""))
    return str(choice.get("text") or "")
