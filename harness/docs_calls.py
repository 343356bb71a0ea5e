"""Which commands of a page start ms-swift, by itself or by a launcher, and with which flags."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from harness.docs_page import Page
from harness.docs_shell import Command, CommandKind, Script, ShellFault, ShellWord, Value, read_shell
from harness.docs_shell_programs import kind_of

_SHELLS = {"shell", "bash", "sh", "zsh", "console", "shell-session", "shellsession", "terminal"}
# An unfenced line that begins a command: `swift sft \`, `NPROC_PER_NODE=2 \`.
_BEGINS = re.compile(
    r"\s*(?:[A-Z][A-Z0-9_]*=(?:'[^']*'|\"[^\"]*\"|[^\s'\"]\S*|)\s+)*"
    r"(?:\\\s*$|(?:swift|megatron)\s+[a-z][a-z_-]+(?:\s+(?:--|\\$|\.\.\.|\S+\.(?:ya?ml|json)\b)|\s*$)|accelerate\s+launch\s+-|torchrun\s+-)"
)
_NAMED = re.compile(r"\s*[A-Z][A-Z0-9_]*=|\s*(?:swift|megatron|accelerate|torchrun)\b")
_SCRIPT = re.compile(r"(?:.*/)?swift/cli/(?P<megatron>_megatron/)?(?P<name>\w+)\.py|[$<].*swift.*/(?P<other>\w+)\.py", re.IGNORECASE)
_MODULE = re.compile(r"swift\.cli\.(?P<megatron>_megatron\.)?(?P<name>\w+)")
_PROGRAMS = {"swift", "megatron"}
# Programs that run the command among their words, on another host, in a container or in an environment. Those have names too, which may
# be swift: only in front of one of these words it is the program.
_CARRIERS = {
    "srun", "mpirun", "docker", "podman", "nerdctl", "kubectl", "apptainer", "singularity", "conda", "micromamba", "uv", "poetry", "pixi",
}  # fmt: skip
_SUBCOMMANDS = {"pt", "sft", "rlhf", "infer", "export", "deploy", "eval", "rollout", "sample", "app", "web-ui", "merge-lora"}
_CONFIGURATION = re.compile(r".*\.(?:ya?ml|json)")
_PLACEHOLDER = re.compile(
    r"<[^<>]+>|\{[^{}\"':,]+\}|\[[^\[\]\"',\d]+\]|(?<![A-Za-z])[xX]{2,}(?![A-Za-z])|\.{3}|…|\*\*|(?i:your)(?:[_-]|\b)"
    r"|^[A-Z]$|path/to|[\u4e00-\u9fff]"
)


@dataclass(frozen=True)
class Segment:
    """A flag with the words up to the next one. `flag` is None for words before the first flag."""

    flag: ShellWord | None
    values: tuple[ShellWord, ...]

    @property
    def name(self) -> str:
        return "" if self.flag is None else self.flag.text.split("=", 1)[0]

    @property
    def words(self) -> tuple[ShellWord, ...]:
        return self.values if self.flag is None else (self.flag, *self.values)


@dataclass(frozen=True)
class Call:
    """One start of ms-swift. `program`: swift or megatron; `name`: the word that stands for the subcommand, None where there is none.

    `launcher`: accelerate or torchrun where one starts it, with `launch`, the flags that are its own.
    """

    program: str
    name: ShellWord | None
    segments: tuple[Segment, ...]
    line: int
    launcher: str = ""
    launch: tuple[Segment, ...] = ()

    @property
    def subcommand(self) -> str:
        return "" if self.name is None else self.name.text.replace("_", "-")


def shell_of(page: Page) -> Script:
    """All commands of a page, in order, variables of one block serving those below it."""
    commands: list[Command] = []
    faults: list[ShellFault] = []
    variables: dict[str, Value | None] = {}
    blocks: list[tuple[Sequence[tuple[int, str]], str]] = [(block, "") for block in _unfenced(page.prose)]
    for fence in page.fences:
        language = language_of(fence.language)
        if language in _SHELLS or not language:
            blocks += [(fence.body, language)] if fence.body else []
        else:
            # Commands are often shown in blocks that are said to be Python or text.
            blocks += [(block, "") for block in _unfenced(fence.body)]
    for body, language in sorted(blocks, key=lambda block: block[0][0][0]):
        script = read_shell(body, variables)
        variables = dict(script.variables)
        commands += script.commands
        # A block that says nothing of its language is often an answer: only what breaks a command in it is of interest.
        lines = {line for command in script.commands if _is_ours(command) for line in range(command.line, command.end_line + 1)}
        faults += [fault for fault in script.faults if language or fault.line in lines]
    return Script(tuple(commands), tuple(faults), variables)


def language_of(info: str) -> str:
    """The language that a fence's info string names, in small letters: shell for `{.Shell .copy}`."""
    return info.strip("{}. ").split(" ")[0].partition("{")[0].lower()


def _is_ours(command: Command) -> bool:
    return command.kind is not CommandKind.OTHER


def _unfenced(prose: Sequence[tuple[int, str]]) -> Iterator[tuple[tuple[int, str], ...]]:
    """Commands that stand among the sentences, as in a page that has lost its fences."""
    block: list[tuple[int, str]] = []
    goes_on = False
    for number, line in prose:
        goes_on = goes_on and bool(block) and number == block[-1][0] + 1
        if goes_on or (_NAMED.match(line) and _BEGINS.match(line)):
            if block and not goes_on:
                yield tuple(block)
                block = []
            block.append((number, line))
            # An omitted rest and a lost backslash are told from the end by what follows.
            goes_on = line.rstrip().endswith(("\\", "...", "…")) or line.lstrip().startswith("--")
            continue
        goes_on = False
    if block:
        yield tuple(block)


def call_of(command: Command) -> Call | None:
    """How a command starts ms-swift; None where it starts something else, or nobody can tell what."""
    words = command.words
    if command.kind in (CommandKind.SWIFT, CommandKind.MEGATRON):
        return _call(command.kind.value, words[1:], words[0].line)
    if command.kind is CommandKind.PYTHON:
        at = next((i for i, word in enumerate(words[1:], 1) if not word.text.startswith("-") or word.text == "-m"), len(words))
        return _started(words, at, "", ())
    if command.kind in (CommandKind.ACCELERATE, CommandKind.TORCHRUN, CommandKind.DEEPSPEED):
        first = 2 if command.kind is CommandKind.ACCELERATE else 1
        at = next((i for i, word in enumerate(words) if i >= first and _starts(word)), -1)
        return _started(words, at, words[0].text.rpartition("/")[2], words[first : max(at, first)]) if at > 0 else None
    if words and words[0].text.rpartition("/")[2] in _CARRIERS:
        start = next((i for i in range(1, len(words) - 1) if _is_program(words[i].text, words[i + 1].text)), 0)
        return call_of(replace(command, words=words[start:], kind=kind_of(words[start:]))) if start else None
    return None


def _is_program(word: str, behind: str) -> bool:
    name = word.rpartition("/")[2]
    if name in _PROGRAMS:
        return behind.replace("_", "-") in _SUBCOMMANDS
    return name == "torchrun" or (name == "accelerate" and behind == "launch")


def _starts(word: ShellWord) -> bool:
    """Whether a launcher's flags end here: at a script, -m, or the program that is a script itself."""
    return word.text in ("-m", "--module") or word.text.endswith(".py") or word.text.rpartition("/")[2] in _PROGRAMS


def _started(words: Sequence[ShellWord], at: int, launcher: str, launch: Sequence[ShellWord]) -> Call | None:
    """What the script (or, behind -m, the module) at a place of the words is, if it is ms-swift's."""
    if at >= len(words):
        return None
    if (program := words[at].text.rpartition("/")[2]) in _PROGRAMS:
        call = _call(program, words[at + 1 :], words[at].line)
        return call and replace(call, launcher=launcher, launch=segments_of(launch))
    is_module = not words[at].text.endswith(".py")
    at += is_module
    found = (_MODULE if is_module else _SCRIPT).fullmatch(words[at].text) if at < len(words) else None
    if found is None:
        return None
    program = "megatron" if found["megatron"] else "swift"
    name = found["name"] or found["other"]
    if name == "main":
        call = _call(program, words[at + 1 :], words[at].line)
        return call and replace(call, launcher=launcher, launch=segments_of(launch))
    subcommand = ShellWord(name, words[at].line)
    return Call(program, subcommand, segments_of(words[at + 1 :]), words[at].line, launcher, segments_of(launch))


def _call(program: str, words: Sequence[ShellWord], line: int) -> Call | None:
    if words and (not words[0].known or is_placeholder(words[0].text)):
        return None
    name = words[0] if words and not words[0].text.startswith("-") else None
    rest = words if name is None else words[1:]
    # ms-swift takes a file of settings in front of all flags.
    if name is not None and rest and _CONFIGURATION.fullmatch(rest[0].text):
        rest = rest[1:]
    return Call(program, name, segments_of(rest), line)


def segments_of(words: Sequence[ShellWord]) -> tuple[Segment, ...]:
    """The words by the flags that they follow. Brackets around what is optional, as in `[--stream true]`, are taken off."""
    segments: list[tuple[ShellWord | None, list[ShellWord]]] = [(None, [])]
    optional = False
    for word in words:
        if word.text.startswith("[--"):
            optional, word = True, replace(word, text=word.text[1:])
        if optional and word.text.endswith("]") and "[" not in word.text:
            optional, word = False, replace(word, text=word.text.rstrip("]"))
        if word.text.startswith("--") and len(word.text) > 2:
            segments.append((word, []))
        else:
            segments[-1][1].append(word)
    return tuple(Segment(flag, tuple(values)) for flag, values in segments if flag is not None or values)


def is_placeholder(text: str) -> bool:
    """Whether a word stands for something that a reader has to put there: <path>, [size], xxx/checkpoint-xxx, your_model, N, 端口."""
    return bool(_PLACEHOLDER.search(text))
