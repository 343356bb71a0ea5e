"""Words to token ids and back with the vocabulary of a checkpoint's tokenizer.json, and the conversations of a data set."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Message = dict[str, Any]


def _byte_letters() -> dict[int, str]:
    """GPT-2's printable letter for each byte, as byte-level BPE vocabularies are written."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}


class Tokenizer:
    """Greedy longest match over a byte-level vocabulary; special tokens are matched first. `rows`: embedding rows that exist."""

    def __init__(self, folder: Path, rows: int) -> None:
        content = json.loads((folder / "tokenizer.json").read_text())
        self.vocabulary: dict[str, int] = dict(content["model"]["vocab"])
        self.special = {entry["content"]: entry["id"] for entry in content.get("added_tokens", ())}
        for word in self.special:
            self.vocabulary.pop(word, None)
        self.letters = _byte_letters()
        self.bytes = {letter: byte for byte, letter in self.letters.items()}
        self.words = {number: word for word, number in self.vocabulary.items() if number < rows}
        self.longest = max(map(len, self.vocabulary))
        pattern = "|".join(re.escape(word) for word in sorted(self.special, key=len, reverse=True))
        self.split = re.compile(f"({pattern})") if pattern else None

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in self.split.split(text) if self.split else [text]:
            if part in self.special:
                ids.append(self.special[part])
            else:
                ids.extend(self._pieces("".join(self.letters[byte] for byte in part.encode())))
        return ids

    def _pieces(self, letters: str) -> list[int]:
        ids, at = [], 0
        while at < len(letters):
            for size in range(min(self.longest, len(letters) - at), 0, -1):
                if (number := self.vocabulary.get(letters[at : at + size])) is not None:
                    ids.append(number)
                    at += size
                    break
            else:
                at += 1
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        letters = "".join(self.words.get(number, "") for number in ids)
        return bytes(self.bytes[letter] for letter in letters if letter in self.bytes).decode("utf-8", "replace")

    def speakable(self) -> list[int]:
        """Ids whose text has a letter or digit in it: what the fake may say, so that no honest answer is empty."""
        return [number for number in sorted(self.words) if any(c.isalnum() for c in self.decode([number]))]


def chat(messages: Sequence[Message], system: str = "") -> str:
    """The ChatML prompt for `messages`, which end with the user's turn."""
    turns = ([{"role": "system", "content": system}] if system else []) + list(messages)
    said = "".join(f"<|im_start|>{turn['role']}\n{_plain(turn['content'])}<|im_end|>\n" for turn in turns)
    return said + "<|im_start|>assistant\n"


def _plain(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content)


def read_rows(sources: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of local .jsonl files; `path#n` takes the first n. Raises FileNotFoundError as data sets that don't exist do."""
    rows: list[dict[str, Any]] = []
    for source in sources:
        path, _, count = source.partition("#")
        found = [json.loads(line) for line in Path(path).read_text().splitlines() if line.strip()]
        rows += [{**row, "dataset": path} for row in (found[: int(count)] if count else found)]
    return rows


def messages_of(row: dict[str, Any]) -> list[Message]:
    """The conversation of a row in any of the forms that ms-swift maps: messages, query/response, alpaca, or plain text."""
    if "messages" in row:
        return [dict(message) for message in row["messages"]]
    if "text" in row:
        return [{"role": "assistant", "content": row["text"]}]
    query = row.get("query") or "\n".join(part for part in (row.get("instruction"), row.get("input")) if part)
    answer = row.get("response") or row.get("output") or ""
    return [{"role": "user", "content": query}, {"role": "assistant", "content": answer}]


def split_answer(messages: Sequence[Message]) -> tuple[list[Message], str | None]:
    """(the turns before the last answer, that answer or None)."""
    if messages and messages[-1]["role"] == "assistant":
        return list(messages[:-1]), str(messages[-1]["content"])
    return list(messages), None
