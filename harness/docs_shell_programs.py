"""What a command of a document is: its words, its variables, and which program it starts behind nohup, env, sudo and the like."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.model import Word

ASSIGNED = re.compile(r"(?P<name>[A-Za-z_]\w*)(?:\[[^\]]*\])?(?P<plus>\+?)=")
# Beginnings of a line that a shell would run; sentences, tables and logs among the commands begin otherwise.
_PROGRAM = re.compile(r"[a-z.~/$][\w.+~/$-]*")
# Programs that start the command that follows, with those of their options that take a value.
_WRAPPERS: Mapping[str, str] = {
    "nohup": "",
    "env": "uCS",
    "sudo": "ugpC",
    "exec": "a",
    "command": "",
    "stdbuf": "ioe",
    "setsid": "",
    "nice": "n",
    "numactl": "CNmip",
    "taskset": "",
    "timeout": "ks",
    "time": "fo",
}
_SHELLS = {"bash", "sh", "zsh"}


class CommandKind(Word):
    SWIFT = "swift"
    MEGATRON = "megatron"
    ACCELERATE = "accelerate launch"
    TORCHRUN = "torchrun"
    DEEPSPEED = "deepspeed"
    PYTHON = "python"
    FLAGS = "flags without a command"
    OTHER = "other"


@dataclass(frozen=True)
class ShellWord:
    """A word as the program would get it. Where `known` is false, `text` holds expansions or placeholders as they were written."""

    text: str
    line: int
    known: bool = True
    quoted: bool = False


@dataclass(frozen=True)
class Command:
    """One simple command. `words` begin with the program; nohup, env, sudo and the like before it are left out, their variables kept.

    `environment`: the assignments in front. `elided`: an `...` stands in for some of it. `depth`: 0 for a command of the text itself,
    more for one inside $(...) or bash -c '...'. `raw`: as written, from `line` to `end_line`.
    """

    kind: CommandKind
    line: int
    end_line: int
    environment: tuple[tuple[str, ShellWord], ...]
    words: tuple[ShellWord, ...]
    raw: str
    elided: bool = False
    depth: int = 0


def unwrapped(words: list[ShellWord]) -> tuple[list[tuple[str, ShellWord]], list[ShellWord]]:
    """The variables that nohup, env, sudo and the like set, and the command that they start."""
    environment: list[tuple[str, ShellWord]] = []
    while words and (wrapper := words[0].text.rpartition("/")[2]) in _WRAPPERS:
        rest = 1
        while rest < len(words) and words[rest].text.startswith("-"):
            rest += 2 if len(words[rest].text) == 2 and words[rest].text[1] in _WRAPPERS[wrapper] else 1
        rest += wrapper in ("timeout", "taskset")
        while rest < len(words) and (found := ASSIGNED.match(words[rest].text)):
            word = words[rest]
            environment.append((found["name"], ShellWord(word.text[found.end() :], word.line, word.known, word.quoted)))
            rest += 1
        if rest >= len(words):
            break
        words = words[rest:]
    return environment, words


def kind_of(words: Sequence[ShellWord]) -> CommandKind:
    if not words:
        return CommandKind.OTHER
    if words[0].text.startswith("--"):
        return CommandKind.FLAGS
    program = words[0].text.rpartition("/")[2]
    if re.fullmatch(r"python[\d.]*", program):
        return CommandKind.PYTHON
    if program == "accelerate":
        return CommandKind.ACCELERATE if len(words) > 1 and words[1].text == "launch" else CommandKind.OTHER
    named = {kind.value: kind for kind in (CommandKind.SWIFT, CommandKind.MEGATRON, CommandKind.TORCHRUN, CommandKind.DEEPSPEED)}
    return named.get(program, CommandKind.OTHER)


def script_in(words: Sequence[ShellWord]) -> list[tuple[int, str]]:
    """What bash -c '...' is given, with its line."""
    if not words or words[0].text.rpartition("/")[2] not in _SHELLS:
        return []
    at = next((i for i, word in enumerate(words) if re.fullmatch(r"-[a-z]*c", word.text)), len(words))
    return [(words[at + 1].line, words[at + 1].text)] if at + 1 < len(words) else []


def looks_run(command: Command) -> bool:
    """Whether it looks like something to run, and not like a line of a log or a sentence."""
    return command.kind is not CommandKind.OTHER or bool(command.environment) or bool(_PROGRAM.fullmatch(command.words[0].text))
