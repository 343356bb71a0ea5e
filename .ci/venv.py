"""Make one virtual environment for a set of extras, reuse it while the requirements stay the same, and run a command in it.

    python .ci/venv.py swift,kernels,dev -- pytest -m npu_matrix

tox recreates an environment folder that two of its environments share, and the real packages weigh gigabytes: so tox's own
environments stay empty and call this. The folder's name is a hash of what pyproject.toml asks for and of the interpreter.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENVS = ROOT / ".tox" / "venvs"


def requirements() -> str:
    """The text of pyproject.toml up to the tools' settings: what an installation depends on."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return re.split(r"^\[tool\.(?!setuptools)", text, maxsplit=1, flags=re.MULTILINE)[0]


def venv_for(extras: str) -> Path:
    key = hashlib.sha256(json.dumps([requirements(), extras, sys.version, sys.platform]).encode()).hexdigest()[:12]
    return VENVS / f"{extras.replace(',', '-')}-{key}"


def make(folder: Path, extras: str) -> None:
    """Build `folder` unless a complete one is there; two callers at once wait for each other; a half-made one is rebuilt."""
    VENVS.mkdir(parents=True, exist_ok=True)
    with open(VENVS / f"{folder.name}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / "complete").exists():
            return
        started = time.monotonic()
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-e", f"{ROOT}[{extras}]"], check=True)
        (folder / "complete").write_text(extras, encoding="utf-8")
        print(f"venv: {extras} installed in {time.monotonic() - started:.0f} s", flush=True)


def main() -> int:
    if len(sys.argv) < 4 or sys.argv[2] != "--":
        print("usage: python .ci/venv.py EXTRAS -- COMMAND [ARG ...]", file=sys.stderr)
        return 2
    extras, command = sys.argv[1], sys.argv[3:]
    folder = venv_for(extras)
    try:
        make(folder, extras)
    except subprocess.CalledProcessError as error:
        print(f"venv: installing [{extras}] failed with exit code {error.returncode}; the lines above say why", file=sys.stderr)
        return error.returncode or 1
    env = {key: value for key, value in os.environ.items() if key != "PYTHONHOME"}
    env["PATH"] = f"{folder / 'bin'}{os.pathsep}{env['PATH']}"
    env["VIRTUAL_ENV"] = str(folder)
    program = shutil.which(command[0], path=env["PATH"])
    if program is None:
        print(f"venv: {command[0]} is not installed in {folder}", file=sys.stderr)
        return 127
    return subprocess.run([program, *command[1:]], env=env, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
