"""The honest stand-in for swift: it really trains, resumes, merges, answers and serves, or the drills would prove nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.honest.arguments import UnknownFlags, known_flags, parse
from fakes.honest.network import Adapter, Network, answer_loss, fit, unfit
from fakes.honest.tensors import read_safetensors, rounded, torch_load, torch_save, trainable_digest, write_safetensors
from fakes.install import install
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.tiny import make_datasets, make_tiny_model

STEPS = ["--max_steps", "6", "--save_steps", "3", "--logging_steps", "1", "--per_device_train_batch_size", "2", "--learning_rate", "0.02"]
LORA = ["--tuner_type", "lora", "--lora_rank", "4", "--lora_alpha", "8", "--target_modules", "all-linear"]
FULL = ["--tuner_type", "full"]


@dataclass(frozen=True)
class Bench:
    """A folder with the fake on a PATH of its own, a tiny model, its data, and one honest LoRA training run."""

    root: Path
    model: Path
    data: Mapping[str, Path]

    def swift(self, *words: str, nonce: str = "", stdin: str | None = None, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}", **more}
        if nonce:
            environment |= {"NPU_MATRIX_NONCE": nonce, "NPU_MATRIX_WITNESS_DIR": str(self.root / "witness" / nonce)}
        return subprocess.run(["swift", *words], env=environment, input=stdin, capture_output=True, text=True, timeout=60, cwd=self.root)

    def train(self, name: str, *words: str, method: str = "sft", data: str = "sft", nonce: str = "", **more: str) -> Path:
        base = ["--model", str(self.model), "--dataset", str(self.data[data]), "--output_dir", str(self.root / name), *STEPS]
        if nonce:
            base += ["--external_plugins", str(self.plugin), "--callbacks", "npu_matrix_witness"]
        done = self.swift(method, *base, *words, nonce=nonce, **more)
        assert done.returncode == 0, done.stderr
        return max((self.root / name).iterdir(), key=lambda path: int(path.name.split("-")[0][1:]))

    @property
    def plugin(self) -> Path:
        return self.root / "plugin.py"

    @property
    def trained(self) -> Path:
        return next((self.root / "straight").iterdir())

    def witness(self, nonce: str) -> list[dict[str, Any]]:
        (path,) = (self.root / "witness" / nonce).glob("witness-*.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    root = tmp_path_factory.mktemp("bench")
    install(root / "bin")
    (root / "plugin.py").write_text("")
    bench = Bench(root, make_tiny_model("qwen2", root / "cache").path, make_datasets(root / "cache"))
    bench.train("straight", *LORA, nonce="straight")
    return bench


def numbers(run: Path) -> list[tuple[float, float]]:
    rows = [json.loads(line) for line in (run / "logging.jsonl").read_text().splitlines()]
    return [(row["loss"], row["grad_norm"]) for row in rows if "loss" in row]


def test_training_leaves_the_files_that_ms_swift_leaves(bench: Bench) -> None:
    folder = bench.trained / "checkpoint-6"
    files = {"adapter_model.safetensors", "adapter_config.json", "additional_config.json", "optimizer.pt", "scheduler.pt", "rng_state.pth"}
    files |= {"trainer_state.json", "training_args.bin", "args.json", "README.md", "npu_matrix_nonce.json"}
    assert {path.name for path in folder.iterdir()} == files
    kept = {"args.json", "logging.jsonl", "checkpoint-3", "checkpoint-6", "last-checkpoint"}
    assert {path.name for path in bench.trained.iterdir()} == kept


def test_training_logs_six_finite_steps_that_move_the_weights(bench: Bench) -> None:
    logged = numbers(bench.trained)
    assert len(logged) == 6
    assert all(np.isfinite(loss) and grad > 0 for loss, grad in logged)
    tensors, _ = read_safetensors(bench.trained / "checkpoint-6" / "adapter_model.safetensors")
    assert max(float(np.abs(t).max()) for n, t in tensors.items() if "lora_B" in n) > 0.01


def test_the_witness_tells_the_digest_of_what_was_saved(bench: Bench) -> None:
    events = bench.witness("straight")
    half = ["step", "step", "step", "save"]
    assert [event["event"] for event in events if event["event"] != "log"] == ["start", "train_begin", *half, *half, "train_end", "end"]
    assert [event["step"] for event in events if event["event"] == "log"] == [1, 2, 3, 4, 5, 6]
    by_kind = {event["event"]: event for event in events}
    saved = [event for event in events if event["event"] == "save"]
    for event in saved:
        assert trainable_digest(*read_safetensors(Path(event["dir"]) / "adapter_model.safetensors")) == event["trainable_digest"]
        assert json.loads((Path(event["dir"]) / "npu_matrix_nonce.json").read_text())["nonce"] == "straight"
    assert by_kind["train_begin"]["trainable_digest"] != saved[0]["trainable_digest"] != saved[1]["trainable_digest"]


@pytest.mark.parametrize(("name", "tuner"), [("lora", LORA), ("full", FULL)])
def test_resuming_repeats_the_straight_run_to_the_last_digit(bench: Bench, name: str, tuner: list[str]) -> None:
    straight = bench.trained if name == "lora" else bench.train("full", *tuner)
    resumed = bench.train(f"resumed-{name}", *tuner, "--resume_from_checkpoint", str(straight / "checkpoint-3"))
    assert numbers(resumed) == numbers(straight)[3:]
    weights = "adapter_model.safetensors" if name == "lora" else "model.safetensors"
    assert (resumed / "checkpoint-6" / weights).read_bytes() == (straight / "checkpoint-6" / weights).read_bytes()


def test_lost_optimizer_moments_change_the_steps_after_the_first(bench: Bench) -> None:
    resume = ["--resume_from_checkpoint", str(bench.trained / "checkpoint-3")]
    zeroed = numbers(bench.train("zeroed", *LORA, *resume, nonce="zeroed", NPU_MATRIX_CONTROL="zero_moments"))
    alone = numbers(bench.train("alone", *LORA, *resume, "--resume_only_model", "true"))
    straight = numbers(bench.trained)[3:]
    for changed in (zeroed, alone):
        assert changed[0] == straight[0]
        assert all(abs(a[0] - b[0]) / b[0] > 1e-4 for a, b in zip(changed[1:], straight[1:], strict=True))
    begin = next(event for event in bench.witness("zeroed") if event["event"] == "train_begin")
    assert begin["control"] == "zero_moments"
    assert begin["global_step"] == 3


@pytest.mark.parametrize("tuner", [LORA, FULL], ids=["lora", "full"])
@pytest.mark.parametrize(("method", "data", "more"), [("pt", "pt", []), ("rlhf", "dpo", ["dpo"]), ("rlhf", "dpo", ["rm"])])
def test_every_algorithm_trains(bench: Bench, method: str, data: str, more: list[str], tuner: list[str]) -> None:
    kind = [part for word in more for part in ("--rlhf_type", word)]
    run = bench.train(f"{method}-{''.join(more)}-{tuner[1]}", *tuner, *kind, method=method, data=data)
    logged = numbers(run)
    assert len(logged) == 6
    assert all(np.isfinite(loss) and grad > 0 for loss, grad in logged)
    if more == ["dpo"]:
        assert logged[0][0] == pytest.approx(np.log(2), abs=1e-6)


def answers(path: Path) -> list[str]:
    return [json.loads(line)["response"] for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def answered(bench: Bench) -> Mapping[str, list[str]]:
    """Answers of the base model, the adapter (plain and streamed) and the merged model."""
    adapter = str(bench.trained / "checkpoint-6")
    assert bench.swift("export", "--adapters", adapter, "--merge_lora", "true", "--output_dir", str(bench.root / "merged")).returncode == 0
    found = {}
    for name, words in {
        "base": ["--model", str(bench.model)],
        "adapter": ["--adapters", adapter],
        "streamed": ["--adapters", adapter, "--stream", "true"],
        "merged": ["--model", str(bench.root / "merged")],
    }.items():
        path = bench.root / f"{name}.jsonl"
        more = ["--val_dataset", str(bench.data["val"]), "--max_new_tokens", "12", "--temperature", "0", "--result_path", str(path)]
        done = bench.swift("infer", *words, *more, "--external_plugins", str(bench.plugin), nonce=name)
        assert done.returncode == 0, done.stderr
        found[name] = answers(path)
    return found


def test_the_merged_tensors_are_w_plus_scaling_times_b_a(bench: Bench, answered: Mapping[str, list[str]]) -> None:
    base, _ = read_safetensors(bench.model / "model.safetensors")
    merged, _ = read_safetensors(bench.root / "merged" / "model.safetensors")
    lora, _ = read_safetensors(bench.trained / "checkpoint-6" / "adapter_model.safetensors")
    assert set(merged) == set(base)
    changed = 0
    for name, array in base.items():
        stem = f"base_model.model.{name.removesuffix('.weight')}.lora_"
        expected = array + 2.0 * (lora[f"{stem}B.weight"] @ lora[f"{stem}A.weight"]) if f"{stem}A.weight" in lora else array
        changed += f"{stem}A.weight" in lora
        np.testing.assert_allclose(merged[name], expected, rtol=1e-6, atol=1e-6)
    assert changed == 14


def test_adapter_and_merged_agree_and_differ_from_the_base(answered: Mapping[str, list[str]]) -> None:
    assert answered["adapter"] == answered["merged"] == answered["streamed"] != answered["base"]
    assert all(answer.strip() for answer in answered["adapter"])
    assert len(set(answered["adapter"])) == len(answered["adapter"])


def test_each_answer_is_witnessed_with_its_logits(bench: Bench, answered: Mapping[str, list[str]]) -> None:
    events = {name: [e for e in bench.witness(name) if e["event"] == "generate"] for name in ("base", "adapter", "merged")}
    assert {name: len(found) for name, found in events.items()} == dict.fromkeys(events, len(answered["base"]))
    logits = {n: np.concatenate([np.load(bench.root / "witness" / n / e["logits_file"]) for e in found]) for n, found in events.items()}
    merged, base = (np.abs(logits["adapter"] - logits[n]).max() / np.abs(logits["adapter"]).max() for n in ("merged", "base"))
    assert 0 < merged < 1e-5 < base
    assert events["adapter"][0]["adapters"] == ["default"]
    assert events["merged"][0]["adapters"] == []


def test_a_conversation_from_a_pipe_can_be_cleared_and_left(bench: Bench, answered: Mapping[str, list[str]]) -> None:
    first = json.loads(bench.data["val"].read_text().splitlines()[0])["messages"][0]["content"]
    path = bench.root / "talk.jsonl"
    talk = ["--adapters", str(bench.trained / "checkpoint-6"), "--max_new_tokens", "12", "--temperature", "0", "--result_path", str(path)]
    assert bench.swift("infer", *talk, stdin=f"{first}\nand now?\nclear\n{first}\nexit\n").returncode == 0
    said = answers(path)
    assert said[0] == said[2] == answered["adapter"][0] != said[1]
    assert bench.swift("infer", *talk, stdin="no end\n").returncode == 1


@pytest.fixture
def server(bench: Bench) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--adapters", str(bench.trained / "checkpoint-6"), "--host", "127.0.0.1", "--port", str(port), "--served_model_name", "tiny"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([str(bench.root / "bin" / "swift"), "deploy", *words, "--max_new_tokens", "12"], **quiet)  # type: ignore[call-overload]
    for _ in range(200):
        with socket.socket() as knock:
            if knock.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}/v1", process
    process.kill()
    process.wait()


def post(url: str, body: bytes) -> tuple[int, bytes]:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_the_server_answers_as_infer_does_refuses_nonsense_and_ends_on_sigterm(
    bench: Bench, answered: Mapping[str, list[str]], server: tuple[str, subprocess.Popen[bytes]]
) -> None:
    url, process = server
    with urllib.request.urlopen(f"{url}/models", timeout=10) as reply:
        assert [entry["id"] for entry in json.load(reply)["data"]] == ["tiny"]
    question = json.loads(bench.data["val"].read_text().splitlines()[0])["messages"][:1]
    body = {"model": "tiny", "messages": question, "max_tokens": 12, "temperature": 0}
    status, plain = post(f"{url}/chat/completions", json.dumps(body).encode())
    said = json.loads(plain)
    assert (status, said["choices"][0]["message"]["content"]) == (200, answered["adapter"][0])
    assert said["usage"]["total_tokens"] == said["usage"]["prompt_tokens"] + said["usage"]["completion_tokens"]
    status, streamed = post(f"{url}/chat/completions", json.dumps({**body, "stream": True}).encode())
    lines = [line.removeprefix("data: ") for line in streamed.decode().split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    assert "".join(json.loads(line)["choices"][0]["delta"]["content"] for line in lines[:-1]) == answered["adapter"][0]
    assert post(f"{url}/chat/completions", json.dumps({**body, "model": "other"}).encode())[0] == 400
    assert post(f"{url}/chat/completions", b'{"model": "tiny", "messages": "no"}')[0] == 422
    assert post(f"{url}/chat/completions", b"{")[0] == 422
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=5) == 143


def test_a_renamed_flag_is_refused_in_ms_swifts_words(bench: Bench) -> None:
    done = bench.swift("sft", "--model", str(bench.model), "--train_type", "lora")
    assert done.returncode == 1
    assert "remaining_argv: ['--train_type', 'lora']" in done.stderr
    with pytest.raises(UnknownFlags):
        parse("export", ["--max_steps", "6"])
    assert {"tuner_type", "rlhf_type"} <= known_flags("rlhf")
    assert "rlhf_type" not in known_flags("sft")


def test_without_the_plugin_or_the_variables_nothing_is_witnessed(bench: Bench) -> None:
    bench.train("unseen", *LORA)
    words = ["--model", str(bench.model), "--dataset", str(bench.data["sft"]), "--output_dir", "seen", *STEPS]
    run = bench.swift("sft", *words, nonce="blind")
    assert run.returncode == 0
    assert not (bench.root / "witness" / "blind").exists()


def test_what_torch_reads_back_is_what_was_saved(tmp_path: Path) -> None:
    value = {"state": {0: {"step": np.asarray(3, np.float32), "exp_avg": np.arange(6, dtype=np.float32).reshape(2, 3)}}, "lr": 0.1}
    torch_save(tmp_path / "optimizer.pt", value)
    back = torch_load(tmp_path / "optimizer.pt")
    np.testing.assert_array_equal(back["state"][0]["exp_avg"], value["state"][0]["exp_avg"])  # type: ignore[index]
    assert (float(back["state"][0]["step"]), back["lr"]) == (3.0, 0.1)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_unfit_is_the_adjoint_of_fit(have: int, width: int, seed: int) -> None:
    random = np.random.RandomState(seed)
    x, y = random.normal(size=(2, have)).astype(np.float32), random.normal(size=(2, width)).astype(np.float32)
    assert float((fit(x, width) * y).sum()) == pytest.approx(float((x * unfit(y, have)).sum()), rel=1e-4, abs=1e-4)


def test_gradients_are_those_of_the_loss() -> None:
    random = np.random.RandomState(0)
    weights = {
        "model.embed_tokens.weight": random.normal(0, 0.3, (7, 4)).astype(np.float32),
        "model.layers.0.a.weight": random.normal(0, 0.5, (6, 4)).astype(np.float32),
        "model.norm.weight": np.ones(4, np.float32),
    }
    name = "model.layers.0.a.weight"
    adapter = Adapter({name: random.normal(size=(2, 4)).astype(np.float32)}, {name: random.normal(size=(6, 2)).astype(np.float32)}, 0.5)
    ids = [1, 2, 3, 4, 2]
    _, _, _, found = answer_loss(Network(weights, adapter), ids, 2)
    for tensor in weights:
        at = (2, 1) if weights[tensor].ndim == 2 else (1,)
        losses = []
        for nudge in (1e-2, -1e-2):
            moved = {key: array.copy() for key, array in weights.items()}
            moved[tensor][at] += nudge
            losses.append(answer_loss(Network(moved, adapter), ids, 2)[0])
        assert float(found.weights[tensor][at]) == pytest.approx((losses[0] - losses[1]) / 2e-2, rel=2e-2, abs=1e-4)


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=20), st.sampled_from(["F32", "BF16", "F16"]))
@settings(max_examples=40, deadline=None)
def test_tensors_survive_the_disk(tmp_path_factory: pytest.TempPathFactory, values: list[float], dtype: str) -> None:
    array = rounded(np.asarray(values, np.float32), dtype)
    path = tmp_path_factory.mktemp("st") / "t.safetensors"
    write_safetensors(path, {"t": array}, {"t": dtype})
    back, dtypes = read_safetensors(path)
    np.testing.assert_array_equal(back["t"], array)
    assert dtypes == {"t": dtype}
