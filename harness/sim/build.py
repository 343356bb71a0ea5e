"""Builds the C++ extension for the torch that is installed: once, with one compiler call, into a cache outside the source tree.

Imports no torch, so that a process that must not touch a device can ask and build.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CACHE_VARIABLE = "NPU_MATRIX_CACHE"
TESTED = ("2.13", "2.14")
SOURCES = Path(__file__).resolve().parent / "csrc"
# The order in which module.cpp's unit includes them is of no matter; that it is fixed is, for the hash.
UNITS = ("memory", "devices", "generators", "aliases", "fallback", "operators", "autocast", "hccl", "module")
FLAGS = ("-std=c++20", "-O1", "-g0", "-fPIC", "-shared", "-w", "-DTORCH_EXTENSION_NAME=_C", "-DUSE_C10D_GLOO")
_LOG_LINES = 12


class BuildError(RuntimeError):
    """The extension can't be had: the message says what is missing or what the compiler said."""


@dataclass(frozen=True)
class Torch:
    """An installed torch, read from its files."""

    root: Path
    version: str
    git: str
    cxx11_abi: int

    @property
    def release(self) -> str:
        """2.14.1 of 2.14.1+cu130."""
        return self.version.split("+")[0]


def cache_folder() -> Path:
    """$NPU_MATRIX_CACHE, else npu-matrix in the user's cache folder ($XDG_CACHE_HOME or ~/.cache)."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "npu-matrix"


def find_torch() -> Torch:
    """The torch that this interpreter would import. Raises BuildError where there is none, or one without headers."""
    spec = importlib.util.find_spec("torch")
    places = spec.submodule_search_locations if spec else None
    if not places:
        raise BuildError(f"torch is not installed for {sys.executable}: install torch {' or '.join(TESTED)}.")
    root = Path(next(iter(places)))
    said = (root / "version.py").read_text(encoding="utf-8")
    version = re.search(r"^__version__ = '([^']+)'", said, re.MULTILINE)
    git = re.search(r"^git_version = '([^']+)'", said, re.MULTILINE)
    if version is None:
        raise BuildError(f"{root}/version.py names no version: is torch installed whole?")
    config = root / "share/cmake/Torch/TorchConfig.cmake"
    abi = re.search(r"_GLIBCXX_USE_CXX11_ABI=(\d)", config.read_text(encoding="utf-8")) if config.exists() else None
    return Torch(root, version[1], git[1] if git else "", int(abi[1]) if abi else 1)


def can_build() -> str:
    """Why the simulated NPU can't be had here; empty where it can, or where it is built already. Compiles nothing."""
    try:
        torch = find_torch()
        if _cached(torch) is None:
            _compiler()
            _headers(torch)
    except BuildError as missing:
        return str(missing)
    return ""


def build() -> Path:
    """The extension's file, compiled if the cache has none for this torch, Python, compiler and source; about half a minute then.

    Safe with several processes at once: one compiles, the others wait. Raises BuildError.
    """
    torch = find_torch()
    found = _cached(torch)
    if found is not None:
        return found
    compiler, headers = _compiler(), _headers(torch)
    final = _folder() / f"{_stem(torch)}-{_identity(compiler)}.so"
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with _locked(final.with_suffix(".lock")):
            if not final.exists():
                _compile(torch, compiler, headers, final)
    except OSError as error:
        raise BuildError(f"{final.parent} can't be written ({error}): set {CACHE_VARIABLE} to a folder that can.") from error
    return final


def _compile(torch: Torch, compiler: Path, headers: tuple[Path, ...], final: Path) -> None:
    """Into a file beside `final`, which is then renamed: nobody ever loads half a file."""
    handle, name = tempfile.mkstemp(prefix=f".{final.stem}-", suffix=".so", dir=final.parent)
    os.close(handle)
    fresh = Path(name)
    library = torch.root / "lib"
    command = [
        str(compiler), *FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={torch.cxx11_abi}", "-x", "c++", "-", "-o", str(fresh),
        f"-I{SOURCES}", *(f"-I{folder}" for folder in headers),
        f"-L{library}", f"-Wl,-rpath,{library}", "-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10",
    ]  # fmt: skip
    unit = "".join(f'#include "{name}.cpp"\n' for name in UNITS)
    print(f"SIMULATED NPU: compiling its extension for torch {torch.version}, once ({final})", file=sys.stderr, flush=True)
    began = time.monotonic()
    try:
        done = subprocess.run(command, input=unit, capture_output=True, text=True, errors="replace")
        if done.returncode:
            log = final.with_suffix(".log")
            log.write_text(done.stderr, encoding="utf-8")
            raise BuildError(_said_by_compiler(torch, compiler, done.stderr, log))
        fresh.chmod(0o755)
        os.replace(fresh, final)
    finally:
        fresh.unlink(missing_ok=True)
    print(f"SIMULATED NPU: compiled in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def _said_by_compiler(torch: Torch, compiler: Path, errors: str, log: Path) -> str:
    lines = [line for line in errors.splitlines() if "error" in line.lower()][:_LOG_LINES] or errors.splitlines()[-_LOG_LINES:]
    known = torch.release.rsplit(".", 1)[0] in TESTED
    hint = "" if known else f" torch {torch.version} is not one of the releases that this was tested on ({', '.join(TESTED)})."
    summary = f"{compiler} could not compile the simulated NPU for torch {torch.version}.{hint} All it said is in {log}; its errors:"
    return "\n".join([summary, *lines])


def _cached(torch: Torch) -> Path | None:
    """What an earlier build left. Without a compiler, any compiler's: the ABI is torch's, which is in the name."""
    try:
        final = _folder() / f"{_stem(torch)}-{_identity(_compiler())}.so"
        return final if final.exists() else None
    except BuildError:
        return next(iter(sorted(_folder().glob(f"{_stem(torch)}-*.so"))), None)


def _folder() -> Path:
    return cache_folder() / "sim" / "extension"


def _stem(torch: Torch) -> str:
    digest = hashlib.sha256(" ".join((*FLAGS, *UNITS, torch.git, str(torch.cxx11_abi))).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return f"_C-torch{torch.version}-{sysconfig.get_config_var('SOABI')}-{digest.hexdigest()[:16]}"


def _compiler() -> Path:
    for name in (os.environ.get("CXX", ""), "g++", "c++", "clang++"):
        found = shutil.which(name) if name else None
        if found:
            return Path(found)
    raise BuildError("no C++ compiler (g++, c++, clang++, or what CXX names) is on PATH: install g++ 11 or newer.")


def _identity(compiler: Path) -> str:
    """By its file, since asking it for its version takes longer than all the rest of an import."""
    real = compiler.resolve()
    state = real.stat()
    return hashlib.sha256(f"{real}\0{state.st_size}\0{state.st_mtime_ns}".encode()).hexdigest()[:8]


def _headers(torch: Torch) -> tuple[Path, ...]:
    python = Path(sysconfig.get_paths()["include"])
    if not (python / "Python.h").exists():
        raise BuildError(f"Python's headers are missing ({python}/Python.h): install python3-dev, or a Python that brings them.")
    include = torch.root / "include"
    if not (include / "ATen/ATen.h").exists():
        raise BuildError(f"torch's headers are missing ({include}/ATen/ATen.h): install torch from its wheel.")
    return (include, include / "torch/csrc/api/include", python)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    print(build())
