"""Which names of torch_npu a source text uses, and how it calls them. Pure: the source comes in as text."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

ROOTS = ("torch_npu", "torch.npu")
# Asked for by name at run time, through getattr(torch, "npu") and the like, where no source text shows it: met in runs of ms-swift,
# transformers, accelerate and DeepSpeed on the simulated NPU.
ASKED_AT_RUN_TIME = (
    "torch.npu.Event",
    "torch.npu.Stream",
    "torch.npu._is_in_bad_fork",
    "torch.npu.current_device",
    "torch.npu.current_stream",
    "torch.npu.default_stream",
    "torch.npu.device",
    "torch.npu.device_count",
    "torch.npu.empty_cache",
    "torch.npu.get_amp_supported_dtype",
    "torch.npu.get_device_properties",
    "torch.npu.get_rng_state",
    "torch.npu.is_available",
    "torch.npu.is_bf16_supported",
    "torch.npu.is_initialized",
    "torch.npu.manual_seed_all",
    "torch.npu.max_memory_reserved",
    "torch.npu.memory_allocated",
    "torch.npu.memory_stats",
    "torch.npu.random",
    "torch.npu.reset_peak_memory_stats",
    "torch.npu.set_device",
    "torch.npu.set_rng_state",
    "torch.npu.stream",
    "torch.npu.synchronize",
)


@dataclass(frozen=True)
class CallSite:
    """A call of torch_npu.`operator` in a source text: how many positional arguments and which keywords it has."""

    operator: str
    line: int
    positional: int
    keywords: tuple[str, ...]


def call_sites(source: str) -> list[CallSite]:
    """Every call of an attribute of torch_npu, or of a name imported from it, whose arguments stand there, not in *a or **b."""
    tree = ast.parse(source)
    aliases = _aliases(tree)
    found = []
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        root, *rest = _dotted(node.func, aliases) or ("",)
        spread = any(isinstance(argument, ast.Starred) for argument in node.args)
        keywords = [keyword.arg for keyword in node.keywords if keyword.arg is not None]
        if root == "torch_npu" and len(rest) == 1 and not spread and len(keywords) == len(node.keywords):
            found.append(CallSite(rest[0], node.lineno, len(node.args), tuple(keywords)))
    return sorted(found, key=lambda site: site.line)


def names_called(source: str) -> set[str]:
    """Dotted names under torch_npu and torch.npu: attributes read, names imported, and getattr or hasattr with a text.

    torch_npu.npu.x is torch.npu.x. Raises SyntaxError for what isn't Python.
    """
    tree = ast.parse(source)
    aliases = _aliases(tree)
    found = {".".join(chain) for node in ast.walk(tree) for chain in _chains(node, aliases)}
    return {name for name in map(_normal, found) if any(name.startswith(root + ".") for root in ROOTS)}


def _normal(name: str) -> str:
    return "torch.npu" + name.removeprefix("torch_npu.npu") if name == "torch_npu.npu" or name.startswith("torch_npu.npu.") else name


def _aliases(tree: ast.AST) -> Mapping[str, str]:
    """Local name to the dotted name that an import gave it."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "torch_npu":
            found.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
        elif isinstance(node, ast.Import):
            found.update({alias.asname: alias.name for alias in node.names if alias.asname and alias.name.split(".")[0] == "torch_npu"})
    return found


def _chains(node: ast.AST, aliases: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "torch_npu":
        yield from ((*node.module.split("."), alias.name) for alias in node.names)
    elif isinstance(node, ast.Attribute):
        yield _dotted(node, aliases)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr") and len(node.args) > 1:
        name = node.args[1]
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            yield (*_dotted(node.args[0], aliases), name.value)


def _dotted(node: ast.AST, aliases: Mapping[str, str]) -> tuple[str, ...]:
    """a.b.c as its parts; nothing where the chain doesn't begin with a name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ()
    return (*aliases.get(node.id, node.id).split("."), *reversed(parts))
