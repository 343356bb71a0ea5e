"""That a process had the very words that were asked for, no others, and that its trainer goes by them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from harness.compare import check
from harness.model import Comparison, StepResult

Option = tuple[str, tuple[str, ...]]
# Flags that a trainer's own arguments answer for. Numbers are compared as numbers: `1e-2` is 0.01.
_NUMBERS = (
    "learning_rate", "seed", "data_seed", "max_steps", "per_device_train_batch_size", "gradient_accumulation_steps", "max_length",
    "weight_decay", "warmup_steps", "save_steps", "logging_steps", "num_train_epochs", "max_grad_norm",
)  # fmt: skip


def other_words(asked: Sequence[str], argv: object) -> str:
    """What `argv` (a script, then its words) lacks of `asked` (a subcommand, then its words) or has beside it; "" if nothing.

    Option by option, in any order, each as often as asked: argparse takes `--learning-rate` and `--learn` for `--learning_rate`, and
    of an option that is given twice the last one, so a word more is as bad as a word less.
    """
    wanted = Counter(options(_own_words(asked)))
    had = Counter(options([str(word) for word in argv[1:]] if isinstance(argv, list) else []))
    parts = (("lost", wanted - had), ("not asked for", had - wanted))
    return "; ".join(f"{what}: {', '.join(' '.join(_words(option)) for option in found)}" for what, found in parts if found)


def prove_arguments(stage: str, result: StepResult, begin: Mapping[str, Any]) -> Comparison:
    """What the trainer goes by (witnessed in train_begin) against each of these settings that the command names."""
    found = begin.get("arguments")
    name, expected = f"{stage}.arguments", "a trainer that goes by the command's settings"
    if not isinstance(found, Mapping):
        return check(name, False, "proof.witness_missing", expected, "no arguments witnessed")
    named = dict(options(_own_words(result.step.command.args)))
    differ = [
        f"{flag.removeprefix('--')} {' '.join(values)}, found {_shown(flag, found)}"
        for flag, values in named.items()
        if (judged := _JUDGES.get(flag.removeprefix("--"))) is not None and not judged(values, found)
    ]
    if "--seed" in named and "--data_seed" not in named and found.get("data_seed") is not None:
        # ms-swift's default for the order of the rows.
        differ += [] if _number_is("data_seed")(named["--seed"], found) else [f"data_seed as seed, found {found.get('data_seed')}"]
    return check(name, not differ, "proof.argv", expected, "; ".join(differ) or "so")


def options(words: Sequence[str]) -> list[Option]:
    """Each option with its values, in order, '-' in its name as '_'. Words before the first option are one of their own, named ""."""
    found: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--") and len(word) > 2:
            flag, is_given, value = word.partition("=")
            found.append(("--" + flag[2:].replace("-", "_"), [value] if is_given else []))
        elif found:
            found[-1][1].append(word)
        else:
            found.append(("", [word]))
    return [(flag, tuple(values)) for flag, values in found]


def _own_words(asked: Sequence[str]) -> Sequence[str]:
    """Without the subcommand, or what launches the script (`accelerate launch ... sft.py`), which the process itself does not get."""
    scripts = [at for at, word in enumerate(asked) if asked[0] == "launch" and word.endswith(".py")]
    return asked[(scripts[0] if scripts else 0) + 1 :]


def _words(option: Option) -> tuple[str, ...]:
    return (option[0], *option[1]) if option[0] else option[1]


def _shown(flag: str, found: Mapping[str, Any]) -> str:
    name = flag.removeprefix("--")
    return f"warmup_ratio {found.get(name)}, warmup_steps {found.get('warmup_steps')}" if name == "warmup_ratio" else str(found.get(name))


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


Judge = Callable[[tuple[str, ...], Mapping[str, Any]], bool]


def _number_is(name: str) -> Judge:
    return lambda values, found: len(values) == 1 and _number(values[0]) == _number(found.get(name))


def _warmup(values: tuple[str, ...], found: Mapping[str, Any]) -> bool:
    # transformers 5 moves a ratio into warmup_steps, as a number below one.
    moved = _number(found.get("warmup_ratio") or 0.0) == 0 and _number_is("warmup_steps")(values, found)
    return moved or _number_is("warmup_ratio")(values, found)


def _output_dir(values: tuple[str, ...], found: Mapping[str, Any]) -> bool:
    """The folder itself, or the version folder that ms-swift makes in it."""
    folder = PurePath(str(found.get("output_dir")))
    return len(values) == 1 and PurePath(values[0]) in (folder, folder.parent)


def _data_sets(values: tuple[str, ...], found: Mapping[str, Any]) -> bool:
    read = found.get("dataset")
    return isinstance(read, list) and [str(one) for one in read] == list(values)


_JUDGES: Mapping[str, Judge] = {
    **{name: _number_is(name) for name in _NUMBERS},
    "warmup_ratio": _warmup,
    "lr_scheduler_type": lambda values, found: values == (str(found.get("lr_scheduler_type")),),
    "output_dir": _output_dir,
    "dataset": _data_sets,
}
