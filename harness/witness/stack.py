"""What this process runs on: the versions, the commit of an editable ms-swift, CANN and driver."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
from glob import glob
from pathlib import Path
from typing import Any

DISTRIBUTIONS = (
    "ms-swift",
    "torch",
    "torch_npu",
    "transformers",
    "peft",
    "trl",
    "accelerate",
    "deepspeed",
    "vllm",
    "vllm-ascend",
    "datasets",
    "numpy",
)
ASCEND = "/usr/local/Ascend"


def describe() -> dict[str, Any]:
    """The fields of the `start` event."""
    swift_file = _swift_file()
    commit, dirty = checkout(swift_file) if swift_file else (None, None)
    return {
        "argv": list(sys.argv),
        "python": sys.executable,
        "swift_file": swift_file,
        "swift_commit": commit,
        "swift_dirty": dirty,
        "versions": versions(),
        "cann": cann_version(),
        "driver": driver_version(),
        "visible_devices": os.environ.get("ASCEND_RT_VISIBLE_DEVICES"),
    }


def versions() -> dict[str, str | None]:
    """Distribution to installed version, None where it is not installed; and `python`."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def _swift_file() -> str | None:
    loaded = sys.modules.get("swift")
    if loaded is not None:
        return getattr(loaded, "__file__", None)
    spec = importlib.util.find_spec("swift")
    return spec.origin if spec else None


def checkout(source: str) -> tuple[str | None, bool | None]:
    """(commit, dirty) of the git checkout that tracks the file `source`; (None, None) where none does.

    Tracking is asked for: a virtual environment inside somebody's repository lies in a checkout without being part of it.
    """
    folder = Path(source).resolve().parent
    if _git(folder, "ls-files", "--error-unmatch", "--", Path(source).name) is None:
        return None, None
    commit = _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return commit, None if changes is None else changes != ""


def _git(folder: Path, *words: str) -> str | None:
    quiet = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    # safe.directory: in containers the checkout often belongs to another user, and git would refuse to read it.
    command = ["git", "-c", "safe.directory=*", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, env=quiet, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def cann_version(root: str = ASCEND) -> str | None:
    """CANN's version as its toolkit's files say, None where none can be read."""
    homes = [os.environ.get("ASCEND_TOOLKIT_HOME"), os.environ.get("ASCEND_HOME_PATH")] if root == ASCEND else []
    homes += [f"{root}/ascend-toolkit/latest", f"{root}/latest", f"{root}/cann", f"{root}/nnrt/latest"]
    names = ("ascend_toolkit_install.info", "ascend_nnrt_install.info", "ascend_cann_install.info", "*-linux/*_install.info", "version.cfg")
    for home in homes:
        for name in names if home else ():
            for path in sorted(glob(f"{home}/{name}")):
                found = _version_in(path)
                if found:
                    return found
    return None


def driver_version(root: str = ASCEND) -> str | None:
    """The NPU driver's version, None where it can't be read."""
    return _version_in(f"{root}/driver/version.info")


def _version_in(path: str) -> str | None:
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # `version=8.0.RC3`, `Version=24.1.rc3`, and version.cfg's `runtime_running_version=[7.6.0.1.220:8.0.RC3]`
    plain = re.search(r"^version\s*=\s*([\w.+-]+)", text, re.MULTILINE | re.IGNORECASE)
    bracket = re.search(r"_running_version\s*=\s*\[(?:[^\]:]*:)?([\w.+-]+)\]", text)
    found = plain or bracket
    return found.group(1) if found else None
