"""Every command of a page that the installed ms-swift refuses, each flag with its own line. Nothing of the page is run, no model is built.

Placeholders and variables whose value nobody knows are no values and never judged; where `...` stands, anything may be missing.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from harness import contract
from harness.contract import FindingKind
from harness.docs_calls import Call, Segment, call_of, is_placeholder, segments_of, shell_of
from harness.docs_check_facts import Finding, Kind
from harness.docs_commands_names import unknown_names
from harness.docs_page import Page
from harness.docs_shell import CommandKind
from harness.megatron_parsers import MEGATRON_CLASSES, megatron_parser_of
from harness.swift_parsers import ARGUMENT_CLASSES, imported, judged, launcher_parser, parser_of, torchrun_parser

_CLASSES = {"swift": ARGUMENT_CLASSES, "megatron": MEGATRON_CLASSES}
LAUNCHERS = {"accelerate": "accelerate launch", "torchrun": "torchrun"}
_ROUTES = {"swift": "swift.cli.main", "megatron": "swift.cli._megatron.main"}
_VALUES = {FindingKind.CHOICE, FindingKind.VALUE, FindingKind.OTHER}
_WHOLE_LIST = 12
_CLOSE = 0.8
# Flags among sentences, if they are written as ms-swift writes them; those of pip, docker and vLLM have no underscores.
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9]*_[a-z0-9_]*[a-z0-9]")


def check_commands(page: Page) -> tuple[Finding, ...]:
    """What is wrong with the commands of a page, by line.

    Raises HostError where ms-swift (or for `megatron`, its Megatron argument classes) can't be imported and the page has such a command.
    """
    script = shell_of(page)
    findings = [Finding(fault.line, Kind.COMMAND, *_in_two(fault.message)) for fault in script.faults]
    made: set[str] = set()
    for command in script.commands:
        if command.kind is CommandKind.FLAGS:
            findings += _of_fragment(segments_of(command.words))
        elif call := call_of(command):
            findings += _of_call(call, made)
            made |= {value.text.rstrip("/") for segment in call.segments if segment.name == "--output_dir" for value in segment.values}
    findings += _of_prose(page.prose, {line for command in script.commands for line in range(command.line, command.end_line + 1)})
    return tuple(sorted(dict.fromkeys(findings), key=lambda finding: finding.line))


def _in_two(message: str) -> tuple[str, str]:
    """A message and its next step, which is its last sentence."""
    what, _, next_step = message.rstrip(".").rpartition(". ")
    return (what, next_step + ".") if what else (message.rstrip("."), "")


def _of_call(call: Call, made: set[str]) -> Iterator[Finding]:
    if call.launcher in LAUNCHERS:
        for segment in call.launch:
            yield from _of_segment(segment, LAUNCHERS[call.launcher])
    routes = _routes(call.program)
    if call.name is None or call.subcommand not in routes:
        yield _no_subcommand(call, routes)
        return
    if call.subcommand not in _CLASSES[call.program]:
        return
    if (call.program, call.subcommand) == ("megatron", "rlhf") and _is_set(call, "--use_ray"):
        if not any(segment.name == "--config" for segment in call.segments):
            yield Finding(call.line, Kind.COMMAND, "`megatron rlhf --use_ray true` is given no --config", "Name the file of settings.")
        return
    call, swallowed = _without_next(call)
    yield from swallowed
    ignored = {FindingKind.UNKNOWN, FindingKind.STRAY} if _is_set(call, "--ignore_args_error") else set()
    who = f"{call.program} {call.subcommand}"
    taken = []
    for segment in call.segments:
        found = list(_of_segment(segment, who, ignored))
        yield from found
        taken += [] if found else [segment]
    yield from (Finding(word.line, Kind.COMMAND, f"`{who}`: {told}", next_step) for word, told, next_step in unknown_names(taken))
    yield from _repeated(call)
    yield from _not_made(call, made)


def _routes(program: str) -> Sequence[str]:
    return tuple(imported(_ROUTES[program]).ROUTE_MAPPING)


def _no_subcommand(call: Call, routes: Iterable[str]) -> Finding:
    named = call.segments[0].words[0] if call.name is None and call.segments else call.name
    if call.name is None:
        line, what = (named.line if named else call.line), f"`{call.program}` is given no subcommand"
    else:
        line, what = call.name.line, f"`{call.program} {call.name.text}` is no command of the installed ms-swift"
    return Finding(line, Kind.COMMAND, what, f"Known: {', '.join(sorted(routes))}.")


def _is_set(call: Call, flag: str) -> bool:
    given = next((segment for segment in call.segments if segment.name == flag), None)
    return given is not None and not (given.values and given.values[0].text.lower() == "false")


def _without_next(call: Call) -> tuple[Call, list[Finding]]:
    """The call without the command below it, which a backslash too many has made words of it."""
    for place, segment in enumerate(call.segments):
        for at, (word, behind) in enumerate(zip(segment.values, segment.values[1:], strict=False)):
            if word.text in _CLASSES and behind.text in _CLASSES[word.text] and word.line > call.line:
                told = f"`{word.text} {behind.text}` is read as words of the `{call.program} {call.subcommand}` above it"
                found = Finding(word.line, Kind.COMMAND, told, "Remove the backslash at the end of the line before.")
                kept = (*call.segments[:place], Segment(segment.flag, segment.values[:at]))
                return replace(call, segments=kept), [found]
    return call, []


def _repeated(call: Call) -> Iterator[Finding]:
    seen: dict[str, int] = {}
    for segment in call.segments:
        name = segment.name.replace("-", "_")
        if name and name in seen:
            told = f"{segment.name} is given on line {seen[name]} already, and only the last one counts"
            yield Finding(segment.words[0].line, Kind.COMMAND, told, "Remove one of them.", note=True)
        seen[name] = segment.words[0].line


def _not_made(call: Call, made: set[str]) -> Iterator[Finding]:
    """Training looks whether the folder of --mcore_model exists, and no hub has one."""
    if call.program != "megatron" or call.subcommand == "export":
        return
    for segment in call.segments:
        values = segment.values
        if segment.name != "--mcore_model" or len(values) != 1 or not values[0].known or is_placeholder(values[0].text):
            continue
        if values[0].text.rstrip("/") not in made and not values[0].text.startswith(("/", "~")):
            told = (
                f"--mcore_model {values[0].text}: the folder has to exist, since `megatron {call.subcommand}` stops otherwise, "
                "and no command above makes it (`swift sft` has no such flag)"
            )
            yield Finding(
                segment.words[0].line, Kind.COMMAND, told, "Show the `--to_mcore true` command that makes it, or give --model instead."
            )


def _of_segment(segment: Segment, who: str, ignored: Collection[FindingKind] = ()) -> Iterator[Finding]:
    """What the parser of `who` says of one flag with its values, in the words of the page."""
    guessed = any(not word.known or is_placeholder(word.text) for word in segment.words)
    strays = 0
    for finding in _judged(who, tuple(word.text for word in segment.words)):
        if finding.kind in ignored or finding.kind is FindingKind.REQUIRED:
            continue
        if finding.kind in _VALUES and (guessed or _are_alternatives(finding, segment)):
            continue
        if finding.kind is not FindingKind.STRAY:
            yield _told(finding, segment.words[0].line, who)
        elif not strays:
            # The words behind a stray one are usually its values.
            told = list(_of_stray(finding, segment, who))
            strays += len(told)
            yield from told


def _of_stray(finding: contract.Finding, segment: Segment, who: str) -> Iterator[Finding]:
    text = finding.message.partition(" belongs")[0].strip("'\"")
    word = next((value for value in segment.values if value.text == text), segment.words[-1])
    if not word.known or is_placeholder(word.text):
        return
    behind = f" (behind {segment.name})" if segment.name else ""
    next_step = "Flags begin with two plain hyphens." if word.text[:1] in "-–—―－" else "Remove it, or put its flag before it."
    yield Finding(word.line, Kind.COMMAND, f"`{who}` gets the word {word.text[:60]!r}, which belongs to no flag{behind}", next_step)


def _are_alternatives(finding: contract.Finding, segment: Segment) -> bool:
    """Whether a value names several choices, as in lora/full."""
    known = finding.message.partition("Known: ")[2].rstrip(".").split(", ")
    texts = [value.text for value in segment.values]
    return finding.kind is FindingKind.CHOICE and any(
        len(parts) > 1 and all(part in known for part in parts)
        for text in texts
        for parts in (text.split("/"), text.split("|"), text.split(","))
    )


def _told(finding: contract.Finding, line: int, who: str) -> Finding:
    if finding.kind is FindingKind.ABBREVIATION:
        return _of_abbreviation(finding.flag, line, who)
    if finding.kind is FindingKind.UNKNOWN:
        elsewhere = ", ".join(_owners(finding.flag, who.partition(" ")[0]))
        next_step = f"Perhaps {finding.suggestion}?" if finding.suggestion else f"Known to {elsewhere}." if elsewhere else "Remove it."
        return Finding(line, Kind.COMMAND, f"`{who}`: {finding.flag} is unknown to the installed version", next_step)
    message, _, known = finding.message.partition("Known: ")
    message = message.partition(" Perhaps ")[0].rstrip(". ")
    choices = known.rstrip(".").split(", ") if known else []
    if finding.suggestion and choices:
        next_step = f"Perhaps {finding.suggestion}?"
    elif choices:
        next_step = f"Known: {', '.join(choices[:_WHOLE_LIST])}{', ...' if len(choices) > _WHOLE_LIST else ''}."
    else:
        next_step = ""
    return Finding(line, Kind.COMMAND, f"`{who}`: {message}", next_step)


def _of_abbreviation(flag: str, line: int, who: str) -> Finding:
    """One that means one flag is taken, and so no fault; one that may mean several is refused."""
    actions = _parser(who)._option_string_actions
    meant = {action.dest: name for name, action in reversed(actions.items()) if name.startswith(flag)}
    if len(meant) > 1:
        told = f"`{who}` refuses {flag}, which may be short for {len(meant)} flags"
        return Finding(line, Kind.COMMAND, told, f"Write it in full: {', '.join(sorted(meant.values())[:4])}?")
    (name,) = meant.values()
    told = f"`{who}` takes {flag} for {name}, until it gets another flag that begins so"
    return Finding(line, Kind.COMMAND, told, f"Write {name}.", note=True)


@lru_cache(maxsize=10_000)
def _judged(who: str, words: tuple[str, ...]) -> tuple[contract.Finding, ...]:
    if who in LAUNCHERS.values():
        # Both want a script, and what follows it is not theirs.
        return judged(_parser(who), (*words, "script.py"), positionals=1)
    return judged(_parser(who), words)


def _parser(who: str) -> argparse.ArgumentParser:
    if who in LAUNCHERS.values():
        return launcher_parser() if who == LAUNCHERS["accelerate"] else torchrun_parser()
    program, _, subcommand = who.partition(" ")
    return parser_of(subcommand) if program == "swift" else megatron_parser_of(subcommand)


def _all_parsers() -> tuple[str, ...]:
    return tuple(f"{program} {subcommand}" for program, classes in _CLASSES.items() for subcommand in classes)


def _owners(flag: str, program: str) -> list[str]:
    """The commands that know a flag, those of the same program first; empty too for what launchers lack."""
    if program not in _CLASSES:
        return []
    return [f"`{name}`" for name in sorted(_knowing(flag), key=lambda name: not name.startswith(program))][:4]


def _knowing(flag: str) -> list[str]:
    return [name for name in _all_parsers() if flag in _parser(name)._option_string_actions]


def _of_fragment(segments: Sequence[Segment]) -> Iterator[Finding]:
    """Flags without a command are judged if any of them is ms-swift's: each has to be right for some of its commands."""
    owners = {
        segment.name: [name for name in _all_parsers() if segment.name in _parser(name)._option_string_actions] for segment in segments
    }
    if not any(owners.values()):
        return
    for segment in segments:
        names = owners[segment.name]
        if not names:
            told = f"{segment.name} is unknown to every command of the installed ms-swift"
            yield Finding(segment.words[0].line, Kind.COMMAND, told, _nearest(segment.name))
            continue
        judgements = [list(_of_segment(segment, name)) for name in names]
        if all(any(not finding.note for finding in judgement) for judgement in judgements):
            yield from judgements[0]


def _nearest(flag: str) -> str:
    every = {option for name in _all_parsers() for option in _parser(name)._option_string_actions if "_" in option}
    near = difflib.get_close_matches(flag, sorted(every), n=1, cutoff=_CLOSE)
    return f"Perhaps {near[0]}?" if near else "Remove it."


def _of_prose(prose: Iterable[tuple[int, str]], told: Collection[int]) -> Iterator[Finding]:
    """Flags that sentences name and nothing knows. They may be those of another program, so this is a note."""
    for line, text in prose:
        for flag in dict.fromkeys(_FLAG.findall(text) if line not in told else ()):
            if not _knowing(flag) and all(flag not in _parser(name)._option_string_actions for name in LAUNCHERS.values()):
                what = f"{flag} is unknown to every command of the installed ms-swift"
                yield Finding(line, Kind.COMMAND, what, _nearest(flag), note=True)
