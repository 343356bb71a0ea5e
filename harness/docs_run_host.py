"""What `docs run` finds on this host, and what it lays out for a page: packages, programs, ms-swift's models, tiny models and rows."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.aftermath import free_port
from harness.docs_run_edits import StandIns
from harness.docs_run_reasons import PageHost
from harness.errors import HarnessError, HostError
from harness.model import Hardware
from harness.tiny import TINY_FAMILIES, make_datasets, make_tiny_model
from harness.tiny_tokenizer import MAX_LENGTH

_SPLIT_AT = frozenset(" \t\n'\"\\$`*?[](){}<>|&;~#!")


def page_host(hardware: Hardware, search_path: str) -> PageHost:
    """Raises HostError where ms-swift is not installed beside this interpreter: its models are read from its files."""
    # Of two families of one type the first is the ordinary one.
    families = {family.model_type: name for name, family in reversed(list(TINY_FAMILIES.items()))}
    return PageHost(hardware, has_module, lambda program: shutil.which(program, path=search_path) is not None, model_types(), families)


def has_module(name: str) -> bool:
    """Whether a top-level module can be imported; nothing is."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def model_types() -> Mapping[str, str]:
    """Every hub id in the installed ms-swift's own tables, with its model type, read as text: importing them takes ten seconds.

    Raises HostError where ms-swift is not installed.
    """
    spec = importlib.util.find_spec("swift")
    folders = [Path(place) / "model" / "models" for place in (spec.submodule_search_locations or ())] if spec else []
    files = [path for folder in folders for path in sorted(folder.glob("*.py"))]
    if not files:
        raise HostError("ms-swift", "is not installed beside this interpreter: its tables of models are needed.", "Install ms-swift.")
    return {model_id: kind for path in files for kind, model_id in _registered(ast.parse(path.read_text(encoding="utf-8")))}


def _registered(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(model type, id) of each `ModelMeta(LLMModelType.qwen3, [ModelGroup([Model('Qwen/Qwen3-8B', ...)])])`."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and _name(call.func) == "ModelMeta" and call.args and isinstance(call.args[0], ast.Attribute):
            for inner in ast.walk(call):
                if isinstance(inner, ast.Call) and _name(inner.func) == "Model":
                    for word in inner.args:
                        if isinstance(word, ast.Constant) and isinstance(word.value, str):
                            yield call.args[0].attr, word.value


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


class Scratch:
    """The folder of one run: `page`, where its commands run, logs beside it, and copies of the tiny models and rows that they read.

    Copies, since a page's command may write into what it reads.
    """

    def __init__(self, root: Path, cache: Path) -> None:
        self.root, self.cache = root.absolute(), cache
        self.page, self.logs = self.root / "page", self.root / "logs"
        self._ports: dict[int, int] = {}
        if bad := sorted(_SPLIT_AT & set(str(self.root))):
            what = f"its path holds {' '.join(map(repr, bad))}, which a shell would take apart where the page has no quotes."
            raise HarnessError(str(self.root), what, "Give --root a folder of a plain name.")

    def stand_ins(self) -> StandIns:
        rows = {kind: str(self.root / "rows" / path.name) for kind, path in make_datasets(self.cache).items()}
        return StandIns(lambda model_id, family: str(self.root / "models" / model_id), rows, self.port, MAX_LENGTH)

    def lay_out(self, models: Mapping[str, str]) -> None:
        """Make the folder, with the tiny models (id to family) and rows. Raises HarnessError where it can't be written."""
        try:
            for folder in (self.page, self.logs, self.root / "rows"):
                folder.mkdir(parents=True)
            for path in make_datasets(self.cache).values():
                shutil.copy(path, self.root / "rows" / path.name)
            for model_id, family in models.items():
                # Under its own id, so that names which ms-swift makes of it (a served model's) are the documented ones.
                _copy_model(make_tiny_model(family, self.cache).path, self.root / "models" / model_id)
        except OSError as fault:
            raise HarnessError(str(self.root), f"can't be written: {fault.strerror}.", "Give --root a folder that can.") from None

    def port(self, documented: int) -> int:
        """One free port for each documented one."""
        while documented not in self._ports:
            port = free_port()
            if port not in self._ports.values():
                self._ports[documented] = port
        return self._ports[documented]


def _copy_model(tiny: Path, to: Path) -> None:
    """In bfloat16, as hubs have the documented models: of a float32 one ms-swift would make fp16 mixed precision, which a CPU lacks."""
    shutil.copytree(tiny, to)
    config = json.loads((to / "config.json").read_text(encoding="utf-8"))
    (to / "config.json").write_text(json.dumps({**config, "torch_dtype": "bfloat16"}, indent=1), encoding="utf-8")


def search_path_of(interpreter: str) -> str:
    """PATH with the interpreter's own programs first: `swift` is then the one that was checked, as in an activated environment."""
    own = str(Path(interpreter).parent)
    return os.pathsep.join(dict.fromkeys([own, *os.environ.get("PATH", os.defpath).split(os.pathsep)]))
