"""Token ids back to text, for byte-level BPE tokenizers: so that an answer in a file can be held against the ids that were generated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Vocabulary:
    """`tokens`: id to token as tokenizer.json writes it; `special`: ids that decoding leaves out."""

    tokens: Mapping[int, str]
    special: frozenset[int]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids` without special tokens. Ids that no token has are left out, broken UTF-8 becomes U+FFFD, as tokenizers do."""
        text = bytearray()
        for token in (self.tokens[i] for i in ids if i in self.tokens and i not in self.special):
            known = all(character in _BYTE_OF for character in token)
            text += bytes(_BYTE_OF[character] for character in token) if known else token.encode()
        return text.decode("utf-8", errors="replace")


def read_vocabulary(tokenizer: Mapping[str, Any]) -> Vocabulary | None:
    """From the object in tokenizer.json; None if it is no byte-level BPE, which is all that is decoded here."""
    model, decoder, added = tokenizer.get("model"), tokenizer.get("decoder"), tokenizer.get("added_tokens")
    if not isinstance(model, Mapping) or not isinstance(model.get("vocab"), Mapping) or not isinstance(added, list):
        return None
    if model.get("type") != "BPE" or not isinstance(decoder, Mapping) or decoder.get("type") != "ByteLevel":
        return None
    tokens = {number: str(token) for token, number in model["vocab"].items() if isinstance(number, int)}
    marked = [entry for entry in added if isinstance(entry, Mapping) and isinstance(entry.get("id"), int)]
    tokens.update({entry["id"]: str(entry.get("content", "")) for entry in marked})
    return Vocabulary(tokens, frozenset(entry["id"] for entry in marked if entry.get("special")))


def _byte_characters() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes: printable Latin-1 stands for itself, the rest follows from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + place): byte for place, byte in enumerate(rest)}


_BYTE_OF = _byte_characters()
