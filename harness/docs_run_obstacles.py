"""Which command of a page falls under which reason against running it. Everything else is run, slips of the page included."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence

from harness.commands_page import (
    FILE_FLAGS,
    KNOWN,
    MODEL_FLAGS,
    NODES_VARIABLE,
    OUTPUT_FLAGS,
    WINDOWS,
    packages_needed,
    publishes,
    quantizes,
    subcommand_of,
)
from harness.docs_run_reasons import DECLARING, Obstacle, PageHost, Reason, flags_of, texts
from harness.docs_shell import Command, CommandKind
from harness.model import Hardware

_PROGRAMS: Mapping[str, Reason] = {
    program: reason
    for reason, programs in {
        Reason.CONTAINER: "docker podman nerdctl kubectl helm docker-compose enroot singularity",
        Reason.INSTALLS: "pip pip3 uv conda mamba micromamba poetry npm apt apt-get yum dnf",
        Reason.DOWNLOADS: "git wget modelscope huggingface-cli hf scp rsync aria2c ssh",
        Reason.ASKS_NPU: "npu-smi hccn_tool ascend-dmi msnpureport msprof nvidia-smi",
        Reason.CHANGES_HOST: "systemctl service modprobe mount umount reboot shutdown useradd usermod pkill killall fuser mkfs crontab",
        Reason.WINDOW: "vim vi nano top htop watch less tensorboard jupyter",
    }.items()
    for program in programs.split()
}
# Programs that a page may lean on and a host may lack: without them nothing is wrong with the page.
_MAY_LACK = ("curl", "jq", "pystack", "py-spy", "numactl", "deepspeed", "accelerate", "torchrun", "evalscope", "ray", "megatron")
_CHANGING = (
    "rm",
    "rmdir",
    "unlink",
    "mv",
    "chmod",
    "chown",
    "chgrp",
    "ln",
    "tee",
    "cp",
    "mkdir",
    "touch",
    "dd",
    "truncate",
    "shred",
    "install",
)
# Programs that change files with one of these words only.
_CHANGING_IF = {
    "find": ("-delete", "-exec", "-execdir", "-ok"),
    "sed": ("-i", "--in-place"),
    "perl": ("-i", "-pi"),
    "tar": ("-C", "--directory"),
}
_CHANGING_PYTHON = re.compile(
    r"\b(?:rmtree|remove|unlink|rmdir|rename|replace|write_text|write_bytes|move|system|makedirs|mkdir)\b|open\([^()]*['\"][wax]"
)
# Beyond the folder of the page: an absolute place, the home of whoever runs it, two steps up.
_BEYOND = re.compile(r"(?:^|=)(?:/(?!dev/(?:null|std|shm/))|~|\$\{?HOME\b|(?:\./)?\.\./\.\.(?:/|$))|^(?:[\w.-]+/)?\.\./\.\.(?:/|$)")
_NPU_PLACES = re.compile(r"/dev/(?:davinci|devmm_svm|hisi_hdc)|/usr/local/Ascend\b|(?:~|/root|\$HOME)/ascend\b|\bset_env\.sh\b")
_PLACEHOLDER = re.compile(
    r"<[^<>\s][^<>]*>|(?<![A-Za-z])x{2,}(?![A-Za-z])|(?:^|[=/])path/to/|\b(?:your|my)[-_](?:\w+[-_])?(?:path|model|data\w*|id|token|dir\w*|name|key)\b"
    r"|^your\w*$|你的"
)
_IMPORT = re.compile(r"(?:^|[;\n:])[ \t]*(?:import|from)[ \t]+([\w.]+(?:[ \t]*,[ \t]*[\w.]+)*)")
_NPU_MODULES = ("torch_npu", "vllm_ascend", "mindspeed", "acl", "te", "tbe")
_ON_NPU = re.compile(r"torch\.npu\b|['\"]npu(?::\d+)?['\"]")
_LOCAL_URL = re.compile(r"(?:https?://)?(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\])(?::|/|$)")
# Beginnings of lines that a shell would run, and words that begin lines of Python.
_PROGRAM = re.compile(r"[a-z.~/$][\w.+~/$@{}-]*|\[\[?|[{!:]")
_PYTHON = ("from", "import", "def", "class", "return", "raise", "print", "with", "except", "assert")
_USUAL = (
    *("swift", "python", "curl", "megatron", "accelerate", "torchrun", "bash", "export", "unset", "source", "echo", "mkdir", "cat", "ls"),
    *("cp", "mv", "rm", "cd", "head", "tail", "grep", "sleep", "wait", "printf", "touch"),
)
_BUILT_IN = (
    *(".", ":", "[", "[[", "{", "!", "alias", "bg", "break", "cd", "command", "continue", "declare", "echo", "eval", "exec", "exit"),
    *("export", "false", "fg", "hash", "jobs", "kill", "let", "local", "mapfile", "popd", "printf", "pushd", "pwd", "read", "readonly"),
    *("return", "set", "shift", "shopt", "source", "test", "time", "trap", "true", "type", "typeset", "ulimit", "umask", "unset", "wait"),
)
_OUTSIDE = re.compile(r">{1,2}[ \t]*[\"']?(?:~|\$\{?HOME\}?|/(?!dev/(?:null|std|shm/)))[\w./-]*|>{1,2}[ \t]*[\"']?\.\./\.\./[\w./-]*")


def obstacles_of(command: Command, host: PageHost, made: Collection[str]) -> list[Obstacle]:
    """Every reason against one command; none: it is run. `made`: files and folders that the page has made by now."""
    program = command.words[0].text.rpartition("/")[2] if command.words else ""
    if program in _PROGRAMS:
        return [Obstacle(_PROGRAMS[program], command.line, _shown(command))]
    if command.kind is CommandKind.FLAGS:
        return [Obstacle(Reason.FRAGMENT, command.line, command.words[0].text[:60])]
    if _is_no_shell(command):
        return [Obstacle(Reason.NOT_SHELL, command.line, command.raw.strip().split("\n")[0][:60])]
    if command.elided and program != "cd":  # docs_shell takes the two dots of `cd ..` for an elision too
        return [Obstacle(Reason.ELIDED, command.line, _shown(command))]
    found = _of_words(command, program) + (_of_program(command, program, host, made) if program else [])
    if command.kind is CommandKind.SWIFT:
        found += _of_swift(command, host, made)
    else:
        found += _of_files(command, program, made)
        if command.kind is CommandKind.PYTHON:
            found += _of_python(command, host)
    return list(dict.fromkeys(found))


def writes_outside(body: Sequence[tuple[int, str]]) -> list[Obstacle]:
    """Output that goes into files of the host, such as ~/.bashrc."""
    found = [(number, _OUTSIDE.search(text)) for number, text in body if not text.lstrip().startswith("#")]
    return [Obstacle(Reason.CHANGES_HOST, number, match[0]) for number, match in found if match]


def _shown(command: Command) -> str:
    return " ".join(word.text for word in command.words[:2]) or command.raw.split("\n")[0][:60]


def _is_no_shell(command: Command) -> bool:
    """Whether a line can't have been meant for a shell. One that is close to a program that pages run may be a slip of it: that is run."""
    if not command.words or command.words[0].quoted:
        return False
    first, *others = (word.text for word in command.words[:2])
    if others[:1] == ["="] or first in _PYTHON:
        return True
    return not _PROGRAM.fullmatch(first) and not difflib.get_close_matches(first.lower(), _USUAL, n=1, cutoff=0.7)


def _of_words(command: Command, program: str) -> list[Obstacle]:
    """Placeholders, places of NPUs, and the variables in front. What a variable brings from elsewhere is said where it is assigned."""
    found = []
    words = [("", word) for word in command.words if program not in DECLARING]
    for name, word in [*((f"{name}=", word) for name, word in command.environment), *words]:
        if not command.line <= word.line <= command.end_line:
            continue
        if _NPU_PLACES.search(word.text):
            found.append(Obstacle(Reason.ASKS_NPU, word.line, name + word.text[:80]))
        elif "\n" not in word.text and not word.text.startswith("$(") and (match := _PLACEHOLDER.search(word.text)):
            found.append(Obstacle(Reason.PLACEHOLDER, word.line, match[0].strip("=/") if len(word.text) > 80 else name + word.text))
        if name == f"{NODES_VARIABLE}=" and word.text not in ("", "1"):
            found.append(Obstacle(Reason.SEVERAL_NODES, word.line, name + word.text))
    return found


def _lacks(command: Command, program: str, host: PageHost, made: Collection[str]) -> bool:
    """Whether a program is one that this host lacks. What is close to a usual one may be a slip of the page: it is run, and fails."""
    if not command.words[0].known or program in _BUILT_IN or program in made or "/" in command.words[0].text or host.has_program(program):
        return False
    return program in _MAY_LACK or not difflib.get_close_matches(program, _USUAL, n=1, cutoff=0.7)


def _of_program(command: Command, program: str, host: PageHost, made: Collection[str]) -> list[Obstacle]:
    line, words = command.line, [word.text for word in command.words]
    if re.search(r"\bsudo\b", command.raw.partition(program)[0]):
        return [Obstacle(Reason.CHANGES_HOST, line, f"sudo {_shown(command)}")]
    if _changes(program, words) and any(_BEYOND.search(word) for word in words[1:]):
        return [Obstacle(Reason.CHANGES_HOST, line, " ".join(words[:4]))]
    if program == "tail" and any(word in ("-f", "-F", "--follow") for word in words):
        return [Obstacle(Reason.WINDOW, line, _shown(command))]
    if _lacks(command, program, host, made):
        return [Obstacle(Reason.LACKS_PROGRAM, line, program)]
    if program == "megatron" and not host.has_module("megatron"):
        return [Obstacle(Reason.LACKS_PACKAGE, line, f"{_shown(command)} (megatron)")]
    if program == "curl":
        remote = [w for w in words[1:] if re.match(r"[a-z]+://", w) and not _LOCAL_URL.match(w)]
        return [Obstacle(Reason.DOWNLOADS, line, f"curl {remote[0][:60]}")] if remote else []
    if words[1:3] == ["-m", "pip"]:
        return [Obstacle(Reason.INSTALLS, line, " ".join(words[1:4]))]
    return []


def _changes(program: str, words: Sequence[str]) -> bool:
    if program in _CHANGING_IF:
        return any(word.startswith(_CHANGING_IF[program]) for word in words[1:])
    return program in _CHANGING or (program == "xargs" and any(word in _CHANGING for word in words[1:]))


def _of_swift(command: Command, host: PageHost, made: Collection[str]) -> list[Obstacle]:
    subcommand = subcommand_of(command.words[1].text) if len(command.words) > 1 else ""
    given = flags_of(command)
    values = texts(given)
    line, shown = command.line, _shown(command)
    if subcommand in WINDOWS:
        return [Obstacle(Reason.WINDOW, line, shown)]
    found = [
        Obstacle(Reason.LACKS_PACKAGE, line, f"{flag} ({name})") for flag, name in packages_needed(values) if not host.has_module(name)
    ]
    if publishes(values):
        found.append(Obstacle(Reason.PUBLISHES, line, shown))
    if subcommand in ("eval", "rollout", "sample") or (subcommand == "export" and quantizes(values)):
        found.append(Obstacle(Reason.NO_TINY_FORM, line, shown + (" --quant_bits" if quantizes(values) else "")))
    ports = given.get("--port", ())
    if subcommand == "deploy" and ports and not ports[0].text.isdigit():
        found.append(Obstacle(Reason.NO_TINY_FORM, ports[0].line, f"--port {ports[0].text}"))
    if subcommand not in KNOWN:
        return found  # a subcommand that ms-swift doesn't have is refused by it
    for flag in MODEL_FLAGS:
        for word in given.get(flag, ()):
            if word.text in host.model_types and not host.family_of(word.text):
                found.append(Obstacle(Reason.NO_TINY_MODEL, word.line, word.text))
    outside = [word for flag in OUTPUT_FLAGS for word in given.get(flag, ()) if _BEYOND.search(word.text)]
    found += [Obstacle(Reason.CHANGES_HOST, word.line, f"writing to {word.text}") for word in outside]
    files = [word for flag in FILE_FLAGS for word in given.get(flag, ())]
    files += [word for word in given.get("--deepspeed", ()) if word.text.endswith(".json")]
    found += [Obstacle(Reason.OTHER_FILE, w.line, w.text) for w in files if "." in w.text and not _is_made(w.text, made)]
    if len(command.words) > 2 and re.search(r"\.(?:ya?ml|json)$", command.words[2].text) and not _is_made(command.words[2].text, made):
        found.append(Obstacle(Reason.OTHER_FILE, command.words[2].line, command.words[2].text))
    return found


def _of_files(command: Command, program: str, made: Collection[str]) -> list[Obstacle]:
    """Scripts of a repository, and folders to enter, that nothing on the page makes."""
    words = [word for word in command.words[1:] if not word.text.startswith("-")]
    if program == "cd":
        wanted = [word for word in words[:1] if word.known and word.text not in (".", "..", "~") and not _is_made(word.text, made)]
    elif program in ("source", ".", "bash", "sh") and not any(word.text.startswith("-") for word in command.words[1:2]):
        wanted = [word for word in words[:1] if word.known and not _is_made(word.text, made)]
    elif command.kind in (CommandKind.PYTHON, CommandKind.ACCELERATE, CommandKind.TORCHRUN, CommandKind.DEEPSPEED):
        wanted = [word for word in words if word.text.endswith(".py") and not _is_made(word.text, made)][:1]
    elif program == "make":
        wanted = [] if _is_made("Makefile", made) else [command.words[0]]
    elif program.endswith(".sh"):
        wanted = [] if _is_made(command.words[0].text, made) else [command.words[0]]
    else:
        wanted = []
    return [Obstacle(Reason.OTHER_FILE, word.line, word.text) for word in wanted if not _NPU_PLACES.search(word.text)]


def _is_made(path: str, made: Collection[str]) -> bool:
    path = path.removeprefix("./").rstrip("/")
    return any(path == one or path.startswith(one + "/") for one in (name.removeprefix("./").rstrip("/") for name in made))


def _of_python(command: Command, host: PageHost) -> list[Obstacle]:
    """What `python -c` imports and `python -m` starts."""
    words = command.words
    at = next((i for i, word in enumerate(words) if word.text in ("-c", "-m")), None)
    if at is None or at + 1 >= len(words):
        return []
    what = words[at + 1]
    if words[at].text == "-m":
        names = [what.text]
    else:
        if _CHANGING_PYTHON.search(what.text) and re.search(r"['\"](?:/(?!dev/)|~)", what.text):
            return [Obstacle(Reason.CHANGES_HOST, what.line, f"python -c {what.text[:60]}")]
        names = [name.strip() for match in _IMPORT.finditer(what.text) for name in match[1].split(",")]
        if _ON_NPU.search(what.text) and host.hardware is Hardware.CPU:
            return [Obstacle(Reason.ASKS_NPU, what.line, "python -c ... torch.npu")]
    lacking = dict.fromkeys(name.partition(".")[0] for name in names)
    return [Obstacle(Reason.LACKS_PACKAGE, what.line, f"import {name}") for name in lacking if not _importable(name, host)]


def _importable(module: str, host: PageHost) -> bool:
    if module == "torch_npu" and host.hardware is Hardware.SIM:
        return True
    # A module that nobody has heard of may be a slip of the page's: it is run, and fails as it would for the reader.
    return module not in (*_NPU_MODULES, "megatron", "vllm", "deepspeed", "mcore_bridge", "sglang", "lmdeploy") or host.has_module(module)
