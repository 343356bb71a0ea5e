"""ms-swift's patch tables: applied to the classes of the installed transformers, to nothing else, and what they promise beside numbers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch

from harness.kernels.candidates_swift import FAMILIES, QWEN3_MOE, Family, on_module
from harness.kernels.candidates_swift_experts import STORED, WEIGHTS, experts_inputs, experts_module
from harness.kernels.checks import Check, holds, refuses
from harness.kernels.installed_swift import PATCH, PROBED, missing, patches
from harness.kernels.stand_in import bench, imported

_PROBE = "is_flash_linear_attention_available"
# What apply_patch sets beside the tables: FLA's fused norm asks for a CUDA device as it is made.
_BESIDE_TABLES = {"qwen3_5": {"FusedRMSNormGated"}, "qwen3_5_moe": {"FusedRMSNormGated"}}


def checks() -> tuple[Check, ...]:
    made = []
    for family in FAMILIES:
        for name, what, run in (
            (
                "patches_applied",
                "every entry of its table is in place, on a target that transformers has, and nothing else changed",
                _applied,
            ),
            (
                "norm_made_anew",
                "the patched norm starts with the weight, eps, text and state names of the class that it replaces",
                _norm_anew,
            ),
        ):
            said = f"{family.model}: {what}"
            made.append(Check(family.kernel_name(name), said, partial(run, family), family.missing))
    others = (
        ("tables", "every *_PATCHES table of npu_patch/model.py belongs to a family that is compared here", _tables),
        ("applied_once", "apply_patch does nothing the second time", _once),
        ("patch_map", "optional entries are taken where their path exists, and dotted paths set attributes of attributes", _patch_map),
        ("fused_norm", "FusedRMSNormGated is None in both Qwen3.5 modules (note 5 of the Qwen3.5 patches)", _fused_norm),
        ("fla_probe", "both probes for flash-linear-attention say yes where the original does, and else whether fla imports", _probes),
        (
            "fla_importable",
            "fla counts as importable only with its convolution and its chunked rule, whatever its import raises",
            _importable,
        ),
        ("experts_refused", "expert weights that fit the hidden size neither way are refused, and the shape is told", _refused_weights),
        (
            "experts_turned",
            "with square weights the patch computes with exactly the transposed one (the cause of the known failure)",
            _turned,
        ),
        (
            "experts_called",
            "blocks hand their experts rows, choices and weights in the order that transformers has for them",
            _experts_called,
        ),
        ("gmm_autocast", "the weight's gradient of NpuGmmFunction is float32 under autocast too", _gmm_under_autocast),
    )
    return (*made, *(Check(f"swift.{name}", what, run, missing) for name, what, run in others))


def _model() -> Any:
    return patches()[f"{PATCH}.model"]


def _tables_by_family() -> dict[str, dict[str, Any]]:
    """{family: {path: patch}} as npu_patch/model.py has them; "" for tables of no known family."""
    found: dict[str, dict[str, Any]] = {}
    by_length = sorted((family.model for family in FAMILIES), key=len, reverse=True)
    for name, table in vars(_model()).items():
        if name.endswith("_PATCHES") and isinstance(table, dict):
            family = next((model for model in by_length if name.lower().startswith(f"{model}_")), "")
            found.setdefault(family, {}).update(table)
    return found


def _at(root: Any, path: str) -> Any:
    for part in path.split("."):
        root = getattr(root, part)
    return root


def _applied(family: Family) -> None:
    module = patches().modules[f"transformers.models.{family.model}.modeling_{family.model}"]
    table = _tables_by_family().get(family.model, {})
    holds(bool(table), f"{family.model} has no table in npu_patch/model.py")
    with patches().patched():
        for path, patch in table.items():
            holds(_at(module, path) is patch, f"{family.model}: {path} is {_at(module, path)!r} and not {patch!r}")
    changes = [
        change for change in patches().changes if module.__name__ in (getattr(change.owner, "__module__", ""), change.owner.__name__)
    ]
    changed = {str(change).removeprefix(f"{module.__name__}."): change for change in changes}
    beside = _BESIDE_TABLES.get(family.model, set())
    holds(
        set(changed) == {*table, *beside},
        f"{family.model}: changed {sorted(changed)}, the table has {sorted(table)} (and {sorted(beside)})",
    )
    for path in table:
        holds(not changed[path].was_absent, f"{family.model}: {path} isn't in this transformers, so that nothing reads the patch")


def _norm_anew(family: Family) -> None:
    made = {}
    for who, around in (("before", nullcontext()), ("after", patches().patched())):
        with around:
            norm = family.get(f"{family.prefix}RMSNorm")
            made[who] = [norm(6), norm(4, 1e-3), norm(4, eps=0.5)]
    for before, after in zip(made["before"], made["after"], strict=True):
        holds(type(before) is not type(after), f"{family.prefix}RMSNorm isn't patched")
        states = [module.state_dict() for module in (before, after)]
        same = states[0].keys() == states[1].keys() and all(torch.equal(states[0][name], states[1][name]) for name in states[0])
        holds(same, f"state {states[1]} and not {states[0]}")
        holds(all(parameter.requires_grad for parameter in after.parameters()), "the weight can't be trained")
        holds(before.extra_repr() == after.extra_repr(), f"shown as {after.extra_repr()!r} and not {before.extra_repr()!r}")


def _tables() -> None:
    strange = _tables_by_family().get("", {})
    holds(not strange, f"tables of families that nothing here compares: {sorted(strange)}")


def _once() -> None:
    module = patches().modules["transformers.models.qwen2.modeling_qwen2"]
    mark = object()
    with mock.patch.object(module, "Qwen2RMSNorm", mark):
        _model().apply_patch()
        holds(module.__dict__["Qwen2RMSNorm"] is mark, "a second apply_patch patched again")


def _patch_map() -> None:
    root = SimpleNamespace(Attention=SimpleNamespace(forward="native", bias=SimpleNamespace(scale=1)))
    optional = {"Attention.forward": "patch", "Attention.backward": "patch", "Missing.forward": "patch", "Attention.bias.scale": 2}
    built = _model()._build_patch_map(root, {"attend": "patch"}, optional)
    holds(built == {"attend": "patch", "Attention.forward": "patch", "Attention.bias.scale": 2}, f"the map is {built}")
    holds(_model()._build_patch_map(root, {"attend": 1}) == {"attend": 1}, "no optional entries give other ones")
    utils = patches()[f"{PATCH}.utils"]
    utils.apply_patch_map(root, built)
    found = (root.attend, root.Attention.forward, root.Attention.bias.scale)
    holds(found == ("patch", "patch", 2), f"applied as {found}")
    holds(utils.import_optional_module("json").__name__ == "json", "a module that is there isn't found")
    holds(utils.import_optional_module("no_such_module_at_all") is None, "a module that isn't there is no None")


def _fused_norm() -> None:
    for family in _BESIDE_TABLES:
        module = patches().modules.get(f"transformers.models.{family}.modeling_{family}")
        if module is not None:
            with patches().patched():
                holds(module.__dict__.get("FusedRMSNormGated", "absent") is None, f"{family}: FusedRMSNormGated isn't None")


def _probes() -> None:
    for name in PROBED:
        with patches().patched():
            holds(
                getattr(getattr(patches().modules[name], _PROBE), "_ms_swift_npu_patched", False) is True, f"{name}.{_PROBE} isn't patched"
            )
    yes, no = (lambda: True), (lambda: False)
    for first, second, importable in (
        (yes, no, False),
        (no, yes, False),
        (no, no, True),
        (no, no, False),
        (_dies, None, True),
        (None, _dies, False),
    ):
        expected = [original is yes or importable for original in (first, second)]
        found = [bool(probe()) for probe in _probes_over(first, second, importable)]
        holds(found == expected, f"probes over {first}, {second} with fla importable {importable} say {found} and not {expected}")


def _probes_over(first: Any, second: Any, importable: bool) -> list[Any]:
    """The two probes that the patch puts over these; the answer about fla's import stays as given while they are asked."""
    modules = [patches().modules[name] for name in PROBED]
    with mock.patch.object(modules[0], _PROBE, first), mock.patch.object(modules[1], _PROBE, second):
        _model()._patch_transformers_flash_linear_attention_available_for_npu()
        made = [getattr(module, _PROBE) for module in modules]
        _model()._patch_transformers_flash_linear_attention_available_for_npu()
        holds(made == [getattr(module, _PROBE) for module in modules], "a patched probe is patched again")

    def asked(probe: Any) -> Any:
        with mock.patch.object(_model(), "_is_flash_linear_attention_importable_on_npu", lambda: importable):
            return probe()

    return [partial(asked, probe) for probe in made]


def _dies() -> bool:
    raise RuntimeError("no CUDA here")


def _importable() -> None:
    parts = {"fla.modules.convolution": "causal_conv1d", "fla.ops.gated_delta_rule": "chunk_gated_delta_rule"}
    for lacking in (None, *parts):
        for breaks in (False, True):
            with imported(_fake_fla(parts, lacking, breaks)):
                found = _model()._is_flash_linear_attention_importable_on_npu()
            holds(found is (lacking is None), f"without {lacking} (import breaks: {breaks}) it says {found}")


def _fake_fla(parts: Mapping[str, str], lacking: str | None, breaks: bool) -> dict[str, ModuleType]:
    modules: dict[str, ModuleType] = {}
    for name in ("fla", "fla.modules", "fla.ops", *parts):
        modules[name] = ModuleType(name)
        modules[name].__path__ = []
    for name, attribute in parts.items():
        if name != lacking:
            setattr(modules[name], attribute, print)
        elif breaks:
            modules[name].__getattr__ = lambda attribute: _dies()  # type: ignore[method-assign]
    return modules


def _refused_weights() -> None:
    for gate_up, down in (((2, 5, 9), (2, 8, 4)), ((2, 8, 9), (2, 5, 9))):
        experts = SimpleNamespace(gate_up_proj=torch.zeros(gate_up), down_proj=torch.zeros(down))
        shape = gate_up if 8 not in gate_up else down
        refuses(RuntimeError, str(shape), partial(_model()._normalize_packed_expert_weights, experts, torch.float32, 8))


def _turned() -> None:
    for inner, name in ((8, "gate_up_proj"), (16, "down_proj")):
        params = {"tokens": 7, "hidden": 16, "inner": inner, "experts": 4, "chosen": 2, "lead": 1, "full": False, "index": "int64"}
        drawn = experts_inputs({**params, "stored": STORED, "seed_of_choice": "any"}, torch.Generator().manual_seed(1))
        given = {key: value.float() if value.is_floating_point() else value for key, value in drawn.items()}
        weights = {key: given[key] for key in WEIGHTS}
        arguments = (given["x"], given["index"], given["routing"])
        with bench().counted():
            here = bench().placed(given)
            with patches().patched():
                moved = {key: here[key] for key in WEIGHTS}
                found = on_module(experts_module(QWEN3_MOE, params), moved, here["x"], here["index"], here["routing"]).cpu()
        turned = on_module(experts_module(QWEN3_MOE, params), {**weights, name: weights[name].transpose(1, 2)}, *arguments)
        holds(
            torch.allclose(found, turned, rtol=1e-3, atol=1e-5), f"with inner size {inner} it isn't {name} transposed that it computes with"
        )


def _experts_called() -> None:
    """Which experts are behind a block is open: those that are patched take any order, others don't."""
    x, index, weights = torch.randn(2, 3, 4), torch.tensor([[0, 1]] * 6), torch.rand(6, 2)
    scores = torch.tensor([[0.0, 2.0, 1.0]] * 6)
    shares, first = scores.softmax(-1)[:, 1:], torch.tensor([[1, 2]] * 6)
    blocks = ("qwen3_moe", "qwen3_vl_moe", "qwen3_5_moe")
    for block in blocks:
        for routed in (True, False):
            if not routed and block == "qwen3_moe":
                continue
            given: list[Any] = []
            gate = (scores, weights, index) if routed else scores
            owner = SimpleNamespace(
                top_k=2,
                norm_topk_prob=False,
                gate=lambda rows, gate=gate: gate,
                experts=lambda *told, given=given: given.extend(told) or told[0],
            )
            getattr(_model(), f"npu_{block}_sparse_block_forward")(owner, x)
            rows = x if block == "qwen3_vl_moe" and not routed else x.view(6, 4)
            right = [rows, index, weights] if routed else [rows, shares, first] if block == "qwen3_vl_moe" else [rows, first, shares]
            same = [a.shape == b.shape and torch.allclose(a.float(), b.float()) for a, b in zip(given, right, strict=True)]
            holds(all(same), f"npu_{block}_sparse_block_forward (a router: {routed}) hands its experts {[tuple(a.shape) for a in given]}")


def _gmm_under_autocast() -> None:
    function = _model().NpuGmmFunction
    generator = torch.Generator().manual_seed(0)
    sizes = [3, 0, 4]
    x, dy = (torch.randn(7, width, generator=generator) for width in (5, 6))
    weight = torch.randn(3, 5, 6, generator=generator)
    with bench().counted():
        here = bench().placed({"x": x, "weight": weight, "dy": dy})
        ends = torch.tensor(sizes, device=bench().device).cumsum(0)
        saved = SimpleNamespace(saved_tensors=(here["x"], here["weight"]), group_list=ends, split_size=sizes)
        with torch.autocast(torch.device(bench().device).type, dtype=torch.bfloat16):
            _, found, *rest = function.backward(saved, here["dy"])
    right = torch.stack([a.T @ b for a, b in zip(torch.split(x, sizes), torch.split(dy, sizes), strict=True)])
    holds(found.dtype == torch.float32, f"it is {found.dtype}")
    holds(torch.allclose(found.cpu(), right, rtol=1e-4, atol=1e-5), "it was computed in 16 bits")
    holds(rest == [None, None], f"beside x and weight there are gradients {rest}")
