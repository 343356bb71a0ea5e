"""What runs leave on disk, read into plain values. Damaged files don't raise here: each value says what is wrong with it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import HarnessError
from harness.found import Answer, Answers, CheckpointFiles, Logits
from harness.mapped import map_file
from harness.metrics import parse_logging
from harness.model import Metrics, Witness
from harness.sharded import optimizer_moments, read_distcp
from harness.tensors import Tensor, TensorFile, parse_safetensors
from harness.torch_saved import tensor_bytes
from harness.vocabulary import Vocabulary, read_vocabulary
from harness.witness_log import parse_witness, rank_zero

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
# The optimizer of one rank and of ddp; of FSDP1, with its weights, which stand in safetensors too; what each rank goes on from.
_STATES = ("optimizer.pt", "optimizer.bin", "pytorch_model_fsdp.bin", "scheduler.pt", "rng_state*.pth")
# FSDP2 leaves these two folders instead, as torch.distributed.checkpoint writes them.
_SHARDED_WEIGHTS, _SHARDED_OPTIMIZER = "pytorch_model_fsdp_0", "optimizer_0"
_ZERO_FOLDER = re.compile(r"global_step\d+")
_LORA = re.compile(r".+\.lora_(embedding_)?[AB](\.weight)?")
_OUTPUT, _EMBEDDING = "lm_head.weight", "embed_tokens.weight"
NONCE_FILE = "npu_matrix_nonce.json"


def checkpoints(output_dir: Path) -> dict[int, Path]:
    """Step to folder: `output_dir/checkpoint-N` and `output_dir/*/checkpoint-N` (ms-swift's version folder). Links are left out.

    Where two version folders hold the same step, the one modified last counts, as `newest_checkpoint` has it.
    """
    found: dict[int, Path] = {}
    folders = [*output_dir.glob("checkpoint-*"), *output_dir.glob("*/checkpoint-*")]
    real = [f for f in folders if _CHECKPOINT.fullmatch(f.name) and f.is_dir() and not f.is_symlink() and not f.parent.is_symlink()]
    for folder in sorted(real, key=lambda f: (f.stat().st_mtime_ns, str(f))):
        found[int(folder.name.rpartition("-")[2])] = folder
    return found


def newest_checkpoint(output_dir: Path) -> Path | None:
    """What `$WORK_DIR/*/checkpoint-*` of the documents means: the highest step in the version folder modified last."""
    found = checkpoints(output_dir).values()
    return max(found, key=lambda f: (f.parent.stat().st_mtime_ns, int(f.name.rpartition("-")[2])), default=None)


def checkpoint_at(output_dir: Path, step: int) -> Path | None:
    return checkpoints(output_dir).get(step)


def read_checkpoint(folder: Path) -> CheckpointFiles:
    """One checkpoint, or merged model, whole. Every file that is there but can't be read is named in `faults`."""
    faults: list[str] = []
    named = {name: _read_object(folder / name, faults) for name in (NONCE_FILE, "trainer_state.json", "adapter_config.json", "config.json")}
    weights = read_tensors(folder)
    if weights is not None and weights.fault:
        faults.append(weights.fault)
    sharded_loras = weights is not None and weights.path.endswith(_SHARDED_WEIGHTS) and any(map(_LORA.fullmatch, weights.tensors))
    states: dict[str, int] = {}
    for path in [path for pattern in _STATES for path in sorted(folder.glob(pattern))] + _zero_files(folder, faults):
        try:
            states[path.relative_to(folder).as_posix()] = tensor_bytes(path)
        except HarnessError as error:
            faults.append(str(error))
    moments = None
    if (folder / _SHARDED_OPTIMIZER).is_dir():
        optimizer = read_distcp(folder / _SHARDED_OPTIMIZER)
        moments, states[_SHARDED_OPTIMIZER] = optimizer_moments(optimizer)
        faults += [optimizer.fault] if optimizer.fault else []
    return CheckpointFiles(
        dir=str(folder),
        weights=weights,
        is_adapter=any(folder.glob("adapter_model*")) or sharded_loras,
        nonce=named[NONCE_FILE],
        trainer_state=named["trainer_state.json"],
        adapter_config=named["adapter_config.json"],
        config=named["config.json"],
        states=states,
        moments=moments,
        faults=tuple(faults),
    )


def read_tensors(folder: Path) -> TensorFile | None:
    """The adapter's or the model's tensors in `folder`, over all shards; None if there are no such files.

    Of safetensors (with an index or not), else of a sharded checkpoint of FSDP2. An output layer that is the embedding once more is left
    out, as one rank leaves it out: FSDP writes it twice.
    """
    for stem in ("adapter_model", "model"):
        index, single = folder / f"{stem}.safetensors.index.json", folder / f"{stem}.safetensors"
        if index.exists():
            return _untied(_read_shards(index))
        if single.exists():
            try:
                return _untied(TensorFile(str(single), parse_safetensors(map_file(single), single.name)))
            except (HarnessError, OSError) as error:
                return TensorFile(str(single), {}, str(error))
    sharded = folder / _SHARDED_WEIGHTS
    return _untied(read_distcp(sharded)) if sharded.is_dir() else None


def _untied(file: TensorFile) -> TensorFile:
    output = file.tensors.get(_OUTPUT)
    if output is None or not any(output.same_bytes(tensor) for name, tensor in file.tensors.items() if name.endswith(_EMBEDDING)):
        return file
    return TensorFile(file.path, {name: tensor for name, tensor in file.tensors.items() if name != _OUTPUT}, file.fault)


def _read_shards(index: Path) -> TensorFile:
    """Every tensor of the index, each from the shard that it names. A shard or tensor that is missing is a fault."""
    faults: list[str] = []
    content = _read_object(index, faults) or {}
    placed = content.get("weight_map")
    if not isinstance(placed, Mapping) or not placed:
        return TensorFile(str(index), {}, "; ".join(faults) or f"{index.name}: it names no tensor")
    tensors: dict[str, Tensor] = {}
    for shard in sorted({str(name) for name in placed.values()}):
        # An index is data: only files beside it are read.
        path = index.parent / Path(shard).name
        try:
            tensors |= parse_safetensors(map_file(path), shard)
        except (HarnessError, OSError) as error:
            faults.append(str(error))
    if not faults and tensors.keys() != placed.keys():
        faults.append(f"{index.name}: its tensors and the shards' differ in {sorted(tensors.keys() ^ placed.keys())[:4]}")
    return TensorFile(str(index), tensors, "; ".join(faults))


def _zero_files(folder: Path, faults: list[str]) -> list[Path]:
    """The states that DeepSpeed keeps of each rank, in the folder that the file `latest` names."""
    latest = folder / "latest"
    if not latest.exists():
        return []
    try:
        name = latest.read_text(encoding="utf-8").strip()[:100]
    except (OSError, ValueError) as error:
        faults.append(f"latest: {error}")
        return []
    files = sorted((folder / name).glob("*_states.pt")) if _ZERO_FOLDER.fullmatch(name) else []
    if not any(file.name.endswith("_optim_states.pt") for file in files):
        faults.append(f"latest: it names {name!r}, which holds no *_optim_states.pt")
    return files


def _read_object(path: Path, faults: list[str]) -> Mapping[str, Any] | None:
    """A JSON object; None if the file is missing, or if it can't be read, which `faults` then tells."""
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        faults.append(f"{path.name}: {error}")
        return None
    if not isinstance(found, dict):
        faults.append(f"{path.name}: not a JSON object")
        return None
    return found


def find_logging(output_dir: Path) -> Path | None:
    """ms-swift's log of a run: `output_dir/logging.jsonl` or `output_dir/*/logging.jsonl`; None if there is none.

    Raises HarnessError for more than one: an output directory belongs to one run.
    """
    found = sorted({*output_dir.glob("logging.jsonl"), *output_dir.glob("*/logging.jsonl")})
    if len(found) > 1:
        raise HarnessError(str(output_dir), f"{len(found)} logging.jsonl, so more than one run wrote here.", "Give each run a new folder.")
    return found[0] if found else None


def read_metrics(output_dir: Path) -> Metrics:
    """The run's log as rows; no rows if there is none. More than one log, or one that can't be read, is a fault."""
    try:
        path = find_logging(output_dir)
        return Metrics((), {}) if path is None else parse_logging(path.read_text(encoding="utf-8", errors="replace"))
    except (HarnessError, OSError) as error:
        return Metrics((), {}, (str(error),))


def read_witnesses(folder: Path) -> tuple[Witness, ...]:
    """Every witness file in `folder`, by name. Logits that their events name lie beside them: `read_logits`."""
    return tuple(
        parse_witness(path.read_text(encoding="utf-8", errors="replace"), str(path)) for path in sorted(folder.glob("witness-*.jsonl"))
    )


def read_logits(witnesses: tuple[Witness, ...]) -> Logits | None:
    """The next-token logits of all witnessed generations, [rows, vocabulary] in the order of the calls.

    None if one is missing, can't be read, or has another vocabulary than the rest.
    """
    witness = rank_zero(witnesses)
    parts: list[Logits] = []
    for event in witness.all("generate") if witness else ():
        name = event.get("logits_file")
        if witness is None or not isinstance(name, str):
            return None
        try:
            part = np.load(Path(witness.path).parent / Path(name).name, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        if part.ndim != 2 or part.dtype.kind != "f":
            return None
        parts.append(part.astype(np.float32))
    return np.concatenate(parts) if parts and len({part.shape[1] for part in parts}) == 1 else None


def read_answers(path: Path) -> Answers:
    """A result jsonl of `swift infer`. No file gives no rows; a row without a user message or a response is a fault."""
    if not path.exists():
        return Answers(str(path), ())
    rows: list[Answer] = []
    faults: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), start=1):
        if line.strip():
            answer = _answer(line)
            if isinstance(answer, str):
                faults.append(f"{path.name}:{number}: {answer}")
            else:
                rows.append(answer)
    return Answers(str(path), tuple(rows), tuple(faults))


def _answer(line: str) -> Answer | str:
    """The row, or what is wrong with it."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return "not a whole JSON object"
    messages = row.get("messages") if isinstance(row, dict) else None
    if not isinstance(messages, list) or not isinstance(row.get("response"), str):
        return "no messages or no response"
    said = [m for m in messages if isinstance(m, dict) and isinstance(m.get("content"), str)]
    users = [m["content"] for m in said if m.get("role") == "user"]
    if not users:
        return "no user message"
    if said[-1].get("role") == "assistant" and said[-1]["content"] != row["response"]:
        return "the response is not the assistant's last message"
    return Answer(users[-1], row["response"])


def read_inputs(path: Path) -> tuple[str, ...]:
    """The last user message of each row of a data set, in order. Raises HarnessError for a row without one."""
    found: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        messages = json.loads(line).get("messages", [])
        users = [m["content"] for m in messages if m.get("role") == "user"]
        if not users:
            raise HarnessError(f"{path}:{number}", "a row without a user message.", "Use a data set with messages.")
        found.append(users[-1])
    return tuple(found)


def read_tokenizer(folder: Path) -> Vocabulary | None:
    """The model folder's vocabulary; None if there is none that can be decoded here."""
    content = _read_object(folder / "tokenizer.json", [])
    return read_vocabulary(content) if content else None
