"""The names that a Python module has, read from its source text: nothing is imported or run.

    names_of(source) -> Names      members_of(class)      functions_in(source)

A module is lazy where its names are not all in its text (`__getattr__`, globals(), modules built at run time): a name that is not seen
there may exist all the same. `from x import *` is left to the caller, who can read x.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

# Texts that show a module to make names at run time: what is not seen in it may be there.
_MAKERS = ("globals()", "sys.modules[__name__]", "_LazyModule", "define_import_structure")


@dataclass(frozen=True)
class Alias:
    """A name that an import binds: `name` of `module` ("" for the module itself); `level` counts the dots in front."""

    module: str
    name: str
    level: int


@dataclass(frozen=True)
class Names:
    """`made`: names whose definitions stand here; `aliases`: those that imports bind; `quoted`: names in the module's strings."""

    made: Mapping[str, ast.stmt]
    aliases: Mapping[str, Alias]
    stars: tuple[Alias, ...]
    quoted: frozenset[str]
    lazy: bool


@lru_cache(maxsize=512)
def names_of(source: str) -> Names | None:
    """The names of a module; None where its text is no Python of this interpreter."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    made: dict[str, ast.stmt] = {}
    aliases: dict[str, Alias] = {}
    stars: list[Alias] = []
    for node in _statements(tree.body):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            made[node.name] = node
        elif isinstance(node, ast.Import):
            # `import a.b` binds a; `import a.b as c` binds a.b.
            aliases |= {name.asname or name.name.split(".")[0]: _imported(name) for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                if name.name == "*":
                    stars.append(Alias(node.module or "", "", node.level))
                else:
                    aliases[name.asname or name.name] = Alias(node.module or "", name.name, node.level)
        else:
            made |= {name: node for name in _bound(node)}
    quoted: set[str] = set()
    for inner in ast.walk(tree):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str) and inner.value.isidentifier():
            quoted.add(inner.value)
        elif isinstance(inner, ast.Global):
            made |= dict.fromkeys(inner.names, inner)
    lazy = "__getattr__" in made or any(maker in source for maker in _MAKERS)
    return Names(made, aliases, tuple(stars), frozenset(quoted), lazy)


def members_of(node: ast.ClassDef) -> tuple[frozenset[str], bool]:
    """The names of a class (methods, attributes, what its methods set on self), and whether its text tells all of them."""
    found: set[str] = set()
    for child in ast.walk(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(child.name)
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            found.add(child.id)
        elif isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store):
            found.add(child.attr)
    plain = not node.keywords and not node.decorator_list and all(isinstance(base, ast.Name) and base.id == "object" for base in node.bases)
    return frozenset(found), plain and "__getattr__" not in found


def functions_in(source: str) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]:
    """Every function and method of a module, nested ones too, in the order of its text; none where it is no Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    found = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return tuple(sorted(found, key=lambda node: node.lineno))


def _imported(name: ast.alias) -> Alias:
    return Alias(name.name, "", 0) if name.asname else Alias(name.name.split(".")[0], "", 0)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when the module is imported, those inside if, try, with and loops too."""
    for node in body:
        yield node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        for _, value in ast.iter_fields(node):
            for part in value if isinstance(value, list) else ():
                if isinstance(part, ast.stmt):
                    yield from _statements([part])
                elif isinstance(part, (ast.ExceptHandler, ast.match_case)):
                    yield from _statements(part.body)


def _bound(node: ast.stmt) -> Iterator[str]:
    for child in ast.walk(node):
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id
