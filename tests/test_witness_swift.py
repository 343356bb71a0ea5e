"""The witness inside the real ms-swift: its hooks exist and fire, and the run is the same to the last bit with it and without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

from harness.metrics import as_logged
from harness.tensors import digest, parse_safetensors
from harness.tiny import make_datasets, make_tiny_model
from harness.witness import record

pytestmark = pytest.mark.swift

PLUGIN = Path(record.__file__).parent / "plugin" / "npu_matrix_witness.py"
WITH_WITNESS = ("--external_plugins", str(PLUGIN), "--callbacks", "npu_matrix_witness")
STEPS, SAVED = 4, 2


def swift(folder: Path, command: str, *words: str, **env: str) -> list[dict[str, Any]]:
    """Run `swift command` in `folder`; the events that it left. Fails the test with the end of its output."""
    found = subprocess.run(
        [sys.executable, "-c", "import importlib.util as u; print(u.find_spec('swift') is not None)"], capture_output=True
    )
    if found.stdout.strip() != b"True":
        pytest.skip("ms-swift is not installed in this environment")
    witness = folder / "witness"
    mine = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    nonce = {record.DIR_VARIABLE: str(witness), record.NONCE_VARIABLE: f"nonce of {folder.name}"}
    folder.mkdir(exist_ok=True)
    argv = [sys.executable, "-m", f"swift.cli.{command}", *words]
    done = subprocess.run(argv, env={**os.environ, **mine, **nonce, **env}, cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return [json.loads(line) for file in witness.glob("*.jsonl") for line in file.read_text().splitlines()]


def one(events: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (event,) = [event for event in events if event["event"] == name]
    return event


def train(folder: Path, cache: Path, *words: str, **env: str) -> list[dict[str, Any]]:
    model, data = make_tiny_model("qwen2", cache), make_datasets(cache)
    what = ["--model", str(model.path), "--model_type", model.model_type, "--template", model.template, "--dataset", str(data["sft"])]
    how = (
        "--torch_dtype float32 --fp16 false --bf16 false --use_cpu true --check_model false --tuner_type lora --lora_rank 4 --lora_alpha 8 "
        f"--target_modules all-linear --max_steps {STEPS} --save_steps {SAVED} --logging_steps 1 --per_device_train_batch_size 2 "
        "--gradient_accumulation_steps 1 --max_length 256 --dataset_num_proc 1 --dataloader_num_workers 0 --report_to none "
        "--add_version false --split_dataset_ratio 0 --seed 42 --learning_rate 2e-2 --include_num_input_tokens_seen true"
    )
    return swift(folder, "sft", *what, *how.split(), "--output_dir", str(folder / "out"), *words, **env)


def rows(folder: Path) -> list[tuple[float, float]]:
    every = [json.loads(line) for line in (folder / "out" / "logging.jsonl").read_text().splitlines()]
    return [(row["loss"], row["grad_norm"]) for row in every if "loss" in row]


def adapter(folder: Path, step: int) -> Path:
    return folder / "out" / f"checkpoint-{step}"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("straight")
    return folder, train(folder, cache, *WITH_WITNESS)


def test_every_hook_exists_in_the_installed_versions(tmp_path: Path) -> None:
    code = (
        "import functools, importlib, inspect\n"
        "from harness.witness.hooks import HOOKS, Hook\n"
        "def there(hook):\n"
        "    owner = importlib.import_module(hook.module)\n"
        "    *path, last = hook.attribute.split('.')\n"
        "    owner = functools.reduce(getattr, path, owner)\n"
        "    fields = getattr(owner, '__dataclass_fields__', {})\n"
        "    source = inspect.getsource(owner) if inspect.isclass(owner) else ''\n"
        "    return hasattr(owner, last) or last in fields or f'self.{last} =' in source\n"
        "assert not there(Hook('swift.template', 'Template.generate_as_renamed', 'a planted one, which must be found missing'))\n"
        "print('missing:', [f'{h.module}.{h.attribute}' for h in HOOKS if not there(h)])"
    )
    pytest.importorskip("torch", reason="ms-swift needs it")
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert done.stdout.strip().splitlines()[-1:] == ["missing: []"], done.stdout + done.stderr[-3000:]


def test_a_training_run_says_what_it_did_and_is_the_same_without_the_witness(
    straight: tuple[Path, list[dict[str, Any]]], cache: Path, tmp_path: Path
) -> None:
    folder, events = straight
    two_steps = ["step", "log", "step", "log", "save"]
    assert [e["event"] for e in events] == ["start", "train_begin", *two_steps, *two_steps, "train_end", "end"]
    assert {e["nonce"] for e in events} == {f"nonce of {folder.name}"}
    begin, end = one(events, "train_begin"), one(events, "train_end")
    assert (begin["device"], begin["simulated"], begin["wrapped_class"], begin["model_class"]) == (
        "cpu", False, "PeftModelForCausalLM", "Qwen2ForCausalLM",
    )  # fmt: skip
    assert begin["optimizer_moment_norm"] is None and begin["control"] is None
    assert begin["trainable_digest"] != end["trainable_digest"] and end["lora_b_max_abs"] > 0
    logged = [(as_logged(e["loss"]), as_logged(e["grad_norm"])) for e in events if e["event"] == "log"]
    assert logged == rows(folder)
    settings = begin["arguments"]
    assert (settings["learning_rate"], settings["seed"], settings["data_seed"], settings["max_length"]) == (0.02, 42, 42, 256)
    assert settings["dataset"] == [str(make_datasets(cache)["sft"])]
    tokens = [e["tokens"] for e in events if e["event"] == "step"]
    assert tokens == sorted(set(tokens)) and tokens[0] > 0
    for save in (e for e in events if e["event"] == "save"):
        file = Path(save["dir"]) / "adapter_model.safetensors"
        assert digest(parse_safetensors(numpy.frombuffer(file.read_bytes(), numpy.uint8), file.name)) == save["trainable_digest"]

    assert train(tmp_path / "plain", cache) == []
    assert rows(tmp_path / "plain") == rows(folder) and len(rows(folder)) == STEPS
    last = "adapter_model.safetensors"
    assert (adapter(tmp_path / "plain", STEPS) / last).read_bytes() == (adapter(folder, STEPS) / last).read_bytes()


def test_the_control_finds_the_resumed_moments_and_a_resume_check_notices(
    straight: tuple[Path, list[dict[str, Any]]], cache: Path, tmp_path: Path
) -> None:
    folder, before = straight
    resumed = ("--resume_from_checkpoint", str(adapter(folder, SAVED)))
    events = train(tmp_path / "zeroed", cache, *WITH_WITNESS, *resumed, NPU_MATRIX_CONTROL="zero_moments")
    begin = one(events, "train_begin")
    assert (begin["global_step"], begin["moments_zeroed"], begin["optimizer_moment_norm"]) == (SAVED, 2 * begin["trainable_tensors"], 0.0)
    assert begin["trainable_digest"] == next(e["trainable_digest"] for e in before if e["event"] == "save")
    assert one(events, "train_end")["trainable_digest"] != one(before, "train_end")["trainable_digest"]
    assert rows(tmp_path / "zeroed")[-1] != rows(folder)[-1]


def test_a_streamed_inference_is_recorded_through_the_plugin_that_the_checkpoint_names(
    straight: tuple[Path, list[dict[str, Any]]], cache: Path, tmp_path: Path
) -> None:
    data = make_datasets(cache)["val"]
    how = "--infer_backend transformers --max_new_tokens 8 --temperature 0 --stream true --result_path answers.jsonl"
    events = swift(tmp_path / "infer", "infer", "--adapters", str(adapter(straight[0], STEPS)), "--val_dataset", str(data), *how.split())
    generated = [e for e in events if e["event"] == "generate"]
    answers = [json.loads(line) for line in (tmp_path / "infer" / "answers.jsonl").read_text().splitlines()]
    assert len(generated) == len(answers) == 5
    assert all(e["adapters"] == ["default"] and e["model_class"] == "Qwen2ForCausalLM" and e["output_ids"][0] for e in generated)
    assert [e["event"] for e in events] == ["start", *["generate"] * 5, "end"]
