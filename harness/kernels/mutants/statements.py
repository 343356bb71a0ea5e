"""Faults in statements: a branch, a loop, an accumulator, what is returned, a step that is left out, an entry of a table."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.kernels.mutants.syntax import Edit, Tree, called


def statement_faults(tree: Tree) -> Iterator[Edit]:
    for node in tree.nodes():
        if isinstance(node, ast.If):
            yield tree.edit("branch inverted", node.test, f"(not ({tree.text(node.test)}))")
        elif isinstance(node, ast.AugAssign):
            yield tree.edit("accumulator not added to", node, f"{tree.text(node.target)} = {tree.text(node.value)}")
            yield tree.edit("step left out", node, "pass")
        elif isinstance(node, ast.Assign):
            yield from _assigned(tree, node)
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            yield from _returned(tree, node.value)
        elif isinstance(node, ast.For):
            yield from _looped(tree, node)
        elif isinstance(node, ast.Expr) and called(node.value) in ("store", "atomic_add", "index_copy_", "copy_"):
            yield tree.edit("step left out", node, "pass")
        elif isinstance(node, ast.Dict) and not tree.function_of(node):
            yield from _entries(tree, node)


def _assigned(tree: Tree, node: ast.Assign) -> Iterator[Edit]:
    """`x = f(x)` left out leaves the stale x; `x = x + y` may forget x."""
    if len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name) or not tree.function_of(node):
        return
    name = node.targets[0].id
    if any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node.value)):
        yield tree.edit("stale variable", node, "pass")
    value = node.value
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add) and tree.text(value.left) == name:
        yield tree.edit("accumulator not added to", node, f"{name} = {tree.text(value.right)}")


def _returned(tree: Tree, value: ast.Tuple) -> Iterator[Edit]:
    texts = [tree.text(part) for part in value.elts]
    for index in range(len(texts) - 1):
        if texts[index] != texts[index + 1]:
            swapped = [*texts[:index], texts[index + 1], texts[index], *texts[index + 2 :]]
            yield tree.edit("return value swapped", value, ", ".join(swapped))
            return


def _looped(tree: Tree, node: ast.For) -> Iterator[Edit]:
    if called(node.iter) not in ("range", "static_range"):
        return
    assert isinstance(node.iter, ast.Call)
    bounds = [tree.text(argument) for argument in node.iter.args]
    last = 0 if len(bounds) == 1 else 1
    func = tree.text(node.iter.func)
    cut = [f"({bound}) - 1" if index == last else bound for index, bound in enumerate(bounds)]
    yield tree.edit("loop cut early", node.iter, f"{func}({', '.join(cut)})")
    late = ["1", *bounds] if len(bounds) == 1 else [f"({bounds[0]}) + 1", *bounds[1:]]
    yield tree.edit("loop begun late", node.iter, f"{func}({', '.join(late)})")


def _entries(tree: Tree, node: ast.Dict) -> Iterator[Edit]:
    """Each entry of a table at the module's top left out."""
    for index, key in enumerate(node.keys):
        if key is not None:
            pairs = [(k, v) for i, (k, v) in enumerate(zip(node.keys, node.values, strict=True)) if k is not None and i != index]
            kept = [f"{tree.text(k)}: {tree.text(v)}" for k, v in pairs]
            yield tree.edit("entry left out", node, "{" + ", ".join(kept) + "}")
