"""Which phase a hung run was in: from the stacks of its processes and the last lines of its log."""

from __future__ import annotations

import re

# Innermost first: of one process's frames the first that matches names its phase.
_FRAMES: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "HCCL",
        re.compile(
            r"(?i)all_?reduce|all_?gather|reduce_scatter|all_?to_?all|\bbarrier\b|broadcast|hccl|init_process_group|ProcessGroup|TCPStore|"
            r"rendezvous|new_group|\b_?store\b.*\b(?:get|wait)\b|batch_isend_irecv"
        ),
    ),
    (
        "data",
        re.compile(
            r"(?i)dataloader|_next_data|_try_get_data|load_dataset|dataset_?map|\bdatasets/|preprocess|tokeni[sz]|\bencode\b|collate"
        ),
    ),
    (
        "weights",
        re.compile(
            r"(?i)safetensors|load_state_dict|_load_pretrained|load_checkpoint|save_checkpoint|save_pretrained|snapshot_download|hub/|"
            r"load_shard|load_weights|update_named_param|update_flattened_params"
        ),
    ),
    (
        "model",
        re.compile(
            r"(?i)from_pretrained|get_model|prepare_model|modeling_\w+\.py.*__init__|_inductor|triton|compile|capture_model|init_device"
        ),
    ),
    ("step", re.compile(r"(?i)training_step|\bforward\b|backward|run_backward|optimizer|\bstep\b|synchronize|generate|execute_model")),
)
_LINES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("HCCL", re.compile(r"(?i)hccl|init_process_group|init_distributed|rendezvous|process group|communicator")),
    (
        "weights",
        re.compile(
            r"(?i)loading (?:checkpoint|safetensors|(?:model )?weights)|checkpoint shards|downloading|saving .*checkpoint|sync\w* weights"
        ),
    ),
    (
        "data",
        re.compile(r"(?i)^\s*(?:map|filter|tokeni[sz]ing|generating \w+ split)\b.*:|num_proc|loading dataset|\bdataset\b|train_dataset"),
    ),
    ("step", re.compile(r"(?i)^\s*train(?:ing)?:?\s+\d+%|['\"]loss['\"]:|\bit/s\]|s/it\]|\biteration\s+\d+/|capturing|generating")),
    ("model", re.compile(r"(?i)loading (?:the )?model|\bmodel:|get_model|compil|device_map|prepare(?:d)? model|model_info")),
)
_FRAME = re.compile(r"^\s+(?:File \"|[\w<>.]+ \()|^\s*#?\d*\s*\w[\w.<>:]* \(|^\s+\S+.* in \S+|^\s*File ")
_NEAR = 40


def phase_of(log: str, stacks: str) -> tuple[str, str]:
    """(data, model, weights, HCCL or step, what says so); ("", "") if nothing does.

    Ranks that wait in a collective wait for the one that is elsewhere, so its phase is the run's.
    """
    found = [phase for section in re.split(r"(?m)^== ", stacks) if (phase := _of_stack(section))[0]]
    elsewhere = [phase for phase in found if phase[0] != "HCCL"]
    if found and (not elsewhere or len(elsewhere) == len(found)):
        return found[0]
    if elsewhere:
        name, frame = elsewhere[0]
        return name, f"{frame} (the other ranks wait for it in a collective)"
    for line in reversed(log.splitlines()[-_NEAR:]):
        for name, pattern in _LINES:
            if pattern.search(line):
                return name, line.strip()[:200]
    return "", ""


def _of_stack(section: str) -> tuple[str, str]:
    lines = [line for line in section.splitlines() if _FRAME.search(line)]
    if re.search(r"(?m)^Traceback \(most recent call last\)|most recent call last", section):
        lines.reverse()
    for line in lines:
        for name, pattern in _FRAMES:
            if pattern.search(line):
                return name, line.strip()[:200]
    return "", ""
