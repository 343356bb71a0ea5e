"""What the installed packages (or a checkout of ms-swift) have: dotted names, source files, functions. Read as text; nothing is imported.

Only the finders of the import system are asked, and only for top-level names, which imports no package.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from harness.docs_check_facts import Answer, Known, Quoted
from harness.docs_check_modules import Alias, functions_in, members_of, names_of

_SWIFT = "swift"
# How many modules a name is followed through: re-exports of re-exports, and never in a circle.
_DEPTH = 12
_PASSED_ON = re.compile(r"\.(?:so|pyd)$")


class Installed:
    """The packages of this environment. `source`: a checkout of ms-swift, which then stands for the installed one."""

    def __init__(self, source: Path | None = None) -> None:
        self._source = source

    @property
    def swift(self) -> str:
        """What ms-swift it is, in words for messages."""
        if self._source is not None:
            return f"the ms-swift of {self._source}"
        try:
            return f"ms-swift {importlib.metadata.version('ms-swift')}"
        except importlib.metadata.PackageNotFoundError:
            return "ms-swift"

    @property
    def checkout(self) -> Path | None:
        return self._source

    def name(self, dotted: str) -> Answer:
        """Whether the packages have `package.module.name`."""
        parts = dotted.split(".")
        if parts[0] == "torch_npu" or parts[:2] == ["torch", "npu"]:
            return _in_surface(parts)
        places = self._top(parts[0])
        if not places:
            return Answer(Known.NOT_INSTALLED, f"{parts[0]} is not installed here")
        if len(parts) > 1 and not _is_package_with_text(places) and not _child(places, parts[1]):
            return Answer(Known.NOT_INSTALLED, f"{parts[0]}.{parts[1]} is not installed here")
        return self._follow(places, parts, 1, _DEPTH)

    def file(self, path: str) -> Answer:
        """Whether ms-swift has the source file `path`, given from the repository's root (`swift/...`; the rest only in a checkout)."""
        root = self._repository()
        if root is None:
            return Answer(Known.NOT_INSTALLED, "ms-swift is not installed here")
        if _exists(root / path):
            return Answer(Known.YES)
        if not path.startswith(f"{_SWIFT}/") and self._source is None:
            return Answer(Known.UNKNOWN, "is not part of the installed package: give a checkout with --source")
        near = [str(found.relative_to(root)) for found in sorted((root / _SWIFT).rglob(path.rpartition("/")[2]))]
        return Answer(Known.NO, f"{self.swift} has no file {path}", near[0] if near else "")

    def file_called(self, name: str) -> Answer:
        """Whether any file of ms-swift's package has this name."""
        root = self._repository()
        if root is None:
            return Answer(Known.NOT_INSTALLED, "ms-swift is not installed here")
        found = next((root / _SWIFT).rglob(name), None)
        return Answer(Known.YES) if found else Answer(Known.NO, f"{self.swift} has no file called {name}")

    def functions(self, path: str, name: str) -> tuple[Quoted, ...]:
        """The functions and methods called `name` in a source file of ms-swift, in the order of its text."""
        root = self._repository()
        if root is None or not _exists(root / path):
            return ()
        text = _text(root / path)
        lines = text.split("\n")
        return tuple(
            Quoted(node.name, node.lineno, ast.unparse(node.args), "\n".join(lines[node.lineno - 1 : node.end_lineno]))
            for node in functions_in(text)
            if node.name == name
        )

    def _repository(self) -> Path | None:
        if self._source is not None:
            return self._source
        places = self._top(_SWIFT)
        return places[0].parent if places else None

    def _top(self, package: str) -> tuple[Path, ...]:
        if package == _SWIFT and self._source is not None:
            return (self._source / _SWIFT,) if (self._source / _SWIFT).is_dir() else ()
        return _top_level(package)

    def _follow(self, places: Sequence[Path], parts: Sequence[str], at: int, depth: int) -> Answer:
        """Whether what lies at `places` (the folders of a package, or a module's file) has parts[at:]."""
        if at == len(parts):
            return Answer(Known.YES)
        if depth == 0:
            return Answer(Known.UNKNOWN)
        child = _child(places, parts[at])
        if not child:
            return self._attribute(places, parts, at, depth)
        below = self._follow(child, parts, at + 1, depth - 1)
        if below.known is not Known.NO or not _says(places, parts[at]):
            return below
        # `from .register import register`: the package's name hides its module of the same name.
        beside = self._attribute(places, parts, at, depth)
        return below if beside.known is Known.NO else beside

    def _attribute(self, places: Sequence[Path], parts: Sequence[str], at: int, depth: int) -> Answer:
        """Whether a module has the name parts[at] in its text, and that name the rest."""
        name, owner = parts[at], ".".join(parts[:at])
        file = _module_file(places)
        missing = Answer(Known.NO, f"{owner} has no {name}")
        if file is None:
            return missing
        names = names_of(_text(file)) if file.suffix in (".py", ".pyi") else None
        if names is None:
            return Answer(Known.UNKNOWN)
        last = at == len(parts) - 1
        if node := names.made.get(name):
            return Answer(Known.YES) if last else _member(node, parts, at)
        if alias := names.aliases.get(name):
            if last and not alias.level:
                return Answer(Known.YES)
            return self._alias(alias, file, parts, at, depth)
        if name.startswith("__") and name.endswith("__"):
            return Answer(Known.UNKNOWN)
        for star in names.stars:
            if (found := self._star(star, file, parts, at, depth)).known is not Known.NO:
                return found
        if not names.lazy:
            return missing
        if "_LazyModule" not in _text(file) or name in names.quoted or _mentioned(file, name):
            return Answer(Known.UNKNOWN)
        return missing

    def _alias(self, alias: Alias, file: Path, parts: Sequence[str], at: int, depth: int) -> Answer:
        """Follow an import. What it leads to is asked for the rest of the name; where that can't be read, the name counts as there."""
        base = self._module(alias, file)
        if base is None:
            return Answer(Known.UNKNOWN)
        if not alias.name:
            return self._follow(base, parts, at + 1, depth - 1)
        renamed = [*parts[:at], alias.name, *parts[at + 1 :]]
        found = self._follow(base, renamed, at, depth - 1)
        # The import stands in the module's text: a name that it can't give is a fault of the package, not of a page.
        return Answer(Known.UNKNOWN) if found.known is Known.NO and at == len(parts) - 1 else found

    def _star(self, star: Alias, file: Path, parts: Sequence[str], at: int, depth: int) -> Answer:
        base = self._module(star, file)
        return self._attribute(base, parts, at, depth - 1) if base and depth else Answer(Known.UNKNOWN)

    def _module(self, alias: Alias, file: Path) -> tuple[Path, ...] | None:
        """Where the module that an import names lies; None where that can't be told."""
        names = [name for name in alias.module.split(".") if name]
        if alias.level:
            folder = file.parent
            for _ in range(alias.level - 1):
                folder = folder.parent
            places: tuple[Path, ...] = (folder,)
        elif not names or not (places := self._top(names[0])):
            return None
        else:
            names = names[1:]
        for name in names:
            if not (places := _child(places, name)):
                return None
        return places


@lru_cache(maxsize=64)
def _top_level(package: str) -> tuple[Path, ...]:
    """The folders of a package, or the file of a module. Only the finders are asked: nothing is imported."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError, AttributeError):
        return ()
    if spec is None:
        return ()
    if spec.submodule_search_locations is not None:
        return tuple(Path(place) for place in spec.submodule_search_locations)
    return (Path(spec.origin),) if spec.origin and Path(spec.origin).is_file() else ()


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that no file system takes
        return False


def _is_package_with_text(places: Sequence[Path]) -> bool:
    return any(place.is_file() or (place / "__init__.py").is_file() for place in places)


def _child(places: Sequence[Path], name: str) -> tuple[Path, ...]:
    """The submodule `name` of a package: its folders or its file."""
    for place in places:
        if not place.is_dir():
            continue
        if (place / f"{name}.py").is_file():
            return (place / f"{name}.py",)
        if (place / name).is_dir() and any(_sources(place / name)):
            return (place / name,)
        if found := sorted(place.glob(f"{name}.*.so")) or sorted(place.glob(f"{name}.so")):
            return (found[0],)
    return ()


def _sources(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.suffix in (".py", ".so", ".pyi"))


def _module_file(places: Sequence[Path]) -> Path | None:
    for place in places:
        if place.is_file():
            return place
        if (place / "__init__.py").is_file():
            return place / "__init__.py"
    return None


def _says(places: Sequence[Path], name: str) -> bool:
    """Whether a module's own text binds the name."""
    file = _module_file(places)
    names = names_of(_text(file)) if file is not None and file.suffix == ".py" else None
    return names is not None and (name in names.made or name in names.aliases)


def _member(node: ast.stmt, parts: Sequence[str], at: int) -> Answer:
    if not isinstance(node, ast.ClassDef):
        return Answer(Known.UNKNOWN)
    members, complete = members_of(node)
    if parts[at + 1] in members:
        return Answer(Known.YES)
    return Answer(Known.NO, f"{'.'.join(parts[: at + 1])} has no {parts[at + 1]}") if complete else Answer(Known.UNKNOWN)


def _mentioned(file: Path, name: str) -> bool:
    """Whether a module below a lazy package defines `name`: the package passes its modules' names on."""
    if "define_import_structure" not in _text(file):
        return False
    defined = re.compile(rf"^(?:class|def) {re.escape(name)}\b|^{re.escape(name)}\s*[:=]|[\"']{re.escape(name)}[\"']", re.MULTILINE)
    return any(defined.search(_text(path)) for path in sorted(file.parent.rglob("*.py")))


@lru_cache(maxsize=4096)
def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


@lru_cache(maxsize=1)
def _surface() -> dict[str, dict[str, object]]:
    found = sorted(path.name for path in files("harness.sim.surface").iterdir() if re.fullmatch(r"torch_npu-.*\.json", path.name))
    surface = json.loads((files("harness.sim.surface") / found[-1]).read_text(encoding="utf-8"))
    return {"modules": surface["modules"], "version": {"torch_npu": surface["torch_npu"]}}


def _in_surface(parts: Sequence[str]) -> Answer:
    """torch.npu and torch_npu, as the real wheel's interface was written down; what lies deeper than it says is not known."""
    modules = _surface()["modules"]
    for length in range(len(parts) - 1, 0, -1):
        module = modules.get(".".join(parts[:length]))
        if isinstance(module, dict):
            if parts[length] in module or ".".join(parts[: length + 1]) in modules:
                return Answer(Known.YES if length == len(parts) - 1 else Known.UNKNOWN)
            if parts[length].startswith("__"):
                return Answer(Known.UNKNOWN)
            version = _surface()["version"]["torch_npu"]
            return Answer(Known.NO, f"{'.'.join(parts[:length])} of torch_npu {version} has no {parts[length]}")
    return Answer(Known.YES if ".".join(parts) in modules else Known.UNKNOWN)
