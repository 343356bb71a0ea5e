"""The installed ms-swift's NPU patches: its own files, loaded without the rest of the package, and transformers before and after them."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.errors import HostError
from harness.kernels.stand_in import bench, imported

PATCH = "swift.model.npu_patch"
RING = "swift.sequence_parallel"
INSTALL = "pip install 'ms-swift>=4.6' 'transformers>=5'"
# Packages whose __init__ pulls in the whole of ms-swift (seconds, and a patched transformers): bare ones with the same path stand for them.
_BARE = {"swift": "", "swift.model": "model", "swift.utils": "utils", RING: "sequence_parallel"}
_ABSENT = object()


def package(name: str) -> Path | None:
    """The folder of an installed package, found without importing it."""
    spec = importlib.util.find_spec(name)
    return Path(spec.submodule_search_locations[0]) if spec is not None and spec.submodule_search_locations else None


def missing(*, model: str = "", name: str = "", file: str = "model/npu_patch/model.py") -> str:
    """ "" or what isn't installed: ms-swift with `file`, and transformers with the modeling file of `model`, which defines `name`."""
    swift, transformers = package("swift"), package("transformers")
    for wanted, folder in (("ms-swift", swift), ("transformers", transformers)):
        if folder is None:
            return f"needs {wanted}; {INSTALL}"
    assert swift is not None and transformers is not None
    if not (swift / file).exists():
        return f"needs an ms-swift with swift/{file}; {INSTALL}"
    modeling = transformers / "models" / model / f"modeling_{model}.py"
    if model and not modeling.exists():
        return f"needs a transformers that has {model}; pip install --upgrade transformers"
    if name and not re.search(rf"^(class|def) {name}\b", modeling.read_text(encoding="utf-8"), re.M):
        return f"needs a transformers whose {model} has {name}; {INSTALL}"
    return ""


@dataclass(frozen=True)
class Change:
    """One attribute of `owner` (a module or class) that apply_patch set. `before` may be the mark for absent."""

    owner: Any
    attribute: str
    before: Any
    after: Any

    @property
    def was_absent(self) -> bool:
        return self.before is _ABSENT

    def __str__(self) -> str:
        where = self.owner.__name__ if isinstance(self.owner, ModuleType) else f"{self.owner.__module__}.{self.owner.__qualname__}"
        return f"{where}.{self.attribute}"


@dataclass(frozen=True)
class Patches:
    """ms-swift's npu_patch: its modules by their last name, and what `model.apply_patch` changed, undone again.

    `modules` also holds every modeling module that it patches and the modules that it probes, by full name.
    """

    loaded: Mapping[str, ModuleType]
    modules: Mapping[str, ModuleType]
    changes: tuple[Change, ...]

    def __getitem__(self, name: str) -> Any:
        """A module of ms-swift, say "swift.model.npu_patch.model"."""
        return self.loaded[name]

    @contextmanager
    def importable(self) -> Iterator[None]:
        """While inside, ms-swift's modules are found under their names, for imports inside its functions."""
        with bench().importable(), imported(self.loaded):
            yield

    @contextmanager
    def patched(self) -> Iterator[None]:
        """While inside, transformers is as after apply_patch."""
        with ExitStack() as undo:
            for change in self.changes:
                undo.callback(_set, change.owner, change.attribute, change.before)
                _set(change.owner, change.attribute, change.after)
            yield


def transformers_module(family: str) -> ModuleType:
    return importlib.import_module(f"transformers.models.{family}.modeling_{family}")


FAMILIES = ("qwen2", "qwen3", "qwen3_vl", "qwen3_moe", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
PROBED = ("transformers.utils", "transformers.utils.import_utils")


@functools.cache
def patches() -> Patches:
    """Loads the installed files, applies the model patches once, and takes them off again. Raises HostError where that isn't possible."""
    modules = {name: importlib.import_module(name) for name in PROBED}
    for family in FAMILIES:
        if not missing(model=family):
            modules[f"transformers.models.{family}.modeling_{family}"] = transformers_module(family)
    importlib.import_module("accelerate.utils.fsdp_utils")
    for name, module in modules.items():
        for attribute, value in vars(module).items():
            if isinstance(value, type) and value.__module__ == PATCH + ".model":
                raise HostError(
                    f"{name}.{attribute}", "is already ms-swift's patch in this process.", "Run kernel parity in a process of its own."
                )
    root = package("swift")
    if root is None:
        raise HostError("ms-swift", "isn't installed.", INSTALL)
    with _bare_parents(root), bench().importable():
        names = (f"{PATCH}.{path.stem}" for path in sorted(root.glob("model/npu_patch/[a-z]*.py")))
        rings = (f"{RING}.{name}" for name in ("ring_utils", "zigzag_ring_attn_npu", "zigzag_ring_attn"))
        loaded = {name: importlib.import_module(name) for name in (PATCH, *names, *rings)}
        owners = [owner for module in modules.values() for owner in (module, *_classes_of(module))]
        before = [(owner, dict(vars(owner))) for owner in owners]
        loaded[f"{PATCH}.model"].apply_patch()
        loaded |= {name: module for name, module in sys.modules.items() if name in _BARE or name == "swift.utils.logger"}
        changes = tuple(change for owner, attributes in before for change in _changes(owner, attributes))
    for change in changes:
        _set(change.owner, change.attribute, change.before)
    return Patches(loaded, modules, changes)


@contextmanager
def _bare_parents(root: Path) -> Iterator[None]:
    bare: dict[str, ModuleType] = {}
    for name, folder in _BARE.items():
        bare[name] = ModuleType(name)
        bare[name].__path__ = [str(root / folder)]
    bare["swift.utils.logger"] = ModuleType("swift.utils.logger")
    # The real one configures logging by ModelScope, and what ms-swift logs here is for nobody.
    for name in ("swift.utils", "swift.utils.logger"):
        bare[name].get_logger = lambda *_, **__: _quiet_logger()  # type: ignore[attr-defined]
    real = {name: sys.modules.pop(name) for name in _swift_modules()}
    sys.modules.update(bare)
    try:
        yield
    finally:
        for name in _swift_modules():
            del sys.modules[name]
        sys.modules.update(real)


def _quiet_logger() -> Any:
    quiet: Any = logging.getLogger("harness.kernels.swift")
    quiet.addHandler(logging.NullHandler())
    quiet.propagate = False
    quiet.info_once, quiet.warning_once = quiet.info, quiet.warning
    return quiet


def _swift_modules() -> list[str]:
    return [name for name in sys.modules if name == "swift" or name.startswith("swift.")]


def _classes_of(module: ModuleType) -> list[type]:
    return [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]


def _changes(owner: Any, before: Mapping[str, Any]) -> list[Change]:
    now = vars(owner)
    names = [name for name in now if name not in before or now[name] is not before[name]]
    gone = [name for name in before if name not in now]
    return [Change(owner, name, before.get(name, _ABSENT), now.get(name, _ABSENT)) for name in (*names, *gone)]


def _set(owner: Any, attribute: str, value: Any) -> None:
    if value is _ABSENT:
        delattr(owner, attribute)
    else:
        setattr(owner, attribute, value)
