"""Which gated delta rule the installed ms-swift selects: the five notes of its Ascend guide on Qwen3.5, each as it holds today.

The guide was written for transformers 5.2 and an older ms-swift. Where a note is out of date the check says so and holds what is selected.
MindSpeed and fla are stood for by modules that do nothing but be chosen, so that no choice needs them installed.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch

from harness.kernels.candidates_swift import QWEN3_5, QWEN3_5_MOE, Family
from harness.kernels.checks import Check, holds, refuses
from harness.kernels.installed_swift import PATCH, missing, package, patches
from harness.kernels.stand_in import bench, imported

_TARGET = "fla.ops.gated_delta_rule.chunk_gated_delta_rule"
_MINDSPEED = "mindspeed.core.ssm.chunk_gated_delta_rule"
_BRIDGE = "mcore_bridge.model.modules.gated_delta_net"
_RULE = "chunk_gated_delta_rule"
# By the names that torch_npu gives: arch35 chips run MindSpeed's kernels, the others fla's.
_ARCH35 = ("Ascend910_9589", "Ascend950PR", "Ascend950DT")
_OTHERS = ("Ascend910B3", "Ascend910_9382", "Ascend310P3")


def checks() -> tuple[Check, ...]:
    notes = (
        (
            "1",
            "both probes say that flash-linear-attention is there; out of date: Qwen3.5 asks neither, it takes what fla exports",
            _note_1,
        ),
        (
            "2",
            "out of date: swift.model.chunk_gated_delta_rule is gone, and Qwen3.5 keeps transformers' choice: fla's rule, else torch's",
            _note_2,
        ),
        (
            "3",
            "out of date: no MindSpeed kernel is called from the models; Megatron takes MindSpeed's rule on arch35 and fla's elsewhere",
            _note_3,
        ),
        ("4", "out of date: ms-swift keeps no l2norm of its own; Qwen3.5 asks the selected rule to normalise q and k", _note_4),
        ("5", "the gated norm of Qwen3.5 is transformers' own class in torch, and FLA's fused one is never made", _note_5),
    )
    choices = (
        ("torch", "without fla, MindSpeed's place holds transformers' torch rule, which refuses packed sequences", _torch_fallback),
        ("cuda_graph", "the flag that MindSpeed asks of fla is added where fla has dropped it, and on arch35 only", _cuda_graph),
        ("order", "an fla rule that MindSpeed replaced is taken back, a rule that is no fla's is never taken for it", _order),
        ("installed", "the chosen rule is put in fla, in MindSpeed's register and in the bridge, and a failed placing is said", _installed),
        ("varlen", "on arch35 packed sequences are run one by one, with their own states, and joined", _safe_varlen),
    )
    return (
        *(Check(f"swift.gdn.note_{number}", f"Note {number}: {what}", run, QWEN3_5.missing) for number, what, run in notes),
        *(Check(f"swift.gdn.{name}", what, run, missing) for name, what, run in choices),
    )


def _mindspeed() -> Any:
    return patches()[f"{PATCH}.mindspeed"]


# The notes


def _families() -> Iterator[tuple[Family, ModuleType]]:
    for family in (QWEN3_5, QWEN3_5_MOE):
        if not family.missing():
            yield family, patches().modules[f"transformers.models.{family.model}.modeling_{family.model}"]


def _note_1() -> None:
    with patches().patched(), mock.patch.object(patches()[f"{PATCH}.model"], "_is_flash_linear_attention_importable_on_npu", lambda: True):
        for name in ("transformers.utils", "transformers.utils.import_utils"):
            holds(patches().modules[name].is_flash_linear_attention_available() is True, f"{name} says no, and fla imports")
    for family, module in _families():
        asks = "is_flash_linear_attention_available" in inspect.getsource(module)
        holds(not asks, f"{family.model} asks the probe again: note 1 is up to date, and this check isn't")


def selected(module: ModuleType) -> Any:
    """The rule that a modeling module of transformers runs: of fla where its decorator found it, else the decorated one."""
    rule = module.__dict__["torch_chunk_gated_delta_rule"]
    return inspect.getclosurevars(rule).nonlocals.get("implementation", inspect.unwrap(rule))


def _note_2() -> None:
    folder = package("swift")
    holds(folder is not None and not list((folder / "model").glob("chunk_gated_delta_rule*")), "swift.model.chunk_gated_delta_rule is back")
    for family, module in _families():
        own = inspect.unwrap(module.__dict__["torch_chunk_gated_delta_rule"])
        before = selected(module)
        with patches().patched():
            after = selected(module)
            holds(_RULE not in vars(module), f"{family.model} has a {_RULE} of its own again: say here what it is")
        holds(after is before, f"ms-swift changed the rule of {family.model} to {after!r}")
        right = _rule_of_fla() or own
        holds(inspect.unwrap(before) is inspect.unwrap(right), f"{family.model} runs {before.__module__}.{before.__name__}")


def _rule_of_fla() -> Any:
    """What fla exports, None where it isn't there or its import fails, for whatever reason: so transformers asks too."""
    try:
        return getattr(importlib.import_module("fla.ops.gated_delta_rule"), _RULE, None)
    except Exception:
        return None


def _note_3() -> None:
    folder = package("swift")
    assert folder is not None
    naming = [path.name for path in (folder / "model").rglob("*.py") if "mindspeed.ops.triton" in path.read_text(encoding="utf-8")]
    holds(not naming, f"{naming} of ms-swift name mindspeed.ops.triton again: say here what they call")
    for name in (*_ARCH35, *_OTHERS):
        with _fake_libraries(name) as fakes:
            _mindspeed().patch_mindspeed_fla_gdn_implementation()
            chosen = fakes.fla.chunk_gated_delta_rule
            right = _mindspeed()._mindspeed_gdn_with_safe_varlen if name in _ARCH35 else fakes.rule_of_fla
            holds(chosen is right, f"on {name} it is {chosen.__module__}.{chosen.__name__}")
            if name in _ARCH35:
                holds(_mindspeed()._ORIGINAL_MINDSPEED_GDN is fakes.rule_of_mindspeed, f"on {name} MindSpeed's own isn't behind it")


def _note_4() -> None:
    for family, module in _families():
        changed = [str(change) for change in patches().changes if change.attribute == "l2norm"]
        holds(not changed, f"ms-swift changes {changed}")
        config = SimpleNamespace(
            hidden_size=16, linear_num_value_heads=2, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
            linear_conv_kernel_dim=2, hidden_act="silu", rms_norm_eps=1e-6, layer_types=["linear_attention"], dtype=torch.float32,
        )  # fmt: skip
        asked: list[bool] = []

        def rule(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, asked: list[bool] = asked, **named: Any) -> Any:
            asked.append(named["use_qk_l2norm_in_kernel"])
            return value, None

        convolution = inspect.unwrap(module.__dict__["causal_conv1d_fn"])
        replaced = mock.patch.multiple(module, torch_chunk_gated_delta_rule=rule, causal_conv1d_fn=convolution)
        with patches().patched(), replaced, torch.no_grad():
            getattr(module, f"{family.prefix}GatedDeltaNet")(config, 0)(torch.zeros(1, 3, 16))
        holds(asked == [True], f"{family.model} asks for l2norm in the rule: {asked}")


def _note_5() -> None:
    for family, module in _families():
        native = module.__dict__[f"{family.prefix}RMSNormGated"]
        with patches().patched():
            holds(module.__dict__[f"{family.prefix}RMSNormGated"] is native, f"{family.prefix}RMSNormGated is replaced")
            holds(module.__dict__["FusedRMSNormGated"] is None, "FusedRMSNormGated isn't None")
            source = inspect.getsource(getattr(module, f"{family.prefix}GatedDeltaNet"))
            holds(f"{family.prefix}RMSNormGated(" in source, f"{family.prefix}GatedDeltaNet makes another norm")
        holds(native.__module__ == module.__name__, f"{family.prefix}RMSNormGated is {native.__module__}'s")


# The choice for Megatron


@contextmanager
def _fake_libraries(device_name: str, *, registered: bool = True, bridge: bool = True) -> Iterator[Any]:
    """fla and MindSpeed as modules that hold one rule each, and an NPU of this name; what ms-swift remembers of MindSpeed is put back.

    `registered`: MindSpeed's register knows the target, and applying it puts what was registered last into fla, as MindSpeed does.
    """
    rule_of_fla = _rule_of("fla.ops.gated_delta_rule.chunk")
    rule_of_mindspeed = _rule_of(_MINDSPEED)
    names = ["fla", "fla.utils", "fla.ops", "fla.ops.gated_delta_rule", "fla.ops.gated_delta_rule.chunk"]
    names += ["mindspeed", "mindspeed.core", "mindspeed.core.ssm", _MINDSPEED, "mindspeed.patch_utils", _BRIDGE]
    modules: dict[str, Any] = {name: ModuleType(name) for name in names}
    for module in modules.values():
        module.__path__ = []
    for name in ("fla.ops.gated_delta_rule", "fla.ops.gated_delta_rule.chunk", _BRIDGE):
        setattr(modules[name], _RULE, rule_of_fla)
    setattr(modules[_MINDSPEED], _RULE, rule_of_mindspeed)
    fla = modules["fla.ops.gated_delta_rule"]
    manager = _FakeManager(fla, SimpleNamespace(orig_func=rule_of_fla) if registered else None)
    modules["mindspeed.patch_utils"].MindSpeedPatchesManager = manager
    if not bridge:
        del modules[_BRIDGE]
    fakes = SimpleNamespace(
        modules=modules, fla=fla, bridge=modules.get(_BRIDGE), manager=manager, rule_of_fla=rule_of_fla, rule_of_mindspeed=rule_of_mindspeed
    )
    npu = bench().torch_npu.npu
    named = mock.patch.object(npu, "get_device_name", lambda device=None: device_name)
    with bench().importable(), named, imported(modules), mock.patch.object(_mindspeed(), "_ORIGINAL_MINDSPEED_GDN", None):
        yield fakes


def _rule_of(module: str) -> Any:
    def chunk_gated_delta_rule() -> None:
        return None

    chunk_gated_delta_rule.__module__ = module
    return chunk_gated_delta_rule


class _FakeManager:
    """MindSpeed's register of patches, for one target."""

    def __init__(self, fla: ModuleType, patch: Any) -> None:
        self.fla = fla
        self.patches_info: Mapping[str, Any] = {_TARGET: patch} if patch is not None else {}
        self.waiting: list[tuple[str, Any, bool]] = []

    def register_patch(self, target: str, implementation: Any, force_patch: bool = False) -> None:
        self.waiting.append((target, implementation, force_patch))

    def apply_patches(self) -> None:
        for target, implementation, force in self.waiting:
            if target == _TARGET and force:
                setattr(self.fla, _RULE, implementation)


def _torch_fallback() -> None:
    place: Any = ModuleType(_MINDSPEED)
    with imported({_MINDSPEED: place}):
        with imported({"fla": None, "fla.utils": None}):
            _mindspeed().prepare_mindspeed_gdn_import()
        module: Any = sys.modules[_MINDSPEED]
        holds(module is not place and module._ms_swift_torch_fallback is True, "MindSpeed's place holds no torch rule")
        rule = module.chunk_gated_delta_rule
        with _fake_libraries("Ascend910_9589") as fakes, imported({_MINDSPEED: module}):
            _mindspeed().patch_mindspeed_fla_gdn_implementation()
            holds(fakes.fla.chunk_gated_delta_rule is rule, "without fla the torch rule isn't chosen")
        refuses(ValueError, "cu_seqlens", partial(rule, 1, 2, 3, 4, 5, cu_seqlens=torch.tensor([0, 1])))
        given: dict[str, Any] = {}
        theirs = "transformers.models.qwen3_5_moe.modeling_qwen3_5_moe"
        with mock.patch(f"{theirs}.torch_chunk_gated_delta_rule", lambda *q_k_v, **named: given.update(named, q_k_v=q_k_v) or "o"):
            found = rule(1, 2, 3, 4, 5, initial_state=6, output_final_state=True, use_qk_l2norm_in_kernel=True, chunk_size=7)
        said = {"initial_state": 6, "output_final_state": True, "use_qk_l2norm_in_kernel": True, "chunk_size": 7}
        holds(found == "o" and given == {"q_k_v": (1, 2, 3), "g": 4, "beta": 5, **said}, f"transformers' rule is given {given}")


def _cuda_graph() -> None:
    for name in (*_ARCH35, *_OTHERS):
        for before in (None, True):
            with _fake_libraries(name) as fakes:
                utils = fakes.modules["fla.utils"]
                fakes.modules["fla"].utils = utils
                if before is not None:
                    utils.USE_CUDA_GRAPH = before
                _mindspeed().prepare_mindspeed_gdn_import()
                after = getattr(utils, "USE_CUDA_GRAPH", None)
                holds(after is (before if before is not None or name in _OTHERS else False), f"on {name} {before} became {after}")
                holds(sys.modules[_MINDSPEED] is fakes.modules[_MINDSPEED], f"on {name} MindSpeed's module is replaced, with fla there")


def _order() -> None:
    with _fake_libraries("Ascend910B3") as fakes:
        fakes.manager.patches_info[_TARGET].orig_func = original = _rule_of("fla.ops.gated_delta_rule.chunk")
        _mindspeed().patch_mindspeed_fla_gdn_implementation()
        holds(fakes.fla.chunk_gated_delta_rule is original, "the fla rule that MindSpeed replaced isn't taken back")
    for orig_func in (None, _rule_of("mindspeed.somewhere")):
        with _fake_libraries("Ascend910B3") as fakes:
            fakes.manager.patches_info[_TARGET].orig_func = orig_func
            _mindspeed().patch_mindspeed_fla_gdn_implementation()
            holds(fakes.fla.chunk_gated_delta_rule is fakes.rule_of_fla, f"with {orig_func} replaced, fla's chunk module isn't asked")
    with _fake_libraries("Ascend910B3") as fakes:
        fakes.manager.patches_info[_TARGET].orig_func = None
        mark = fakes.fla.chunk_gated_delta_rule = _rule_of("mindspeed.left_alone")
        fakes.modules["fla.ops.gated_delta_rule.chunk"].chunk_gated_delta_rule = _rule_of("mindspeed.propagated")
        _mindspeed().patch_mindspeed_fla_gdn_implementation()
        holds(fakes.fla.chunk_gated_delta_rule is mark, "a rule that isn't fla's is taken for fla's")


def _installed() -> None:
    for registered in (True, False):
        for bridge in (True, False):
            with _fake_libraries("Ascend910B3", registered=registered, bridge=bridge) as fakes:
                chosen = _rule_of("fla.chosen")
                _mindspeed()._apply_gdn_patch(fakes.manager, fakes.manager.patches_info.get(_TARGET), chosen)
                holds(fakes.fla.chunk_gated_delta_rule is chosen, f"fla hasn't the chosen rule (registered {registered})")
                wanted = [(_TARGET, chosen, True)] if registered else []
                holds(fakes.manager.waiting == wanted, f"MindSpeed's register has {fakes.manager.waiting}")
                holds(not bridge or fakes.bridge.chunk_gated_delta_rule is chosen, "the bridge keeps the rule that it had")
    with _fake_libraries("Ascend910B3") as fakes, mock.patch.object(fakes.manager, "apply_patches", lambda: None):
        place = partial(_mindspeed()._apply_gdn_patch, fakes.manager, fakes.manager.patches_info[_TARGET], _rule_of("fla.chosen"))
        refuses(RuntimeError, "did not install", place)
        # Outside, a choice that can't be placed is told in the log and breaks nothing.
        _mindspeed().patch_mindspeed_fla_gdn_implementation()


def _safe_varlen() -> None:
    generator = torch.Generator().manual_seed(0)
    for head_first in (False, True):
        shape = (1, 2, 9) if head_first else (1, 9, 2)
        q, k, v = (torch.randn(*shape, 4, generator=generator) for _ in range(3))
        g, beta = (torch.randn(*shape, generator=generator) for _ in range(2))
        states = torch.randn(3, 2, 4, generator=generator)
        for ends in ([0, 2, 3, 9], None):
            for initial in (states, None):
                for final in (True, False):
                    _one_varlen((q, k, v, g, beta), ends, initial if ends else None if initial is None else states[:1], final, head_first)


def _one_varlen(inputs: tuple[torch.Tensor, ...], ends: list[int] | None, initial: Any, final: bool, head_first: bool) -> None:
    """Over a rule that adds up along the sequence from its first state, so that a wrong cut, order or state is another number."""
    asked: list[dict[str, Any]] = []

    def rule(*given: torch.Tensor, initial_state: Any = None, **named: Any) -> tuple[torch.Tensor, Any]:
        asked.append(named)
        q, k, v, g, beta = given
        steps = q * 2 + k * 3 + v + (g * 5 + beta * 7).unsqueeze(-1)
        along = 2 if head_first else 1
        first = 0.0 if initial_state is None else initial_state.unsqueeze(along)
        sums = steps.cumsum(along) + first
        return sums, sums.select(along, sums.shape[along] - 1) if named["output_final_state"] else None

    said = {"scale": 0.5, "output_final_state": final, "use_qk_l2norm_in_kernel": True, "chunk_size": 32, "head_first": head_first}
    with mock.patch.object(_mindspeed(), "_ORIGINAL_MINDSPEED_GDN", rule):
        packed = None if ends is None else torch.tensor(ends)
        output, state = _mindspeed()._mindspeed_gdn_with_safe_varlen(*inputs, initial_state=initial, cu_seqlens=packed, **said)
    holds(bool(asked) and all(named == said for named in asked), f"MindSpeed's rule is given {asked[:1]} and not {said}")
    whole = ends or [0, 9]
    holds(len(asked) == len(whole) - 1, f"it is called {len(asked)} times for the ends {ends}")
    outputs, last = [], []
    for number, (start, end) in enumerate(itertools.pairwise(whole)):
        piece = [tensor.narrow(2 if head_first else 1, start, end - start) for tensor in inputs]
        one = rule(*piece, initial_state=None if initial is None else initial[number : number + 1], **said)
        outputs.append(one[0])
        last.append(one[1])
    holds(torch.equal(output, torch.cat(outputs, 2 if head_first else 1)), f"with ends {ends} the outputs aren't those of each sequence")
    holds(torch.equal(state, torch.cat(last)) if final else state is None, f"with ends {ends} the states aren't those of each sequence")
