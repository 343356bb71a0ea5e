"""swift pt, sft and rlhf (dpo, rm): real steps of AdamW on real gradients, in ms-swift's files and words."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from fakes.honest.arguments import Arguments
from fakes.honest.checkpoint import Checkpoints, Resumed
from fakes.honest.habits import Honest
from fakes.honest.learning import Lesson, Trainee, learn, lessons, new_trainee
from fakes.honest.ranks import Ranks
from fakes.honest.tensors import TORCH_NAMES, Array
from fakes.honest.witness import Witness


def kept(ranks: Ranks, flat: Array) -> Array:
    """`flat` with zeros where other ranks hold the entries."""
    own = ranks.own(flat.size)
    only: Array = np.zeros_like(flat)
    only[own] = flat[own]
    return only


def rate_at(arguments: Arguments, step: int, steps: int) -> float:
    """The learning rate that the scheduler gives after `step` of `steps` updates."""
    rate = arguments.number("learning_rate", 1e-5 if arguments.text("tuner_type", "lora") == "full" else 1e-4)
    warm = arguments.whole("warmup_steps", 0) or math.ceil(arguments.number("warmup_ratio", 0) * steps)
    if step < warm:
        return rate * step / warm
    kind, done = arguments.text("lr_scheduler_type", "cosine"), (step - warm) / max(1, steps - warm)
    if kind.startswith("constant"):
        return rate
    return rate * max(0.0, 1 - done) if kind == "linear" else rate * max(0.0, 0.5 * (1 + math.cos(math.pi * done)))


def train(arguments: Arguments, habits: Honest, witness: Witness) -> None:
    """The whole of a training command. Raises what ms-swift would raise for a missing model or data set."""
    kind = arguments.text("rlhf_type") or arguments.method
    if kind not in ("pt", "sft", "dpo", "rm"):
        raise NotImplementedError(f"the stand-in for swift does not train {kind}")
    trainee = new_trainee(arguments, habits, str(habits.settings.get("models", "")))
    taught = lessons(arguments, trainee, str(habits.settings.get("datasets", "")))
    ranks = witness.ranks
    size = arguments.whole("per_device_train_batch_size", 1) * arguments.whole("gradient_accumulation_steps", 1) * ranks.size
    steps = arguments.whole("max_steps", -1)
    if steps <= 0:
        steps = math.ceil(len(taught) / size * arguments.number("num_train_epochs", 3))
    checkpoints = Checkpoints(arguments, habits, witness, trainee, kind)
    resumed = checkpoints.resume(habits.resumed_from(arguments.text("resume_from_checkpoint")))
    Training(arguments, habits, witness, trainee, checkpoints, taught, size, steps, kind).run(resumed)


@dataclass
class Training:
    arguments: Arguments
    habits: Honest
    witness: Witness
    trainee: Trainee
    checkpoints: Checkpoints
    taught: list[Lesson]
    size: int
    steps: int
    kind: str
    tokens: int = 0

    def run(self, resumed: Resumed) -> None:
        history, began = list(resumed.history), time.monotonic()
        moments = bool(self.trainee.updates)
        if self.witness.control == "zero_moments":
            if not moments:
                self.witness.tell("fault", where="train_begin", error="RuntimeError: the optimizer holds no moments to set to zero")
            self.trainee.forget()
        self._tell_begin(resumed.step, moments)
        order = np.random.RandomState(self.arguments.whole("data_seed", self.arguments.whole("seed", 42))).permutation(len(self.taught))
        last = self.habits.last_step(self.steps)
        for step in range(resumed.step + 1, last + 1):
            self.habits.before_step(step)
            picked = [self.taught[order[i % len(order)]] for i in range((step - 1) * self.size, step * self.size)]
            history.append(self._step(step, step - 1 - resumed.scheduler_lag, picked, began))
            if step % max(1, self.arguments.whole("save_steps", 500)) == 0 or step == last:
                self.checkpoints.save(step, self.steps, history)
        self._finish(history, last, resumed.step, time.monotonic() - began)

    def _step(self, step: int, scheduled: int, picked: list[Lesson], began: float) -> dict[str, Any]:
        started, before = time.monotonic(), dict(self.trainee.parameters)
        ranks = self.witness.ranks
        loss, gradient, extra = learn(self.kind, self.trainee, picked[ranks.rank :: ranks.size])
        gradient, means = ranks.average(step, gradient, {"loss": loss, **extra})
        loss, extra = means.pop("loss"), means
        norm = self.trainee.update(
            gradient,
            rate_at(self.arguments, scheduled, self.steps),
            self.arguments.number("weight_decay", 0.1),
            self.arguments.number("max_grad_norm", 1.0),
        )
        if ranks.spreads_optimizer:
            self._exchange(step)
        self.trainee.parameters = self.habits.updated(before, self.trainee.parameters)
        self.tokens += sum(len(lesson.ids) + len(lesson.rejected) for lesson in picked)
        rate = rate_at(self.arguments, scheduled + 1, self.steps)
        row = {"loss": float(np.float32(loss)), "grad_norm": float(np.float32(norm)), "learning_rate": rate, **extra}
        if self.arguments.flag("include_num_input_tokens_seen"):
            row["num_input_tokens_seen"] = self.tokens
        row["epoch"] = step * self.size / len(self.taught)
        seconds = time.monotonic() - started
        memory = {"peak_allocated_mib": 0.0, "peak_reserved_mib": 0.0, "rss_mib": 60.0}
        counted = self.tokens if self.arguments.flag("include_num_input_tokens_seen") else None
        self.witness.tell("step", step=step, seconds=seconds, tokens=counted, **memory)
        # As transformers has it: the row as it is, before ms-swift rounds it.
        logged = {name: row[name] for name in ("loss", "grad_norm", "learning_rate")}
        self.witness.tell("log", step=step, **logged)
        self.log(row, step, time.monotonic() - began)
        return {**row, "step": step}

    def _exchange(self, step: int) -> None:
        """Forget what other ranks stepped, and take the parameters as those ranks have them."""
        trainee, ranks = self.trainee, self.witness.ranks
        trainee.parameters = trainee.shaped(ranks.gather(f"parameters-{step}", trainee.flat(trainee.parameters)))
        trainee.first, trainee.second = (trainee.shaped(kept(ranks, trainee.flat(m))) for m in (trainee.first, trainee.second))

    def log(self, row: dict[str, Any], step: int, elapsed: float) -> None:
        shown = {key: round(value, 8) if isinstance(value, float) else value for key, value in row.items()}
        shown |= {"global_step/max_steps": f"{step}/{self.steps}", "elapsed_time": f"{int(elapsed)}s", "remaining_time": "0s"}
        shown["train_speed(s/it)"] = round(elapsed / max(1, step), 6)
        if not self.witness.ranks.leads:
            return
        self._append(self.habits.log_lines(shown))
        print({key: f"{value:.4g}" if isinstance(value, float) else str(value) for key, value in shown.items()}, flush=True)

    def _append(self, lines: list[str]) -> None:
        if lines and self.witness.ranks.leads:
            with (self.checkpoints.folder / "logging.jsonl").open("a", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")

    def _finish(self, history: list[dict[str, Any]], last: int, begun_at: int, elapsed: float) -> None:
        trainee, done = self.trainee, max(1, last - begun_at)
        largest = max((float(np.abs(a).max()) for n, a in trainee.parameters.items() if ".lora_B." in n), default=None)
        self.witness.tell(
            "train_end",
            global_step=last,
            trainable_digest=trainee.digest,
            first_moments_numel=self._held(sum(array.size for array in trainee.first.values()), self.witness.ranks.spreads_optimizer),
            lora_b_max_abs=largest,
            patched={},
            offloading=[],
            operators=None,
        )
        runtime = max(elapsed, 1e-3)
        summary = {
            "train_runtime": round(runtime, 4),
            "train_samples_per_second": round(done * self.size / runtime, 3),
            "train_steps_per_second": round(done / runtime, 3),
            "total_flos": 1e6 * last,
            "train_loss": float(np.mean([row["loss"] for row in history])) if history else 0.0,
            "epoch": last * self.size / len(self.taught),
        }
        self.log(summary, last, elapsed)
        numel = sum(array.size for array in trainee.parameters.values())
        closing = {
            "train_dataset": f"{len(self.taught)} rows",
            "model_parameter_info": f"{trainee.loaded.model_class}: {numel / 1e6:.4f}M Trainable",
            "last_model_checkpoint": str(self.checkpoints.latest) if self.checkpoints.latest else None,
            "best_model_checkpoint": None,
            "best_metric": None,
            "global_step": last,
            "log_history": [*history, {**summary, "step": last}],
            "memory": 0,
        }
        self._append(self.habits.log_lines(closing))

    def _held(self, numel: int, spread: bool) -> int:
        """Entries of `numel` on this rank."""
        own = self.witness.ranks.own(numel)
        return own.stop - own.start if spread else numel

    def _tell_begin(self, step: int, moments: bool) -> None:
        trainee, on_npu, ranks = self.trainee, self.witness.device.startswith("npu"), self.witness.ranks
        numel = sum(array.size for array in trainee.parameters.values())
        total = sum(array.size for array in trainee.loaded.weights.values())
        total += numel if trainee.tuner == "lora" else numel - total
        peft = "PeftModelForCausalLM" if self.kind != "rm" else "PeftModelForSequenceClassification"
        plain = trainee.loaded.model_class.replace("CausalLM", "SequenceClassification" if self.kind == "rm" else "CausalLM")
        inside = peft if trainee.tuner == "lora" else plain
        self.witness.tell(
            "train_begin",
            device=self.witness.device,
            device_name="Ascend910B3" if on_npu else "cpu",
            simulated=False,
            global_step=step,
            max_steps=self.steps,
            wrapped_class=ranks.wrapped(inside),
            model_class=f"FSDP{plain}" if ranks.strategy == "fsdp2" and trainee.tuner != "lora" else plain,
            distributed_type=ranks.distributed_type(self.witness.device),
            zero_stage=int(ranks.strategy[-1]) if ranks.strategy.startswith("zero") else None,
            sharding=ranks.sharding(),
            backend=None if ranks.size == 1 else "hccl" if on_npu else "gloo",
            param_class="Parameter",
            dtypes={TORCH_NAMES[trainee.dtype]: total},
            numel_local=self._held(total, ranks.spreads_parameters),
            numel_global=total,
            trainable_tensors=len(trainee.parameters),
            trainable_numel=numel,
            trainable_digest=trainee.digest,
            adapter_modules=sorted(name.removesuffix(".weight") for name in trainee.modules),
            lora=self._lora(),
            attn_impl="sdpa",
            sequence_parallel=None,
            padding_free=False,
            control=self.witness.control,
            moments_zeroed=2 * len(trainee.parameters) if self.witness.control and moments else None,
            optimizer_moment_norm=trainee.moment_norm if moments else None,
            arguments=self._effective(),
        )

    def _effective(self) -> dict[str, Any]:
        """What this training goes by, under the names of transformers' arguments."""
        given = self.arguments
        seed = given.whole("seed", 42)
        return {
            "learning_rate": given.number("learning_rate", 1e-5 if given.text("tuner_type", "lora") == "full" else 1e-4),
            "seed": seed,
            "data_seed": given.whole("data_seed", seed),
            "max_steps": self.steps,
            "per_device_train_batch_size": given.whole("per_device_train_batch_size", 1),
            "gradient_accumulation_steps": given.whole("gradient_accumulation_steps", 1),
            "lr_scheduler_type": given.text("lr_scheduler_type", "cosine"),
            "weight_decay": given.number("weight_decay", 0.1),
            "warmup_ratio": given.number("warmup_ratio", 0),
            "warmup_steps": given.whole("warmup_steps", 0),
            "save_steps": given.whole("save_steps", 500),
            "logging_steps": given.whole("logging_steps", 5),
            "num_train_epochs": given.number("num_train_epochs", 3),
            "max_grad_norm": given.number("max_grad_norm", 1.0),
            "output_dir": str(self.checkpoints.folder),
            "dataset": given.words("dataset"),
            "max_length": given.whole("max_length", 0) or None,
        }

    def _lora(self) -> dict[str, float] | None:
        if self.trainee.tuner != "lora":
            return None
        trainee, dropout = self.trainee, self.arguments.number("lora_dropout", 0.05)
        return {"r": trainee.rank, "lora_alpha": trainee.alpha, "lora_dropout": dropout, "scaling": trainee.scaling}
