"""What a `-m` expression asks for: which suites, and whether other tests as well."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Every assignment of the words that are no suites is tried; nobody writes more of them.
_MOST_WORDS = 12


@dataclass(frozen=True)
class Asked:
    """`suites`: those whose items the expression picks for their own mark's sake. `others`: it also picks tests without such a mark."""

    suites: tuple[str, ...]
    others: bool


def asked_for(expression: str, suites: Sequence[str], named: Sequence[str] = ()) -> Asked:
    """What `-m expression` asks for. A suite in `named` was given as a file, which asks for it unless the expression rules it out.

    `not npu_matrix`, in whatever brackets, asks for no suite. What can't be read asks for nothing: pytest says what is wrong with it.
    """
    if not expression.strip():
        return Asked(tuple(s for s in suites if s in named), True)
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
        words = sorted({node.id for node in ast.walk(tree) if isinstance(node, ast.Name)})
        free = [word for word in words if word not in suites][:_MOST_WORDS]
        plain, own = [], {suite: [False] for suite in suites}
        for values in itertools.product((False, True), repeat=len(free)):
            given = dict(zip(free, values, strict=True))
            plain.append(_holds(tree, given))
            for suite in suites:
                picked = _holds(tree, {**given, suite: True})
                own[suite].append(picked and (suite in named or not plain[-1]))
    except (SyntaxError, ValueError):
        return Asked((), True)
    return Asked(tuple(suite for suite in suites if any(own[suite])), any(plain))


def _holds(node: ast.expr, given: Mapping[str, bool]) -> bool:
    """Raises ValueError for what is no expression of words, and, or, not."""
    match node:
        case ast.BoolOp(op=ast.And()):
            return all(_holds(part, given) for part in node.values)
        case ast.BoolOp():
            return any(_holds(part, given) for part in node.values)
        case ast.UnaryOp(op=ast.Not()):
            return not _holds(node.operand, given)
        case ast.Call(func=ast.Name(id=word)) | ast.Name(id=word):
            return given.get(word, False)
    raise ValueError(f"{ast.dump(node)} is no mark expression")
