"""Proof against a golden: the same command with the same bytes in, run on a plain CPU, gives the same numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from harness.compare import Tolerance, check, check_error, largest_difference, plain_dtype
from harness.found import Inference
from harness.model import Comparison, Hardware, StepResult, Strategy
from harness.packed_experts import packed
from harness.proof_infer import said
from harness.proof_process import prove_device, prove_process
from harness.tensors import TensorFile, canonical

_DESIGN = "design section 4"
# Losses and gradient norms, relative. Weights are measured against the update, as root mean squares over all tensors: Adam moves an
# entry whose gradient is nearly zero by the full learning rate one way or the other, so single entries of equal runs lie far apart.
_LOGGED = {
    "float32": Tolerance(1e-5, f"{_DESIGN}: fp32 loss 1e-5"),
    "bfloat16": Tolerance(1e-2, "measured for SFT over six tiny steps: 7e-4 at the first, 4e-3 at most; summed gradients: grad_norm"),
}
_GRAD_NORMS = {
    "bfloat16": Tolerance(0.15, "measured for SFT over six tiny steps: 7e-2 at most; twice that, summed gradients are 0.5"),
    "float32": Tolerance(5e-5, "measured: 7.8e-6 for an honest Qwen3 LoRA run at the strong tiny rate, 4.4e-4 and more for planted faults"),
}
_UPDATES = {
    "float32": Tolerance(5e-3, "measured, six tiny steps, all strategies: LoRA 5.1e-5, full 3.5e-4; planted faults 9.8e-2 and more"),
    "bfloat16": Tolerance(0.25, "measured for SFT: 0.17 (Adam takes the signs of rounding for gradients); a lost shard 0.27 and more"),
}
_LOGITS = {
    "float32": Tolerance(1e-5, "as harness/compare.py takes an adapter's logits against its merged model's"),
    "bfloat16": Tolerance(2e-2, "as harness/compare.py takes an adapter's logits against its merged model's"),
}


REQUIRED_GOLDEN_TRAIN = ("golden.loss", "golden.grad_norm", "golden.weights")
REQUIRED_PARITY = ("parity.loss", "parity.grad_norm", "parity.weights")
REQUIRED_PATCHES = ("train.patches", "train.patch_calls")
REQUIRED_GOLDEN_INFER = ("golden.answers", "golden.logits")


def prove_golden_train(
    *, strategy: Strategy, result: StepResult, golden: StepResult, dtype: str, finals: Sequence[TensorFile | None], base: TensorFile
) -> tuple[Comparison, ...]:
    """`result` against `golden`, one process on the CPU with the same global batch; `finals` are the last checkpoints' weights of both,
    `base` what both started from. For a `strategy` of several ranks this is the parity of strategies: all agree with the same golden."""
    single = strategy is Strategy.SINGLE
    prefix, cause = ("golden", "golden.differs") if single else ("parity", "parity.differs")
    like = "as on the cpu" if single else f"under {strategy} as in one process on the cpu"
    process, witness = prove_process("golden", golden, "train_end")
    made = list(process)
    if witness is None:
        return tuple(made)
    made.append(prove_device("golden", Hardware.CPU, witness, witness.all("train_begin")))
    rows, theirs = result.metrics.rows, golden.metrics.rows
    aligned = [row.step for row in rows] == [row.step for row in theirs] and bool(rows)
    for what, table in (("loss", _LOGGED), ("grad_norm", _GRAD_NORMS)):
        ours = [_number(getattr(row, what)) for row in rows]
        expected = [_number(getattr(row, what)) for row in theirs]
        error = largest_difference(expected, ours) if aligned else math.inf
        made.append(check_error(f"{prefix}.{what}", cause, error, _tolerance(table, dtype), f"{what} of every step {like}"))
    made.append(_weights(f"{prefix}.weights", cause, f"weights {like}", finals, base, _tolerance(_UPDATES, dtype)))
    return tuple(made)


def prove_golden_answers(*, ours: Inference, golden: Inference, dtype: str) -> tuple[Comparison, ...]:
    """Answers of one inference to the same checkpoint's on the CPU: the same text, and logits within the dtype's tolerance."""
    texts = [[said(row.response) for row in one.answers.rows] for one in (ours, golden)]
    same = bool(texts[0]) and texts[0] == texts[1]
    found = "the same" if same else f"{texts[0]} against {texts[1]}"
    made = [check("golden.answers", same, "golden.differs", "the cpu's answers", found)]
    if ours.logits is None or golden.logits is None or ours.logits.shape != golden.logits.shape:
        return (*made, check("golden.logits", False, "proof.witness_missing", "logits of both, of one shape", "not witnessed"))
    theirs = golden.logits.astype(np.float64)
    scale = float(np.abs(theirs).max()) or 1.0
    error = float(np.abs(ours.logits.astype(np.float64) - theirs).max()) / scale
    return (*made, check_error("golden.logits", "golden.differs", error, _tolerance(_LOGITS, dtype), "logits as on the cpu"))


def _weights(
    name: str, cause: str, what: str, finals: Sequence[TensorFile | None], base: TensorFile, tolerance: Tolerance
) -> Comparison:
    """|ours - golden| / |golden - base| as root mean squares over all entries of all tensors; a LoRA's base is zero."""
    ours, golden = (None if final is None else named_alike(final) for final in finals)
    base = named_alike(base)
    if ours is None or golden is None or not ours.usable or not golden.usable or ours.tensors.keys() != golden.tensors.keys():
        return check(name, False, "proof.checkpoint_missing", "the last weights of both runs, tensor by tensor", "not there")
    if any(ours.tensors[name].shape != tensor.shape for name, tensor in golden.tensors.items()):
        return check(name, False, cause, "tensors of the golden's shapes", "other shapes")
    apart = moved = 0.0
    for key, tensor in golden.tensors.items():
        theirs, before = tensor.values(), base.tensors.get(key)
        start = before.values() if before is not None and before.shape == tensor.shape else np.zeros(tensor.shape)
        apart += float(np.square(ours.tensors[key].values() - theirs).sum())
        moved += float(np.square(theirs - start).sum())
    error = math.sqrt(apart / moved) if moved else math.inf
    return check_error(name, cause, error, tolerance, f"{what}, relative to what training changed")


def named_alike(file: TensorFile) -> TensorFile:
    """The same tensors by their names in memory: wrappers left out, experts packed, whatever kind of checkpoint they come from."""
    return replace(file, tensors=packed({canonical(name): tensor for name, tensor in file.tensors.items()}))


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _tolerance(table: dict[str, Tolerance], dtype: str) -> Tolerance:
    return table.get(plain_dtype(dtype), table["float32"])
