"""Why a command of a page can't be run here: the closed list, and what of a host it depends on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.docs_shell import Command, ShellWord
from harness.model import Hardware, Word

_QUANTIZED = re.compile(r"(?i)GPTQ|AWQ|Int[48]|FP8|BNB|HQQ|EETQ|-[48]bit")
_HUB_ID = re.compile(r"(?:(?:HF|MS)::)?[\w-][\w.-]*/[\w.-]+")


class Reason(Word):
    """All there are. Each is said with its line and with the words that it is about."""

    CONTAINER = "builds or starts a container"
    INSTALLS = "installs packages, which nothing here does for a page"
    DOWNLOADS = "downloads from a network, which nothing here does for a page"
    PUBLISHES = "uploads to a hub"
    ASKS_NPU = "asks a real NPU, its driver or CANN"
    LACKS_PROGRAM = "needs a program that is not installed here"
    LACKS_PACKAGE = "needs a package that is not installed here"
    ELIDED = "is not whole: ... stands in for a part of it"
    PLACEHOLDER = "has a placeholder that only a reader can fill in"
    TRANSCRIPT = "is what a terminal showed, not commands to paste"
    NOT_SHELL = "is no command of a shell: code, output or prose"
    FRAGMENT = "is flags without a command to run"
    OTHER_FILE = "reads a file that the page does not make"
    NO_TINY_MODEL = "needs a model that no tiny one stands in for"
    NO_TINY_FORM = "has no tiny form"
    SEVERAL_NODES = "takes more than one machine"
    WINDOW = "opens a window or waits for a person"
    CHANGES_HOST = "changes this machine outside the scratch folder"


@dataclass(frozen=True)
class Obstacle:
    """`said`: the words of the page that `reason` is about."""

    reason: Reason
    line: int
    said: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.said} {self.reason}"


@dataclass(frozen=True)
class PageHost:
    """What of this host the list depends on.

    `model_types`: a hub's id to ms-swift's model type, for every model that it knows. `families`: model type to the tiny family of it.
    """

    hardware: Hardware
    has_module: Callable[[str], bool]
    has_program: Callable[[str], bool]
    model_types: Mapping[str, str]
    families: Mapping[str, str]

    def family_of(self, model_id: str) -> str:
        """The tiny family that stands in for a hub's model; "" where there is none, or the installed ms-swift knows no such model.

        None stands in for a quantized one: it would prove nothing of what is asked of that.
        """
        return "" if _QUANTIZED.search(model_id) else self.families.get(self.model_types.get(model_id, ""), "")


Given = Mapping[str, tuple[ShellWord, ...]]
DECLARING = ("export", "declare", "typeset", "readonly")


def flags_of(command: Command) -> Given:
    """Flag to its words, of the last time that it is given, as argparse has it; --flag=value is taken apart."""
    found: dict[str, tuple[ShellWord, ...]] = {}
    flag = ""
    for word in command.words[1:]:
        if word.text.startswith("--") and not word.quoted:
            flag, equals, value = word.text.partition("=")
            found[flag] = (ShellWord(value, word.line, word.known),) if equals else ()
        elif flag:
            found[flag] = (*found[flag], word)
    return found


def texts(given: Given) -> dict[str, list[str]]:
    return {flag: [word.text for word in words] for flag, words in given.items()}


def is_hub_id(text: str) -> bool:
    return bool(_HUB_ID.fullmatch(text))
