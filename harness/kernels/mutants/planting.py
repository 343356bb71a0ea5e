"""Mutants of the code under test, and how one is put under an import: a file of its own in the original's place, in this process only."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from harness.errors import HostError
from harness.kernels.mutants.edits import expression_faults
from harness.kernels.mutants.statements import statement_faults
from harness.kernels.mutants.syntax import Edit, Tree

# Packages whose functions may carry faults; a module of one may not be imported before its mutant is planted.
FAMILIES = ("swift", "fla")


@dataclass(frozen=True)
class Mutant:
    """A module with one fault. `name` stays as long as the module's source does; `before` and `after` are what a person compares."""

    name: str
    module: str
    file: str
    line: int
    function: str
    kind: str
    before: str
    after: str
    edit: Edit

    @property
    def family(self) -> str:
        return self.module.partition(".")[0]

    @property
    def source(self) -> str:
        return self.edit.apply(source_of(self.module)[1])

    @property
    def compiles(self) -> bool:
        try:
            compile(self.source, self.file, "exec")
        except SyntaxError:
            return False
        return True


@functools.cache
def source_of(module: str) -> tuple[Path, str]:
    """(file, text) of an installed module, found without importing it. Raises HostError where there is none."""
    parts = module.split(".")
    root = importlib.machinery.PathFinder.find_spec(parts[0])
    for folder in (root.submodule_search_locations or ()) if root else ():
        whole = Path(folder, *parts[1:])
        for path in (whole.with_suffix(".py"), whole / "__init__.py"):
            if path.is_file():
                return path, path.read_text(encoding="utf-8")
    raise HostError(module, "isn't installed.", "Install the `swift` and `kernels` extras.")


def mutants_of(module: str, lines: Iterable[int] | None = None) -> list[Mutant]:
    """Every fault of a module; only those at `lines`, where given."""
    path, source = source_of(module)
    tree, wanted = Tree(source), None if lines is None else set(lines)
    numbers: Counter[tuple[str, str]] = Counter()
    made = []
    for edit in (*expression_faults(tree), *statement_faults(tree)):
        numbers[edit.function, edit.kind] += 1
        name = f"{module.rpartition('.')[2]}.{edit.function or 'top'}:{edit.kind.replace(' ', '-')}:{numbers[edit.function, edit.kind]}"
        if wanted is None or edit.line in wanted:
            made.append(_mutant(name, module, path, source, edit))
    return [mutant for mutant in made if mutant is not None]


def mutant_by_text(name: str, module: str, kind: str, before: str, after: str) -> Mutant:
    """A fault given as a text that stands once in the module and another for it. Raises HostError where it doesn't stand there once."""
    path, source = source_of(module)
    if source.count(before) != 1:
        raise HostError(module, f"{before!r} stands there {source.count(before)} times, for mutant {name}.", "Mend the curated list.")
    start, tree = source.index(before), Tree(source)
    line = source.count("\n", 0, start) + 1
    inside = [node for node in tree.nodes() if getattr(node, "lineno", 0) == line]
    edit = Edit(kind, tree.function_of(inside[0]) if inside else "", line, start, start + len(before), after)
    made = _mutant(name, module, path, source, edit)
    assert made is not None, f"{name} changes nothing"
    return made


def _mutant(name: str, module: str, path: Path, source: str, edit: Edit) -> Mutant | None:
    if "".join(source[edit.start : edit.end].split()) == "".join(edit.text.split()):
        return None
    parts = module.split(".")
    file = "/".join((*(parts if path.name == "__init__.py" else parts[:-1]), path.name))
    before = " ".join(source[edit.start : edit.end].split())
    return Mutant(name, module, file, edit.line, edit.function, edit.kind, before, " ".join(edit.text.split()), edit)


def plant(module: str, source: str, folder: Path) -> None:
    """From now on this process imports `module` from `source`, which is written below `folder`, since Triton reads it there.

    Raises HostError if the module was imported already.
    """
    if module in sys.modules:
        raise HostError(module, "was imported before its mutant could be planted.", "Report this: a warm import let it in.")
    original, _ = source_of(module)
    path = Path(tempfile.mkdtemp(dir=folder), f"{module.rpartition('.')[2]}.py")
    path.write_text(source, encoding="utf-8")
    sys.meta_path.insert(0, _Planted(module, path, original.parent if original.name == "__init__.py" else None))


class _Planted(importlib.abc.MetaPathFinder):
    def __init__(self, module: str, path: Path, package: Path | None) -> None:
        self.module, self.path, self.package = module, path, package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.module:
            return None
        folders = [str(self.package)] if self.package else None
        return importlib.util.spec_from_file_location(fullname, self.path, submodule_search_locations=folders)
