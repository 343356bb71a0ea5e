"""That a merged model is configured, and spells its tokens, as the base model it was made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.compare import check
from harness.model import Comparison
from harness.vocabulary import Vocabulary

# What saving a model rewrites without changing the model.
_NEUTRAL = frozenset({"dtype", "torch_dtype", "transformers_version", "_name_or_path", "pad_token_id", "use_cache"})
# transformers 5 writes the second form of the first two.
_ROPE = frozenset({"rope_theta", "rope_scaling", "rope_parameters"})
# Names under which transformers 5 writes what a base model calls otherwise.
_RENAMED = {"num_experts": "num_local_experts"}
# What would change a model to which it is added; all else that is added is a default written out.
_WEIGHTY = frozenset({"quantization_config", "auto_map"})
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


@dataclass(frozen=True)
class Surroundings:
    """What lies beside a model's weights. `config`: config.json, empty where there is none that can be read. `files`: all names."""

    config: Mapping[str, Any]
    files: frozenset[str]
    vocabulary: Vocabulary | None


def prove_surroundings(base: Surroundings, merged: Surroundings) -> tuple[Comparison, ...]:
    """Config and tokenizer of the merged model against the base model's."""
    changed = list(_changed(base.config, merged.config)) if merged.config else ["no config.json that can be read"]
    lacking = _lacking(base, merged)
    cause = "merge.config_differs"
    return (
        check("merge.config", bool(base.config) and not changed, cause, "the base model's config", "; ".join(changed[:4]) or "so"),
        check("merge.tokenizer", not lacking, cause, "the base model's tokenizer", lacking or "so"),
    )


def _changed(base: Mapping[str, Any], merged: Mapping[str, Any]) -> Iterator[str]:
    ignored = _NEUTRAL | _ROPE
    if not base.get("use_sliding_window"):
        # A width that is not in use is saved as null.
        ignored |= {"sliding_window"}
    for name in sorted(base.keys() - ignored):
        before, after = base[name], merged.get(name, merged.get(_RENAMED.get(name, name)))
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from (f"{name}.{text}" for text in _changed(before, after))
        elif before != after:
            yield f"{name} {before!r} became {after!r}"
    yield from (f"{name} was added" for name in sorted(_WEIGHTY & merged.keys() - base.keys()) if merged[name])
    if _rope(base) != _rope(merged):
        yield f"rope {_rope(base)} became {_rope(merged)}"


def _rope(config: Mapping[str, Any]) -> tuple[object, Mapping[str, Any]]:
    """(theta, scaling) from either form. The type that scales nothing is no scaling."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kept = {("rope_type" if name == "type" else name): value for name, value in parameters.items() if name != "rope_theta"}
    scaling = {name: value for name, value in kept.items() if (name, value) != ("rope_type", "default")}
    return parameters.get("rope_theta", config.get("rope_theta")), scaling


def _lacking(base: Surroundings, merged: Surroundings) -> str:
    """What is wrong with the merged model's tokenizer; "" if nothing."""
    if "tokenizer_config.json" in base.files and "tokenizer_config.json" not in merged.files:
        return "without tokenizer_config.json"
    if not any(name in merged.files for name in _TOKENIZERS):
        return f"without any of {', '.join(_TOKENIZERS)}"
    if base.vocabulary is not None and merged.vocabulary is not None and base.vocabulary != merged.vocabulary:
        return "another vocabulary"
    return ""
