"""What the check of a page says, and what it asks of the environment: findings, and answers about installed packages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.model import Word


class Kind(Word):
    """What a finding is about."""

    TABLE = "table"
    PAGE = "page"
    ROW = "row"
    EVIDENCE = "evidence"
    VERSION = "version"
    COMMAND = "command"
    DEVICE = "device"
    NAME = "name"
    PATH = "path"
    QUOTE = "quote"
    LINK = "link"


@dataclass(frozen=True)
class Finding:
    """One thing about a line of a page (counted from 1). A note is no fault: it says what was seen and why it is none."""

    line: int
    kind: Kind
    message: str
    next_step: str = ""
    note: bool = False


class Known(Word):
    """Whether a package has something, best answer first; UNKNOWN: its text can't tell."""

    YES = "yes"
    UNKNOWN = "unknown"
    NOT_INSTALLED = "not installed"
    NO = "no"


@dataclass(frozen=True)
class Answer:
    """`because` says what is missing; `near`: what is there instead, if anything."""

    known: Known
    because: str = ""
    near: str = ""


@dataclass(frozen=True)
class Quoted:
    """A function of a source file: its line there, its parameters as Python writes them, its text."""

    name: str
    line: int
    parameters: str
    text: str


class Packages(Protocol):
    """What is asked of the installed packages; `harness.docs_check_installed.Installed` answers by reading their files."""

    @property
    def swift(self) -> str: ...
    @property
    def checkout(self) -> Path | None: ...
    def name(self, dotted: str) -> Answer: ...
    def file(self, path: str) -> Answer: ...
    def file_called(self, name: str) -> Answer: ...
    def functions(self, path: str, name: str) -> tuple[Quoted, ...]: ...
