"""The parsers of `megatron pt|sft|rlhf|export` of the installed ms-swift, also where megatron-core isn't installed. No model is built.

The argument classes import megatron.core and mcore_bridge for what they do later, not for what they parse. Where one of them can't be
imported, an empty module stands in for it while the classes are imported, and is gone afterwards, with all that has seen it.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path

from harness.errors import HostError
from harness.swift_parsers import imported, strict_parser

# The class that each subcommand's pipeline parses its command line into.
MEGATRON_CLASSES: Mapping[str, str] = {
    "pt": "MegatronPretrainArguments",
    "sft": "MegatronSftArguments",
    "rlhf": "MegatronRLHFArguments",
    "export": "MegatronExportArguments",
}
_NEEDED = ("megatron.core", "mcore_bridge")
_PACKAGE, _ARGUMENTS = "swift.megatron", "swift.megatron.arguments"


def megatron_parser_of(subcommand: str) -> argparse.ArgumentParser:
    """One parser a subcommand. Raises HostError without ms-swift, or where its Megatron classes can't be read; KeyError for a subcommand
    that `megatron` has not."""
    return _parsers()[0][MEGATRON_CLASSES[subcommand]]


def stand_ins() -> Mapping[str, str]:
    """What couldn't be imported, and why, so that something empty stood in for it. Choices that it defines are then unknown."""
    return _parsers()[1]


@cache
def _parsers() -> tuple[dict[str, argparse.ArgumentParser], dict[str, str]]:
    imported("swift.arguments")
    reasons = {name: reason for name in _NEEDED if (reason := _why_not(name))}
    with _importing(tuple(name.split(".")[0] for name in reasons)):
        try:
            arguments = importlib.import_module(_ARGUMENTS)
            # Types are looked up in the classes' modules, so the parsers are made while these can still be found.
            return {name: strict_parser(getattr(arguments, name)) for name in MEGATRON_CLASSES.values()}, reasons
        except Exception as error:
            lacking = "".join(f" {name}: {reason}." for name, reason in reasons.items())
            raise HostError(
                "megatron",
                f"the argument classes of {_ARGUMENTS} can't be read: {type(error).__name__}: {error}.{lacking}",
                "Install them.",
            ) from error


def _why_not(module: str) -> str:
    """Why a module can't be imported; empty if it can."""
    try:
        importlib.import_module(module)
    except Exception as error:  # What an accelerator's packages raise at import is not only ImportError.
        return f"{type(error).__name__}: {error}"
    return ""


@contextmanager
def _importing(missing: Sequence[str]) -> Iterator[None]:
    """Packages named in `missing` can be imported, empty, and the argument classes without what swift.megatron patches at its import."""
    roots = {*missing, _PACKAGE}
    before = {name: module for name, module in sys.modules.items() if _under(name, roots)}
    for name in before:
        del sys.modules[name]
    finder = _StandIns(missing)
    sys.meta_path.insert(0, finder)
    folder = Path(imported("swift").__file__).parent / "megatron"
    for name, path in ((_PACKAGE, folder), (f"{_PACKAGE}.utils", folder / "utils")):
        sys.modules[name] = _bare(name, path)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if _under(name, roots)]:
            del sys.modules[name]
        sys.modules.update(before)


def _under(name: str, roots: set[str]) -> bool:
    return any(name == root or name.startswith(root + ".") for root in roots)


def _bare(name: str, folder: Path) -> types.ModuleType:
    """A package whose submodules are found in `folder`, and whose own __init__, which patches the process, is not run."""
    module = _Empty(name)
    module.__path__ = [str(folder)]
    return module


class _Empty(types.ModuleType):
    """A module that has whatever it is asked for, as an empty class."""

    __version__ = "0.16.0"

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _StandIns(MetaPathFinder, Loader):
    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = frozenset(roots)

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.split(".")[0] in self._roots else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to run."""
