"""ms-swift's patches around MindSpeed and Megatron: pure enough to be held without either, whose modules are stood for by fakes."""

from __future__ import annotations

import inspect
import sys
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch

from harness.kernels.checks import Check, holds, refuses
from harness.kernels.installed_swift import PATCH, missing, patches
from harness.kernels.stand_in import imported

_FSDP = "megatron.core.distributed.fsdp.src.megatron_fsdp.param_and_grad_buffer"
_REDUCER = "mindspeed.core.distributed.custom_fsdp.param_and_grad_buffer"
_TE_CP = "mindspeed.te.pytorch.attention.dot_product_attention.dot_product_attention"
_CP = "mindspeed.core.context_parallel.adaptor"
_LINEAR = "mindspeed.te.pytorch.module.layernorm_column_parallel_linear"
_LAYERS = "megatron.core.tensor_parallel.layers"
_TE = "megatron.core.extensions.transformer_engine"
_EXPERTS = "megatron.core.transformer.fsdp_dtensor_checkpoint"


def checks() -> tuple[Check, ...]:
    statements = (
        (
            "gradient_scale",
            "a gradient buffer without a scale is reduced as with 1 and without averaging, and left as it was",
            _gradient_scale,
        ),
        (
            "gradient_scale_taken",
            "only a reducer of MindSpeed's that multiplies unasked is wrapped, once, and only for Megatron-FSDP",
            _wrapped,
        ),
        (
            "empty_state",
            "an empty shard's state is zeros of its own shape, steps are copied, and a state of another shape is refused",
            _empty_state,
        ),
        ("state_completed", "missing optimizer shards are added in the model's order, and one that isn't empty is refused", _completed),
        ("state_loaded", "an FSDP state is loaded past MindSpeed's own loader, any other left to it", _loaded),
        ("context_parallel", "MindSpeed's older attention class serves context parallelism that its new one lacks", _context_parallel),
        ("frozen_weight", "a frozen weight goes to Megatron's function for frozen weights, a trained one to MindSpeed's", _frozen),
        ("grouped_linear", "MindSpeed's grouped linear layers in 16 bits keep their input themselves, others as Megatron says", _grouped),
        ("gdn_helpers", "MindSpeed's two context-parallel helpers fill the gaps of Megatron, and of nothing else", _helpers),
        ("order", "the patches around MindSpeed's repatch are applied in their order", _order),
    )
    return tuple(Check(f"swift.mindspeed.{name}", what, run, missing) for name, what, run in statements)


def _mindspeed() -> Any:
    return patches()[f"{PATCH}.mindspeed"]


def _modules(**attributes: dict[str, Any]) -> dict[str, Any]:
    """Modules by dotted name with these attributes, and their parents. Keyword names stand for the constants above."""
    made: dict[str, Any] = {}
    for constant, values in attributes.items():
        name = globals()[constant]
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            made.setdefault(".".join(parts[:end]), ModuleType(".".join(parts[:end]))).__path__ = []
        vars(made[name]).update(values)
        for end in range(2, len(parts) + 1):
            setattr(made[".".join(parts[: end - 1])], parts[end - 1], made[".".join(parts[:end])])
    return made


def _buffer(scale: float | None, averages: bool) -> Any:
    return SimpleNamespace(gradient_scaling_factor=scale, ddp_config=SimpleNamespace(average_in_collective=averages, other="kept"))


def _gradient_scale() -> None:
    for averages in (True, False):
        for dies in (True, False):
            unscaled, scaled = _buffer(None, averages), _buffer(0.25, averages)
            buffers = {0: unscaled, 1: scaled, 2: unscaled}
            configs = [unscaled.ddp_config, scaled.ddp_config]
            seen: list[Any] = []

            def reduce(self: Any, group: Any, *more: Any, seen: list[Any] = seen, dies: bool = dies, **named: Any) -> str:
                for number in group:
                    buffer = self.get_fsdp_buffer(number)
                    config = buffer.ddp_config
                    seen.append((buffer.gradient_scaling_factor, config.average_in_collective, config.other))
                if dies:
                    raise MemoryError("full")
                return f"reduced {more} {named}"

            wrapped = _mindspeed()._wrap_mindspeed_fsdp_gradient_reduce(reduce)
            call = partial(wrapped, SimpleNamespace(get_fsdp_buffer=buffers.get), [0, 1, 2], 5, stream=6)
            if dies:
                refuses(MemoryError, "full", call)
            else:
                holds(call() == "reduced (5,) {'stream': 6}", "the arguments or the result don't pass through")
            holds(seen == [(1.0, False, "kept"), (0.25, averages, "kept"), (1.0, False, "kept")], f"the reducer sees {seen}")
            after = [unscaled.gradient_scaling_factor, scaled.gradient_scaling_factor]
            holds(after == [None, 0.25], f"the scales are {after} afterwards")
            kept = unscaled.ddp_config is configs[0] and scaled.ddp_config is configs[1]
            holds(kept and configs[0].average_in_collective is averages, "the shared config isn't as it was")


_MULTIPLIES = "bucket.data.mul_(scaling_factor)"
_SOURCES = {
    "unasked": _MULTIPLIES,
    "asks": f"if scaling_factor is not None: {_MULTIPLIES}",
    "asks first": f"if scaling_factor is None: return; {_MULTIPLIES}",
    "other": "bucket.data.copy_(scaling_factor)",
}


def _wrapped() -> None:
    for name, source in _SOURCES.items():
        for owner in (_REDUCER, "megatron.core"):
            for asked in (True, False):

                def reduce() -> None:
                    return None

                reduce.__module__ = owner
                pipeline = SimpleNamespace(_bucket_group_gradient_reduce=reduce)
                module = imported(_modules(_FSDP={"GradReducePipeline": pipeline}))
                with module, mock.patch.object(inspect, "getsource", lambda function, source=source: source):
                    patch = partial(_mindspeed().patch_mindspeed_megatron_fsdp_gradient_scaling, {"use_megatron_fsdp": asked})
                    patch()
                    after = pipeline._bucket_group_gradient_reduce
                    patch()
                wanted = name == "unasked" and owner == _REDUCER and asked
                holds((after is not reduce) is wanted, f"a reducer of {owner} ({name}; Megatron-FSDP {asked}) is wrapped: {not wanted}")
                holds(pipeline._bucket_group_gradient_reduce is after, "it is wrapped twice")
    with imported({_FSDP: None}):
        _mindspeed().patch_mindspeed_megatron_fsdp_gradient_scaling({})


def _empty_state() -> None:
    template, shard = torch.zeros(4, 3), torch.zeros(0, 3, dtype=torch.bfloat16)
    state: dict[str, Any] = {"exp_avg": torch.ones(4, 3), "step": torch.ones(1) * 5, "count": torch.tensor(7), "betas": [0.9, 0.99]}
    found = _mindspeed()._build_empty_optimizer_state(state, template, shard, "w")
    holds(found.keys() == state.keys(), f"it has {sorted(found)}")
    moment = found["exp_avg"]
    holds(tuple(moment.shape) == (0, 3) and moment.dtype == torch.float32, f"the moment is {tuple(moment.shape)} of {moment.dtype}")
    for name in ("step", "count"):
        holds(torch.equal(found[name], state[name]) and found[name] is not state[name], f"{name} isn't a copy")
    holds(found["betas"] == state["betas"] and found["betas"] is not state["betas"], "what is no tensor isn't copied")
    full = _mindspeed()._build_empty_optimizer_state({"exp_avg": torch.ones(4, 3)}, template, torch.ones(2, 3), "w")["exp_avg"]
    holds(torch.equal(full, torch.zeros(2, 3)), "a moment isn't zero")
    call = partial(_mindspeed()._build_empty_optimizer_state, {"exp_avg": torch.ones(3, 4)}, template, shard, "layer.w")
    refuses(RuntimeError, "layer.w", call)


class _Model:
    def __init__(self, parameters: dict[str, torch.Tensor], experts: int = 0) -> None:
        self.parameters, self.config = parameters, SimpleNamespace(num_moe_experts=experts)

    def get_parameter(self, name: str) -> torch.Tensor:
        return self.parameters[name]


def _completed() -> None:
    complete = _mindspeed().complete_mindspeed_fsdp_dtensor_optimizer_state
    shards = {"a": torch.zeros(0, 3), "b": torch.zeros(4, 3), "c": torch.zeros(0, 2)}
    moment = {"exp_avg": torch.ones(4, 3), "step": torch.tensor(3.0)}
    for experts in (0, 2):
        state = {"optimizer": {"state": {"module.b": moment, "extra": 1}, "param_to_group_meta": {"module.a": 0, "module.b": 0, "c": 0}}}
        renamed = {f"expert {name}" if experts else name: shard for name, shard in shards.items()}
        local = {"expert_param_local_key": lambda name, count: f"expert {name}" if count == 2 else "?"}
        with imported(_modules(_EXPERTS=local)):
            complete(state, _Model(renamed, experts))
        found: Any = state["optimizer"]["state"]
        holds(list(found) == ["module.a", "module.b", "c", "extra"], f"the order is {list(found)}")
        holds(found["module.b"] is moment and found["extra"] == 1, "a state that was there is another one")
        holds(tuple(found["c"]["exp_avg"].shape) == (0, 2) and float(found["c"]["step"]) == 3.0, f"c has {found['c']}")
    whole: dict[str, Any] = {"optimizer": {"state": {"b": 1, "x": 2, "a": 0}, "param_to_group_meta": {"a": 0, "b": 0}}}
    complete(whole, _Model({}))
    holds(list(whole["optimizer"]["state"].items()) == [("a", 0), ("b", 1), ("x", 2)], "a complete state isn't brought into order")
    nothings: tuple[dict[str, Any], ...] = ({}, {"optimizer": {}}, {"optimizer": {"state": {"b": 1}}})
    for nothing in nothings:
        before = repr(nothing)
        complete(nothing, _Model({}))
        holds(repr(nothing) == before, f"{before} became {nothing}")
    for present, said in (({"b": moment}, "not empty"), ({}, "empty local state"), ({"b": {}}, "Cannot match")):
        broken: Any = {"optimizer": {"state": present, "param_to_group_meta": {"a": 0, "b": 0}}}
        refuses(RuntimeError, said, partial(complete, broken, _Model({"a": torch.zeros(1), "b": torch.zeros(4, 3)})))


def _loaded() -> None:
    load = _mindspeed().load_mindspeed_fsdp_dtensor_optimizer_state_dict
    given: list[Any] = []
    inner = SimpleNamespace(param_groups="groups", load_state_dict=given.append)
    optimizer = SimpleNamespace(optimizer=inner, _param2group_meta_to_param_groups=lambda meta, groups: (meta, groups))
    for other in ({"state": 1}, {"param_to_group_meta": 1}, [1], None):
        holds(load([optimizer], other) is False and not given, f"{other} is loaded")
    state = {"state": {"w": 1}, "param_to_group_meta": {"w": 0}}
    holds(load([optimizer], state) is True, "an FSDP state isn't loaded")
    holds(given == [{"state": {"w": 1}, "param_groups": ({"w": 0}, "groups")}], f"loaded as {given}")
    holds(state.keys() == {"state", "param_to_group_meta"}, "the given state is changed")
    refuses(RuntimeError, "exactly one", partial(load, [optimizer, optimizer], state))


def _context_parallel() -> None:
    class New:
        pass

    class Old:
        pass

    for size, algorithm, right in (
        (1, None, New),
        (2, None, Old),
        ("4", "ulysses_cp_algo", Old),
        (2, "kvallgather_cp_algo", New),
        (None, None, New),
    ):
        said = {name: value for name, value in (("context_parallel_size", size), ("context_parallel_algo", algorithm)) if value is not None}
        fakes = _modules(_TE_CP={"MindSpeedTEDotProductAttention": New}, _CP={"MindSpeedCPDotProductAttention": Old})
        with imported(fakes), mock.patch.object(_mindspeed(), "_ORIGINAL_MINDSPEED_TE_CP_CLASS", None):
            _mindspeed().patch_mindspeed_te_cp_implementation(said)
            found = fakes[_TE_CP].MindSpeedTEDotProductAttention
            holds(found is right, f"with {said} it is {found.__name__}")
            _mindspeed().patch_mindspeed_te_cp_implementation({})
            holds(fakes[_TE_CP].MindSpeedTEDotProductAttention is New, f"after {said} the new class doesn't come back")
    with imported({_TE_CP: None}):
        _mindspeed().patch_mindspeed_te_cp_implementation({"context_parallel_size": 2})


def _frozen() -> None:
    name = "linear_with_grad_accumulation_and_async_allreduce"
    calls: list[tuple[str, dict[str, Any]]] = []
    fakes = _modules(
        _LINEAR={name: lambda **given: calls.append(("trained", given))},
        _LAYERS={"linear_with_frozen_weight": lambda **given: calls.append(("frozen", given))},
    )
    shared = ("input", "weight", "bias", "gradient_accumulation_fusion", "allreduce_dgrad", "sequence_parallel")
    all_names = (*shared, "grad_output_buffer", "wgrad_deferral_limit", "async_grad_allreduce", "tp_group")
    with imported(fakes):
        _mindspeed().patch_mindspeed_te_layernorm_linear_frozen_weight()
        dispatch = getattr(fakes[_LINEAR], name)
        _mindspeed().patch_mindspeed_te_layernorm_linear_frozen_weight()
        holds(getattr(fakes[_LINEAR], name) is dispatch, "it is wrapped twice")
    for trained in (True, False):
        calls.clear()
        weight = SimpleNamespace(requires_grad=trained)
        given = {key: weight if key == "weight" else key for key in all_names}
        dispatch(*given.values())
        kept = given if trained else {key: given[key] for key in (*shared, "async_grad_allreduce", "tp_group")}
        holds(calls == [("trained" if trained else "frozen", kept)], f"a weight with requires_grad {trained} goes to {calls}")
    del calls[:], fakes[_LINEAR].__dict__[name]
    for lacking in (fakes, {_LINEAR: None}):
        with imported(lacking):
            _mindspeed().patch_mindspeed_te_layernorm_linear_frozen_weight()
    holds(not hasattr(fakes[_LINEAR], name), "a function that MindSpeed doesn't have is made up")


def _grouped() -> None:
    asked: list[Any] = []

    def original(module: Any) -> str:
        asked.append(module)
        return "set"

    fakes = _modules(_TE={"set_save_original_input": original})
    with imported(fakes):
        _mindspeed().patch_mindspeed_te_grouped_linear_save_original_input()
        dispatch = fakes[_TE].set_save_original_input
        _mindspeed().patch_mindspeed_te_grouped_linear_save_original_input()
        holds(fakes[_TE].set_save_original_input is dispatch, "it is wrapped twice")
    for owner, config, passed in (
        ("mindspeed.te.pytorch.module.grouped_linear", {}, False),
        ("mindspeed.te.pytorch.module.grouped_linear", {"fp8": None, "fp4": None}, False),
        ("mindspeed.te.pytorch.module.grouped_linear", {"fp8": "hybrid"}, True),
        ("mindspeed.te.pytorch.module.grouped_linear", {"fp4": "e2m1"}, True),
        ("transformer_engine.pytorch", {}, True),
    ):
        asked.clear()
        layer = type("Layer", (), {"__module__": owner, "config": SimpleNamespace(**config)})()
        answer = dispatch(layer)
        holds((asked == [layer], answer) == (passed, "set" if passed else None), f"a layer of {owner} with {config} is passed on: {asked}")


def _helpers() -> None:
    names = ("tensor_a2a_cp2hp", "tensor_a2a_hp2cp")
    megatron, theirs = "megatron.core.ssm.gated_delta_net", "mindspeed.core.ssm.gated_delta_net"
    patch = _mindspeed().patch_mindspeed_gdn_cp_helpers
    for size, own, right in ((2, {}, ("theirs", "theirs")), ("2", {names[0]: "own"}, ("own", "theirs")), (1, {}, (None, None))):
        fakes = {megatron: ModuleType(megatron), theirs: ModuleType(theirs)}
        vars(fakes[megatron]).update(own)
        vars(fakes[theirs]).update(dict.fromkeys(names, "theirs"))
        with imported(fakes):
            patch({"context_parallel_size": size})
        found = tuple(getattr(fakes[megatron], name, None) for name in names)
        holds(found == right, f"with size {size} and {own} Megatron has {found}")
    patch({})
    lacking = {megatron: ModuleType(megatron), theirs: ModuleType(theirs)}
    with imported(lacking):
        refuses(RuntimeError, names[0], partial(patch, {"context_parallel_size": 2}))


def _order() -> None:
    done: list[tuple[Any, ...]] = []
    said = {"context_parallel_size": 1}
    adaptor: Any = ModuleType("mindspeed.megatron_adaptor")
    adaptor.repatch = lambda given: done.append(("repatch", given is said))
    with_arguments = (
        "patch_mindspeed_te_cp_implementation",
        "patch_mindspeed_megatron_fsdp_gradient_scaling",
        "patch_mindspeed_gdn_cp_helpers",
    )
    without = (
        "patch_mindspeed_te_layernorm_linear_frozen_weight",
        "patch_mindspeed_te_grouped_linear_save_original_input",
        "patch_mindspeed_fla_gdn_implementation",
    )
    fakes = {
        name: partial(lambda name, *given: done.append((name, *(one is said for one in given))), name)
        for name in (*with_arguments, *without)
    }
    with imported({"mindspeed": ModuleType("mindspeed"), adaptor.__name__: adaptor}), mock.patch.dict(vars(_mindspeed()), fakes):
        _mindspeed().apply_mindspeed_patches(said)
    first, *rest = with_arguments
    right = [(first, True), ("repatch", True), *((name, True) for name in rest), *((name,) for name in without)]
    holds(done == right, f"applied {done} and not {right}")
    holds(sys.modules.get(adaptor.__name__) is not adaptor, "the fake is left behind")
