"""Whether the work that is meant suits this host: Megatron's parts, a model's dtypes and size, a command (FAQ Q2, Q3, Q4, Q13, Q14)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from harness.doctor_facts import AskedCommand, Finding, HostFacts, MegatronCopy, ModelFacts, Severity, Sureness
from harness.model import Hardware

_B, _D, _N = Severity.BLOCKS, Severity.DEGRADES, Severity.NOTE
_MEGATRON: dict[str, tuple[object, ...]] = {"strategy": ("megatron",)}
_ZERO: dict[str, tuple[object, ...]] = {"strategy": ("zero2", "zero3")}
_INSTALL = "MindSpeed/Megatron-SWIFT 可选安装"
_FP8, _QUANTISED = ("F8_E4M3", "F8_E5M2"), ("I8", "U8", "I32")
# The document's memory table (LoRA, bfloat16): 7B takes 28 GB on one NPU and 14B 45 GB: the weights and some 16 GB.
_LORA_BESIDE_WEIGHTS_GIB = 16
# Full training with AdamW in mixed precision: 2 bytes of weights, 2 of gradients, 12 of float32 master weights and moments.
_FULL_BYTES, _FULL_BESIDE_GIB = 16, 8
_MEGATRON_FROM_B = 100


def imported_copy(copies: tuple[MegatronCopy, ...]) -> MegatronCopy | None:
    """The one that `import megatron` takes first: a regular package wins over namespace parts, which are only merged, in order."""
    return next((copy for copy in copies if copy.regular), copies[0] if copies else None)


def check_megatron(facts: HostFacts) -> Iterator[Finding]:
    """FAQ Q14: one Megatron-LM, on PYTHONPATH and named by MEGATRON_LM_PATH; and all of its companions or none."""
    copies, named = facts.megatron, facts.variable("MEGATRON_LM_PATH").rstrip("/")
    first = imported_copy(copies)
    if first is not None and named and first.place.rstrip("/") != named:
        why = "Python imports another Megatron than MindSpeed patches: later errors look like faults of the model or of arguments"
        fix = f"export PYTHONPATH={named}:$PYTHONPATH" + ("; pip uninstall -y megatron-core" if "-packages" in first.place else "")
        what = f"megatron is imported from {first.place}, but MEGATRON_LM_PATH={named}"
        yield Finding("megatron.other", what, why, fix, Sureness.CERTAIN, _D, "Q14", _MEGATRON)
    elif len(copies) > 1:
        why = "mcore-bridge may take the one and MindSpeed the other: each then fails where the other would work"
        keep = named or copies[0].place
        fix = f"keep {keep}, prepended to PYTHONPATH and named by MEGATRON_LM_PATH; pip uninstall -y megatron-core, or drop the other path"
        what = f"{len(copies)} copies of megatron are importable: {', '.join(copy.place for copy in copies)}"
        yield Finding("megatron.two", what, why, fix, Sureness.LIKELY, _D, "Q14")
    if named and not any(copy.place.rstrip("/") == named for copy in copies):
        why = "MEGATRON_LM_PATH alone imports nothing: PYTHONPATH has to hold the same folder"
        fix = f"export PYTHONPATH={named}:$PYTHONPATH"
        what = f"MEGATRON_LM_PATH={named}, but no megatron on the import path is that one"
        yield Finding("megatron.not_on_path", what, why, fix, Sureness.CERTAIN, _D, "Q14", _MEGATRON)
    yield from _companions(facts)


def _companions(facts: HostFacts) -> Iterator[Finding]:
    if facts.packages is None:
        return
    has = {"megatron": bool(facts.megatron), **{name: not facts.lacks(name) for name in ("mindspeed", "mcore-bridge")}}
    lacks = [name for name, there in has.items() if not there]
    asked = facts.command is not None and facts.command.program == "megatron"
    if not lacks:
        if facts.lacks("triton-ascend"):
            why = "MindSpeed's Triton kernels, and Qwen3.5's linear attention on them, can't be imported"
            fix = "pip install triton-ascend==3.2.1 --extra-index-url=https://triton-ascend.osinfra.cn/pypi/simple"
            yield Finding("megatron.no_triton", "MindSpeed is installed without triton-ascend", why, fix, Sureness.LIKELY, _D, _INSTALL)
        return
    fix = "git clone Megatron-LM (core_v0.16.0), MindSpeed (core_r0.16.0, pip install -e .) and mcore-bridge (pip install -e .)"
    why = "Megatron-SWIFT needs all three; FSDP and DeepSpeed need none of them"
    if asked or len(lacks) < len(has):
        what = f"Megatron-SWIFT lacks {', '.join(lacks)}"
        yield Finding("megatron.parts", what, why, fix, Sureness.CERTAIN, _B if asked else _D, "Q2", _MEGATRON)
    else:
        yield Finding(
            "megatron.none", "no Megatron-SWIFT (Megatron-LM, MindSpeed, mcore-bridge)", why, fix, Sureness.CERTAIN, _N, "Q2", _MEGATRON
        )


def check_strategies(facts: HostFacts) -> Iterator[Finding]:
    """FAQ Q2: what training strategies there are, and which suits the model."""
    if facts.lacks("deepspeed"):
        asked = facts.command is not None and facts.command.value("deepspeed") is not None
        why = "--deepspeed zero2 and zero3 need it; DDP, FSDP and FSDP2 don't"
        yield Finding(
            "deepspeed.missing",
            "deepspeed is not installed",
            why,
            "pip install deepspeed",
            Sureness.CERTAIN,
            _B if asked else _N,
            "Q2",
            _ZERO,
        )
    each_gib = min((npu.hbm_total_mb / 1024 for npu in facts.machine.npus if npu.hbm_total_mb), default=None)
    if facts.model and each_gib:
        yield from _size(facts.model, each_gib, len(facts.machine.npus), facts.command)


def _size(model: ModelFacts, each_gib: float, devices: int, command: AskedCommand | None) -> Iterator[Finding]:
    full_tuning = command is not None and command.value("tuner_type") == "full"
    lora = model.params_b * 2e9 / 2**30 + _LORA_BESIDE_WEIGHTS_GIB
    full = model.params_b * _FULL_BYTES * 1e9 / 2**30
    needed, kind = (full + _FULL_BESIDE_GIB, "full training") if full_tuning else (lora, "LoRA")
    if needed <= each_gib:
        return
    sharded = full if full_tuning else model.params_b * 2e9 / 2**30
    beside = _FULL_BESIDE_GIB if full_tuning else _LORA_BESIDE_WEIGHTS_GIB
    count = math.ceil(sharded / max(1.0, each_gib - beside))
    what = f"{kind} of {model.name} ({model.params_b:.1f}B) takes some {needed:.0f} GiB, and an NPU here has {each_gib:.0f}"
    why = "estimated by the document's memory table (LoRA), or 16 bytes a parameter (full, AdamW); a shorter --max_length saves little"
    fix = f"shard it over {count} or more NPUs: --fsdp fsdp2, or --deepspeed zero3 (slower, less memory)"
    if model.params_b >= _MEGATRON_FROM_B or count > devices:
        fix = f"Megatron-SWIFT over {count} or more NPUs (this host has {devices})"
    yield Finding("strategy.shard", what, why, fix, Sureness.LIKELY, _D, "Q2")


def check_model(facts: HostFacts) -> Iterator[Finding]:
    """FAQ Q13: what config.json claims, and what the safetensors really hold."""
    model = facts.model
    if model is None:
        return
    for fault in model.faults:
        yield Finding(
            "model.unreadable", f"{model.name}: {fault}", "it can't be loaded, or is cut", "download it again", Sureness.CERTAIN, _B, "Q13"
        )
    held = {dtype: count for dtype, count in model.elements.items() if count}
    fp8 = [dtype for dtype in held if dtype in _FP8]
    total = sum(held.values()) or 1
    shown = ", ".join(f"{dtype} {count / total:.0%}" for dtype, count in sorted(held.items(), key=lambda item: -item[1]))
    why = "quantised and FP8 weights are not supported for training on NPUs; operators then refuse the dtype (DT_FLOAT8..., ERR01007)"
    fix = "take the BF16 checkpoint, or convert this one to BF16 off line, and train that"
    if fp8:
        sure = Sureness.LIKELY if facts.series is Hardware.A5 else Sureness.CERTAIN
        claim = f"quantization_config {model.quantization}" if model.quantization else "no quantization_config"
        what = f"{model.name} holds FP8 weights ({shown}; config.json: {claim})"
        yield Finding("model.fp8", what, why, fix, sure, _B, "Q13")
    elif model.quantization:
        really = any(held.get(dtype) for dtype in _QUANTISED)
        what = f"{model.name} has a quantization_config ({model.quantization}); its safetensors hold {shown or 'nothing'}"
        fix = fix if really else "its weights are plain: take quantization_config out of config.json, or the original checkpoint"
        yield Finding("model.quantised", what, why, fix, Sureness.LIKELY, _B, "Q13")


def check_command(facts: HostFacts) -> Iterator[Finding]:
    command = facts.command
    if command is None:
        return
    if (command.value("enable_npu_model_patch") or "true").lower() in ("false", "0", "no", "off", "f", "n"):
        why = "transformers' own layers then run: operators may be missing, loss and speed are others; only for looking into a fault"
        yield Finding(
            "command.patch_off",
            "the command turns the NPU model patches off",
            why,
            "leave out --enable_npu_model_patch, unless you compare with and without",
            Sureness.CERTAIN,
            _D,
            "Q3",
        )
    engine = command.value("infer_backend") or command.value("rollout_backend") or ""
    if engine == "sglang":
        yield Finding(
            "command.sglang",
            "the command asks for sglang",
            "it isn't supported on NPUs",
            "--infer_backend vllm, or transformers",
            Sureness.CERTAIN,
            _B,
            "Q4",
        )
    vllm = engine == "vllm" or (command.value("use_vllm") or "").lower() == "true" or command.subcommand == "rollout"
    if vllm and (facts.lacks("vllm") or facts.lacks("vllm-ascend")):
        yield Finding(
            "command.vllm",
            "the command needs vLLM, which is not installed with its Ascend plugin",
            "the engine can't start",
            "pip install vllm==0.18.0 && pip install vllm-ascend==0.18.0; or --infer_backend transformers to test the model first",
            Sureness.CERTAIN,
            _B,
            "Q11",
        )
    if command.value("quant_bits") or command.value("quant_method"):
        yield Finding(
            "command.quantises",
            "the command trains quantised weights (QLoRA)",
            "not supported on NPUs: losses of 0 and nan were seen",
            "drop --quant_bits and --quant_method, train LoRA in bfloat16",
            Sureness.CERTAIN,
            _B,
            "Q13",
        )
    if command.value("deepspeed") and command.value("fsdp"):
        yield Finding(
            "command.two_strategies",
            "the command asks for DeepSpeed and FSDP at once",
            "they exclude each other",
            "keep one: FSDP first, DeepSpeed where memory is short",
            Sureness.CERTAIN,
            _B,
            "Q2",
        )
    if (command.value("use_liger_kernel") or "").lower() == "true":
        yield Finding(
            "command.liger",
            "the command asks for Liger kernels",
            "they are CUDA Triton kernels",
            "drop --use_liger_kernel",
            Sureness.CERTAIN,
            _B,
            "暂不支持或未完全验证",
        )
    yield from _linear_attention(facts, command)


def _linear_attention(facts: HostFacts, command: AskedCommand) -> Iterator[Finding]:
    """Qwen3.5's gated delta rule has no NPU support for what cuts or joins sequences."""
    name = f"{command.value('model') or command.value('mcore_model') or ''} {facts.model.model_type if facts.model else ''}".lower()
    split = [f"--{o} {command.value(o)}" for o in ("sequence_parallel_size", "context_parallel_size") if (command.value(o) or "1") != "1"]
    split += [f"--{o} true" for o in ("packing", "padding_free") if (command.value(o) or "").lower() == "true"]
    if split and ("qwen3.5" in name or "qwen3_5" in name):
        why = "its linear attention has no complete NPU kernels for that: missing operators, or wrong sample borders"
        yield Finding(
            "command.sequence",
            f"Qwen3.5 with {', '.join(split)}",
            why,
            "leave these options at their defaults",
            Sureness.LIKELY,
            _B,
            "Qwen3.5 FLA补丁说明",
        )
