"""The same failure as other hosts, ranks and terminals print it: each change keeps what a log means."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

# Numbers that are words: codes, signals, errnos, modes, years of wheels, ids of visible devices.
_WORDS = re.compile(r"^(?:[125][04]\d{4}|561\d{3}|80\d\d|0?660|137|67|98|16|32|64|128)$")
_PATH = re.compile(r"(?<![\w.])/(?:[\w.-]+/)+(?=[\w.*-])")
_KEPT_FOLDERS = re.compile(r"/(?:dev|kernel|datasets)/")
_SPEAKER = re.compile(r"^(?:\[rank\d+\]: ?|\[R\d+\] |\(\w+ pid=\d+\) )")

Mutation = Callable[[str, random.Random], str]


def numbers(text: str, chance: random.Random) -> str:
    def other(found: re.Match[str]) -> str:
        return (
            found[0] if _WORDS.match(found[0]) else str(chance.randrange(1, 9)) + "".join(chance.choices("0123456789", k=len(found[0]) - 1))
        )

    return "\n".join(line if "VISIBLE_DEVICES" in line else re.sub(r"(?<![\w.-])\d{2,}(?![\w-])", other, line) for line in text.split("\n"))


def hexadecimals(text: str, chance: random.Random) -> str:
    return re.sub(r"0x[0-9a-f]{4,}", lambda found: "0x" + "".join(chance.choices("0123456789abcdef", k=len(found[0]) - 2)), text)


def paths(text: str, chance: random.Random) -> str:
    def other(found: re.Match[str]) -> str:
        return found[0] if _KEPT_FOLDERS.search(found[0]) else f"/mnt/disk{chance.randrange(9)}/{chance.choice(['a', 'some-user', 'x_y'])}/"

    return _PATH.sub(other, text)


def ranks(text: str, chance: random.Random) -> str:
    number, pid = chance.randrange(16), chance.randrange(100, 99999)
    prefix = chance.choice(
        [
            f"[rank{number}]: ",
            f"[R{number}] ",
            f"[default{number}]:",
            f"(Worker_TP{number} pid={pid}) ",
            f"(NPURayWorker pid={pid}, ip=10.1.2.3) ",
        ]
    )
    return "".join(prefix + _SPEAKER.sub("", line) + "\n" for line in text.splitlines())


def windows_lines(text: str, chance: random.Random) -> str:
    return "".join(line + "\r\n" for line in text.splitlines())


def colours(text: str, chance: random.Random) -> str:
    return "".join(f"\x1b[{chance.choice([31, 36, 90])}m{line}\x1b[0m\n" for line in text.splitlines())


def clocks(text: str, chance: random.Random) -> str:
    second = chance.randrange(40)
    return "".join(f"2026-03-04 05:06:{second + at % 20:02d},123 {line}\n" for at, line in enumerate(text.splitlines()))


def repeated(text: str, chance: random.Random) -> str:
    return "".join(f"{line} [repeated {chance.randrange(2, 9)}x across cluster]\n" for line in text.splitlines())


def surrounded(text: str, chance: random.Random) -> str:
    rows = "".join(f"{{'loss': {chance.random():.6f}, 'grad_norm': {chance.random():.6f}, 'epoch': 0.{at}}}\n" for at in range(50))
    return f"[INFO:swift] start\n{rows}{text}\n"


MUTATIONS: tuple[Mutation, ...] = (numbers, hexadecimals, paths, ranks, windows_lines, colours, clocks, repeated, surrounded)


def interleaved(one: str, other: str) -> str:
    """Lines of both by turns, those of `one` first."""
    ones, others = one.splitlines(), other.splitlines()
    pairs = [(a, b) for a, b in zip(ones, others, strict=False)]
    rest = ones[len(pairs) :] or others[len(pairs) :]
    return "\n".join([*(line for pair in pairs for line in pair), *rest]) + "\n"
