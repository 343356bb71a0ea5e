"""Proof of merging: the merged model is W + scaling * B A where LoRA was and the base model elsewhere, in its files and in its logits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.compare import UNIT_ROUNDOFF, check, check_error, logits_tolerance, merge_tolerance
from harness.errors import HarnessError
from harness.found import CheckpointFiles, Logits
from harness.model import Comparison, StepResult
from harness.proof_checkpoint import lora_pairs
from harness.proof_config import Surroundings, prove_surroundings
from harness.proof_process import prove_process
from harness.tensors import Tensor, TensorFile, canonical, cast

_OUTPUT = "lm_head.weight"
_EMBEDDING = "embed_tokens.weight"


@dataclass(frozen=True)
class _Merged:
    """How one module came out, each as a componentwise error: against W + scaling B A, against W, and how much the adapter moves."""

    name: str
    dtype: str
    error: float
    from_base: float
    moved: float


def prove_merge(
    *,
    result: StepResult,
    base: TensorFile,
    adapter: CheckpointFiles,
    merged: TensorFile | None,
    tied: bool,
    surroundings: tuple[Surroundings, Surroundings],
) -> tuple[Comparison, ...]:
    """Design section 4, row `merge`, of the files. `tied`: the model's config says tie_word_embeddings. `surroundings`: (base, merged).

    Logits, which inference witnesses, are proved by `prove_logits`. Tolerance: harness/compare.py merge_tolerance.
    """
    process, witness = prove_process("merge", result, "start")
    made = list(process)
    if witness is None:
        return tuple(made)
    made.append(check("merge.base_model", base.usable, "proof.base_unreadable", "the base model's weights", base.fault or "readable"))
    if not base.usable:
        return tuple(made)
    damage = [text for text in (adapter.fault, merged.fault if merged else "") if text]
    made.append(check("merge.files", not damage, "proof.checkpoint_damaged", "readable weights", "; ".join(damage) or "readable"))
    empty = [n for n, found in (("adapter", adapter.weights), ("merged", merged)) if found is None or not found.tensors]
    made.append(check("merge.present", not (empty and not damage), "proof.checkpoint_missing", "adapter and merged model", empty or "both"))
    if damage or empty or adapter.weights is None or merged is None:
        return tuple(made)
    made += prove_surroundings(*surroundings)
    made.append(_prove_names(base, merged, tied))
    if not made[-1].ok:
        return tuple(made)
    pairs = lora_pairs(adapter.weights)
    replaced = _replacements(adapter.weights, pairs)
    made += _prove_modules(base, merged, pairs, adapter.adapter_config or {})
    made.append(_prove_rest(base, merged, {f"{name}.weight" for name in pairs}, replaced, tied))
    return tuple(made)


def prove_logits(*, base: Logits | None, adapter: Logits | None, merged: Logits | None, dtype: str) -> tuple[Comparison, ...]:
    """Next-token logits, [rows, vocabulary], as witnessed at inference: the merged model's are the adapter's and not the base's.

    Measure: max |difference| / max |adapter logit|. Tolerance: harness/compare.py logits_tolerance. "Not the base's" asks for more
    than three times what adapter and merged differ by, and more than the dtype's unit roundoff.
    """
    known = [array for array in (base, adapter, merged) if array is not None]
    alike = len(known) == 3 and len({array.shape for array in known}) == 1 and all(array.size for array in known)
    shapes = ", ".join(str(None if array is None else array.shape) for array in (base, adapter, merged))
    made = [check("merge.logits_witnessed", alike, "proof.witness_missing", "logits of base, adapter, merged, of one shape", shapes)]
    if not alike or base is None or adapter is None or merged is None:
        return tuple(made)
    finite = all(bool(np.isfinite(array).all()) for array in known)
    made.append(check("merge.logits_finite", finite, "train.nan", "finite logits", "finite" if finite else "not finite"))
    if not finite:
        return tuple(made)
    apart, moved = _relative(adapter, merged), _relative(adapter, base)
    least = max(3 * apart, UNIT_ROUNDOFF.get(dtype, UNIT_ROUNDOFF["float32"]))
    # Which lie it is matters: a copied base model differs from the adapter and equals the base.
    copied = _relative(base, merged) <= least / 3 and moved > least / 3
    if copied or moved <= least:
        found = f"merged is {_relative(base, merged):.3g} from base, adapter {moved:.3g} from base"
        return (*made, check("merge.logits_moved", False, "merge.logits_equal_base", f"more than {least:.3g} from base", found))
    made.append(check_error("merge.logits", "merge.logits_differ", apart, logits_tolerance(dtype), "adapter and merged logits equal"))
    made.append(check("merge.logits_moved", True, "merge.logits_equal_base", f"more than {least:.3g} from base", f"{moved:.3g}"))
    return tuple(made)


def _relative(reference: Logits, found: Logits) -> float:
    scale = float(np.abs(reference.astype(np.float64)).max())
    difference = float(np.abs(reference.astype(np.float64) - found.astype(np.float64)).max())
    return difference / scale if scale else (math.inf if difference else 0.0)


def _prove_names(base: TensorFile, merged: TensorFile, tied: bool) -> Comparison:
    """The same tensors in both; the output layer may be left out or written out where it is the embedding."""
    optional = {_OUTPUT} if tied else set()
    lacking = sorted(base.tensors.keys() - merged.tensors.keys() - optional)
    extra = sorted(merged.tensors.keys() - base.tensors.keys() - optional)
    shapes = sorted(n for n in base.tensors.keys() & merged.tensors.keys() if base.tensors[n].shape != merged.tensors[n].shape)
    ok = not (lacking or extra or shapes)
    found = f"lacking {lacking[:4]}, extra {extra[:4]}, of another shape {shapes[:4]}" if not ok else f"{len(merged.tensors)} tensors"
    return check("merge.tensors", ok, "merge.tensors_missing", f"{len(base.tensors)} tensors as in the base model", found)


def _prove_modules(
    base: TensorFile, merged: TensorFile, pairs: Mapping[str, Mapping[str, Tensor]], config: Mapping[str, object]
) -> list[Comparison]:
    scaling, rank = _scaling(config)
    homeless = sorted(n for n, p in pairs.items() if set(p) != {"A", "B"} or f"{n}.weight" not in merged.tensors)
    odd = config.get("rank_pattern") or config.get("alpha_pattern") or config.get("use_dora") or config.get("fan_in_fan_out")
    readable = bool(pairs) and not homeless and scaling is not None and not odd
    found = f"{len(pairs)} modules, scaling {scaling}" + ("" if readable else f", without a place {homeless[:4]}, patterns {odd}")
    made = [check("merge.adapter", readable, "proof.adapter_modules", "an adapter of plain LoRA pairs on the model's modules", found)]
    if not readable or scaling is None:
        return made
    shaped = _misshapen(base, pairs)
    made.append(check("merge.adapter_shapes", not shaped, "proof.adapter_rank", "A [r, in] and B [out, r]", shaped or "so"))
    if shaped:
        return made
    results = [
        _module(name, base.tensors[f"{name}.weight"], merged.tensors[f"{name}.weight"], pair, scaling) for name, pair in pairs.items()
    ]
    worst = max(results, key=lambda r: r.error / merge_tolerance(r.dtype, rank).value)
    tolerance = merge_tolerance(worst.dtype, rank)
    moved = max(r.moved for r in results)
    copied = all(r.from_base <= merge_tolerance(r.dtype, rank).value for r in results)
    # Blind: a merge that left half of the adapter out would still be within the tolerance.
    blind = moved <= 2 * tolerance.value
    least = f"an adapter that moves weights by > {2 * tolerance.value:.3g}"
    made.append(check("merge.sensitive", not blind, "merge.blind", least, f"{moved:.3g}"))
    if blind:
        return made
    found = "equal" if copied else "other weights"
    made.append(check("merge.happened", not copied, "merge.not_merged", "other weights than the base model's", found))
    if not copied:
        what = f"{len(results)} modules equal W + {scaling:g} B A (worst: {worst.name})"
        made.append(check_error("merge.values", "merge.wrong_values", worst.error, tolerance, what))
    return made


def _scaling(config: Mapping[str, object]) -> tuple[float | None, int]:
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or not isinstance(alpha, (int, float)) or rank < 1:
        return None, 1
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank), rank


def _misshapen(base: TensorFile, pairs: Mapping[str, Mapping[str, Tensor]]) -> list[str]:
    return [
        name
        for name, pair in pairs.items()
        if (pair["B"].shape[:1] + pair["A"].shape[1:], pair["B"].shape[1:]) != (base.tensors[f"{name}.weight"].shape, pair["A"].shape[:1])
    ]


def _module(name: str, base: Tensor, merged: Tensor, pair: Mapping[str, Tensor], scaling: float) -> _Merged:
    weight, found = base.values(), merged.values()
    a, b = pair["A"].values(), pair["B"].values()
    change = scaling * (b @ a)
    scale = np.abs(weight) + abs(scaling) * (np.abs(b) @ np.abs(a))
    # Where the scale is zero both sides must be zero, too: any difference there is infinitely large.
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = [np.where(scale > 0, part / scale, np.where(part > 0, np.inf, 0.0)) for part in (
            np.abs(found - (weight + change)), np.abs(found - weight), np.abs(change))]  # fmt: skip
    error, from_base, moved = (float(part.max()) if bool(np.isfinite(part).all()) else math.inf for part in errors)
    return _Merged(name, merged.plain_dtype, error, from_base, moved)


def _replacements(weights: TensorFile, pairs: Mapping[str, object]) -> dict[str, Tensor]:
    """Whole tensors that the adapter carries (modules_to_save): the merged model has them as they are."""
    halves = {f"{name}.lora_{half}.weight" for name in pairs for half in "AB"}
    return {canonical(n): t for n, t in weights.tensors.items() if canonical(n) not in halves}


def _prove_rest(base: TensorFile, merged: TensorFile, adapted: set[str], replaced: Mapping[str, Tensor], tied: bool) -> Comparison:
    """Every tensor without LoRA is the base model's, bit for bit, after a cast if the dtype changed."""
    changed = []
    rest: Sequence[str] = sorted(merged.tensors.keys() - adapted)
    for name in rest:
        source = replaced.get(name) or base.tensors.get(name)
        if source is None and tied and name == _OUTPUT:
            source = next((tensor for other, tensor in base.tensors.items() if other.endswith(_EMBEDDING)), None)
        if source is None or not _same_after_cast(source, merged.tensors[name]):
            changed.append(name)
    unknown = sorted(replaced.keys() - merged.tensors.keys())
    ok = bool(rest) and not changed and not unknown
    found = f"changed {changed[:4]}, unknown {unknown[:4]}" if not ok else f"{len(rest)} equal"
    return check("merge.rest", ok, "merge.base_changed", f"{len(rest)} tensors without LoRA as in the base model", found)


def _same_after_cast(source: Tensor, found: Tensor) -> bool:
    try:
        return cast(source, found.dtype).same_bytes(found)
    except HarnessError:
        # No cast leads from one dtype to the other: they are not the same tensor.
        return False
