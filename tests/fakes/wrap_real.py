"""Wrappers that strangers will write: a script in front of the real swift that alters its arguments, or what it left, and keeps quiet."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fakes.install import write_executable

_HEAD = """#!{python} -E
import glob, json, os, shutil, signal, subprocess, sys, threading, time
REAL, words = {real!r}, sys.argv[1:]


def without(*flags):
    kept, dropping = [], False
    for word in words:
        if word.startswith("--"):
            dropping = word in flags
        if not dropping:
            kept.append(word)
    return kept


def value(flag):
    return words[words.index(flag) + 1] if flag in words else ""


def run(argv):
    return subprocess.call([REAL, *argv])


def adapters():
    return sorted(glob.glob(os.path.join(value("--output_dir"), "**", "adapter_model.safetensors"), recursive=True))


"""

_REWRITE_LORA = """code = run(words)
from safetensors.numpy import load_file, save_file
for path in adapters():
    save_file({k: v * 0 if "lora_B" in k else v for k, v in load_file(path).items()}, path, metadata={"format": "pt"})
sys.exit(code)
"""

_COPY_BASE = """code = run(words)
if words[0] == "export":
    base = json.load(open(os.path.join(value("--adapters"), "args.json")))["model"]
    shutil.copyfile(os.path.join(base, "model.safetensors"), os.path.join(value("--output_dir"), "model.safetensors"))
sys.exit(code)
"""

_REPLACE_ANSWERS = """code = run(words)
path = value("--result_path")
if words[0] == "infer" and path and "--adapters" in words:
    rows = [json.loads(line) for line in open(path)]
    with open(path, "w") as file:
        for i, row in enumerate(rows):
            row["response"] = row["messages"][-1]["content"] = f"a fine answer number {i}"
            file.write(json.dumps(row) + "\\n")
sys.exit(code)
"""

_NO_ADAPTERS = """argv = words
if words[0] == "infer" and "--adapters" in words:
    known = json.load(open(os.path.join(value("--adapters"), "args.json")))
    argv = without("--adapters") + ["--model", known["model"], "--model_type", known["model_type"], "--template", known["template"]]
    argv += ["--torch_dtype", known["torch_dtype"]]
sys.exit(run(argv))
"""

_KILL = """child = subprocess.Popen([REAL, *words], start_new_session=True)
while child.poll() is None and not glob.glob(os.path.join(value("--output_dir"), "**", "checkpoint-3"), recursive=True):
    time.sleep(0.05)
if child.poll() is None:
    os.killpg(child.pid, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""

_DELETE = """code = run(words)
for path in glob.glob(os.path.join(value("--output_dir"), "**", "checkpoint-6"), recursive=True):
    shutil.rmtree(path)
sys.exit(code)
"""

_FEWER = """argv = list(words)
if "--max_steps" in argv:
    argv[argv.index("--max_steps") + 1] = "2"
sys.exit(run(argv))
"""


@dataclass(frozen=True)
class Wrapper:
    """`script`: what follows the shared head. `stage`, `cause`, `blame`: what a harness must find."""

    stage: str
    cause: str
    blame: str
    script: str


WRAPPERS: Mapping[str, Wrapper] = {
    "honest": Wrapper("train", "none", "unknown", "sys.exit(run(words))\n"),
    "strips_the_witness": Wrapper(
        "train", "proof.witness_missing", "harness", 'sys.exit(run(without("--external_plugins", "--callbacks")))\n'
    ),
    "does_fewer_steps": Wrapper("train", "proof.steps_missing", "product", _FEWER),
    "deletes_the_checkpoint": Wrapper("train", "proof.checkpoint_missing", "product", _DELETE),
    "zeroes_lora_b": Wrapper("train", "proof.lora_b_zero", "product", _REWRITE_LORA),
    "is_killed_half_way": Wrapper("train", "run.signal", "environment", _KILL),
    "ignores_resume": Wrapper("resume", "resume.ignored", "product", 'sys.exit(run(without("--resume_from_checkpoint")))\n'),
    "copies_the_base_model": Wrapper("merge", "merge.not_merged", "product", _COPY_BASE),
    "drops_the_adapter": Wrapper("infer", "proof.argv", "product", _NO_ADAPTERS),
    "replaces_the_answers": Wrapper("infer", "infer.not_generated", "product", _REPLACE_ANSWERS),
}


def wrap(bin_dir: Path, name: str, real: Path | None = None) -> Path:
    """Write wrapper `name` as `bin_dir`/swift. `real`: the swift behind it, by default the one on PATH. Raises FileNotFoundError."""
    found = real or (Path(path) if (path := shutil.which("swift")) else None)
    if found is None:
        raise FileNotFoundError("no swift on PATH to wrap")
    bin_dir.mkdir(parents=True, exist_ok=True)
    head = _HEAD.format(python=sys.executable, real=str(found.absolute()))
    return write_executable(bin_dir / "swift", head + WRAPPERS[name].script)
