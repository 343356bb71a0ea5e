"""Rules for plain sentences: a failure told in words that no saved log had. They come last, and decide only where no other rule does."""

from __future__ import annotations

import re
from re import Match

from harness.symptoms import Role, Symptom

_FAILURE = re.compile(
    r"(?:Error|Exception)\b|\b(?:ERROR|FATAL|CRITICAL)\b|\b[Ee]rror: |"
    r"(?i:\b(?:failed|failure|fails to|cannot|can't|could not|unable|aborting|fatal)\b)"
)


def _fails(found: Match[str]) -> bool:
    """Whether the whole line tells of a failure: the same words stand in messages of progress, too."""
    return bool(_FAILURE.search(found.string))


def _said(id: str, cause: str, remedy: str, subject: str, happens: str) -> Symptom:
    """A rule that matches where what happens is said near its subject, in either order."""
    near = re.compile(rf"(?:{subject})\b.{{0,60}}\b(?:{happens})\b|\b(?:{happens})\b.{{0,60}}(?:{subject})\b", re.IGNORECASE)
    return Symptom(f"said.{id}", cause, near, f"Perhaps: {remedy}", Role.HINT, _fails)


_ABSENT = r"(?:is |was |are |has )?(?:n't|not) (?:found|installed|available|importable)|no such file|missing|cannot find|could not find"
_OTHER = r"(?:built|compiled|made) (?:for|with|against) (?:a |an )?(?:different|another|other)"
_APART = r"incompatible|not compatible|mismatch|(?:do|does) not (?:match|fit)|too old|at least"

SAID: tuple[Symptom, ...] = (
    _said(
        "megatron",
        "env.megatron_path",
        "keep exactly one megatron on PYTHONPATH.",
        r"megatron",
        r"twice|two|duplicated?|shadow\w*|more than one",
    ),
    _said("nnal.abi", "env.nnal_abi", "install the NNAL of this torch's C++ ABI.", r"libatb\S*|\bnnal\S*", rf"abi|{_OTHER}"),
    _said("nnal", "env.nnal_missing", "install NNAL and source its set_env.sh.", r"\bnnal\S*|\batb", rf"{_ABSENT}|not sourced|unset"),
    _said(
        "cann",
        "env.cann_not_sourced",
        "source CANN's set_env.sh in this shell.",
        r"set_env\.sh|CANN (?:env\w*|toolkit|librar\w+)|ASCEND_(?:HOME|TOOLKIT|OPP)\w*",
        rf"{_ABSENT}|not (?:sourced|set|configured)|unset|forgot\w*",
    ),
    _said(
        "pydeps",
        "env.cann_pydeps",
        "install CANN's Python dependencies into this interpreter.",
        r"CANN|\bTBE",
        r"python (?:dependenc\w+|packages?|modules?)|no module named",
    ),
    _said("pair", "env.cann_pta_pair", "install CANN, torch_npu and driver of one release.", r"CANN|\bdriver|firmware|HDK", _APART),
    _said(
        "kernels",
        "env.kernels_missing",
        "install the kernels package of this chip, of CANN's version.",
        r"\bop(?:erator)?s? (?:kernels?|binar\w+)|kernels? package|binary package",
        rf"{_ABSENT}|(?:another|different|wrong|other) (?:chip|soc)",
    ),
    _said(
        "torch_npu",
        "env.torch_npu_missing",
        "install torch_npu for this torch.",
        r"torch[_-]npu",
        rf"(?:is)?{_ABSENT}|isn't installed|shadow\w*",
    ),
    _said(
        "wheel",
        "env.wrong_wheel",
        "install the build for this chip.",
        r"\bwheel|\bbuil[dt]|\bcompiled|\bpackage",
        r"(?:another|different|wrong|other) (?:chip|soc|device type|hardware)|(?:for|targets?) \S+ (?:but|while)",
    ),
    _said("cuda", "env.cuda_pkg", "choose the NPU's path.", r"\bCUDA|NVIDIA(?: GPUs?)?", rf"required|requires|needs?|{_ABSENT}"),
    _said("abi", "env.abi_other", "install versions that were released for each other.", r"\bABI", rf"{_APART}|different"),
    _said(
        "pins",
        "env.pin_conflict",
        "install the versions that the documents name.",
        r"[a-z]\w{0,30} v?\d{1,4}\.\d[\w.]{0,30}",
        r"conflicts? with|is incompatible with",
    ),
    _said(
        "smi",
        "dev.smi_unavailable",
        "see whether npu-smi info answers here.",
        r"npu-smi|\bdcmi",
        r"fail(?:s|ed)?|timed out|hangs?|unusable|unavailable",
    ),
    _said(
        "permission",
        "dev.permission",
        "add the user to the group HwHiAiUser, or run as root.",
        r"/dev/(?:davinci|devmm|hisi)\S*|HwHiAiUser",
        r"permission denied|not permitted|no permission|access denied|no access|not in",
    ),
    _said(
        "stale",
        "dev.stale_process",
        "end what is left of the earlier run.",
        r"\b(?:npu|device|card|/dev/davinci)s? ?\d*",
        r"busy|still (?:held|holds?|running|alive|occupied)|left ?over|stale|zombie|orphan\w*",
    ),
    _said(
        "visible",
        "dev.visible_mapping",
        "give ids that exist, ascending, in ASCEND_RT_VISIBLE_DEVICES.",
        r"ASCEND_RT_VISIBLE_DEVICES|visible devices?",
        r"(?:do|does) not (?:exist|match)|invalid|out of range|ascending|duplicates?|exceeds?|mismatch|wrong",
    ),
    _said(
        "lost",
        "dev.lost",
        "see npu-smi info -t health; reset or reboot the card.",
        r"\b(?:npu|device|card|chip) ?\d*",
        r"offline|not responding|stopped responding|heartbeat|disappeared|unhealthy|uncorrectable|gone|status is (?:alarm|critical)",
    ),
    _said(
        "kv",
        "mem.kv_cache",
        "lower max_model_len, or raise gpu_memory_utilization.",
        r"KV ?cache",
        r"not enough|insufficient|too small|no (?:room|space)",
    ),
    _said(
        "host.memory",
        "mem.host_oom",
        "give the host or the container more memory.",
        r"\b(?:host|system|cpu|shared) memory|/dev/shm",
        r"out of|exhausted|insufficient|not enough|full|too small|ran out",
    ),
    _said(
        "npu.memory",
        "mem.npu_oom",
        "use less device memory.",
        r"\b(?:NPU|HBM|device)(?: memory)?",
        r"out of memory|exhausted|ran out|not enough|insufficient",
    ),
    _said(
        "port",
        "comm.port_in_use",
        "give this job ports of its own.",
        r"\bport(?: \d+)?",
        r"busy|in use|taken|occupied|bound|unavailable|not (?:free|available)",
    ),
    _said(
        "link",
        "comm.link_down",
        "repair the link (hccn_tool -i N -link -g).",
        r"\b(?:rdma|roce|hccs|optical module|link)",
        r"down|not ready|broken|absent",
    ),
    _said(
        "nic",
        "comm.wrong_nic",
        "name an interface of this host.",
        r"network interface|SOCKET_IFNAME|\bnic",
        rf"{_ABSENT}|(?:does )?not exist|unknown|no such",
    ),
    _said(
        "weights",
        "comm.weight_sync",
        "put trainer and rollout server on different cards.",
        r"\b(?:weights?|parameters?) (?:sync\w*|transfer|update|broadcast)",
        r"rollout|vllm|inference|engine",
    ),
    _said(
        "collective",
        "comm.notify_timeout",
        "look for the rank that did not take part.",
        r"\ball_?reduce|all_?gather|broadcast|reduce_?scatter|all_?to_?all|\bcollective|\bbarrier",
        r"timed out|times out|hung|stuck",
    ),
    _said(
        "connect",
        "comm.connect_timeout",
        "look for the rank that died first or never started.",
        r"\branks?|\bpeers?|\bHCCL init\w*|process group|rendezvous",
        r"(?:has|have|did) not (?:connect|join|start|arrive)\w*|never (?:connected|joined|started)|timed out",
    ),
    _said(
        "dtype",
        "op.dtype",
        "use a dtype that this operator has on this chip.",
        r"\b(?:float\d+|bfloat16|bf16|fp\d+|double|half|u?int\d+|complex\d+)",
        r"(?:not|n't) support(?:ed)?|unsupported|only supports?",
    ),
    _said(
        "aicore",
        "op.aicore",
        "run again with ASCEND_LAUNCH_BLOCKING=1 to find the operator.",
        r"\bai ?core|\baivec\w*|\baicube|(?:vector|cube) core",
        r"exceptions?|errors?|faults?|failed|aborted|illegal",
    ),
    _said(
        "aicpu",
        "op.aicpu",
        "run again with ASCEND_LAUNCH_BLOCKING=1 to find the operator.",
        r"\bai ?cpu",
        r"exceptions?|errors?|faults?|failed|aborted|illegal",
    ),
    _said(
        "operator",
        "op.unsupported",
        "use a model path without this operator, or a newer torch_npu.",
        r"\boperator|\bkernel|\baten::\w+|\bnpu_\w+",
        r"not (?:implemented|supported)|unsupported|unimplemented",
    ),
    _said(
        "triton",
        "op.compile_triton",
        "report it to triton-ascend.",
        r"triton\S*",
        r"compil(?:e|ing|ation|er)",
    ),
    _said(
        "compile",
        "op.tiling_or_compile",
        "report it with the operator and its shapes.",
        r"tiling|compile graph|graph compil\w+|\bop(?:erator)?\W{1,2}\w+\W{0,2} (?:build|compile)\w*",
        r"fail(?:s|ed)?|no valid",
    ),
    _said(
        "args",
        "args.unknown",
        "compare the option with the installed version's.",
        r"\barguments?|\boptions?|\bflags?",
        r"unrecognized|unknown|renamed|removed",
    ),
    _said(
        "conflict",
        "args.conflict",
        "drop one of the options.",
        r"--\w+|[`'\"]\w+[`'\"]|\b[a-z]+_[a-z_]+",
        r"incompatible|not (?:supported|allowed) together|exclusive|can(?:not|'t) be combined|not divisible by",
    ),
    _said(
        "nan",
        "train.nan",
        "look at the first step whose loss or gradient is not finite.",
        r"\b(?:loss|grad\w*|logits|reward)",
        r"nan|infinite|not finite|non-finite",
    ),
    _said(
        "worker",
        "data.map_died",
        "run with --dataset_num_proc 1.",
        r"preprocess\w*|\bmap worker|dataset worker|tokeniz\w+ worker",
        r"died|crashed|killed",
    ),
    _said(
        "data",
        "data.rejected",
        "check the data set's path and format.",
        r"\bdata ?set\b|\btrain(?:ing)? (?:split|data|set)|\bsamples|\S\.(?:jsonl|parquet)",
        r"empty|not found|missing|no valid|does not exist|malformed|(?:none|no \w+) (?:left|remain)",
    ),
    _said(
        "save",
        "ckpt.save",
        "make room where the checkpoints go.",
        r"\bcheckpoint\S*|\bsav(?:e|ing)",
        r"disk (?:is )?full|no space|ENOSPC|read-only|quota|(?:could not|cannot|failed to) write",
    ),
)
