"""Programs in front of the real `swift` and `accelerate` that quietly train by another strategy, or plant a fault on the ranks."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fakes.install import TESTS, write_executable
from fakes.ranks import Edits

_HEAD = """#!{python}
import json, os, subprocess, sys
sys.path.insert(0, {tests!r})
from fakes.ranks import be, edited
asked = json.loads({asked!r})
"""
_ENVIRONMENT = """
for name, value in asked["environment"].items():
    os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
"""
# On each rank, in the place of swift/cli/sft.py.
_RANK = _HEAD + 'be(asked["fault"], asked["strategy"], asked["hidden"])\n'
_TORCHRUN = """
def start(words):
    ranks = os.environ.get("NPROC_PER_NODE")
    several = ["-m", "torch.distributed.run", "--nproc_per_node", ranks, "--master_port", os.environ["MASTER_PORT"]] if ranks else []
    sys.exit(subprocess.run([sys.executable, *several, {rank!r}, *words]).returncode)
"""
_SWIFT = (
    _HEAD
    + _ENVIRONMENT
    + _TORCHRUN
    + """
start(edited(sys.argv[2:], asked["open"]))
"""
)
_ACCELERATE = (
    _HEAD
    + _ENVIRONMENT
    + _TORCHRUN
    + """
words = edited(sys.argv[1:], asked["open"])
script = next(at for at, word in enumerate(words) if word.endswith(".py"))
if asked["instead"] == "torchrun":
    os.environ["NPROC_PER_NODE"] = words[words.index("--num_processes") + 1]
    start(words[script + 1 :])
words[script] = {rank!r}
sys.argv[1:] = words
from accelerate.commands.accelerate_cli import main
sys.exit(main())
"""
)


@dataclass(frozen=True)
class Wrapper:
    """`open`: edits of the command's words that the trained process shows; `hidden`: those that it does not. `environment`: variables
    that `swift` sets, or (None) drops. `instead`: "torchrun" where `accelerate launch` is not what starts the ranks. `files`: JSON files
    beside the programs, whose folder a value may name as HERE."""

    strategy: str
    fault: str = ""
    open: Edits = field(default_factory=dict)
    hidden: Edits = field(default_factory=dict)
    environment: Mapping[str, str | None] = field(default_factory=dict)
    instead: str = ""
    files: Mapping[str, Any] = field(default_factory=dict)


def install_wrapper(folder: Path, wrapper: Wrapper) -> Path:
    """Write `swift` and `accelerate` into `folder` (created)."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("strategy", "fault", "open", "hidden", "environment", "instead")
    fill: dict[str, Any] = {
        "python": sys.executable,
        "tests": str(TESTS),
        "asked": json.dumps({name: getattr(wrapper, name) for name in names}).replace("HERE", str(folder)),
        "rank": str(folder / "rank.py"),
    }
    for name, content in wrapper.files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "rank.py").write_text(_RANK.format(**fill))
    write_executable(folder / "swift", _SWIFT.format(**fill))
    write_executable(folder / "accelerate", _ACCELERATE.format(**fill))
    return folder
