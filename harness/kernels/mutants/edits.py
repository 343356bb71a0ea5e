"""Faults in expressions: a number, an operator, an argument, an axis, a cast, a call that says something else than it should."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from harness.kernels.mutants.syntax import Edit, Tree, called

Made = Iterator[Edit]
_AXIS_WORDS = frozenset({"dim", "axis", "dim0", "dim1"})
# Calls whose whole-number arguments are axes.
_AXIS_CALLS = frozenset(
    {"sum", "cumsum", "softmax", "cat", "stack", "unsqueeze", "squeeze", "transpose", "permute", "max", "mean", "flip", "sort", "size"}
)
# How a kernel is cut up and launched, which changes no result; and sizes that must be powers of two.
_LAUNCH = frozenset({"num_warps", "num_stages", "num_ctas", "allow_tf32", "input_precision", "cache_modifier", "non_blocking"})
# Calls whose arguments say how large something is, or ask about a type.
_SIZES = frozenset({"range", "cdiv", "getattr", "isinstance", "hasattr", "program_id", "make_block_ptr"})
_TILES = frozenset({"BT", "BC", "BK", "BV", "BS", "BD", "BH", "BN", "BM", "BLOCK", "BLOCK_SIZE", "NB", "NUM_WARPS"})
_MIRRORED: dict[type[ast.operator], str] = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "//"}
_OFF_BY_ONE: dict[type[ast.cmpop], str] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
# Of the others the bound less one is what _OFF_BY_ONE makes.
_SHIFTED: dict[type[ast.cmpop], str] = {ast.Lt: "<", ast.GtE: ">="}
_TURNED: dict[type[ast.cmpop], str] = {ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"}
_OTHER_FUNCTION = {
    "max": "min", "min": "max", "minimum": "maximum", "maximum": "minimum", "exp": "exp2", "exp2": "exp", "sum": "max", "zeros": "ones",
    "zeros_like": "ones_like", "rsqrt": "sqrt", "sqrt": "rsqrt", "log": "log2", "sigmoid": "tanh", "tril": "triu", "triu": "tril",
    "empty_like": "zeros_like", "softmax": "log_softmax",
}  # fmt: skip


def expression_faults(tree: Tree) -> Made:
    for node in tree.nodes():
        for operator in _OPERATORS:
            yield from operator(tree, node)


def _numbers(tree: Tree, node: ast.AST) -> Made:
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)
    value = node.operand.value if negative else getattr(node, "value", None)  # type: ignore[attr-defined]
    if not (negative or isinstance(node, ast.Constant)) or isinstance(value, bool) or not isinstance(value, int | float):
        return
    above = tree.parents[node]
    if isinstance(above, ast.UnaryOp) or _is_launch(tree, node):
        return
    if isinstance(value, float):
        small = 0 < value < 1e-3
        yield tree.edit("eps changed" if small else "constant changed", node, f"{value * 10:.6g}" if small else repr(value + 0.1))
    elif _is_axis(tree, node):
        yield tree.edit("axis changed", node, "0" if negative or value == 1 else str(value - 1))
    elif _is_index(tree, node):
        yield tree.edit("index offset", node, str((-value if negative else value) + 1))
    else:
        yield tree.edit("constant changed", node, str((-value if negative else value) + 1))


def _is_axis(tree: Tree, node: ast.AST) -> bool:
    above = tree.parents[node]
    return (isinstance(above, ast.keyword) and above.arg in _AXIS_WORDS) or (called(above) in _AXIS_CALLS and node in above.args)  # type: ignore[attr-defined]


def _is_index(tree: Tree, node: ast.AST) -> bool:
    above = tree.parents[node]
    return isinstance(above, ast.Slice) or (isinstance(above, ast.Subscript) and above.slice is node)


def _is_launch(tree: Tree, node: ast.AST) -> bool:
    above = tree.parents.get(node)
    while above is not None and not isinstance(above, ast.stmt):
        if (isinstance(above, ast.keyword) and above.arg in _LAUNCH | _TILES) or called(above) in ("next_power_of_2", "Config"):
            return True
        above = tree.parents.get(above)
    names = {target.id for target in getattr(above, "targets", ()) if isinstance(target, ast.Name)}
    return bool(names & _TILES)


def _eps(tree: Tree, node: ast.AST) -> Made:
    if isinstance(node, ast.keyword) and node.arg in ("eps", "epsilon") and not isinstance(node.value, ast.Constant):
        yield tree.edit("eps changed", node.value, f"10 * ({tree.text(node.value)})")


def _arithmetic(tree: Tree, node: ast.AST) -> Made:
    if not isinstance(node, ast.BinOp) or _is_launch(tree, node):
        return
    left, right = tree.text(node.left), tree.text(node.right)
    if (sign := _MIRRORED.get(type(node.op))) is not None:
        yield tree.edit("operator swapped", node, f"(({left}) {sign} ({right}))")
    if isinstance(node.op, ast.Mult):
        for part, other in ((left, right), (right, left)):
            if "scale" in part or "beta" in part:
                yield tree.edit("scale dropped", node, f"({other})")
    if isinstance(node.op, ast.Add | ast.Sub):
        yield tree.edit("term dropped", node, f"({left})")
    if isinstance(node.op, ast.BitAnd):
        yield tree.edit("mask shifted", node, f"({left})")
        yield tree.edit("mask shifted", node, f"({right})")
    if isinstance(node.op, ast.Add) and "i_" in left and not isinstance(tree.parents[node], ast.BinOp):
        yield tree.edit("index offset", node, f"({tree.text(node)} + 1)")


def _signs(tree: Tree, node: ast.AST) -> Made:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
        yield tree.edit("sign flipped", node, f"({tree.text(node.operand)})")
    if called(node) in ("exp", "exp2", "sigmoid") and len(node.args) == 1:  # type: ignore[attr-defined]
        argument = node.args[0]  # type: ignore[attr-defined]
        yield tree.edit("sign flipped", argument, f"-({tree.text(argument)})")
    if called(node) == "dot" and node.args:  # type: ignore[attr-defined]
        yield tree.edit("sign flipped", node, f"(-{tree.text(node)})")


def _comparisons(tree: Tree, node: ast.AST) -> Made:
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return
    left, right, kind = tree.text(node.left), tree.text(node.comparators[0]), type(node.ops[0])
    if kind in _OFF_BY_ONE:
        yield tree.edit("comparison off by one", node, f"(({left}) {_OFF_BY_ONE[kind]} ({right}))")
        if kind in _SHIFTED:
            yield tree.edit("mask shifted", node, f"(({left}) {_SHIFTED[kind]} ({right}) - 1)")
    elif kind in _TURNED:
        yield tree.edit("comparison turned", node, f"(({left}) {_TURNED[kind]} ({right}))")


def _booleans(tree: Tree, node: ast.AST) -> Made:
    if isinstance(node, ast.BoolOp):
        word = " or " if isinstance(node.op, ast.And) else " and "
        yield tree.edit("and for or", node, f"({word.join(f'({tree.text(part)})' for part in node.values)})")
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield tree.edit("branch inverted", node, f"({tree.text(node.operand)})")
    if isinstance(node, ast.IfExp):
        yield tree.edit("branch inverted", node.test, f"(not ({tree.text(node.test)}))")
    if isinstance(node, ast.Constant) and isinstance(node.value, bool) and not _is_launch(tree, node):
        yield tree.edit("flag turned", node, str(not node.value))


def _arguments(tree: Tree, node: ast.AST) -> Made:
    if not isinstance(node, ast.Call) or called(node) in _SIZES:
        return
    for keyword in node.keywords:
        if keyword.arg is not None and keyword.arg not in _LAUNCH | _TILES:
            yield tree.edit("argument dropped", node, _call(tree, node, without=keyword))
    for first, second in zip(node.args, node.args[1:], strict=False):
        if ast.dump(first) != ast.dump(second) and not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
            yield tree.edit("arguments swapped", node, _call(tree, node, swapped=(first, second)))
            break


def _call(tree: Tree, node: ast.Call, without: ast.keyword | None = None, swapped: tuple[ast.expr, ast.expr] | None = None) -> str:
    other = {swapped[0]: swapped[1], swapped[1]: swapped[0]} if swapped else {}
    parts = [tree.text(other.get(argument, argument)) for argument in node.args]
    parts += [f"{k.arg}={tree.text(k.value)}" if k.arg else f"**{tree.text(k.value)}" for k in node.keywords if k is not without]
    return f"{tree.text(node.func)}({', '.join(parts)})"


def _views(tree: Tree, node: ast.AST) -> Made:
    if isinstance(node, ast.Attribute) and node.attr == "T":
        yield tree.edit("transpose removed", node, tree.text(node.value))
    if not isinstance(node, ast.Call):
        return
    name, on = called(node), node.func.value if isinstance(node.func, ast.Attribute) else None
    if on is None:
        return
    if name in ("t", "transpose", "permute"):
        is_function = isinstance(on, ast.Name) and on.id in ("torch", "tl")
        yield tree.edit("transpose removed", node, tree.text(node.args[0] if is_function else on))
    if name == "trans" and node.args:
        yield tree.edit("transpose removed", node, tree.text(node.args[0]))
    if name in ("to", "float", "double", "half"):
        yield tree.edit("cast removed", node, tree.text(on))
    if name == "contiguous" and not node.args:
        yield tree.edit("copy removed", node, tree.text(on))
    if name == "load" and node.args:
        yield tree.edit("cast added", node, f"{tree.text(node)}.to(tl.float16)")
    if name == "where" and len(node.args) == 3:
        yield tree.edit("mask dropped", node, f"({tree.text(node.args[1])})")


def _functions(tree: Tree, node: ast.AST) -> Made:
    if isinstance(node, ast.Call) and (other := _OTHER_FUNCTION.get(called(node))) is not None:
        func = node.func
        text = f"{tree.text(func.value)}.{other}" if isinstance(func, ast.Attribute) else other
        yield tree.edit("other function", func, text)


_OPERATORS: tuple[Callable[[Tree, ast.AST], Made], ...] = (
    _numbers, _eps, _arithmetic, _signs, _comparisons, _booleans, _arguments, _views, _functions,
)  # fmt: skip
