"""What a step learns: the parameters with AdamW's moments, the lessons of a data set, and the losses of sft, pt, dpo and rm."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fakes.honest.arguments import Arguments
from fakes.honest.habits import Honest
from fakes.honest.model import Loaded, adapter_of, load, lora_name, targets
from fakes.honest.network import Gradients, Network, answer_loss, score_of
from fakes.honest.tensors import Array, rounded, trainable_digest
from fakes.honest.text import chat, messages_of, read_rows, split_answer

_BETA1, _BETA2, _DPO_BETA = np.float32(0.9), np.float32(0.95), 0.1


@dataclass
class Trainee:
    """The parameters that learn, by canonical name, with AdamW's moments and step count."""

    loaded: Loaded
    tuner: str
    rank: int
    alpha: float
    modules: list[str]
    parameters: dict[str, Array]
    dtype: str
    habits: Honest
    first: dict[str, Array] = field(default_factory=dict)
    second: dict[str, Array] = field(default_factory=dict)
    updates: int = 0

    def __post_init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.first = {name: np.zeros_like(array) for name, array in self.parameters.items()}
        self.second = {name: np.zeros_like(array) for name, array in self.parameters.items()}

    def flat(self, arrays: dict[str, Array]) -> Array:
        """All of `arrays`, by name, as one."""
        return np.concatenate([arrays[name].ravel() for name in sorted(arrays)])

    def shaped(self, flat: Array) -> dict[str, Array]:
        """`flat` as arrays of the parameters' names and shapes."""
        found, at = {}, 0
        for name in sorted(self.parameters):
            like = self.parameters[name]
            found[name] = flat[at : at + like.size].reshape(like.shape).astype(np.float32)
            at += like.size
        return found

    @property
    def scaling(self) -> float:
        return self.alpha / self.rank

    @property
    def dtypes(self) -> dict[str, str]:
        return dict.fromkeys(self.parameters, self.dtype)

    @property
    def digest(self) -> str:
        return trainable_digest(self.parameters, self.dtypes)

    @property
    def moment_norm(self) -> float:
        moments = (*self.first.values(), *self.second.values())
        return math.sqrt(sum(float((m.astype(np.float64) ** 2).sum()) for m in moments))

    @property
    def score_name(self) -> str:
        return "base_model.model.score.weight" if self.tuner == "lora" else "score.weight"

    def network(self) -> Network:
        score = self.parameters.get(self.score_name)
        if self.tuner == "lora":
            return Network(self.loaded.weights, adapter_of(self.parameters, self.loaded.weights, self.scaling), score)
        return Network({name: self.parameters[name] for name in self.loaded.weights}, None, score)

    def gradient(self, found: Gradients) -> dict[str, Array]:
        """Gradients of the parameters from those of the effective weights (chain rule through W + s B A)."""
        result: dict[str, Array] = {}
        if self.tuner == "lora":
            scale = np.float32(self.scaling)
            for name in self.modules:
                a, b = self.parameters[lora_name(name, "A")], self.parameters[lora_name(name, "B")]
                result[lora_name(name, "A")] = scale * (b.T @ found.weights[name])
                result[lora_name(name, "B")] = scale * (found.weights[name] @ a.T)
        else:
            result = {name: found.weights[name] for name in self.loaded.weights}
        if found.head is not None:
            result[self.score_name] = found.head
        return result

    def update(self, gradient: dict[str, Array], rate: float, decay: float, most: float) -> float:
        """One AdamW step, gradients clipped to norm `most`; returns the norm before clipping."""
        norm = math.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in gradient.values()))
        shrink = np.float32(min(1.0, most / (norm + 1e-6)) if most > 0 else 1.0)
        self.updates += 1
        for name in self.parameters:
            g = gradient[name] * shrink
            self.first[name] = _BETA1 * self.first[name] + (1 - _BETA1) * g
            self.second[name] = _BETA2 * self.second[name] + (1 - _BETA2) * g * g
            first = self.first[name] / np.float32(1 - float(_BETA1) ** self.updates)
            second = self.second[name] / np.float32(1 - float(_BETA2) ** self.updates)
            step = np.float32(rate * float(self.habits.settings.get("rate_scale", 1))) * self.habits.direction(first, second, g)
            value = self.parameters[name] * np.float32(1 - rate * decay) - step
            self.parameters[name] = rounded(value.astype(np.float32), self.dtype)
        return norm


def new_trainee(arguments: Arguments, habits: Honest, models: str) -> Trainee:
    """The model before its first step. LoRA: A uniform by Kaiming as in PEFT, B zero; rm: a score head of its own."""
    loaded = load(arguments.text("model"), models, habits.dtype(arguments.text("torch_dtype")))
    tuner = arguments.text("tuner_type", "lora")
    rank, alpha = habits.rank(arguments.whole("lora_rank", 8)), arguments.number("lora_alpha", 32)
    modules = targets(loaded, arguments.words("target_modules")) if tuner == "lora" else []
    random = np.random.RandomState(arguments.whole("seed", 42))
    parameters: dict[str, Array] = {}
    for name in modules:
        out, width = loaded.weights[name].shape
        parameters[lora_name(name, "A")] = random.uniform(-1, 1, (rank, width)).astype(np.float32) / np.float32(math.sqrt(width))
        parameters[lora_name(name, "B")] = np.zeros((out, rank), np.float32)
    if tuner != "lora":
        parameters = dict(loaded.weights)
    trainee = Trainee(loaded, tuner, rank, alpha, modules, parameters, loaded.dtype, habits)
    if arguments.text("rlhf_type") == "rm":
        width = int(loaded.config["hidden_size"])
        parameters[trainee.score_name] = random.normal(0, 0.1, (1, width)).astype(np.float32)
    parameters.update({name: rounded(array, loaded.dtype) for name, array in parameters.items()})
    trainee.forget()
    return trainee


@dataclass(frozen=True)
class Lesson:
    """One row as token ids: prompt and answer, and for pairs the rejected answer; the answer begins at `start`."""

    ids: list[int]
    start: int
    rejected: list[int] = field(default_factory=list)


def lessons(arguments: Arguments, trainee: Trainee, datasets: str) -> list[Lesson]:
    """`datasets`: a folder of jsonl files that stand in for data sets of a hub, by kind; empty: there are none."""
    kind = {"dpo": "dpo", "rm": "dpo"}.get(arguments.text("rlhf_type"), arguments.method)
    named = arguments.words("dataset")
    rows = read_rows([str(Path(datasets) / f"{kind}.jsonl") if datasets and not Path(n.split("#")[0]).exists() else n for n in named])
    tokenizer, longest = trainee.loaded.tokenizer, arguments.whole("max_length", 2048)
    made = []
    for row in rows:
        turns, answer = split_answer(messages_of(row))
        if arguments.method == "pt":
            made.append(Lesson(tokenizer.encode(answer or "")[:longest], 1))
            continue
        prompt = tokenizer.encode(chat(turns, arguments.text("system")))
        rejected = row.get("rejected_response")
        pair = prompt + tokenizer.encode(f"{rejected}<|im_end|>\n") if rejected else []
        made.append(Lesson((prompt + tokenizer.encode(f"{answer}<|im_end|>\n"))[:longest], len(prompt), pair[:longest]))
    if not made:
        raise ValueError("The train dataset is empty: every row was refused.")
    return made


def learn(kind: str, trainee: Trainee, batch: list[Lesson]) -> tuple[float, dict[str, Array], dict[str, float]]:
    """(loss, gradient of the parameters, further numbers that the trainer logs) of one batch."""
    network, total = trainee.network(), Gradients()
    share = 1 / len(batch)
    losses: list[float] = []
    extra: list[dict[str, float]] = []
    for lesson in batch:
        numbers: dict[str, float]
        if kind == "dpo":
            loss, parts, numbers = _preference(network, Network(trainee.loaded.weights), lesson, share)
        elif kind == "rm":
            loss, parts, numbers = _reward(network, lesson, share)
        else:
            loss, count, _, _ = answer_loss(network, lesson.ids, lesson.start)
            parts, numbers = [answer_loss(network, lesson.ids, lesson.start, share / count)[3]], {"token_acc": 0.0}
        losses.append(loss)
        extra.append(numbers)
        for part in parts:
            for name, value in part.weights.items():
                total.add(name, value)
            if part.head is not None:
                total.head = part.head if total.head is None else total.head + part.head
    means = {key: float(np.mean([numbers[key] for numbers in extra])) for key in extra[0]}
    return float(np.mean(losses)), trainee.gradient(total), means


def _preference(network: Network, reference: Network, lesson: Lesson, share: float) -> tuple[float, list[Gradients], dict[str, float]]:
    chosen, rejected = answer_loss(network, lesson.ids, lesson.start)[2], answer_loss(network, lesson.rejected, lesson.start)[2]
    was_chosen, was_rejected = answer_loss(reference, lesson.ids, lesson.start)[2], answer_loss(reference, lesson.rejected, lesson.start)[2]
    better, worse = _DPO_BETA * (chosen - was_chosen), _DPO_BETA * (rejected - was_rejected)
    pull = _DPO_BETA * share / (1 + math.exp(better - worse))
    parts = [answer_loss(network, lesson.ids, lesson.start, pull)[3], answer_loss(network, lesson.rejected, lesson.start, -pull)[3]]
    return math.log1p(math.exp(-(better - worse))), parts, {**_rewards(better, worse), "logps/chosen": chosen, "logps/rejected": rejected}


def _reward(network: Network, lesson: Lesson, share: float) -> tuple[float, list[Gradients], dict[str, float]]:
    better, worse = score_of(network, lesson.ids, 0)[0], score_of(network, lesson.rejected, 0)[0]
    pull = share / (1 + math.exp(better - worse))
    parts = [score_of(network, lesson.ids, -pull)[1], score_of(network, lesson.rejected, pull)[1]]
    return math.log1p(math.exp(-(better - worse))), parts, _rewards(better, worse)


def _rewards(better: float, worse: float) -> dict[str, float]:
    right = float(better > worse)
    return {"rewards/chosen": better, "rewards/rejected": worse, "rewards/accuracies": right, "rewards/margins": better - worse}
