"""The installed packages, read from their metadata: nothing is imported. Under a rehearsal's ROOT, those that lie there."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import unquote, urlparse

from packaging.utils import canonicalize_name

from harness.doctor_facts import MODULES, MegatronCopy, Package
from harness.doctor_parse import built_for
from harness.machine import SITE_PACKAGES, programs_path
from harness.swift_parsers import swift_interpreter

_EDITABLE = re.compile(r"""['"]megatron['"]\s*:\s*['"]([^'"]+)['"]""")


def at(root: Path | None, path: str) -> Path:
    """Where `path` of the host lies: itself, or under a rehearsal's ROOT."""
    return Path(path) if root is None else root / path.lstrip("/")


def as_host(root: Path | None, path: Path) -> str:
    """`path` as the host says it."""
    return str(path) if root is None or not path.is_relative_to(root) else f"/{path.relative_to(root)}"


def site_folders(root: Path | None, interpreter: str | None = "") -> tuple[Path, ...]:
    """Where packages are installed: of this Python, of another `interpreter` (None: unknown, so nowhere), or all there are under ROOT."""
    if interpreter is None:
        return ()
    if interpreter:
        return tuple(sorted(Path(interpreter).parent.parent.glob("lib/python3*/*-packages")))
    if root is None:
        return tuple(Path(entry) for entry in dict.fromkeys(sys.path) if "-packages" in entry)
    return tuple(sorted(folder for pattern in SITE_PACKAGES for folder in root.glob(pattern)))


class Installed:
    """The distributions of `folders`; of two with one name the first, as Python would import it."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._found: dict[str, Distribution] = {}
        for found in distributions(path=[str(folder) for folder in folders]):
            named = found.metadata["Name"] if found.metadata and "Name" in found.metadata else ""
            if named and found.version:  # a broken removal leaves folders without METADATA
                self._found.setdefault(canonicalize_name(named), found)

    def packages(self) -> Mapping[str, Package]:
        return {name: _package(name, found) for name, found in sorted(self._found.items())}

    def folders_of(self, name: str) -> tuple[Path, ...]:
        """Where the modules of a distribution may lie: beside its metadata, or in the checkout that it was installed from."""
        found = self._found.get(name)
        if found is None:
            return ()
        with contextlib.suppress(ValueError, AttributeError):
            url = json.loads(found.read_text("direct_url.json") or "{}").get("url", "")
            if url.startswith("file:"):
                checkout = Path(unquote(urlparse(url).path))
                return Path(str(found.locate_file(""))), checkout, checkout / "src"
        return (Path(str(found.locate_file(""))),)


def _package(name: str, found: Distribution) -> Package:
    tags = tuple(line[5:].strip() for line in (found.read_text("WHEEL") or "").splitlines() if line.startswith("Tag: "))
    return Package(name, found.version, tags, tuple(found.requires or ()))


def vllm_ascend_device(installed: Installed) -> str | None:
    for folder in installed.folders_of("vllm-ascend"):
        with contextlib.suppress(OSError):
            return built_for((folder / "vllm_ascend" / "_build_info.py").read_text(encoding="utf-8", errors="replace"))
    return None


def swift_has_patches(installed: Installed) -> bool | None:
    """Whether ms-swift's folder of models has anything for NPUs; None where no such folder is found."""
    folders = [folder / "swift" / "model" for folder in installed.folders_of("ms-swift")]
    present = [folder for folder in folders if folder.is_dir()]
    return any(next(folder.glob("*npu*"), None) for folder in present) if present else None


def megatron_copies(root: Path | None, sites: Iterable[Path], python_path: str) -> tuple[MegatronCopy, ...]:
    """In the order of the import path: PYTHONPATH, then each site folder and what its .pth files and editable finders add."""
    places: dict[str, MegatronCopy] = {}
    for folder in import_path(root, sites, python_path):
        inside = folder / "megatron"
        if any((inside / name).exists() for name in ("core", "training", "__init__.py")):
            place = as_host(root, folder)
            places.setdefault(place, MegatronCopy(place, (inside / "__init__.py").exists()))
    return tuple(places.values())


def importable(root: Path | None, sites: Iterable[Path], python_path: str) -> frozenset[str]:
    """Which of MODULES lie on the import path. Found by their folders: importing a torch_npu may fail, or worse."""
    folders = import_path(root, sites, python_path)
    return frozenset(name for name in MODULES.values() if any((folder / name / "__init__.py").is_file() for folder in folders))


def import_path(root: Path | None, sites: Iterable[Path], python_path: str) -> tuple[Path, ...]:
    return (*(at(root, entry) for entry in python_path.split(os.pathsep) if entry), *_with_added(root, sites))


def _with_added(root: Path | None, sites: Iterable[Path]) -> Iterator[Path]:
    for site in sites:
        yield site
        for path in sorted(site.glob("*.pth")):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            yield from (at(root, line.strip()) for line in lines if line.strip().startswith("/"))
        for path in sorted(site.glob("__editable__*_finder.py")):
            found = _EDITABLE.search(path.read_text(encoding="utf-8", errors="replace"))
            if found:
                yield at(root, found[1]).parent


def swift_python() -> str | None:
    """The Python that PATH's `swift` is run by: "" for this one, or where there is no `swift`; None where it can't be told."""
    path = programs_path(None)
    program = shutil.which("swift", path=path)
    if program is None:
        return ""
    named = swift_interpreter(program)
    interpreter = shutil.which(named, path=path) if named else None
    if interpreter is None:
        return None
    return "" if os.path.abspath(interpreter) == os.path.abspath(sys.executable) else interpreter
