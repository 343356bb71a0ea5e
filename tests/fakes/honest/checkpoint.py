"""output_dir/vN-<time>/checkpoint-N: written as ms-swift writes it, and read back to resume."""

from __future__ import annotations

import datetime
import json
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fakes.honest.arguments import Arguments
from fakes.honest.habits import Honest
from fakes.honest.learning import Trainee
from fakes.honest.model import write_model
from fakes.honest.tensors import read_model, read_safetensors, torch_load, torch_save, write_safetensors
from fakes.honest.witness import Witness


@dataclass(frozen=True)
class Resumed:
    """Where training goes on. `scheduler_lag`: steps by which a scheduler that was not restored is behind."""

    step: int = 0
    scheduler_lag: int = 0
    history: tuple[dict[str, Any], ...] = ()


def versioned(output: Path) -> Path:
    """`output`/v<next number>-<time>, as ms-swift's --add_version does."""
    numbers = [int(found[1]) for path in output.glob("v*-*") if (found := re.match(r"v(\d+)-", path.name))]
    return output / f"v{max(numbers, default=-1) + 1}-{datetime.datetime.now():%Y%m%d-%H%M%S}"


@dataclass
class Checkpoints:
    arguments: Arguments
    habits: Honest
    witness: Witness
    trainee: Trainee
    kind: str
    latest: Path | None = None
    kept: list[Path] = field(default_factory=list)
    scheduler_lag: int = 0
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        output = Path(self.arguments.text("output_dir", f"output/{Path(self.arguments.text('model')).name}")).resolve()
        self.folder = versioned(output) if self.arguments.flag("add_version", True) else output
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_arguments(self.folder)

    def _write_arguments(self, folder: Path) -> None:
        shown = {**self.arguments.as_json(), "output_dir": str(self.folder), "tuner_type": self.trainee.tuner}
        shown |= {"model": self.arguments.text("model"), "model_dir": str(self.trainee.loaded.folder), "swift_version": "4.6.0"}
        shown |= {"global_world_size": 1, "rank": -1}
        (folder / "args.json").write_text(json.dumps(shown, indent=2, ensure_ascii=False))

    def resume(self, checkpoint: str) -> Resumed:
        """Load weights, and unless --resume_only_model the optimizer and scheduler, of `checkpoint` (empty: a fresh start)."""
        if not checkpoint:
            return Resumed()
        folder, trainee = Path(checkpoint), self.trainee
        tensors = read_safetensors(folder / "adapter_model.safetensors")[0] if trainee.tuner == "lora" else read_model(folder)[0]
        missing = sorted(set(trainee.parameters) - set(tensors))
        if missing:
            raise ValueError(f"checkpoint {folder} lacks {missing[:3]}")
        trainee.parameters = self.habits.restored(trainee.parameters, {name: tensors[name] for name in trainee.parameters})
        state = json.loads((folder / "trainer_state.json").read_text())
        step, history = self.habits.first_step(int(state["global_step"])), tuple(state["log_history"])
        trainee.forget()
        if self.habits.only_model(self.arguments.flag("resume_only_model")):
            self.scheduler_lag = step
            return Resumed(step, step, history)
        moments = self.habits.optimizer_state(torch_load(folder / "optimizer.pt"))["state"]
        for i, name in enumerate(sorted(trainee.parameters)):
            if i in moments:
                trainee.first[name], trainee.second[name] = moments[i]["exp_avg"], moments[i]["exp_avg_sq"]
                trainee.updates = int(moments[i]["step"])
        self.scheduler_lag = step - int(torch_load(folder / "scheduler.pt")["last_epoch"])
        return Resumed(step, self.scheduler_lag, history)

    def save(self, step: int, max_steps: int, history: list[dict[str, Any]]) -> None:
        folder, trainee = self.folder / f"checkpoint-{step}", self.trainee
        self.habits.before_save(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = self.habits.saved_tensors(dict(trainee.parameters))
        if trainee.tuner == "lora":
            write_safetensors(folder / "adapter_model.safetensors", tensors, trainee.dtypes)
            (folder / "adapter_config.json").write_text(json.dumps(self._adapter_config(), indent=2))
            (folder / "additional_config.json").write_text('{"lora_dtype": null, "lorap_lr_ratio": null, "lorap_emb_lr": 1e-06}')
            (folder / "README.md").write_text("---\nlibrary_name: peft\n---\n")
        else:
            write_model(folder, trainee.loaded.folder, tensors, trainee.dtypes)
        self._write_arguments(folder)
        self._write_state(folder, step, max_steps, history)
        self.witness.saved(folder, step, trainee.digest)
        self.latest = folder
        link = self.folder / "last-checkpoint"
        link.unlink(missing_ok=True)
        link.symlink_to(folder.name)
        self.kept.append(folder)
        limit = self.arguments.whole("save_total_limit", 0)
        while limit and len(self.kept) > limit:
            shutil.rmtree(self.kept.pop(0))
        self.habits.saved(folder)

    def _adapter_config(self) -> dict[str, Any]:
        trainee = self.trainee
        return {
            "base_model_name_or_path": str(trainee.loaded.folder),
            "bias": "none",
            "fan_in_fan_out": False,
            "inference_mode": True,
            "init_lora_weights": True,
            "lora_alpha": trainee.alpha,
            "lora_dropout": self.arguments.number("lora_dropout", 0.05),
            "modules_to_save": ["score"] if self.kind == "rm" else [],
            "peft_type": "LORA",
            "peft_version": "0.20.0",
            "r": trainee.rank,
            "rank_pattern": {},
            "alpha_pattern": {},
            "target_modules": sorted({name.split(".")[-2] for name in trainee.modules}),
            "task_type": "SEQ_CLS" if self.kind == "rm" else "CAUSAL_LM",
            "use_dora": False,
            "use_rslora": False,
        }

    def _write_state(self, folder: Path, step: int, max_steps: int, history: list[dict[str, Any]]) -> None:
        trainee = self.trainee
        names = sorted(trainee.parameters)
        moments = {
            i: {"step": np.asarray(trainee.updates, np.float32), "exp_avg": trainee.first[n], "exp_avg_sq": trainee.second[n]}
            for i, n in enumerate(names)
        }
        group = {"lr": self.arguments.number("learning_rate", 1e-4), "betas": (0.9, 0.95), "params": list(range(len(names)))}
        torch_save(folder / "optimizer.pt", {"state": moments, "param_groups": [group]})
        torch_save(folder / "scheduler.pt", {"last_epoch": step - self.scheduler_lag, "_step_count": step + 1})
        torch_save(folder / "rng_state.pth", {"python": [3, step], "numpy": [step], "cpu": np.zeros(8, np.float32)})
        torch_save(folder / "training_args.bin", {"output_dir": str(self.folder), "max_steps": max_steps})
        state = {
            "best_metric": None,
            "best_model_checkpoint": None,
            "epoch": history[-1]["epoch"] if history else 0.0,
            "global_step": step,
            "is_local_process_zero": True,
            "is_world_process_zero": True,
            "log_history": history,
            "logging_steps": self.arguments.whole("logging_steps", 5),
            "max_steps": max_steps,
            "num_input_tokens_seen": 0,
            "num_train_epochs": 1,
            "save_steps": self.arguments.whole("save_steps", 500),
            "total_flos": 1e6 * step,
            "train_batch_size": self.arguments.whole("per_device_train_batch_size", 1),
        }
        (folder / "trainer_state.json").write_text(json.dumps(state, indent=2))
