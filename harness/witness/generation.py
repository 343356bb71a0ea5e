"""The wrap of Template.generate: which model answered what, and the logits from which its first token was taken."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy

from . import digest, model_view
from .device import Device, simulated
from .record import Session, session

MARK = "__npu_matrix_witness__"
_inside = threading.local()


def wrapped(generate: Callable[..., Any]) -> Callable[..., Any]:
    """`generate(template, model, *args, **kwargs)`, recorded. Its arguments, result, exceptions and randomness stay as they are."""

    @functools.wraps(generate)
    def recorded(template: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        opened = session()
        if opened is None or getattr(_inside, "on", False):  # a template's generate calls its parent's
            return generate(template, model, *args, **kwargs)
        _inside.on = True
        try:
            with opened.working():
                inputs = {"input_ids": args[0], **kwargs} if args else kwargs
                # Before, not after: a streamed generate runs in a thread, and the next request may begin as soon as it has ended.
                logits_file = _logits_file(opened, model, inputs)
                result = generate(template, model, *args, **kwargs)
                with opened.guard("generate"):
                    opened.emit("generate", **describe(template, model, inputs, result), logits_file=logits_file)
                return result
        finally:
            _inside.on = False

    setattr(recorded, MARK, True)
    return recorded


def describe(template: Any, model: Any, inputs: dict[str, Any], result: Any) -> dict[str, Any]:
    """The fields of `generate`, the logits apart."""
    pad = template.tokenizer.pad_token_id
    ids, sequences = inputs.get("input_ids"), result if not hasattr(result, "sequences") else result.sequences
    outputs = template.get_generate_ids(sequences, 0 if ids is None else ids.shape[1])
    device = Device.of(model)
    return {
        "device": device.name,
        "device_name": device.product(),
        "simulated": device.kind == "npu" and simulated(),
        "model_class": type(model_view.inner(model)).__name__,
        "adapters": model_view.active_adapters(model, inputs.get("adapter_names")),
        "prompt_ids": None if ids is None else prompts(ids, inputs.get("attention_mask")),
        "output_ids": [without_tail(row, pad) for row in outputs.tolist()],
        "dtype": digest.dtype_name(next(iter(model.parameters()))),
    }


def prompts(ids: Any, mask: Any) -> list[list[int]]:
    """Rows of `ids` [batch, length] without the positions that the attention mask hides."""
    if mask is None or mask.dim() != 2:
        return [list(row) for row in ids.tolist()]
    return [[i for i, seen in zip(row, seen_row, strict=True) if seen] for row, seen_row in zip(ids.tolist(), mask.tolist(), strict=True)]


def without_tail(row: list[int], pad: int | None) -> list[int]:
    """`row` without the padding at its end, which a batch's shorter answers carry."""
    end = len(row)
    while end and row[end - 1] == pad:
        end -= 1
    return row[:end]


def _logits_file(opened: Session, model: Any, inputs: dict[str, Any]) -> str | None:
    """Save the next-token logits of the prompts; None in training, where one more forward on some ranks could hang the others."""
    if opened.training:
        return None
    with opened.guard("next_token_logits"):
        logits = next_token_logits(model, inputs)
        name = opened.file_name(".npy")
        numpy.save(os.path.join(opened.folder, name), logits)
        return name
    return None


def next_token_logits(model: Any, inputs: dict[str, Any]) -> numpy.ndarray[Any, Any]:
    """[batch, vocabulary], float32: logits at each prompt's last position, from a forward without cache or gradient."""
    import torch

    kept = {key: value for key, value in inputs.items() if torch.is_tensor(value)}
    if inputs.get("adapter_names") is not None:
        kept["adapter_names"] = inputs["adapter_names"]
    mask: Any = kept.get("attention_mask")
    has_mask = mask is not None and mask.dim() == 2
    if has_mask and "position_ids" not in kept and not bool(mask.all()):
        kept["position_ids"] = (mask.long().cumsum(-1) - 1).clamp(min=0)  # as generate itself counts, padding left out
    with Device.of(model).same_randomness(), answering(model), torch.no_grad():
        logits = model(**kept, use_cache=False).logits
    length = logits.shape[1]
    last = mask.long().cumsum(-1).argmax(-1).tolist() if has_mask else [length - 1] * len(logits)
    rows = [logits[row, at] for row, at in enumerate(last)]
    return numpy.asarray(torch.stack(rows).detach().float().cpu().numpy())


@contextmanager
def answering(model: Any) -> Iterator[None]:
    """Evaluation mode, then each module's own mode again."""
    learning = [module for module in model.modules() if module.training]
    for module in learning:
        module.training = False
    try:
        yield
    finally:
        for module in learning:
            module.training = True
