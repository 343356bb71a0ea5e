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
from fakes.honest.ranks import Ranks
from fakes.honest.tensors import Array, read_model, read_safetensors, torch_load, torch_save, write_safetensors
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
        self.folder = self._agreed(output) if self.arguments.flag("add_version", True) else output
        if self.ranks.leads:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write_arguments(self.folder)

    @property
    def ranks(self) -> Ranks:
        return self.witness.ranks

    def _agreed(self, output: Path) -> Path:
        """Rank 0 numbers the folder, and tells the others."""
        told = Path(self.ranks.meeting) / "folder"
        if self.ranks.leads:
            folder = versioned(output)
            if self.ranks.size > 1:
                told.write_text(str(folder), encoding="utf-8")
                self.ranks.wait("numbered")
            return folder
        self.ranks.wait("numbered")
        return Path(told.read_text(encoding="utf-8"))

    def _write_arguments(self, folder: Path) -> None:
        shown = {**self.arguments.as_json(), "output_dir": str(self.folder), "tuner_type": self.trainee.tuner}
        shown |= {"model": self.arguments.text("model"), "model_dir": str(self.trainee.loaded.folder), "swift_version": "4.6.0"}
        shown |= {"global_world_size": self.ranks.size, "rank": -1 if self.ranks.size == 1 else 0}
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
        only_model = self.habits.only_model(self.arguments.flag("resume_only_model"))
        # DeepSpeed loads its engine's whole state, whatever ms-swift asks for.
        if not only_model or self.ranks.strategy.startswith("zero"):
            self._restore_moments(folder, step)
        if only_model:
            self.scheduler_lag = step
            return Resumed(step, step, history)
        self.scheduler_lag = step - int(torch_load(folder / "scheduler.pt")["last_epoch"])
        return Resumed(step, self.scheduler_lag, history)

    def _restore_moments(self, folder: Path, step: int) -> None:
        trainee, own = self.trainee, self.ranks.own(sum(array.size for array in self.trainee.parameters.values()))
        if self.ranks.strategy.startswith("zero"):
            part = torch_load(folder / self._zero_part(step))["state"][0]
            for name, moments in (("exp_avg", trainee.first), ("exp_avg_sq", trainee.second)):
                flat = trainee.flat(moments)
                flat[own] = part[name]
                moments.update(trainee.shaped(flat))
            trainee.updates = int(part["step"])
            return
        moments = self.habits.optimizer_state(torch_load(folder / self._optimizer_file))["state"]
        for i, name in enumerate(sorted(trainee.parameters)):
            if i in moments:
                trainee.first[name], trainee.second[name] = moments[i]["exp_avg"], moments[i]["exp_avg_sq"]
                trainee.updates = int(moments[i]["step"])

    @property
    def _optimizer_file(self) -> str:
        return "optimizer.bin" if self.ranks.strategy.startswith("fsdp") else "optimizer.pt"

    def _zero_part(self, step: int) -> str:
        return f"global_step{step}/zero_pp_rank_{self.ranks.rank}_mp_rank_00_optim_states.pt"

    def save(self, step: int, max_steps: int, history: list[dict[str, Any]]) -> None:
        """Each rank writes its own part, and rank 0 all that is there once."""
        folder, trainee = self.folder / f"checkpoint-{step}", self.trainee
        if self.ranks.strategy.startswith("fsdp"):
            gathered = [trainee.shaped(self.ranks.gather(f"{w}-{step}", trainee.flat(getattr(trainee, w)))) for w in ("first", "second")]
        else:
            gathered = [trainee.first, trainee.second]
        if self.ranks.leads:
            self._write_once(folder, step, max_steps, history, *gathered)
        if self.ranks.size > 1:
            self.ranks.wait(f"made-{step}")
            self._write_part(folder, step)
            self.ranks.wait(f"saved-{step}")
        self.witness.saved(folder, step, trainee.digest)
        self.latest = folder
        if self.ranks.leads:
            self._tidy(folder)

    def _write_part(self, folder: Path, step: int) -> None:
        torch_save(folder / f"rng_state_{self.ranks.rank}.pth", {"python": [3, step], "cpu": np.zeros(8, np.float32)})
        if self.ranks.strategy.startswith("zero"):
            first, second = (self.trainee.flat(moments) for moments in (self.trainee.first, self.trainee.second))
            own = self.ranks.own(first.size)
            part = {"step": np.asarray(self.trainee.updates, np.float32), "exp_avg": first[own], "exp_avg_sq": second[own]}
            torch_save(folder / self._zero_part(step), {"state": {0: part}})

    def _write_once(
        self, folder: Path, step: int, max_steps: int, history: list[dict[str, Any]], first: dict[str, Array], second: dict[str, Array]
    ) -> None:
        trainee = self.trainee
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
        if self.ranks.strategy.startswith("zero"):
            (folder / f"global_step{step}").mkdir()
            (folder / "latest").write_text(f"global_step{step}")
            torch_save(folder / f"global_step{step}" / "mp_rank_00_model_states.pt", {"global_steps": step})
        else:
            self._write_optimizer(folder, first, second)

    def _tidy(self, folder: Path) -> None:
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

    def _write_optimizer(self, folder: Path, first: dict[str, Array], second: dict[str, Array]) -> None:
        names, updates = sorted(self.trainee.parameters), np.asarray(self.trainee.updates, np.float32)
        moments = {i: {"step": updates, "exp_avg": first[n], "exp_avg_sq": second[n]} for i, n in enumerate(names)}
        group = {"lr": self.arguments.number("learning_rate", 1e-4), "betas": (0.9, 0.95), "params": list(range(len(names)))}
        torch_save(folder / self._optimizer_file, {"state": moments, "param_groups": [group]})

    def _write_state(self, folder: Path, step: int, max_steps: int, history: list[dict[str, Any]]) -> None:
        torch_save(folder / "scheduler.pt", {"last_epoch": step - self.scheduler_lag, "_step_count": step + 1})
        if self.ranks.size == 1:
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
