"""The installed ms-swift's own parsers: every command is parsed as `swift` would, with abbreviations refused and no model loaded."""

from __future__ import annotations

import argparse
import importlib
import io
import re
import sys
import typing
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from harness.commands import normalised
from harness.contract import Finding, FindingKind, judge_parse
from harness.errors import HostError
from harness.model import Step

# The class that each subcommand's pipeline parses its command line into.
ARGUMENT_CLASSES: Mapping[str, str] = {
    "pt": "PretrainArguments",
    "sft": "SftArguments",
    "rlhf": "RLHFArguments",
    "export": "ExportArguments",
    "infer": "InferArguments",
    "deploy": "DeployArguments",
    "eval": "EvalArguments",
    "rollout": "RolloutArguments",
    "sample": "SamplingArguments",
    "app": "AppArguments",
    "web-ui": "WebUIArguments",
    "merge-lora": "ExportArguments",
}


class Refusal(Exception):
    """argparse's words, in place of its exit."""


def checked_interpreter() -> str:
    """The interpreter whose ms-swift the contract checks: this one."""
    return sys.executable


def swift_interpreter(script: str) -> str | None:
    """The interpreter in the first lines of a console script; None where it can't be told (no such file, a binary, another shell).

    `script` is where `swift` was found on PATH. `env NAME` lines give NAME, which PATH decides.
    """
    try:
        lines = Path(script).read_bytes()[:4096].decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    if not lines or not lines[0].startswith("#!"):
        return None
    words = lines[0][2:].split()
    if not words:
        return None
    if Path(words[0]).name == "env":
        named = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        return named[0] if named else None
    if Path(words[0]).name == "sh":
        # pip writes this where the path is too long or has a space: a line that is sh to a shell and a string to Python.
        wrapped = re.match(r"'''exec'\s+(?:\"([^\"]+)\"|(\S+))", lines[1]) if len(lines) > 1 else None
        return None if wrapped is None else wrapped[1] or wrapped[2]
    return lines[0][2:].strip() if Path(lines[0][2:].strip()).exists() else words[0]


@cache
def parser_of(subcommand: str) -> argparse.ArgumentParser:
    """One parser a subcommand. Nothing is constructed, so no __post_init__ runs. Raises HostError without ms-swift, KeyError for a
    subcommand that ms-swift has not."""
    return strict_parser(getattr(imported("swift.arguments"), ARGUMENT_CLASSES[subcommand]))


def imported(module: str) -> Any:
    """A module of the installed ms-swift or of what it needs. Raises HostError where it can't be imported.

    What these print at their import (greetings, deprecations) tells nothing of what is checked, and is dropped.
    """
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            return importlib.import_module(module)
    except ImportError as missing:
        raise HostError(
            module.split(".")[0], f"{module} can't be imported by {sys.executable}: {missing}.", "Install the extra [swift]."
        ) from missing


def strict_parser(argument_class: type) -> argparse.ArgumentParser:
    """The parser of one of ms-swift's argument classes, as ms-swift makes it, but without abbreviations and defaults."""
    parsing = imported("transformers.hf_argparser")
    # ms-swift parses under this patch too: without it a flag that takes JSON or a path is typed as a dict only.
    with imported("swift.utils.utils")._patch_get_type_hints():
        hints_of = parsing.get_type_hints
        parsing.get_type_hints = lambda *args, **kwargs: {name: _one_type(hint) for name, hint in hints_of(*args, **kwargs).items()}
        parser: argparse.ArgumentParser = parsing.HfArgumentParser([argument_class])
    return _strict(parser)


def _one_type(hint: Any) -> Any:
    """Optional[str] for Optional[Union[str, List[str]]], which HfArgumentParser takes for that, or can't read: typing keeps one object for
    both orders of a union's members, and which one it is depends on what else has been imported."""
    members = typing.get_args(hint) if typing.get_origin(hint) is typing.Union else ()
    if len(members) == 3 and str in members and type(None) in members and any(typing.get_origin(member) is list for member in members):
        return typing.Optional[str]  # noqa: UP045 - the parser tells by typing.Union
    return hint


@cache
def launcher_parser() -> argparse.ArgumentParser:
    """accelerate's own parser of `accelerate launch`. Raises HostError without accelerate."""
    return _strict(imported("accelerate.commands.launch").launch_command_parser())


@cache
def torchrun_parser() -> argparse.ArgumentParser:
    """torchrun's own parser. Raises HostError without PyTorch."""
    return _strict(imported("torch.distributed.run").get_args_parser())


def check_command(step: Step) -> tuple[Finding, ...]:
    """Every fault that the installed parsers see in a step's command. Commands that differ in ids and paths only are parsed once."""
    return _check(normalised(step.command.argv))


@cache
def _check(argv: tuple[str, ...]) -> tuple[Finding, ...]:
    program, args = argv[0], argv[1:]
    if program == "swift":
        return _check_swift(args)
    if program == "accelerate" and args[:1] == ("launch",):
        return _check_launch(args[1:])
    return (Finding(FindingKind.OTHER, "", f"no parser is known for `{' '.join(argv[:2])}`."),)


def _check_swift(args: Sequence[str]) -> tuple[Finding, ...]:
    if not args or args[0] not in ARGUMENT_CLASSES:
        return (Finding(FindingKind.OTHER, "", f"`swift {' '.join(args[:1])}` is no subcommand. Known: {', '.join(ARGUMENT_CLASSES)}."),)
    return judged(parser_of(args[0]), args[1:])


def _check_launch(args: Sequence[str]) -> tuple[Finding, ...]:
    at = next((i for i, word in enumerate(args) if word.endswith(".py>") or word.endswith(".py")), None)
    if at is None:
        return (Finding(FindingKind.REQUIRED, "", "accelerate launch is given no script."),)
    script = args[at].strip("<>").rsplit("/", 1)[-1].removesuffix(".py")
    return (*judged(launcher_parser(), args[: at + 1], positionals=1), *_check_swift((script, *args[at + 1 :])))


def judged(parser: argparse.ArgumentParser, args: Sequence[str], positionals: int = 0) -> tuple[Finding, ...]:
    """Every fault of `args`. `positionals`: how many of the last words belong to no flag, as the parser wants it."""
    known = parser._option_string_actions.keys()
    flags = args[: len(args) - positionals]
    try:
        _, rest = parser.parse_known_args(list(args))
    except Refusal as refusal:
        return judge_parse(flags, known, (), str(refusal))
    return judge_parse(flags, known, rest, "")


def _strict(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    def refuse(message: str) -> NoReturn:
        raise Refusal(message)

    parser.allow_abbrev = False
    setattr(parser, "error", refuse)  # noqa: B010 - a method is replaced, which an assignment may not do
    for action in parser._actions:
        # The values are thrown away, and filling in 1,000 defaults takes most of a parse.
        _without_default(action)
    parser._defaults.clear()
    return parser


def _without_default(action: Any) -> None:
    action.default = argparse.SUPPRESS
