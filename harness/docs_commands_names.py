"""Values that ms-swift looks up by name only as it runs, long after its parsers took them: tuners, reward functions, presets, templates.

unknown_names(segments) -> (the word, what is said of it, the next step) for each that nothing in the installed ms-swift has
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.docs_calls import Segment, is_placeholder
from harness.docs_shell import ShellWord
from harness.swift_parsers import imported

# Code of the reader's own, which may register names.
_OWN_CODE = ("--external_plugins", "--custom_register_path")
_NAME = re.compile(r"[\w-]+")
_SHOWN = 12


def unknown_names(segments: Sequence[Segment]) -> Iterator[tuple[ShellWord, str, str]]:
    """Nothing, where the command loads code of the reader's own. Paths, JSON and several at once (lora/full) are no names.

    Raises HostError without ms-swift.
    """
    if any(segment.name in _OWN_CODE for segment in segments):
        return
    for segment in segments:
        registered = _REGISTERED.get(segment.name)
        for word in _values(segment) if registered is not None else ():
            if registered is None or not word.known or is_placeholder(word.text) or not _NAME.fullmatch(word.text):
                continue
            if word.text not in (known := registered()):
                near = difflib.get_close_matches(word.text, known, n=1)
                listed = f"Known: {', '.join(known[:_SHOWN])}{', ...' if len(known) > _SHOWN else ''}."
                told = f"{segment.name} {word.text}: the installed ms-swift has nothing of this name, and stops when it looks for it"
                yield word, told, f"Perhaps {near[0]}?" if near else listed


def _values(segment: Segment) -> Iterator[ShellWord]:
    """Those behind the flag, and the one that is joined to it by =."""
    if segment.flag is not None and "=" in segment.flag.text:
        yield replace(segment.flag, text=segment.flag.text.partition("=")[2])
    yield from segment.values


def _tuners() -> tuple[str, ...]:
    return tuple(sorted(imported("swift.arguments.base_args.base_args").get_supported_tuners()))


def _presets(program: str) -> Callable[[], tuple[str, ...]]:
    """The names of the files of settings that come with ms-swift."""

    def names() -> tuple[str, ...]:
        folder = Path(imported("swift").__file__).parent / "config"
        return tuple(sorted(path.stem for path in folder.glob(f"{program}*.json")))

    return names


def _keys(module: str, mapping: str) -> Callable[[], tuple[str, ...]]:
    return lambda: tuple(getattr(imported(module), mapping))


_REGISTERED: Mapping[str, Callable[[], tuple[str, ...]]] = {
    "--tuner_type": _tuners,
    "--deepspeed": _presets("zero"),
    "--fsdp": _presets("fsdp"),
    "--reward_funcs": _keys("swift.rewards", "orms"),
    "--model_type": _keys("swift.model", "MODEL_MAPPING"),
    "--template": _keys("swift.template", "TEMPLATE_MAPPING"),
}
