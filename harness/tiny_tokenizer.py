"""A byte-level BPE tokenizer of the Qwen2 kind, made by rule: no training, hence the same bytes on every machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

COMMON = (
    "the of and to in is you that it he was for on are as with his they at be this have from or one had by word but not "
    "what all were we when your can said there use an each which she do how their if will up other about out many then them "
    "these so some her would make like him into time has look two more write go see number no way could people my than "
    "first water been call who oil its now find long down day did get come made may part"
)
WORDS = tuple(COMMON.split())
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
BYTES = 256
VOCAB_SIZE = 512
MAX_LENGTH = 2048
# Qwen2's own pattern: transformers' Qwen2Tokenizer sets the same one, so the file and the class agree.
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHAT_TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def byte_symbols() -> tuple[str, ...]:
    """The printable character that stands for each of the 256 bytes in GPT-2's byte-level alphabet."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    symbols, spare = [], 256
    for byte in range(BYTES):
        if byte in printable:
            symbols.append(chr(byte))
        else:
            symbols.append(chr(spare))
            spare += 1
    return tuple(symbols)


def merges() -> tuple[tuple[str, str], ...]:
    """The merges that build ` word` from the left, word by word; every left side starts with the space's symbol, so no merge
    of one word can cut across another."""
    space = byte_symbols()[ord(" ")]
    pairs: list[tuple[str, str]] = []
    for word in WORDS:
        left = space
        for letter in word:
            if (left, letter) not in pairs:
                pairs.append((left, letter))
            left += letter
    return tuple(pairs)


def vocabulary() -> Mapping[str, int]:
    """Token text to id: bytes, merges, then the special and markup tokens; ids from `len()` to VOCAB_SIZE have no token."""
    texts = [*byte_symbols(), *(a + b for a, b in merges()), *SPECIAL_TOKENS, *MARKUP_TOKENS]
    return {text: i for i, text in enumerate(texts)}


def speakable_ids() -> tuple[int, ...]:
    """Ids that decode to printable ASCII text on their own: whole words, and single printable ASCII bytes."""
    known, symbols = vocabulary(), byte_symbols()
    ascii_bytes = [known[symbols[byte]] for byte in range(ord(" "), ord("~") + 1)]
    return (*ascii_bytes, *(known[a + b] for a, b in merges()))


def _json(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode()


def _added(text: str, token_id: int) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": text in SPECIAL_TOKENS}
    return {"id": token_id, "content": text, **flags}


def tokenizer_files() -> Mapping[str, bytes]:
    """File name to bytes: tokenizer.json, tokenizer_config.json, vocab.json, merges.txt."""
    known, pairs = vocabulary(), merges()
    added = [_added(text, known[text]) for text in (*SPECIAL_TOKENS, *MARKUP_TOKENS)]
    plain = {text: i for text, i in known.items() if text not in (*SPECIAL_TOKENS, *MARKUP_TOKENS)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": plain,
            "merges": [list(pair) for pair in pairs],
        },
    }
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "added_tokens_decoder": {str(a["id"]): {k: v for k, v in a.items() if k != "id"} for a in added},
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "model_max_length": MAX_LENGTH,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    merges_text = "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in pairs)
    return {
        "tokenizer.json": _json(tokenizer),
        "tokenizer_config.json": _json(config),
        "vocab.json": _json(plain),
        "merges.txt": merges_text.encode(),
    }
