"""One trial: the same values to candidate and golden, every output and gradient compared, and proof that each ran what it should."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch

from harness.kernels.criteria import (
    DUAL,
    SINGLE_MAX_FACTOR,
    SINGLE_THRESHOLD,
    Errors,
    errors_of,
    limit_for,
    not_finite_fault,
    ratio,
)
from harness.kernels.kernel import DTYPES, Case, Direction, Figure, Function, Kernel, Params, Trial

# An error this far below what the dtype can represent is no ground to call the candidate worse than the plain computation.
# In float32 that is a few units: sums of a dozen products differ by as much when only their order does.
_DUAL_FLOOR = {"fp32": 2.0**-20, "fp16": 2.0**-10, "bf16": 2.0**-7}
_Answer = dict[tuple[str, Direction], torch.Tensor]


def run_trial(kernel: Kernel, case: Case) -> Trial:
    """Raises what the candidate raises: a kernel that refuses a legal case is wrong, and the search shrinks it like any other fault."""
    exact = kernel.inputs(case.params, torch.Generator().manual_seed(case.seed))
    rounded = {name: _rounded(value, case.dtype, name in kernel.keep) for name, value in exact.items()}
    wide = {name: value.double() if value.is_floating_point() else value for name, value in rounded.items()}
    with kernel.counted() as by_golden:
        golden = _answers(kernel, kernel.golden, wide, case.params, case.seed)
    launched = Counter(by_golden)
    with kernel.counted() as by_candidate:
        found = _answers(kernel, kernel.candidate, rounded, case.params, case.seed)
    ran = Counter(by_candidate)
    plain = _answers(kernel, kernel.plain, rounded, case.params, case.seed) if kernel.plain is not None else {}
    figures = tuple(_figure(kernel, case, key, found.get(key), right, plain.get(key)) for key, right in golden.items())
    faults = [f"{figure.direction} {figure.tensor}: {fault}" for figure in figures for fault in figure.faults]
    faults += [f"{direction} {name}: the candidate gives it, and the golden doesn't" for name, direction in found.keys() - golden.keys()]
    faults += [f"{name} never ran in the candidate" for name in kernel.must_run if not ran[name]]
    if not sum(ran.values()):
        faults.append("nothing of the candidate was counted: it may have compared plain torch with itself")
    if sum(launched.values()):
        faults.append(f"the golden ran {', '.join(sorted(launched))}: it is no independent reference")
    return Trial(case, figures, dict(ran), tuple(faults))


def candidate_answers(kernel: Kernel, case: Case) -> Mapping[tuple[str, Direction], torch.Tensor]:
    """What the candidate alone gives: outputs, and gradients of a weighted sum of them. Raises what it raises."""
    exact = kernel.inputs(case.params, torch.Generator().manual_seed(case.seed))
    rounded = {name: _rounded(value, case.dtype, name in kernel.keep) for name, value in exact.items()}
    with kernel.counted():
        return _answers(kernel, kernel.candidate, rounded, case.params, case.seed)


def _rounded(value: torch.Tensor, dtype: str, kept: bool) -> torch.Tensor:
    if not value.is_floating_point():
        return value
    return value.to(torch.float32 if kept else DTYPES[dtype])


def _answers(kernel: Kernel, function: Function, inputs: Mapping[str, torch.Tensor], params: Params, seed: int) -> _Answer:
    """Outputs, and the gradients of sum(output * weight) with weights that follow from the seed and the output's name and shape."""
    wanted = set(kernel.differentiable)
    # A copy that keeps the strides: a view that isn't contiguous is a case of its own.
    leaves = {name: _leaf(value, name in wanted) for name, value in inputs.items()}
    outputs = function(dict(leaves), params)
    answer: _Answer = {(name, Direction.FORWARD): value.detach().cpu() for name, value in outputs.items()}
    sources = [name for name, value in leaves.items() if value.requires_grad]
    through = {name: value for name, value in outputs.items() if value.requires_grad}
    if not sources or not through:
        return answer
    weights = [_weight(name, value, seed) for name, value in sorted(through.items())]
    gradients = torch.autograd.grad(
        [value for _, value in sorted(through.items())], [leaves[name] for name in sources], weights, allow_unused=True
    )
    for name, gradient in zip(sources, gradients, strict=True):
        answer[name, Direction.BACKWARD] = torch.zeros_like(leaves[name]) if gradient is None else gradient.detach().cpu()
    return answer


def _leaf(value: torch.Tensor, differentiable: bool) -> torch.Tensor:
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value)
    return copy.requires_grad_(differentiable)


def _weight(name: str, output: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed * 1_000_003 + sum(map(ord, name)))
    drawn = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    # bf16's few digits, so that the weight is the same number in every dtype.
    return drawn.to(torch.bfloat16).to(dtype=output.dtype, device=output.device)


def _figure(
    kernel: Kernel,
    case: Case,
    key: tuple[str, Direction],
    found: torch.Tensor | None,
    golden: torch.Tensor,
    plain: torch.Tensor | None,
) -> Figure:
    name, direction = key
    limit = kernel.output_limits.get((case.dtype, name), limit_for(case.dtype, direction, kernel.limits)).rms_ratio
    if found is None:
        return Figure(name, direction, float("inf"), limit, faults=("the candidate doesn't give it",))
    if found.shape != golden.shape:
        wrong = f"shape {tuple(found.shape)}, the golden's is {tuple(golden.shape)}"
        return Figure(name, direction, float("inf"), limit, faults=(wrong,))
    if not golden.is_floating_point():
        different = int((found.long() != golden.long()).sum())
        told = (f"{different} of {golden.numel()} whole numbers differ",) if different else ()
        return Figure(name, direction, float("inf") if different else 0.0, limit, faults=told)
    errors = errors_of(found, golden)
    if plain is not None:
        # Where plain torch in the same dtype does no better, the case is ill-conditioned (a gradient that cancels): no fault of the kernel.
        declared, limit = limit, max(limit, DUAL.rms * errors_of(plain, golden).rms_ratio)
    faults = _faults(kernel, case, direction, found, golden, errors, limit)
    if plain is None:
        return Figure(name, direction, errors.rms_ratio, limit, errors.single_mean, errors.single_max, faults=tuple(faults))
    other = errors_of(plain, golden)
    dual = (
        ratio(errors.absolute_max, other.absolute_max),
        ratio(errors.absolute_mean, other.absolute_mean),
        ratio(errors.absolute_rms, other.absolute_rms),
    )
    if (
        kernel.dual
        and errors.rms_ratio > _DUAL_FLOOR[case.dtype]
        and any(got > most for got, most in zip(dual, (DUAL.largest, DUAL.mean, DUAL.rms), strict=True))
    ):
        shown = ", ".join(f"{got:.3g} (at most {most:g})" for got, most in zip(dual, (DUAL.largest, DUAL.mean, DUAL.rms), strict=True))
        faults.append(f"dual benchmark {DUAL.name}: error over the plain computation's, largest, mean, RMS: {shown}")
    return Figure(
        name, direction, errors.rms_ratio, limit, errors.single_mean, errors.single_max, *dual, faults=tuple(faults), ill=limit > declared
    )


def _faults(
    kernel: Kernel, case: Case, direction: Direction, found: torch.Tensor, golden: torch.Tensor, errors: Errors, limit: float
) -> list[str]:
    faults = []
    if wrong := not_finite_fault(found, golden, torch.finfo(found.dtype).max):
        faults.append(wrong)
    if errors.rms_ratio > limit:
        faults.append(f"RMS ratio {errors.rms_ratio:.3g} to the golden, limit {limit:g}")
    threshold = SINGLE_THRESHOLD[case.dtype]
    if (
        kernel.single
        and direction is Direction.FORWARD
        and (errors.single_mean >= threshold or errors.single_max >= SINGLE_MAX_FACTOR * threshold)
    ):
        told = f"mean {errors.single_mean:.3g} (below {threshold:.3g}), largest {errors.single_max:.3g}"
        faults.append(f"single benchmark: relative error {told} (below {SINGLE_MAX_FACTOR * threshold:.3g})")
    return faults
