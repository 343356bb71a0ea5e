"""A source text as a tree whose nodes know their parent, their function and their place in the text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

# What shows nothing of a computation: texts for people, and how a kernel is launched rather than what it computes.
_SILENT_CALLS = frozenset({"debug", "info", "info_once", "warn", "warning", "warning_once", "print", "device_assert", "static_assert"})
_SILENT_FUNCTIONS = frozenset({"extra_repr", "__repr__"})


@dataclass(frozen=True)
class Edit:
    """A fault: `text` instead of the source from `start` to `end` (offsets in characters), in `function` at `line`."""

    kind: str
    function: str
    line: int
    start: int
    end: int
    text: str

    def apply(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]


class Tree:
    """The nodes of a source that may carry a fault, in the order of the text."""

    def __init__(self, source: str) -> None:
        self.source, self.root = source, ast.parse(source)
        self.parents = {child: node for node in ast.walk(self.root) for child in ast.iter_child_nodes(node)}
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._lines = source.splitlines(keepends=True)

    def nodes(self) -> Iterator[ast.AST]:
        yield from self._below(self.root)

    def _below(self, node: ast.AST) -> Iterator[ast.AST]:
        for name, value in ast.iter_fields(node):
            if name in ("decorator_list", "annotation", "returns", "bases"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not _is_silent(child):
                    yield child
                    yield from self._below(child)

    def function_of(self, node: ast.AST) -> str:
        """The qualified name of the function or class that holds `node`; "" at the top of the module."""
        names, above = [], self.parents.get(node)
        while above is not None:
            if isinstance(above, ast.FunctionDef | ast.ClassDef):
                names.append(above.name)
            above = self.parents.get(above)
        return ".".join(reversed(names))

    def text(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.source[start:end]

    def span(self, node: ast.AST) -> tuple[int, int]:
        where: tuple[int, int, int, int] = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
        return self._offset(where[0], where[1]), self._offset(where[2], where[3])

    def _offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def edit(self, kind: str, node: ast.AST, text: str) -> Edit:
        start, end = self.span(node)
        return Edit(kind, self.function_of(node), node.lineno, start, end, text)  # type: ignore[attr-defined]


def called(node: ast.AST) -> str:
    """The last name of what a call calls; "" for what is no call."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""


def _is_silent(node: ast.AST) -> bool:
    if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr):
        return True
    if isinstance(node, ast.FunctionDef) and node.name in _SILENT_FUNCTIONS:
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) or called(node.value) in _SILENT_CALLS
    return False
