"""ms-swift's patches of vLLM-Ascend's mixture of experts: routing, and the layouts of expert weights as they are synchronised."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from harness.kernels.checks import Check, holds, refuses
from harness.kernels.checks_vllm import made, stand_ins
from harness.kernels.installed_swift import PATCH, patches
from harness.kernels.stand_in import bench, imported


def checks() -> tuple[Check, ...]:
    return made(
        (
            "routing",
            "routing without quantisation goes to npu_moe_init_routing_v2 with the caller's choices, other routing as before",
            _routing,
        ),
        ("routing_kept", "a vllm-ascend that routes so itself is left alone, an unknown signature refused", _routing_kept),
        ("expert_names", "fused expert weights get the names and pieces that vLLM loads", _expert_names),
        ("expert_weights", "expert weights land in the layout asked for, at this rank's slice, for each local expert", _expert_weights),
        ("expert_weights_left", "quantised experts, other parameters and first loads keep vLLM's own loader", _loader_left),
        ("post_load", "post-load processing is skipped exactly once, for a layer that already holds the runtime layout", _post_load),
        ("wake_up", "after sleeping the experts' parameters are those from before, where waking up transposed them", _wake_up),
    )


def _moe() -> Any:
    return patches()[f"{PATCH}.vllm_ascend_moe"]


# Routing


def _adaptor(**more: Any) -> Any:
    def npu_moe_init_routing(
        hidden_states: Any,
        topk_ids: Any,
        *,
        scale: Any = None,
        active_num: Any = None,
        expert_num: Any = None,
        expert_tokens_num_type: int = 1,
        expert_tokens_num_flag: bool = True,
        active_expert_range: Any = None,
        quant_mode: int = -1,
    ) -> Any:
        return "as before", hidden_states, topk_ids, scale, quant_mode

    routing = more.get("npu_moe_init_routing", npu_moe_init_routing)
    return type("BaseDeviceAdaptor", (), {"npu_moe_init_routing": staticmethod(routing) if routing else None})


def _patched_routing(adaptor: Any) -> Any:
    fakes = stand_ins(vllm_ascend__device__device_op={"BaseDeviceAdaptor": adaptor})
    with bench().importable(), imported(fakes):
        _moe()._patch_vllm_ascend_device_op_nonquant_routing()
    return adaptor.npu_moe_init_routing


def _routing() -> None:
    route = _patched_routing(_adaptor())
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    chosen = torch.tensor([[2, 0], [1, 3], [3, 2], [0, 1], [2, 3]], dtype=torch.int32)
    choices: tuple[dict[str, Any], ...] = ({}, {"active_expert_range": [1, 3]}, {"expert_tokens_num_type": 2}, {"active_num": 0})
    for said in choices:
        with bench().counted() as calls:
            here = bench().placed({"x": x, "chosen": chosen})
            found = [part.cpu() for part in route(here["x"], here["chosen"], expert_num=4, **said)]
            holds(calls == {"npu_moe_init_routing_v2": 1}, f"with {said} it called {dict(calls)}")
        first, last = said.get("active_expert_range", [0, 4])
        order = [slot for expert in range(first, last) for slot in range(10) if chosen.flatten()[slot] == expert]
        holds(
            torch.equal(found[0][: len(order)], x[[slot // 2 for slot in order]]),
            f"with {said} the rows aren't those of the experts in order",
        )
        right = torch.full((10,), -1, dtype=torch.int32)
        right[order] = torch.arange(len(order), dtype=torch.int32)
        holds(torch.equal(found[1], right), f"with {said} the row index is {found[1].tolist()}")
        counts = torch.bincount(chosen.flatten().long(), minlength=4)[first:last]
        pairs = torch.stack((torch.arange(4), counts), 1) if said.get("expert_tokens_num_type") == 2 else counts
        holds(torch.equal(found[2], pairs), f"with {said} the counts are {found[2].tolist()}")
    for said in ({"scale": 3}, {"quant_mode": 1}):
        with bench().counted() as calls:
            answer = route("x", "ids", **said)
            holds(answer == ("as before", "x", "ids", said.get("scale"), said.get("quant_mode", -1)), f"with {said} it gives {answer}")
            holds(not calls, f"with {said} it called {dict(calls)}")
    given: dict[str, Any] = {}
    with bench().importable(), mock.patch.object(bench().torch_npu, "npu_moe_init_routing_v2", lambda *_, **named: given.update(named)):
        route("x", "ids", expert_num=4, active_num=7, expert_tokens_num_flag=False)
    told = {name: given[name] for name in ("active_num", "expert_tokens_num_flag", "drop_pad_mode", "expert_capacity", "scale", "offset")}
    right_ones = {
        "active_num": 7,
        "expert_tokens_num_flag": False,
        "drop_pad_mode": 0,
        "expert_capacity": -1,
        "scale": None,
        "offset": None,
    }
    holds(told == right_ones, f"the operator is told {told}")
    refuses(RuntimeError, "Failed to bind", partial(route, "x", "ids", unknown=1))


def _routing_kept() -> None:
    sources = {
        "if quant_mode == -1: npu_moe_init_routing_v2()": True,
        "npu_moe_init_routing_v2()": False,
        "if quant_mode == -1: pass": False,
    }
    for source, kept in sources.items():
        adaptor = _adaptor()
        before = adaptor.npu_moe_init_routing
        with mock.patch.object(inspect, "getsource", lambda function, source=source: source):
            after = _patched_routing(adaptor)
            holds(_patched_routing(adaptor) is after, "it is patched twice")
        holds((after is before) is kept, f"a routing that says {source!r} is left alone: {not kept}")
    refuses(RuntimeError, "quant_mode", partial(_patched_routing, _adaptor(npu_moe_init_routing=lambda hidden_states, topk_ids: None)))
    _patched_routing(_adaptor(npu_moe_init_routing=None))


# Expert weights


def _expert_names() -> None:
    names = _moe().expand_fused_moe_expert_names_for_vllm_ascend
    expand = _moe().expand_fused_moe_expert_weight_for_vllm_ascend
    layer = "model.layers.3.mlp.experts"
    holds(names(f"{layer}.gate_up_proj") == [f"{layer}.0.gate_proj.weight", f"{layer}.0.up_proj.weight"], "gate and up have other names")
    holds(names(f"{layer}.down_proj") == [f"{layer}.0.down_proj.weight"], "down has another name")
    holds(names("model.layers.3.mlp.gate.weight") is None and names(f"{layer}.gate_up_proj.bias") is None, "other names are expanded")
    weight = torch.arange(24.0).view(2, 6, 2)
    gate, up = expand(f"{layer}.gate_up_proj", weight)
    same = torch.equal(gate[1], weight[:, :3]) and torch.equal(up[1], weight[:, 3:]) and gate[1].is_contiguous() and up[1].is_contiguous()
    holds(same and [gate[0], up[0]] == names(f"{layer}.gate_up_proj"), "gate and up aren't the halves")
    holds(expand(f"{layer}.down_proj", weight) == [(f"{layer}.0.down_proj.weight", weight)], "down isn't given as it is")
    for name, param in ((f"{layer}.down_proj", weight[0]), (f"{layer}.down_proj", "text"), ("model.norm.weight", weight)):
        holds(expand(name, param) is None, f"{name} is expanded")


class _Experts:
    """An expert layer of two global experts 1 and 3, at the last of three ranks."""

    tp_rank = 2

    def __init__(self, method: Any) -> None:
        self.quant_method = method
        self.original: list[tuple[Any, ...]] = []

    def weight_loader(self, *given: Any) -> str:
        self.original.append(given)
        return "original"

    def _map_global_expert_id_to_local_expert_id(self, number: int) -> int:
        return {1: 0, 3: 1}.get(number, -1)


def _unquantised() -> tuple[Any, dict[str, Any]]:
    """(the layer's method, the fakes under which ms-swift knows it)."""
    base = type("UnquantizedFusedMoEMethod", (), {})
    own = type(
        "AscendUnquantizedFusedMoEMethod",
        (base,),
        {"__module__": "vllm_ascend.ops", "process_weights_after_loading": lambda self, layer: "processed"},
    )
    return own(), stand_ins(vllm__model_executor__layers__fused_moe={"UnquantizedFusedMoEMethod": base})


_HIDDEN, _INNER = 5, 6  # of the whole; each of three ranks has two of the inner ones
_LOADED = "_swift_vllm_ascend_moe_processed_weight_loaded"


def _expert_weights() -> None:
    generator = torch.Generator().manual_seed(0)
    gate, up = (torch.randn(4, _INNER, _HIDDEN, generator=generator) for _ in range(2))
    down = torch.randn(4, _HIDDEN, _INNER, generator=generator)
    rank = slice(2 * _INNER // 3, _INNER)
    half = torch.cat((gate[[1, 3]][:, rank], up[[1, 3]][:, rank]), 1)
    ends = {"w13_weight": half, "w2_weight": down[[1, 3]][:, :, rank]}
    for before in (True, False):
        for turned in (True, False):
            for fused in (True, False):
                for name, right in ends.items():
                    shards = {"w1": gate, "w3": up} if name == "w13_weight" else {"w2": down}
                    shape = right.transpose(1, 2).shape if turned else right.shape
                    found, experts = _load(name, shape, shards, fused=fused, before=before)
                    wanted = right if before else right.transpose(1, 2)
                    told = f"{name}, preprocessed {before}, target turned {turned}, fused {fused}"
                    holds(
                        found.shape == wanted.shape and torch.equal(found, wanted),
                        f"{told}: the weight isn't the rank's slice in its layout",
                    )
                    holds(getattr(experts, _LOADED) is not before, f"{told}: marked as loaded is {getattr(experts, _LOADED)}")
                    holds(not experts.original, f"{told}: vLLM's own loader was called")


def _load(name: str, shape: Any, shards: Mapping[str, torch.Tensor], *, fused: bool, before: bool) -> tuple[torch.Tensor, Any]:
    method, fakes = _unquantised()
    experts = _Experts(method)
    param: Any = torch.nn.Parameter(torch.full(tuple(shape), torch.nan))
    with imported(fakes):
        patch = _moe().patch_vllm_ascend_moe_expert_weight_loader
        patch(experts, f"layers.0.mlp.experts.{name}", param, load_preprocessed_weight=before)
        loader = param.weight_loader
        patch(experts, f"layers.0.mlp.experts.{name}", param, load_preprocessed_weight=before)
        holds(param.weight_loader is loader, "the loader is wrapped twice")
        for shard, weight in shards.items():
            for number, one in enumerate([weight] if fused else weight):
                answer = loader(param, one, f"experts.{name}", shard, 0 if fused else number, True)
                holds(answer is (fused or number in (1, 3)), f"{name}: loading expert {number} answers {answer}")
                holds(loader(param, one, f"experts.{name}", shard, 0 if fused else number) is None, "an answer is given unasked")
        other = _moe().patch_vllm_ascend_moe_expert_weight_loader
        other(SimpleNamespace(**vars(experts), weight_loader=None), f"experts.{name}", SimpleNamespace(), load_preprocessed_weight=before)
    found: torch.Tensor = param.detach()
    return found, experts


def _loader_left() -> None:
    method, fakes = _unquantised()
    patch = _moe().patch_vllm_ascend_moe_expert_weight_loader
    strangers = (type("Method", (), {"__module__": "vllm_ascend.quantised"})(), type("Method", (), {"__module__": "vllm.x"})(), None)
    with imported(fakes):
        for one, name in ((method, "experts.bias"), *((stranger, "experts.w2_weight") for stranger in strangers)):
            param = SimpleNamespace(data=torch.zeros(2, 3, 4))
            patch(_Experts(one), name, param)
            holds(not hasattr(param, "weight_loader"), f"{name} of {one} gets a loader")
        experts = _Experts(method)
        flat: Any = torch.nn.Parameter(torch.zeros(3, 4))
        patch(experts, "experts.w2_weight", flat)
        answer = flat.weight_loader(flat, torch.zeros(3, 4), "experts.w2_weight", "w2", 1)
        holds(answer == "original" and len(experts.original) == 1, "a parameter of two dimensions isn't loaded as before")
        whole: Any = torch.nn.Parameter(torch.zeros(2, 3, 4))
        patch(experts, "experts.w2_weight", whole)
        answer = whole.weight_loader(whole, torch.zeros(4, 6), "experts.w2_weight", "w9", 1)
        holds(answer == "original" and len(experts.original) == 2, "an unknown shard isn't loaded as before")


def _post_load() -> None:
    method, fakes = _unquantised()
    with imported(fakes):
        experts = _Experts(method)
        _moe()._patch_vllm_ascend_moe_post_load(experts)
        wrapped = method.process_weights_after_loading
        _moe()._patch_vllm_ascend_moe_post_load(experts)
        holds(method.process_weights_after_loading is wrapped, "it is wrapped twice")
        setattr(experts, _LOADED, True)
        answers = [method.process_weights_after_loading(experts) for _ in range(2)]
        holds(answers == [None, "processed"], f"of two rounds it answers {answers}")


def _wake_up() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, shape in (("w13_weight", (2, 3, 4)), ("w2_weight", (2, 4, 3)), ("norm", (3, 4))):
                setattr(self, name, torch.nn.Parameter(torch.zeros(shape)))

    class Worker:
        def __init__(self) -> None:
            self.model_runner = SimpleNamespace(model=torch.nn.ModuleDict({"experts": Layer()}))

        def wake_up(self, tags: Any = None) -> Any:
            # setattr(parent_module, param_name, transpose(1, 2)) of w13_weight, w2_weight: what ms-swift looks for in the source.
            layer: Any = self.model_runner.model["experts"]
            for name in ("w13_weight", "w2_weight", "norm"):
                old = getattr(layer, name)
                setattr(layer, name, torch.nn.Parameter(old.detach().transpose(-1, -2).contiguous()))
            return "awake", tags

    moe = _moe()
    with mock.patch.multiple(
        moe, _patch_vllm_ascend_device_op_nonquant_routing=mock.DEFAULT, _patch_vllm_ascend_moe_sleep_layout=mock.DEFAULT
    ) as both:
        moe.patch_vllm_ascend_moe_runtime()
        holds(all(one.call_count == 1 for one in both.values()), "patch_vllm_ascend_moe_runtime doesn't apply both of its patches")
    source = "w2_weight w13_weight transpose(1, 2) setattr(parent_module, param_name"
    for said, patched in ((source, True), (source.replace("w2_weight", ""), False)):
        worker_class: Any = type("NPUWorker", (Worker,), {})
        with mock.patch.object(inspect, "getsource", lambda function, said=said: said):
            moe._patch_vllm_ascend_moe_sleep_layout(worker_class)
            before = worker_class.wake_up
            moe._patch_vllm_ascend_moe_sleep_layout(worker_class)
        holds(
            (before is not Worker.wake_up) is patched and worker_class.wake_up is before,
            f"a source that says {said!r} is patched: {not patched}",
        )
        for tags, kept in ((None, patched), (["weights"], patched), (["kv_cache"], False)):
            worker = worker_class()
            layer = worker.model_runner.model["experts"]
            old = {name: parameter for name, parameter in layer.named_parameters()}
            holds(worker.wake_up(tags=tags) == ("awake", tags), "the answer or the tags don't pass through")
            same = {name: getattr(layer, name) is old[name] for name in old}
            holds(same == {"w13_weight": kept, "w2_weight": kept, "norm": False}, f"with tags {tags} the same parameters are {same}")
