"""A torch_npu, real or stand-in, as plain data: names, kinds, parameters. It runs in the process that has it imported."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

# Modules that a caller reaches by name. torch.npu is described as what it is to a caller, wherever it is defined.
MODULES = (
    "torch_npu",
    "torch.npu",
    "torch.npu.amp",
    "torch.npu.random",
    "torch.npu.memory",
    "torch_npu.optim",
    "torch_npu.utils.patch_getenv",
)
# The classes whose members matter to a caller.
CLASSES = ("Stream", "Event", "NPUGraph", "GradScaler", "NpuFusedAdamW")
SCHEMA = 1
_STANDARD = ("contextlib", "__future__", "functools", "abc", "collections", "collections.abc", "dataclasses", "enum")


def describe(operators: Sequence[str], probe: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
    """{schema, versions, modules: {module: {name: entry}}, operators: {name: {overloads, autograd}}} of the imported torch_npu.

    `probe`: names to ask each module for besides those that it lists, since a stand-in may make them when asked.
    """
    import torch
    import torch_npu

    return {
        "schema": SCHEMA,
        "torch_npu": torch_npu.__version__,
        "torch": torch.__version__,
        "modules": {name: _module(_resolved(name), (probe or {}).get(name, ())) for name in MODULES},
        "tensor": sorted(name for name in ("npu", "is_npu") if hasattr(torch.Tensor, name)),
        "operators": {name: _operator(getattr(torch_npu, name), name) for name in operators if hasattr(torch_npu, name)},
    }


def _resolved(name: str) -> Any:
    """The module, by import or, as torch.npu, by attribute; None where there is none."""
    if name.startswith("torch.npu"):
        found: Any = importlib.import_module("torch")
        for part in name.split(".")[1:]:
            found = getattr(found, part, None)
        return found
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and name.startswith(error.name):
            return None
        raise


def _module(module: Any, probe: Sequence[str]) -> dict[str, Any] | None:
    if module is None:
        return None
    names = {*(name for name in dir(module) if not name.startswith("__")), *(name for name in probe if hasattr(module, name))}
    entries = ((name, getattr(module, name)) for name in sorted(names))
    return {name: _entry(name, value) for name, value in entries if not _imported_by_the_way(value)}


def _imported_by_the_way(value: Any) -> bool:
    if isinstance(value, ModuleType):
        return "npu" not in value.__name__
    origin = getattr(value, "__module__", None)
    return (
        origin == "typing"
        or type(value).__module__ == "__future__"
        or (origin in _STANDARD and (inspect.isclass(value) or inspect.isfunction(value)))
    )


def _entry(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, ModuleType):
        return {"kind": "module"}
    if _is_packet(value):
        return {"kind": "operator"}
    if inspect.isclass(value):
        members = sorted(m for m in dir(value) if not m.startswith("_")) if name in CLASSES else None
        return {"kind": "class", "members": members}
    if callable(value):
        return {"kind": "function", "parameters": parameters(value)}
    return {"kind": "value"}


def _is_packet(value: Any) -> bool:
    """By its type: some objects of torch_npu have every attribute."""
    return type(value).__name__ == "OpOverloadPacket"


def parameters(function: Any) -> list[dict[str, Any]] | None:
    """[{name, keyword_only, default}] (default absent where there is none), or None where Python can't tell."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return [_parameter(p.name, p.kind.name.lower(), p.default, p.default is not p.empty) for p in found]


def _parameter(name: str, kind: str, default: Any, has_default: bool) -> dict[str, Any]:
    described: dict[str, Any] = {"name": name, "kind": kind}
    return {**described, "default": _plain(default)} if has_default else described


def _plain(value: Any) -> Any:
    """As JSON keeps it. () and [] are one: a schema has only lists."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else type(value).__name__


def _operator(operator: Any, name: str) -> dict[str, Any]:
    """A packet of torch.ops with its schemas, or a Python function that stands in for one."""
    if not _is_packet(operator):
        return {"overloads": {"default": parameters(operator)}, "autograd": None}
    overloads = {}
    for overload in operator.overloads():
        arguments = getattr(operator, overload)._schema.arguments
        overloads[overload] = [
            _parameter(a.name, "keyword_only" if a.kwarg_only else "positional_or_keyword", a.default_value, a.has_default_value())
            for a in arguments
        ]
    import torch

    return {"overloads": overloads, "autograd": "AutogradPrivateUse1" in torch._C._dispatch_dump(f"npu::{name}")}
