"""What a parser's answer says about a command: each fault named in words, with its likely mending."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from harness.model import Word


class FindingKind(Word):
    UNKNOWN = "unknown flag"
    ABBREVIATION = "abbreviated flag"
    REPEATED = "repeated flag"
    CHOICE = "bad choice"
    VALUE = "bad value"
    MISSING_VALUE = "missing value"
    REQUIRED = "missing argument"
    STRAY = "stray word"
    OTHER = "refused"


@dataclass(frozen=True)
class Finding:
    """One fault of a command. `suggestion` is the flag or value to write instead, empty where none is close."""

    kind: FindingKind
    flag: str
    message: str
    suggestion: str = ""


# What flags were called in ms-swift 2 and 3, or are called by other trainers: offered where the installed version has the new name.
RENAMED = {
    "--train_type": "--tuner_type",
    "--sft_type": "--tuner_type",
    "--dtype": "--torch_dtype",
    "--model_id_or_path": "--model",
    "--model_name_or_path": "--model",
    "--template_type": "--template",
    "--lora_target_modules": "--target_modules",
    "--lora_dropout_p": "--lora_dropout",
    "--batch_size": "--per_device_train_batch_size",
    "--ckpt_dir": "--adapters",
    # Megatron's own names, which ms-swift 3 kept.
    "--save": "--output_dir",
    "--load": "--mcore_model",
    "--adapter_load": "--mcore_adapter",
    "--ref_load": "--mcore_ref_model",
    "--ref_adapter_load": "--mcore_ref_adapter",
    "--save_interval": "--save_steps",
    "--eval_interval": "--eval_steps",
    "--log_interval": "--logging_steps",
    "--max_epochs": "--num_train_epochs",
    "--num_workers": "--dataloader_num_workers",
    "--no_initialization": "--perform_initialization",
}
CLOSE = 0.75

_ARGUMENT = re.compile(r"argument (?P<flag>[^\s/:]+)[^:]*: (?P<fault>.*)", re.DOTALL)
_CHOICE = re.compile(r"invalid choice: (?P<value>.*?) \(choose from (?P<known>.*)\)", re.DOTALL)
_NUMBER = re.compile(r"invalid (?P<type>\w+) value: (?P<value>.*)", re.DOTALL)
NUMBERS = {"int": "whole number", "float": "number"}


def judge_parse(argv: Sequence[str], known_flags: Collection[str], rest: Sequence[str], error: str) -> tuple[Finding, ...]:
    """Every fault of `argv`, from what a parser without abbreviations left over (`rest`) and the words it stopped with (`error`).

    `known_flags` are all the parser's option strings. Empty: the command is sound.
    """
    flags = [word.split("=", 1)[0] for word in argv if word.startswith("--")]
    findings = [_unrecognised(flag, known_flags) for flag in dict.fromkeys(flags) if flag not in known_flags]
    findings += [
        Finding(FindingKind.REPEATED, flag, f"{flag} is given {count} times, and the last one silently wins.", flag)
        for flag, count in Counter(flags).items()
        if count > 1
    ]
    if error:
        findings.append(_refused(error))
    elif not findings or any(not word.startswith("--") for word in rest):
        findings += _stray(rest, unknown={f.flag for f in findings})
    return tuple(findings)


def _unrecognised(flag: str, known: Collection[str]) -> Finding:
    renamed = RENAMED.get(flag, "")
    if renamed in known:
        return Finding(FindingKind.UNKNOWN, flag, f"{flag} is unknown to the installed ms-swift. Perhaps {renamed}?", renamed)
    longer = sorted(name for name in known if name.startswith(flag) and "_" in name + "_")
    if longer:
        message = (
            f"{flag} is an abbreviation (of {', '.join(longer[:4])}): ms-swift takes it today and another flag tomorrow. Write it in full."
        )
        return Finding(FindingKind.ABBREVIATION, flag, message, min(longer, key=len))
    close = difflib.get_close_matches(flag, known, n=1, cutoff=CLOSE)
    guess = f" Perhaps {close[0]}?" if close else ""
    return Finding(FindingKind.UNKNOWN, flag, f"{flag} is unknown to the installed ms-swift.{guess}", close[0] if close else "")


def _stray(rest: Sequence[str], unknown: set[str]) -> list[Finding]:
    """Words that belong to no flag. Those behind an unknown flag are its values, and one finding is enough for both."""
    findings: list[Finding] = []
    owner = ""
    for word in rest:
        if word.startswith("--"):
            owner = word.split("=", 1)[0]
        elif owner not in unknown:
            findings.append(Finding(FindingKind.STRAY, "", f"{word!r} belongs to no flag."))
    return findings


def _refused(error: str) -> Finding:
    named = _ARGUMENT.search(error)
    if named is None:
        kind = FindingKind.REQUIRED if "required" in error else FindingKind.OTHER
        return Finding(kind, "", f"the parser refused: {error.strip()}.")
    flag, fault = named["flag"], named["fault"].strip()
    if choice := _CHOICE.search(fault):
        known = [word.strip().strip("'\"") for word in choice["known"].split(",")]
        value = choice["value"].strip("'\"")
        close = difflib.get_close_matches(value, known, n=1, cutoff=0.4)
        guess = f"Perhaps {close[0]}? " if close else ""
        return Finding(
            FindingKind.CHOICE, flag, f"{flag} {value}: no such choice. {guess}Known: {', '.join(known)}.", close[0] if close else ""
        )
    if number := _NUMBER.search(fault):
        wanted = NUMBERS.get(number["type"], number["type"])
        value = number["value"].strip("'\"")
        return Finding(FindingKind.VALUE, flag, f"{flag} {value}: not a {wanted}.")
    if fault.startswith("expected "):
        return Finding(FindingKind.MISSING_VALUE, flag, f"{flag} has no value ({fault}).")
    return Finding(FindingKind.OTHER, flag, f"{flag}: {fault.rstrip('.')}.")
