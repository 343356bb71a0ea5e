"""What ms-swift, torch_npu, CANN and their friends print when something is wrong: the table that diagnose reads a log with.

Codes come bare (`EJ0003:`) or named (`Communication_Error_Bind_IP_Port(EJ0003)`). A remedy that nobody confirmed begins with "Perhaps".
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from re import Pattern
from typing import Any

if sys.version_info >= (3, 11):
    from re import _parser as sre_parse
else:
    import sre_parse


@dataclass(frozen=True)
class Symptom:
    """A line that speaks for `cause`. A `symptom_only` one usually follows from something else: it decides only where no other does."""

    cause: str
    pattern: Pattern[str]
    remedy: str
    symptom_only: bool = False


def _s(cause: str, pattern: str, remedy: str, symptom_only: bool = False) -> Symptom:
    return Symptom(cause, re.compile(pattern), remedy, symptom_only)


# Harmless, however alarming: never a cause, not even when another pattern would match the line.
NOISE: tuple[Pattern[str], ...] = tuple(
    re.compile(text)
    for text in (
        r"not currently supported on the NPU backend and will fall back",
        r"pending NCCL work",
        r"HCCL execution timeout was set to never timeout",
        r"the data will be deleted",
        r"ERR99999 UNKNOWN",
        r"(?i)\b(?:Future|Deprecation|User|Runtime)Warning\b",
    )
)

SYMPTOMS: tuple[Symptom, ...] = (
    _s("comm.mismatch", r"Received data size doesn't match expected size|Detected mismatch between collectives on ranks", "See which rank saves."),
    _s("ckpt.load", r"checkpoint-\d+` is not an adapter, please try|load_state_dict\(\) got an unexpected keyword|automatically match `model_type` for `[^`]*checkpoint-\d+`", "Gather the checkpoint (FULL_STATE_DICT)."),
    _s(
        "args.unknown",
        r"remaining_argv: \[",
        "Rename or drop the option; sft_type became train_type, then tuner_type. `pytest -m contract` names the likely new one.",
    ),
    _s(
        "args.unknown",
        r"error: (?:unrecognized arguments|argument --\S+: invalid)",
        "Compare the option with the installed version's arguments.",
    ),
    _s(
        "args.conflict",
        r"DeepSpeed is not compatible with `device_map`",
        "Drop --device_map, or DeepSpeed.",
    ),
    _s(
        "args.conflict",
        r"Torch GDN fallback does not support cu_seqlens",
        "Packing and padding_free need the flash-linear-attention kernels here.",
    ),
    _s(
        "args.conflict",
        r"(?:ValueError|AssertionError|RuntimeError).*\b(?:not compatible with|incompatible with|mutually exclusive|"
        r"cannot be used (?:together )?with|is not supported (?:with|when))",
        "Drop one of the two options.",
    ),
    _s(
        "args.conflict",
        r"base_layer\._shared_experts is not None",
        "Fused experts take no LoRA weights on Ascend.",
    ),
    _s(
        "env.megatron_path",
        r"mcore-bridge import fails|No module named 'megatron|two copies of megatron",
        "Keep one megatron importable, prepended to PYTHONPATH.",
    ),
    _s(
        "env.cann_not_sourced",
        r"lib(?:hccl|ascendcl|ascend_hal|ge_runner|graph|acl_op_compiler)\.so(?:\.\d+)*: cannot open|ERR00008|"
        r"source set_env\.sh",
        "Source CANN's set_env.sh in this shell, then run again.",
    ),
    _s(
        "env.nnal_missing",
        r"libatb\.so(?:\.\d+)*: cannot open|ATB_HOME_PATH.*(?:not set|KeyError)",
        "Install NNAL and source its set_env.sh.",
    ),
    _s(
        "env.nnal_abi",
        r"undefined symbol: _ZN3atb",
        "Perhaps: install the NNAL that pairs with this torch_npu and CANN, with the same C++ ABI.",
    ),
    _s(
        "env.abi_other",
        r"undefined symbol: |module 'torch_npu' has no attribute|'_OpNamespace' '_C_ascend' object has no attribute",
        "Perhaps: install versions of torch, torch_npu and vllm-ascend that were released for each other.",
    ),
    _s(
        "env.cann_pta_pair",
        r"Failed to find function Hccl|GetDeviceIndexByPhyId.*(?:err|fail)|error code is 500001",
        "Perhaps: upgrade CANN to the version that pairs with this torch_npu and driver.",
    ),
    _s(
        "env.cann_pydeps",
        r"No module named '(?:tbe|te|hccl|auto_tune|decorator|attrs?|cloudpickle|sympy\.core)'",
        "Install CANN's Python dependencies (decorator, attrs, scipy, cloudpickle, psutil) into this interpreter.",
    ),
    _s(
        "env.kernels_missing",
        r"does not has any binary|binary_info_config\.json failed|opp_kernel package|"
        r"Cannot parse json for config file .*/kernel/",
        "Install the kernels package of this chip, of CANN's version.",
    ),
    _s(
        "env.torch_npu_missing",
        r"No module named 'torch_npu(?:\._C)?'",
        "Install torch_npu for this torch; if it is, start outside its source tree.",
    ),
    _s(
        "env.libgomp_tls",
        r"cannot allocate memory in static TLS block",
        "Perhaps: export LD_PRELOAD to that libgomp.so.1.",
    ),
    _s(
        "env.wrong_wheel",
        r"does not match the current device soc|Current device type .* does not match",
        "Install the build for this chip (A2 and A3 have their own).",
    ),
    _s(
        "env.cuda_pkg",
        r"Torch not compiled with CUDA enabled|No module named '(?:transformer_engine|flash_attn|apex)'|lib(?:cudart|"
        r"nccl|cublas)\S*: cannot open",
        "Uninstall the CUDA-only package, or choose the NPU's path (attn_impl, device).",
    ),
    _s(
        "env.pin_conflict",
        r"resolver conflict|ResolutionImpossible|requires torch==\S+ (?:while|but)|"
        r"but you have \S+ \S+ which is incompatible",
        "Install the pair of versions that the documents name.",
    ),
    _s(
        "dev.smi_unavailable",
        r"dcmi (?:module|model) initialize|dcmi init failed|npu-smi: (?:No such file|command not found|not found)",
        "Check that the driver's folders and devices are mounted, run as root, else reboot the card.",
    ),
    _s(
        "dev.permission",
        r"HwHiAiUser\S* 0?660|/dev/\S*(?:davinci|devmm_svm|hisi_hdc)\S*: Permission denied|"
        r"Permission denied: '/dev/(?:davinci|devmm|hisi)",
        "Add the user to the group HwHiAiUser, or run as root.",
    ),
    _s(
        "dev.permission",
        r"\bEE1001\b",
        "Perhaps: no access to the device files; check the group HwHiAiUser.",
        symptom_only=True,
    ),
    _s(
        "dev.stale_process",
        r"\b(?:EJ0001|E30003)\b|number of started NN processes exceeds",
        "End what is left of the earlier run, wait 10 s, run again.",
    ),
    _s(
        "dev.visible_mapping",
        r"(?:runtime result|error code is|retCode)\D{0,4}107001\b|[Ii]nvalid device id",
        "Give ids that exist, ascending, in ASCEND_RT_VISIBLE_DEVICES; bad ones are dropped without a word.",
    ),
    _s(
        "dev.lost",
        r"[Hh]eart ?beat [Ll]ost|heart beat lost|device (?:is )?lost|\b507010\b",
        "Reset or reboot the card; see npu-smi info -t health.",
    ),
    _s(
        "mem.npu_oom",
        r"NPU out of memory|\bEL0004\b|Failed to allocate memory\b.*[Nn]pu|aclrtMalloc.*(?:fail|error)|"
        r"error code is 207001",
        "Use less device memory: shorter sequences, gradient checkpointing, ZeRO-3 or more devices.",
    ),
    _s(
        "mem.kv_cache",
        r"No available memory for the cache blocks|KV cache (?:is needed|needed).*larger than|"
        r"max seq len .* is larger than the maximum number of tokens",
        "Lower max_model_len, or raise gpu_memory_utilization.",
    ),
    _s(
        "mem.host_oom",
        r"(?:Memory cgroup o|\bO)ut of memory: Killed process|oom-kill:|MemoryError\b|Cannot allocate memory|"
        r"DefaultCPUAllocator: can't allocate",
        "Give the host or the container more memory, or run fewer ranks and workers.",
    ),
    _s(
        "comm.port_in_use",
        r"\b(?:EJ0003|EI0019)\b|[Aa]ddress already in use|EADDRINUSE|specific port\[\d+\] fail|"
        r"port \d+ is (?:already )?in use",
        "Give this job ports of its own: HCCL_IF_BASE_PORT, MASTER_PORT or --port.",
    ),
    _s(
        "comm.link_down",
        r"\bEJ0002\b|network port is down",
        "Perhaps: repair the link (hccn_tool -i N -link -g), or use HCCS or PCIe on a single node.",
    ),
    _s(
        "comm.wrong_nic",
        r"is not found in the nic list|get host ip fail by socket Ifname",
        "Set HCCL_IF_IP or HCCL_SOCKET_IFNAME to an interface of this host.",
    ),
    _s(
        "comm.weight_sync",
        r"\bEI0009\b|init_communicator|PyNcclCommunicator",
        "Perhaps: put trainer and rollout server on different cards, with one communicator on both sides.",
    ),
    _s(
        "comm.notify_timeout",
        r"\b(?:EI0002|107020)\b|Watchdog caught collective operation timeout",
        "Look for the rank that did not take part: its own log has the cause.",
        symptom_only=True,
    ),
    _s(
        "comm.connect_timeout",
        r"\bEI0006\b|socket timeout!|wait socket establish timeout|HcclCommInitRootInfo fail",
        "Look for the rank that died first; HCCL_CONNECT_TIMEOUT only helps slow starts.",
        symptom_only=True,
    ),
    _s(
        "op.dtype",
        r"not implemented for DT_|ERR01007|dtype support list|(?:unsupported|not support(?:ed)?).{0,20}(?:fp4|Float8|"
        r"float64)|DT_FLOAT8_\w+ rejected",
        "Use a dtype that this operator has on this chip (float16 on 910A and 310P; no float64).",
    ),
    _s(
        "op.compile_triton",
        r"ub overflow|BiShengIR pipeline|Triton compilation failed",
        "Report it to triton-ascend with the kernel and its shapes.",
    ),
    _s(
        "op.tiling_or_compile",
        r"\bE40021\b|tiling failed|OperationSetup|\]\s*setup failed!",
        "Report it with the operator and its shapes; try a newer CANN.",
    ),
    _s(
        "op.aicore",
        r"\b(?:507015|507035)\b|aicore exception|aivector error exception",
        "Run again with ASCEND_LAUNCH_BLOCKING=1 to find the operator.",
    ),
    _s(
        "op.aicpu",
        r"\b(?:507018|E39999)\b|AICPU.*exception|aicpu exception",
        "Run again with ASCEND_LAUNCH_BLOCKING=1 to find the operator.",
    ),
    _s(
        "op.unsupported",
        r"Could not run 'aten::|NotImplementedError: .*[Nn][Pp][Uu]|ERR01002",
        "Use a model path without this operator, or a newer torch_npu.",
    ),
    _s(
        "train.nan",
        r"found NaN in|(?:Inf|NaN) (?:detected|found)|loss is (?:nan|inf)",
        "Look at the first step whose loss or gradient is not finite.",
    ),
    _s(
        "data.map_died",
        r"subprocesses has abruptly died during map operation",
        "Run with --dataset_num_proc 1 to see the worker's own error; often host memory.",
    ),
    _s(
        "data.rejected",
        r"Failed to retrieve the dataset|local path does not exist, dataset_id|dataset is empty|num_samples=0",
        "Check the data set's path and format; raise max_length if every row is too long.",
    ),
    _s(
        "ckpt.save",
        r"No space left on device|Disk quota exceeded|SafetensorError.*(?:writ|I/O)|inline_container\.cc.*(?:write|"
        r"unexpected pos)|Read-only file system",
        "Make room where the checkpoints go, or choose another output_dir.",
    ),
)

# A row of metrics, as ms-swift logs it: a bare or quoted nan or inf where a number belongs.
NOT_FINITE = re.compile(r"""['"](?:loss|grad_norm)['"]:\s*['"]?-?(?:nan|inf|infinity)\b""", re.IGNORECASE)


def present(text: str, among: Iterable[Symptom] = SYMPTOMS) -> list[Symptom]:
    """Those `among` the symptoms that lines of `text` may have; what is not returned, none has."""
    lowered = text.lower()
    return [symptom for symptom in among if any(word in lowered for word in _WORDS[symptom])]


def literals_of(pattern: Pattern[str]) -> frozenset[str]:
    """Lower-case words of which any text that `pattern` matches holds at least one, whatever its case; {""} if none are sure.

    Looking for plain words first makes reading a log of hundreds of megabytes some fifteen times as fast.
    """
    return _needed(sre_parse.parse(pattern.pattern, pattern.flags)) or frozenset({""})


def _needed(parsed: Any) -> frozenset[str]:
    """The best of the choices that a sequence offers: each of its parts has to match. Empty: there is no choice."""
    choices: list[frozenset[str]] = []
    word = ""
    for operation, value in parsed:
        kind = str(operation)
        if kind == "LITERAL":
            word += chr(value).lower()
            continue
        choices.append(frozenset({word} - {""}))
        word = ""
        if kind == "SUBPATTERN":
            choices.append(_needed(value[-1]))
        elif kind in ("MAX_REPEAT", "MIN_REPEAT") and value[0] > 0:
            choices.append(_needed(value[2]))
        elif kind == "BRANCH":
            parts = [_needed(part) for part in value[1]]
            choices.append(frozenset().union(*parts) if all(parts) else frozenset())
    choices.append(frozenset({word} - {""}))
    return max(choices, key=lambda choice: min(map(len, choice), default=0))


_WORDS = {symptom: literals_of(symptom.pattern) for symptom in SYMPTOMS}
