"""The warm launcher with the real ms-swift: many mixed runs from one process, in any order, neither make it grow nor change a bit.

WARM_RUNS sets how many (30), WARM_SEED their order: `WARM_RUNS=200 python -m pytest tests/test_warm_swift.py -s`.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.aftermath import free_port
from harness.artifacts import read_witnesses
from harness.launch import Alive
from harness.logs import read_tail
from harness.model import Command, Run, Step
from harness.processes import look, members, resident_mib
from harness.tiny import make_datasets, make_tiny_model
from harness.warm import WarmLauncher
from harness.witness import record

pytestmark = pytest.mark.swift

PLUGIN = Path(record.__file__).parent / "plugin" / "npu_matrix_witness.py"
RUNS, SEED = int(os.environ.get("WARM_RUNS", "30")), int(os.environ.get("WARM_SEED", "0"))
# What one page or a list that grew by doubling may add; a leak of one run's model would be 100 times that.
GROWTH_MIB = 4.0
EXACT = "--torch_dtype float32 --fp16 false --bf16 false --use_cpu true --check_model false"
TRAIN = (
    "--max_steps 3 --save_steps 3 --logging_steps 1 --per_device_train_batch_size 2 --gradient_accumulation_steps 1 --max_length 256 "
    "--dataset_num_proc 1 --dataloader_num_workers 0 --report_to none --add_version false --split_dataset_ratio 0 --learning_rate 2e-2"
)
LORA = "--tuner_type lora --lora_rank 4 --lora_alpha 8 --target_modules all-linear"
ANSWER = "--infer_backend transformers --max_new_tokens 8 --temperature 0 --stream false --result_path answers.jsonl"
TWO_RANKS = {"NPROC_PER_NODE": "2"}
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


class Lab:
    """Tiny models, data, and one launcher."""

    def __init__(self, root: Path) -> None:
        self.root, self.data = root, make_datasets(root / "cache")
        self.models = {family: make_tiny_model(family, root / "cache") for family in ("qwen2", "qwen3")}
        programs = Path(sys.executable).parent
        if not (programs / "swift").exists():
            pytest.skip("ms-swift is not installed beside this interpreter")
        self.search_path = str(programs)
        self.warm = WarmLauncher(root / "warm")
        self.done = 0

    def trainings(self) -> dict[str, tuple[list[str], dict[str, str]]]:
        """Name to (arguments, environment): another seed each, so that one run's state would change another's numbers."""
        found: dict[str, tuple[list[str], dict[str, str]]] = {}

        def add(name: str, family: str, how: str, kind: str, env: dict[str, str] | None = None) -> None:
            model = self.models[family]
            what = ["--model", str(model.path), "--model_type", model.model_type, "--template", model.template]
            seed = ["--seed", str(40 + len(found))]
            words = [*how.split(), *what, "--dataset", str(self.data[kind]), *EXACT.split(), *TRAIN.split(), *seed]
            found[name] = [*words, *f"--external_plugins {PLUGIN} --callbacks npu_matrix_witness --output_dir out".split()], env or {}

        add("sft-lora", "qwen2", f"sft {LORA}", "sft")
        add("sft-full", "qwen3", "sft --tuner_type full", "sft")
        add("sft-two-ranks", "qwen3", f"sft {LORA}", "sft", TWO_RANKS)
        add("pt-lora", "qwen3", f"pt {LORA}", "pt")
        add("dpo-lora", "qwen2", f"rlhf --rlhf_type dpo {LORA}", "dpo")
        add("rm-full", "qwen2", "rlhf --rlhf_type rm --tuner_type full", "dpo")
        return found

    def go(self, name: str, words: list[str], env: dict[str, str], **more: Any) -> tuple[Run, Path]:
        self.done += 1
        work = self.root / "runs" / f"{self.done}-{name}"
        ports = {"MASTER_PORT": str(free_port())} if env else {}
        step = Step(name, Command("swift", tuple(words), {**OFFLINE, **env, **ports}), str(work), 300.0)
        run = self.warm(step, nonce=uuid.uuid4().hex, work=work, search_path=self.search_path, base_env=dict(os.environ), **more)
        return run, work

    def parent_mib(self) -> float:
        (process,) = self.warm.processes()
        seen = look(process.pid)
        assert seen is not None, "the warm process died"
        return resident_mib([seen])[0]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    made = Lab(tmp_path_factory.mktemp("warm"))
    yield made
    made.warm.close()


def signature(run: Run, work: Path) -> dict[str, Any]:
    """All numbers of a run, to the last digit."""
    assert (run.ended_by, run.exit_code, run.leftovers, run.notes) == ("exit", 0, (), ()), run.log_tail[-3000:]
    witnesses = sorted(read_witnesses(work / "witness"), key=lambda w: w.rank)
    events = [event for witness in witnesses for event in witness.events]
    assert {event["nonce"] for event in events} <= {run.nonce} and not [event for event in events if event["event"] == "fault"]
    log = work / "out" / "logging.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return {
        "rows": [(row["loss"], row.get("grad_norm")) for row in rows if "loss" in row],
        "digests": [(e["global_step"], e["trainable_digest"]) for e in events if e["event"] == "train_end"],
        "answers": [e["output_ids"] for e in events if e["event"] == "generate"],
        "merged": [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(work.glob("merged/*.safetensors"))],
    }


def test_mixed_runs_in_any_order_neither_make_the_warm_process_grow_nor_drift(lab: Lab) -> None:
    kinds = lab.trainings()
    _, trained = lab.go("sft-lora", *kinds["sft-lora"])
    adapter = trained / "out" / "checkpoint-3"
    model = lab.models["qwen2"]
    of_family = ["--model_type", model.model_type, "--template", model.template, "--external_plugins", str(PLUGIN)]
    kinds["merge"] = ["export", "--adapters", str(adapter), "--merge_lora", "true", "--output_dir", "merged"], {}
    questions = ["--val_dataset", str(lab.data["val"])]
    kinds["infer-base"] = ["infer", "--model", str(model.path), *of_family, *questions, *ANSWER.split()], {}
    kinds["infer-adapter"] = ["infer", "--adapters", str(adapter), *questions, *ANSWER.split()], {}
    order = [name for _ in range(RUNS) for name in kinds][:RUNS]
    random.Random(SEED).shuffle(order)

    first: dict[str, dict[str, Any]] = {}
    sizes = []
    for count, name in enumerate(order):
        run, work = lab.go(name, *kinds[name])
        saw = signature(run, work)
        assert any(saw.values()), f"{name} left no numbers: nothing is compared"
        assert first.setdefault(name, saw) == saw, f"run {count} ({name}) differs from the first of its kind"
        sizes.append(lab.parent_mib())
        print(f"{count + 1:4} {name:14} {run.duration_s:6.2f} s, warm process {sizes[-1]:.1f} MiB", flush=True)
        shutil.rmtree(work)
    assert max(sizes) - sizes[0] < GROWTH_MIB, f"grew from {sizes[0]:.1f} to {max(sizes):.1f} MiB"
    digests = [str(saw["digests"]) for saw in first.values() if saw["digests"]]
    assert len(set(digests)) == len(digests) > 0, "two kinds can't be told from each other"


def test_a_forked_server_answers_until_it_is_asked_to_end(lab: Lab) -> None:
    model, port = lab.models["qwen2"], free_port()

    def attend(alive: Alive) -> None:
        while alive.is_alive() and "Uvicorn running" not in read_tail(alive.log_path):
            time.sleep(0.1)

    words = ["deploy", "--model", str(model.path), "--model_type", model.model_type, "--template", model.template, "--port", str(port)]
    run, _ = lab.go("deploy", [*words, "--infer_backend", "transformers", "--host", "127.0.0.1"], {}, attend=attend)
    assert (run.ended_by, run.leftovers) == ("request", ()), run.log_tail[-3000:]
    assert "Application shutdown complete" in run.log_tail


def test_a_crash_of_one_rank_is_torchruns_own_failure_and_the_next_run_is_fine(lab: Lab) -> None:
    words, env = lab.trainings()["sft-two-ranks"]
    crash = lab.root / "crash.py"
    crash.write_text("import os\nif os.environ['RANK'] == '1':\n    os.kill(os.getpid(), 9)\n")
    run, _ = lab.go("crash", [*words, "--external_plugins", str(crash)], env)
    assert (run.ended_by, run.exit_code, run.leftovers) == ("exit", 1, ())
    assert "ChildFailedError" in run.log_tail and "Signal 9 (SIGKILL)" in run.log_tail
    assert members((), (run.nonce,)) == []
    signature(*lab.go("after", *lab.trainings()["sft-lora"]))
