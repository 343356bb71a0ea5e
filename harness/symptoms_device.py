"""Rules for what is wrong with a device or with memory: npu-smi, permissions, visible devices, heartbeats, HBM and host memory."""

from __future__ import annotations

import re
from re import Match

from harness.symptoms import Role, Symptom, code, symptom


def _unordered(found: Match[str]) -> bool:
    """Whether the ids are not ascending or one is there twice: CANN then offers no device, without a word."""
    ids = [int(number) for number in re.findall(r"\d+", found[1])]
    return ids != sorted(set(ids))


DEVICE: tuple[Symptom, ...] = (
    symptom(
        "smi.dcmi",
        "dev.smi_unavailable",
        "Check that the driver's folders and devices are mounted and held by no other container, run as root, else reboot the card.",
        r"dcmi (?:module|model|card|device)?\s*init\w* fail",
        r"dcmi_init\w* fail",
        r"\bret is -80\d\d\b",
        r"lib(?:dcmi|drvdsmi_host|drvdsmi)\.so(?:\.\d+)*: cannot open",
        r"npu-smi: (?:No such file|command not found|not found)",
        r"""npu-smi['\"]?: executable file not found""",
        r"(?:No such file or directory|not found)\W{1,4}\S*npu-smi\b",
        r"npu-smi (?:is not found|not found)",
    ),
    symptom(
        "device.files",
        "dev.permission",
        "Add the user to the group HwHiAiUser (it also needs a passwd entry), or run as root.",
        r"HwHiAiUser\S*\s+0?660\b",
        r"/dev/\S*(?:davinci|devmm_svm|hisi_hdc)\S*\W{1,4}(?:Permission denied|Operation not permitted)",
        r"(?:Permission denied|Operation not permitted)\W{1,4}/dev/(?:davinci|devmm|hisi)",
        r"open\w* \S*/dev/(?:davinci|devmm|hisi)\S* (?:is )?fail",
    ),
    symptom(
        "device.count",
        "dev.permission",
        "Perhaps: no access to the device files: check mounts, the group HwHiAiUser and the container's capabilities.",
        r"Get (?:physical |logical )?device (?:number|num|count|info|list) failed",
        r"drvGetDevNum\w* fail",
        r"Can't get ascend_hal device count",
        code("207006"),
    ),
    symptom(
        "device.held",
        "dev.stale_process",
        "End what is left of the earlier run, wait 10 s, run again.",
        r"\b(?:EJ0001|E30003)\b",
        r"last training process is running",
        r"number of started NN processes exceeds",
        r"[Dd]evice\b.{0,40}\b(?:is|has been|already) (?:already )?(?:occupied|held|in use|used) by (?:another|other|an earlier)",
    ),
    symptom(
        "visible.invalid",
        "dev.visible_mapping",
        "Give ids that exist, ascending, in ASCEND_RT_VISIBLE_DEVICES; bad ones are dropped without a word.",
        code("107001"),
        r"[Ii]nvalid device (?:id|ID|ordinal)\b",
        r"[Ss]et (?:visible )?device failed, invalid device",
        r"devId is invalid",
        r"set ASCEND_RT_VISIBLE_DEVICES:\S* error",
        r"valid device range is \[",
        r"device id error",
    ),
    Symptom(
        "visible.unordered",
        "dev.visible_mapping",
        re.compile(r"ASCEND_RT_VISIBLE_DEVICES\s*[=:]\s*[\"']?(\d+(?:\s*,\s*\d+)+)"),
        "Give the ids in ascending order, each once; else no device is visible, without a word.",
        check=_unordered,
    ),
    symptom(
        "visible.none",
        "dev.visible_mapping",
        "Perhaps: ids in ASCEND_RT_VISIBLE_DEVICES that do not exist or do not ascend; they are dropped without a word.",
        r"\bnpu\.is_available\(\)\W{0,6}(?:is |returns? |returned )?False",
        role=Role.VAGUE,
    ),
    symptom(
        "device.lost",
        "dev.lost",
        "Reset or reboot the card; see npu-smi info -t health.",
        r"(?i:device\b.{0,20}\blost|lost) heart ?bea(?:t|rt)",
        r"heart ?beat lost (?:on|of|for|in) (?:device|npu|card)",
        r"Heartbeat lost \(",
        r"task scheduler loses the heartbeat",
        r"\bEL0001\b",
        r"Device not found or invalid",
        r"(?i:device|npu|card) (?:is |was |has been )?(?:lost|offline|dropped)\b",
        r"UCE ERROR",
        r"MULTI BIT ECC",
        r"[Uu]ncorrectable ECC",
        r"Health\s*[:|]\s*(?:Alarm|Critical)\b",
        code("507010|507053|507054|507055"),
    ),
    symptom(
        "npu.oom",
        "mem.npu_oom",
        "Use less device memory (shorter sequences, gradient checkpointing, ZeRO-3) or more devices; close what else holds it.",
        r"NPU out of memory",
        r"\bEL0004\b",
        r"\bEI0011\b",
        r"Memory_Allocation_Failure",
        r"[Ff]ailed to allocate (?:device |NPU )?memory\b.{0,40}(?i:npu|device|hbm|GE module|207001)",
        r"(?:aclrtMalloc|rtMalloc|halMemAlloc)\w*\W{0,3}(?:execute )?fail",
        r"memory on the device is exhausted",
        r"HBM\b.{0,20}(?:exhausted|insufficient)",
        r"Free memory on device.{0,60}less than desired",
        code("207001|207018"),
    ),
    symptom(
        "kv.cache",
        "mem.kv_cache",
        "Lower max_model_len, or raise gpu_memory_utilization.",
        r"[Nn]o available memory for the (?:cache blocks|KV cache)",
        r"KV cache (?:is needed|needed|is required).*(?:larger|more) than",
        r"max seq len .* is larger than the maximum number of tokens",
        r"(?:not enough|insufficient) memory for (?:the )?KV cache",
    ),
    symptom(
        "host.oom",
        "mem.host_oom",
        "Give the host or the container more memory (or /dev/shm), or run fewer ranks and workers.",
        r"(?:Memory cgroup o|\bO)ut of memory: Kill",
        r"oom-kill:",
        r"\boom[_-]kill(?:er|ed)\b",
        r"OOMKilled",
        r"\bMemoryError\b",
        r"[Cc]annot allocate memory(?! in static)",
        r"DefaultCPUAllocator: (?:can't allocate|not enough memory)",
        r"std::bad_alloc",
        r"killed due to the node running low on memory",
        r"out of shared memory",
        r"insufficient shared memory",
        r"DataLoader worker.{0,30}killed by signal: (?:Killed|Bus error)",
    ),
    symptom(
        "killed.9",
        "mem.host_oom",
        "Perhaps: the host ran out of memory: see dmesg, only the kernel knows.",
        r"exit ?code\s*:?\s*-9\b",
        r"exit(?:ed)? (?:with )?(?:code|status)?\W{0,2}137\b",
        r"[Ss]ignal 9 \(SIGKILL\)",
        r"SIGKILL: 9",
        r"\breturn code -9\b",
        r"^(?:\S+: line \d+: +\d+ )?Killed\b",
        role=Role.VAGUE,
    ),
)
