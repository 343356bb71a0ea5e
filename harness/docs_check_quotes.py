"""Functions that a page says a source file has, and code that it quotes as what stands there, held against the installed source."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.docs_check_facts import Finding, Kind, Known, Packages, Quoted
from harness.docs_check_names import paths_in
from harness.docs_page import Page

_NAME = r"`{0,2}(?<![A-Za-z0-9_])(?P<name>[A-Za-z_]\w*)(?P<call>\(\))?`{0,2}"
_PATH = r"`{0,2}(?<![\w/.-])(?P<path>swift/[\w/.-]+\.py)`{0,2}"
_SAYS = (
    re.compile(rf"{_PATH}\s*(?:这个)?(?:文件|源码|代码)?\s*(?:中|里|内|里面)?\s*的?\s*{_NAME}\s*(?:函数|方法)", re.ASCII),
    re.compile(rf"{_NAME}\s+(?:function|method)\s+(?:in|of|from|inside)\s+(?:the\s+)?(?:file\s+)?{_PATH}", re.ASCII | re.IGNORECASE),
    re.compile(rf"{_PATH}[^.。;；]{{0,40}}?\bthe\s+{_NAME}\s+(?:function|method)", re.ASCII | re.IGNORECASE),
)
_BEFORE = re.compile(r"修改前|改动前|更改前|原始?(?:代码|实现|函数|内容)|原来的|\bbefore\b|\boriginal\b", re.IGNORECASE)
_AFTER = re.compile(r"修改后|改动后|更改后|修改为|改为|改成|\bafter\b|\bmodified\b|\bchanged? (?:it )?to\b", re.IGNORECASE)
_DEF = re.compile(r"(?P<indent>[ \t]*)(?:async\s+)?def\s+(?P<name>\w+)\s*\(")
_LEFT_OUT = (ast.Pass, ast.Global, ast.Nonlocal)


@dataclass(frozen=True)
class _Said:
    """The page says that the file `path` has the functions `names`, or speaks of the file."""

    path: str
    names: tuple[str, ...]


def check_quotes(page: Page, packages: Packages) -> Iterator[Finding]:
    """Functions that the named file lacks; code quoted as what stands there today that does not.

    Only code that the page calls the state before a change is a quote: what stands after it is the page's own.
    """
    lines = page.lines
    said: _Said | None = None
    before = False
    closed = {heading.line for heading in page.headings}
    number = 1
    while number <= len(lines):
        text = lines[number - 1]
        if number in closed:
            said, before = None, False
        opening = _DEF.match(text)
        if opening is None:
            found = tuple(_functions_said(number, text))
            if paths := list(paths_in(number, text)):
                said, before = _Said(paths[0].name, tuple(name for _, name, _ in found)), False
            yield from _missing(number, found, packages)
            if (marks := _last(text)) is not None:
                before = marks
            number += 1
            continue
        block = _block(lines, number - 1, len(opening["indent"].expandtabs(4)))
        if said is not None and before and packages.file(said.path).known is Known.YES:
            yield from _compare(number, opening["name"], block, said, packages)
        number += len(block)


def _functions_said(number: int, text: str) -> Iterator[tuple[str, str, bool]]:
    """(path, function, certain); a plain English word in front of `function` may be none of its name."""
    for pattern in _SAYS:
        for match in pattern.finditer(text):
            zh = pattern is _SAYS[0]
            certain = zh or "_" in match["name"] or bool(match["call"]) or "`" + match["name"] in match[0]
            yield match["path"], match["name"], certain


def _missing(number: int, said: Sequence[tuple[str, str, bool]], packages: Packages) -> Iterator[Finding]:
    for path, name, certain in dict.fromkeys(said):
        if certain and packages.file(path).known is Known.YES and not packages.functions(path, name):
            because = f"{path} of {packages.swift} has no function {name}"
            yield Finding(number, Kind.QUOTE, because, "Name the function that is there now.")


def _last(text: str) -> bool | None:
    """Whether the last of the marks of a line says "before a change"; None where there is none."""
    marks = [(match.start(), True) for match in _BEFORE.finditer(text)] + [(match.start(), False) for match in _AFTER.finditer(text)]
    return max(marks)[1] if marks else None


def _block(lines: Sequence[str], start: int, indent: int) -> list[str]:
    """A function as quoted: its lines, up to the first that is indented no deeper and no part of its brackets."""
    block = [lines[start]]
    depth = lines[start].count("(") - lines[start].count(")")
    for text in lines[start + 1 :]:
        if depth <= 0 and text.strip() and len(text.expandtabs(4)) - len(text.expandtabs(4).lstrip()) <= indent:
            break
        depth += text.count("(") - text.count(")")
        block.append(text)
    while len(block) > 1 and not block[-1].strip():
        block.pop()
    return block


def _compare(number: int, name: str, block: list[str], said: _Said, packages: Packages) -> Iterator[Finding]:
    theirs = packages.functions(said.path, name)
    quote = _parsed(block)
    if quote is None or (not theirs and name in said.names):  # the second: said where the page names the function
        return
    if not theirs:
        because = f"{name} is quoted as a function of {said.path}, but that of {packages.swift} has none of this name"
        yield Finding(number, Kind.QUOTE, because, "Quote what is there now.")
        return
    same = [function for function in theirs if _parameters(_parsed(function.text.split("\n"))) == _parameters(quote)]
    if not same:
        is_there = "; ".join(f"{name}({function.parameters}) on line {function.line}" for function in theirs[:3])
        because = f"{name}({ast.unparse(quote.args)}) is quoted from {said.path}, but {packages.swift} has {is_there}"
        yield Finding(number, Kind.QUOTE, because, "Quote what is there now.")
    elif odd := _other_statement(quote, same):
        line, text = odd
        because = f"{text!r} is quoted from {name} of {said.path}, but {packages.swift} has no such statement there (line {same[0].line})"
        yield Finding(number + line - 1, Kind.QUOTE, because, "Quote what is there now.")


Function = ast.FunctionDef | ast.AsyncFunctionDef


def _parsed(block: Sequence[str]) -> Function | None:
    """The function of a quote; with its signature only, where its body is cut too short to be Python."""
    text = textwrap.dedent("\n".join(block))
    head = re.match(r"(?:@.*\n)*(?:async\s+)?def\s+\w+\s*\((?:[^()]|\([^()]*\))*\)[^:\n]*:", text)
    for attempt in (text, f"{head[0]} ..." if head else ""):
        try:
            body = ast.parse(attempt).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        if body and isinstance(body[0], (ast.FunctionDef, ast.AsyncFunctionDef)):
            return body[0]
    return None


def _parameters(function: Function | None) -> tuple[str, ...] | None:
    """Names in order, stars included; annotations and defaults are not compared, since pages leave them out."""
    if function is None:
        return None
    args = function.args
    names = [arg.arg for arg in (*args.posonlyargs, *args.args)]
    names += [f"*{args.vararg.arg}"] if args.vararg else []
    names += [arg.arg for arg in args.kwonlyargs]
    return (*names, *([f"**{args.kwarg.arg}"] if args.kwarg else []))


def _other_statement(quote: Function, theirs: Sequence[Quoted]) -> tuple[int, str] | None:
    """The first statement of the quote (line within it, text) that none of the functions has; `...` and comments stand for anything."""
    known = {text for function in theirs if (parsed := _parsed(function.text.split("\n"))) for _, text in _statements(parsed)}
    return next(((line, text) for line, text in _statements(quote) if text not in known), None)


def _statements(function: Function) -> Iterator[tuple[int, str]]:
    for node in ast.walk(function):
        if isinstance(node, ast.stmt) and node is not function and not isinstance(node, _LEFT_OUT):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                continue
            yield node.lineno, ast.unparse(node).split("\n")[0]
