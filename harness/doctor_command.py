"""A command line as somebody would paste it, taken apart: variables in front, the program, its options. Nothing is expanded or run."""

from __future__ import annotations

import re
import shlex

from harness.doctor_facts import AskedCommand
from harness.errors import HarnessError

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
# Not shlex's, which takes the # of `--dataset name#500` for one too.
_COMMENT = re.compile(r"(?:(?<=\s)|^)#.*$", re.MULTILINE)
_KNOWN = ("swift", "megatron", "accelerate")
# What starts a training that can't be read from here: its variables can be looked at all the same.
_STARTERS = re.compile(r"python[\d.]*|torchrun|deepspeed|vllm|bash|sh|srun|mpirun|nohup|docker|.*[.](?:sh|py)")


def parse_command(text: str) -> AskedCommand:
    """`A=1 swift sft --model X`, also with `export A=1`, comments and continued lines. Raises HarnessError where no program is named."""
    where = "--command"
    try:
        words = shlex.split(re.sub(r"\\\r?\n", " ", _COMMENT.sub("", text)))
    except ValueError as error:
        raise HarnessError(where, f"can't be taken apart: {error}.", "Quote it once as a whole: --command 'swift sft ...'.") from None
    environment: dict[str, str] = {}
    while words and ((found := _ASSIGNMENT.fullmatch(words[0])) or words[0] in ("export", "env")):
        if found:
            environment[found[1]] = found[2]
        words = words[1:]
    if not words or words[0].startswith("-"):
        raise HarnessError(where, "names no program.", f"Give the whole command; programs are {', '.join(_KNOWN)}.")
    program, rest = words[0], words[1:]
    if (name := program.rpartition("/")[2]) not in _KNOWN and not _STARTERS.fullmatch(name):
        raise HarnessError(where, f"starts {name[:40]!r}, which is nothing that trains.", f"Programs are {', '.join(_KNOWN)}.")
    subcommand = rest[0] if rest and not rest[0].startswith("-") else ""
    return AskedCommand(environment, name, subcommand, _options(rest[1:] if subcommand else rest))


def _options(words: list[str]) -> dict[str, tuple[str, ...]]:
    """`--a-b c d` and `--a_b=c`, by names with underscores, as ms-swift takes both; the last of two wins."""
    options: dict[str, tuple[str, ...]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            options[name] = (value,) if equals else ()
        elif name:
            options[name] = (*options[name], word)
    return options
