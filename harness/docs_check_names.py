"""The dotted names and source paths that a page speaks of, held against the installed packages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from harness.docs_check_facts import Answer, Finding, Kind, Known, Packages
from harness.docs_page import Page

# Packages whose names pages of ms-swift use. `datasets` counts in import statements only: it is a common name of variables.
ROOTS = (
    "swift", "torch", "torch_npu", "transformers", "peft", "trl", "accelerate", "deepspeed", "megatron", "mindspeed", "vllm", "vllm_ascend",
    "fla", "modelscope", "mcore_bridge", "msprobe", "evalscope",
)  # fmt: skip
_IMPORTED = (*ROOTS, "datasets")
_URL = re.compile(r"(?:(?<![a-z+])[a-z+]{2,16}://|www\.)[^\s)>\]\"'`，。；、（）]+")
_DOTTED = re.compile(rf"(?<![\w./\\$@-])((?:{'|'.join(ROOTS)})(?:\.[A-Za-z_]\w*)+)(?![\w/@\\-]|\.(?:\{{|<|\*))")
_FROM = re.compile(r"(?<!\w)from\s+([A-Za-z_][\w.]*)\s+import\s+(\([^)]*\)?|[\w*, ]+)")
_IMPORT = re.compile(r"(?:^|[;\"'>])\s*import\s+([A-Za-z_][\w.]*(?:\s+as\s+\w+)?(?:\s*,\s*[A-Za-z_][\w.]*(?:\s+as\s+\w+)?)*)")
_NO_NAME = {
    "cn",
    "com",
    "io",
    "org",
    "ai",
    "net",
    "py",
    "sh",
    "md",
    "json",
    "yaml",
    "yml",
    "txt",
    "log",
    "toml",
    "cfg",
    "png",
    "html",
    "whl",
    "git",
    "so",
}
_PLACEHOLDER = re.compile(r"x{2,}|[A-Z]{3,}_?NAME|foo|bar|your_\w+|my_\w+")
# Lines that quote an error, or say that something is gone.
_SPOKEN_OF = re.compile(
    r"Error:|Traceback|has no attribute|No module named|cannot import|deprecat|removed|renamed|no longer|used to be|formerly"
    r"|移除|废弃|弃用|改名|更名|重命名|不再|已删除|旧版",
    re.IGNORECASE,
)
_REPOSITORY = ("swift", "examples", "docs", "scripts", "requirements", "tests")
_FILE = r"(?:py|sh|json|yaml|yml|md|ipynb|txt|jsonl)"
_PATH = re.compile(rf"(?<![\w/.~$}}{{>-])(?:\.?/)?((?:[\w.-]+/)+[\w.-]+\.{_FILE})(?![\w/])", re.ASCII)
_BARE_FILE = re.compile(r"(?<![\w/.~$}{>-])([A-Za-z_]\w*\.py)(?![\w/])", re.ASCII)
_EDITS = re.compile(r"修改|改动|源码|modif|edit|change|source", re.IGNORECASE)
_OF_SWIFT = re.compile(r"ms-?swift|swift/|SWIFT", re.IGNORECASE)


@dataclass(frozen=True)
class Mention:
    line: int
    name: str


def readable(page: Page) -> tuple[tuple[int, str], ...]:
    """Every line that a reader sees, code and tables too, without web addresses and without the lines that speak of errors or the past."""
    lines = [*page.prose, *((number, text) for fence in page.fences for number, text in fence.body)]
    lines += [(row.line, row.raw) for table in page.tables for row in table.rows]
    return tuple((number, _URL.sub(" ", text)) for number, text in sorted(lines) if not _SPOKEN_OF.search(text))


def dotted_names(lines: Iterable[tuple[int, str]]) -> tuple[Mention, ...]:
    """`package.module.name`, and what import statements import, each with its line."""
    found: dict[Mention, None] = {}
    rest = list(lines)
    for at, (number, text) in enumerate(rest):
        for match in _FROM.finditer(_joined(rest, at)):
            if match.start() <= len(text) and match[1].split(".")[0] in _IMPORTED:
                names = re.findall(r"[A-Za-z_]\w*(?:\s+as\s+\w+)?", re.sub(r"#.*", "", match[2]))
                found |= dict.fromkeys([Mention(number, f"{match[1]}.{name.split()[0]}") for name in names] or [Mention(number, match[1])])
        for match in _IMPORT.finditer(text):
            names = [part.split()[0] for part in match[1].split(",")]
            found |= dict.fromkeys(Mention(number, name) for name in names if name.split(".")[0] in _IMPORTED)
        found |= dict.fromkeys(Mention(number, match[1]) for match in _DOTTED.finditer(text))
    return tuple(mention for mention in found if _is_name(mention.name))


def check_names(page: Page, packages: Packages) -> Iterator[Finding]:
    """Names that the installed packages don't have; one note for each package that is not installed."""
    absent: dict[str, list[int]] = {}
    told: set[tuple[int, str]] = set()
    for mention in dotted_names(readable(page)):
        answer = packages.name(mention.name)
        if answer.known is Known.NOT_INSTALLED:
            absent.setdefault(answer.because, []).append(mention.line)
        elif answer.known is Known.NO and (mention.line, answer.because) not in told:
            told.add((mention.line, answer.because))
            yield Finding(
                mention.line, Kind.NAME, f"{mention.name}: {answer.because}", "Name what is there, or say with which version it is."
            )
    for because, lines in absent.items():
        yield _unchecked(Kind.NAME, because, lines, "name")


def check_paths(page: Page, packages: Packages) -> Iterator[Finding]:
    """Source files that ms-swift does not have."""
    unchecked: list[int] = []
    missing: set[str] = set()
    lines = readable(page)
    for mention in dict.fromkeys(path for line in lines for path in paths_in(*line)):
        answer = packages.file(mention.name)
        if answer.known is Known.NO:
            missing.add(mention.name.rpartition("/")[2])
            yield Finding(mention.line, Kind.PATH, answer.because, _instead(answer))
        elif answer.known is Known.UNKNOWN:
            unchecked.append(mention.line)
    for number, text in lines:
        for match in _BARE_FILE.finditer(text):
            named = match[1] in missing or (_EDITS.search(text) and _OF_SWIFT.search(text))
            if named and (answer := packages.file_called(match[1])).known is Known.NO:
                yield Finding(number, Kind.PATH, answer.because, "Name the file that is there now.")
    if unchecked:
        yield _unchecked(Kind.PATH, "the installed package holds swift/ only (give a checkout with --source)", unchecked, "path")


def paths_in(number: int, text: str) -> Iterator[Mention]:
    """The source paths of a line, from the root of ms-swift's repository."""
    for match in _PATH.finditer(text):
        # A clone was called swift once: swift/examples/... lies in the repository, not in the package.
        path = re.sub(r"^(?:ms-)?swift/(?=(?:swift|examples|docs|scripts|requirements|tests)/)", "", match[1])
        first = path.partition("/")[0]
        if first in _REPOSITORY and (first != "swift" or path.endswith((".py", ".json", ".sh"))) and not _PLACEHOLDER.search(path):
            yield Mention(number, path)


def _unchecked(kind: Kind, because: str, lines: list[int], what: str) -> Finding:
    some = ", ".join(map(str, sorted(set(lines))[:8])) + (", ..." if len(set(lines)) > 8 else "")
    return Finding(min(lines), kind, f"{len(lines)} {what}{'s' if len(lines) > 1 else ''} not checked: {because} (lines {some})", note=True)


def _instead(answer: Answer) -> str:
    return f"There is {answer.near}." if answer.near else "Name the file that is there now."


def _is_name(name: str) -> bool:
    parts = name.split(".")
    return len(parts) == 1 or not (parts[1] in _NO_NAME or parts[-1] in _NO_NAME or any(_PLACEHOLDER.fullmatch(part) for part in parts))


def _joined(lines: list[tuple[int, str]], at: int) -> str:
    """A line, with those that follow where a bracket of an import statement stays open."""
    text = lines[at][1]
    if not re.search(r"import\s*\([^)]*$", text):
        return text
    for _, following in lines[at + 1 : at + 40]:
        text += "\n" + following
        if ")" in following:
            break
    return text
