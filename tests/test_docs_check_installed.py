"""What packages have is read from their files: nothing is imported, and what can't be told is not called missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.docs_check_facts import Known
from harness.docs_check_installed import Installed
from harness.docs_check_modules import names_of

FILES = {
    "__init__.py": (
        "raise SystemExit('a page must import nothing')\nfrom .lazy import _LazyModule\n_import_structure = {'model': ['get_model']}\n"
    ),
    "model/__init__.py": "from .register import register\nfrom .other import *\nimport os.path as path\n",
    "model/register.py": "def register(): ...\n",
    "model/table.py": "class Table:\n    size = 1\n    def __init__(self):\n        self.rows = 2\n",
    "model/other.py": (
        "try:\n    import x\n    def starred(): ...\nexcept ImportError:\n    starred = None\nif True:\n    for NAME in 'ab': pass\n"
    ),
    "model/open.py": "def __getattr__(name): ...\n",
    "model/made.py": "globals()['x'] = 1\n",
    "model/broken.py": "def (:\n",
    "model/circle.py": "from .circle import *\nfrom .circle import same\n",
    "model/late.py": "def set_it():\n    global CACHE\n    CACHE = 1\n",
    "model/derived.py": "from enum import Enum\nclass Kind(Enum):\n    A = 1\n",
}


@pytest.fixture
def packages(tmp_path: Path) -> Installed:
    for name, text in FILES.items():
        path = tmp_path / "swift" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "a.sh").write_text("x")
    return Installed(tmp_path)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("swift.model", Known.YES),
        ("swift.get_model", Known.UNKNOWN),
        ("swift.get_gone", Known.NO),
        ("swift.model.register", Known.YES),
        ("swift.model.table.Table", Known.YES),
        ("swift.model.table.Table.size", Known.YES),
        ("swift.model.table.Table.rows", Known.YES),
        ("swift.model.table.Table.gone", Known.NO),
        ("swift.model.register.gone", Known.UNKNOWN),  # the package's name hides its module of the same name
        ("swift.model.starred", Known.YES),
        ("swift.model.NAME", Known.YES),
        ("swift.model.path", Known.YES),
        ("swift.model.gone", Known.NO),
        ("swift.model.other.gone", Known.NO),
        ("swift.model.open.anything", Known.UNKNOWN),
        ("swift.model.made.anything", Known.UNKNOWN),
        ("swift.model.broken.anything", Known.UNKNOWN),
        ("swift.model.circle.same", Known.UNKNOWN),
        ("swift.model.late.CACHE", Known.YES),
        ("swift.model.derived.Kind.B", Known.UNKNOWN),
        ("swift.model.__version__", Known.UNKNOWN),
        ("no_such_package_of_anybody.x", Known.NOT_INSTALLED),
        ("torch.npu.device_count", Known.YES),
        ("torch.npu.device_counts", Known.NO),
        ("torch_npu.profiler.schedule", Known.UNKNOWN),
    ],
)
def test_a_name_is_there_missing_or_not_to_be_told(name: str, known: Known, packages: Installed) -> None:
    assert packages.name(name).known is known


def test_nothing_is_imported(packages: Installed) -> None:
    before = set(sys.modules)
    assert packages.name("wave.Wave_read.close").known is not Known.NOT_INSTALLED
    assert "wave" not in set(sys.modules) - before


def test_files_are_looked_up_from_the_root_of_the_repository(packages: Installed) -> None:
    assert packages.file("swift/model/register.py").known is Known.YES
    assert packages.file("examples/a.sh").known is Known.YES
    missing = packages.file("swift/llm/register.py")
    assert (missing.known, missing.near) == (Known.NO, "swift/model/register.py")
    assert packages.file_called("register.py").known is Known.YES
    assert packages.file_called("gone.py").known is Known.NO


def test_a_path_that_leaves_the_checkout_is_no_file_of_it(packages: Installed) -> None:
    assert packages.file("swift/../../../etc/passwd").known is Known.NO


def test_functions_are_told_with_their_line_and_parameters(packages: Installed) -> None:
    (found,) = packages.functions("swift/model/table.py", "__init__")
    assert (found.line, found.parameters) == (3, "self")
    assert packages.functions("swift/model/broken.py", "x") == ()


def test_text_that_is_no_python_has_no_names() -> None:
    assert names_of("def (:") is None and names_of("x = '\0'") is None
