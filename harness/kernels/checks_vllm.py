"""ms-swift's patches around vLLM-Ascend beside its experts: packed LoRA, memory, reloading; vLLM and its plugin are stood for by fakes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch

from harness.kernels.checks import Check, holds, refuses
from harness.kernels.installed_swift import PATCH, missing, patches
from harness.kernels.stand_in import bench, imported


def checks() -> tuple[Check, ...]:
    return made(
        ("packed_lora", "Qwen3.5's LoRA of qkv and z becomes one of q, k, v and z, and odd shapes are refused", _packed_lora),
        ("lora_modules", "routed experts are left out of LoRA where the plugin has no wrapper for them", _lora_modules),
        ("lora_refused", "training LoRA on routed experts is refused where rollout would drop it, and only there", _lora_refused),
        ("memory", "memory is asked of the device that is given, and of vLLM's while it is bound", _memory),
        ("reload_runner", "only a vllm-ascend runner that reloads checkpoints itself is taken", _reload_runner),
        ("flash_attn", "a placeholder of flash_attn is taken out of the way, a real package isn't", _flash_attn),
    )


def made(*statements: tuple[str, str, Callable[[], None]]) -> tuple[Check, ...]:
    ours = partial(missing, file="model/npu_patch/vllm_ascend.py")
    return tuple(Check(f"swift.vllm_ascend.{name}", what, run, ours) for name, what, run in statements)


def _module(name: str) -> Any:
    return patches()[f"{PATCH}.{name}"]


def stand_ins(**attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Modules by dotted name, "__" for a dot, and their parents."""
    made: dict[str, Any] = {}
    for keyword, values in attributes.items():
        parts = keyword.split("__")
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            made.setdefault(name, ModuleType(name)).__path__ = []
            if end > 1:
                setattr(made[".".join(parts[: end - 1])], parts[end - 1], made[name])
        vars(made[".".join(parts)]).update(values)
    return made


# LoRA


def _packed_lora() -> None:
    expand = _module("vllm_ascend_lora")._expand_qwen3_5_qkvz_lora
    sizes = [4, 4, 6, 2]
    a, z = torch.randn(3, 8), torch.randn(3, 8)
    b, z_b = torch.arange(42.0).view(14, 3) + 1, torch.ones(2, 3)
    first, second = expand([a, z], [b, z_b], sizes)
    holds(first[0] is a and first[1] is a and first[2] is a and first[3] is z, "A isn't shared by q, k and v")
    right = [b[:4], b[4:8], b[8:], z_b]
    holds(len(second) == 4 and all(torch.equal(x, y) for x, y in zip(second, right, strict=True)), "B isn't cut into q, k, v and z")
    first, second = expand([None, z], [None, z_b], sizes)
    holds(first == [None, None, None, z] and second[:3] == [None] * 3 and second[3] is z_b, "without qkv there is something for q, k, v")
    first, second = expand([a, None], [b, None], sizes)
    holds(first[3] is None and second[3] is None and len(second) == 4, "without z there is something for z")
    profile = expand([a, z], [torch.zeros(2, 3), torch.zeros(2, 3)], sizes, tp_size=2)[1]
    shapes = [tuple(x.shape) for x in profile]
    holds(shapes == [(4, 3), (4, 3), (6, 3), (2, 3)] and not any(x.any() for x in profile), f"the profiling adapter becomes {shapes}")
    for lora_a, lora_b, said in (
        ([a], [b, z_b], "2 logical"),
        ([a, z], [b, None], "presence"),
        ([a, z], [None, z_b], "presence"),
        ([a, z], [b[:12], z_b], "expected 14, got 12"),
        ([a, z], [b, z_b[:1]], "expected 2, got 1"),
    ):
        refuses(RuntimeError, said, partial(expand, lora_a, lora_b, sizes))
    refuses(RuntimeError, "4 output slices", partial(expand, [a, z], [b, z_b], sizes[:3]))
    _lora_wrapper(b, z_b, a, z, sizes)


def _lora_wrapper(b: torch.Tensor, z_b: torch.Tensor, a: torch.Tensor, z: torch.Tensor, sizes: list[int]) -> None:
    for prefix, pieces in (("model.layers.0.linear_attn.in_proj_qkvz", 4), ("model.layers.0.mlp.gate_up_proj", 2)):
        wrapper: Any = type(
            "Wrapper",
            (),
            {"set_lora": lambda self, index, lora_a, lora_b: (index, len(lora_a), lora_a[-1] is z, lora_b[-1] is z_b), "tp_size": 1},
        )
        lora = _module("vllm_ascend_lora")
        with imported(stand_ins(vllm_ascend__lora__utils={"AscendMergedColumnParallelLinearWithLoRA": wrapper}) | {"vllm": None}):
            lora.patch_vllm_ascend_lora_runtime()
            once = wrapper.set_lora
            lora.patch_vllm_ascend_lora_runtime()
            holds(wrapper.set_lora is once, "it is wrapped twice")
        layer = wrapper()
        layer.base_layer = SimpleNamespace(prefix=prefix, output_sizes=sizes)
        holds(layer.set_lora(7, [a, z], [b, z_b]) == (7, pieces, True, True), f"{prefix} is given another number of pieces than {pieces}")
    native: Any = type(
        "Native", (), {"set_lora": lambda self, *given: self.expand_packed_lora(*given), "expand_packed_lora": lambda self: None}
    )
    before = native.set_lora
    with imported(stand_ins(vllm_ascend__lora__utils={"AscendMergedColumnParallelLinearWithLoRA": native}) | {"vllm": None}):
        _module("vllm_ascend_lora").patch_vllm_ascend_lora_runtime()
    holds(native.set_lora is before, "a plugin that expands packed LoRA itself is patched")


def _lora_modules() -> None:
    lora, fused = _module("vllm_ascend_lora"), torch.nn.ReLU
    model = torch.nn.ModuleDict({"experts": torch.nn.ReLU(), "q_proj": torch.nn.Linear(1, 1)})
    keep = lora._exclude_unsupported_fused_moe_lora_modules
    holds(keep(model, ["q_proj", "experts"], fused_moe_cls=fused) == ["q_proj"], "the experts aren't left out")
    dense = torch.nn.ModuleDict({"q_proj": torch.nn.Linear(1, 1)})
    holds(keep(dense, ["q_proj", "experts"], fused_moe_cls=fused) == ["q_proj", "experts"], "without experts something is left out")
    for supported in (True, False):
        manager = {"get_supported_lora_modules": lambda model: ["q_proj", "experts"]}
        fakes = stand_ins(
            vllm__lora__utils={}, vllm__lora__model_manager=manager, vllm__model_executor__layers__fused_moe={"FusedMoE": fused}
        )
        if supported:
            fakes |= stand_ins(vllm_ascend__lora__fused_moe={"AscendFusedMoEWithLoRA": object})
        with imported(fakes):
            lora._patch_vllm_ascend_fused_moe_lora_modules()
            found = fakes["vllm.lora.model_manager"].get_supported_lora_modules
            lora._patch_vllm_ascend_fused_moe_lora_modules()
            holds(fakes["vllm.lora.model_manager"].get_supported_lora_modules is found, "it is wrapped twice")
            holds(found(model) == (["q_proj", "experts"] if supported else ["q_proj"]), f"with a wrapper {supported} it is {found(model)}")
            holds(supported or fakes["vllm.lora.utils"].get_supported_lora_modules is found, "vllm.lora.utils keeps its own")


def _lora_refused() -> None:
    lora = _module("vllm_ascend_lora")
    asked = {"tuner_type": "lora", "vllm_enable_lora": True, "model_info": SimpleNamespace(is_moe_model=True)}
    parameters = [("mlp.experts.0.up.lora_A.weight", True), ("attn.q.lora_A.weight", True)]

    def model(rows: Any, targets: Any) -> Any:
        named = [(name, SimpleNamespace(requires_grad=trained)) for name, trained in rows]
        tuner = SimpleNamespace(targeted_parameter_names=targets)
        return SimpleNamespace(model_info=asked["model_info"], base_model=tuner, named_parameters=lambda: named)

    for change, rows, targets, refused in (
        ({}, parameters, ["mlp.experts.gate_up_proj"], True),
        ({"tuner_type": "full"}, parameters, ["mlp.experts.gate_up_proj"], False),
        ({"vllm_enable_lora": False}, parameters, ["mlp.experts.gate_up_proj"], False),
        ({"model_info": SimpleNamespace(is_moe_model=False)}, parameters, ["mlp.experts.gate_up_proj"], False),
        ({}, [(parameters[0][0], False), parameters[1]], ["mlp.myexperts.up"], False),
        ({}, parameters[1:], [], False),
    ):
        said = SimpleNamespace(**{**asked, **change}, target_parameters=None)
        one = model(rows, targets)
        one.model_info = said.model_info
        for supported in (False, True):
            with imported(
                stand_ins(vllm_ascend__lora__fused_moe={"AscendFusedMoEWithLoRA": object}) if supported else {"vllm_ascend": None}
            ):
                for call in (
                    partial(lora.validate_vllm_ascend_lora_training, one, said),
                    partial(lora.validate_vllm_ascend_megatron_lora_training, [one], said),
                ):
                    if refused and not supported:
                        refuses(ValueError, "vLLM-Ascend does not support LoRA on fused routed experts", call)
                    else:
                        call()


# The rest


def _memory() -> None:
    memory = _module("vllm_ascend_memory")
    platform: Any = type("NPUPlatform", (), {"mem_get_info": None})
    asked: list[Any] = []

    def mem_get_info(device: Any = None) -> tuple[str, Any]:
        asked.append(device)
        return "of", device

    def without(*given: Any) -> str:
        if given:
            raise TypeError("takes no argument")
        return "of the current one"

    npu = bench().torch_npu.npu
    with bench().importable(), imported(stand_ins(vllm_ascend__platform={"NPUPlatform": platform})):
        memory.patch_vllm_ascend_memory_runtime()
        with mock.patch.object(npu, "mem_get_info", mem_get_info, create=True):
            holds(platform.mem_get_info("npu:3") == ("of", "npu:3") and platform.mem_get_info() == ("of", None), f"it asks for {asked}")
        with mock.patch.object(npu, "mem_get_info", without, create=True):
            holds(platform.mem_get_info("npu:3") == "of the current one", "an older torch_npu isn't asked without a device")
        nothing_bound = {"_ORIGIN_TORCH_NPU_MEM_GET_INFO": None, "_BOUND_TORCH_NPU_MEM_GET_INFO_DEVICE": None}
        with mock.patch.dict(vars(memory), nothing_bound), mock.patch.object(npu, "mem_get_info", mem_get_info, create=True):
            for device in ("npu:1", "npu:2", "npu:2"):
                with memory.vllm_ascend_mem_get_info_context(device):
                    holds(npu.mem_get_info() == ("of", device), f"bound to {device} it asks for {asked[-1]}")
                holds(npu.mem_get_info() == ("of", device), f"after the context it asks for {asked[-1]}")
                holds(npu.mem_get_info.func is mem_get_info, "a bound one is bound again")


def _reload_runner() -> None:
    find = _module("vllm_ascend").get_vllm_ascend_reload_runner

    def runner(module: str, reload: Any) -> Any:
        return type("Runner", (), {"__module__": module, "reload_weights": reload})()

    good = runner("vllm_ascend.worker", lambda self, is_checkpoint_format=True: None)
    rows = (
        (good, good),
        (runner("vllm.worker", lambda self, is_checkpoint_format=True: None), None),
        (runner("vllm_ascend.worker", lambda self: None), None),
        (runner("vllm_ascend.worker", None), None),
    )
    for model_runner, right in rows:
        for worker in (SimpleNamespace(model_runner=model_runner), SimpleNamespace(worker=SimpleNamespace(model_runner=model_runner))):
            engine = SimpleNamespace(inner_model_executor=SimpleNamespace(driver_worker=worker))
            holds(find(engine) is right, f"of {type(model_runner).__module__} it takes {find(engine)}")
    holds(find(object()) is None, "an engine without workers has a runner")


def _flash_attn() -> None:
    patch = _module("vllm_ascend")._patch_flash_attn_optional_import
    for real in (True, False):
        fake: Any = ModuleType("flash_attn")
        if real:
            fake.__path__ = []
        with imported(
            {"flash_attn": fake, "flash_attn.part": ModuleType("flash_attn.part"), "flash_attn_other": ModuleType("flash_attn_other")}
        ):
            patch()
            there = [name in sys.modules for name in ("flash_attn", "flash_attn.part", "flash_attn_other")]
            holds(there == [real, real, True], f"a real package {real}: {there}")
