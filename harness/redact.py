"""What is kept of logs, commands and paths: without names, addresses and secrets, and unable to act in markdown.

Redaction is idempotent. It errs towards hiding, save where that would spoil what evidence is for: versions, PCI addresses, Python
slices and the words of commands stay.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from harness.evidence import stack_name
from harness.model import Evidence
from harness.redact_patterns import EMAIL, hide_accounts, hide_hosts, hide_secrets, hide_values, is_secret_name

T = TypeVar("T")

# Accounts that identify nobody, and words that commands and logs are made of: as user or host names they are hidden only in paths
# and prompts.
ORDINARY = frozenset(
    {"root", "user", "admin", "runner", "ubuntu", "debian", "centos", "openeuler", "nobody", "home", "work", "test", "ci", "build"}
    | {"docker", "localhost", "swift", "npu", "cpu", "ascend", "torch", "train", "model", "models", "python", "host", "server", "linux"}
    | {"megatron", "deepspeed", "vllm", "qwen", "a2", "a3", "a5", "sim", "token", "ip", "mac", "email"}
)
# Where evidence says a word of the harness itself, which keys or decides it: a place is the path of fields, `*` for a list's members.
# Everything else is cleaned, whatever it is called.
_OWN_WORDS = frozenset(
    {
        "outcome.cause",
        "verdict.cause",
        "comparisons.*.cause",
        "comparisons.*.name",
        "ruling.causes.*",
        "steps.*.name",
        "steps.*.command.program",
        "steps.*.substitutions.*.flag",
        "runs.*.step",
        "runs.*.nonce",
        "runs.*.started_at",
        "runs.*.ended_by",
        "witnesses.*.nonce",
        "facts.missing.*",
        *(f"facts.{name}" for name in ("blocked_by", "algorithm", "tuner", "strategy", "engine", "model", "family", "recipe", "options")),
    }
)
_KEYED = ("cell", "stage", "weights", "hardware", "asked", "stack", "tiny_key", "nonce", "launcher", "started_at", "schema", "sha256")
_NUMBER_OF_VERSION = re.compile(r"v?\d+(?:\.\d+)*(?:\.?(?:a|b|rc|post|dev|alpha|beta)\.?\d*)*")
_DIGEST_KEY = re.compile(r"(?i)(?:commit|sha\d*|digest|nonce|revision|hash)$")
_DIGEST = re.compile(r"[0-9a-f]{7,128}")
_MOST_PASSES = 12

ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]{0,300}(?:\x07|\x1b\\)|[@-Z\\^_])|\x9b[0-?]*[ -/]*[@-~]")
_MAC = re.compile(r"(?<![\w:.-])(?:[0-9A-Fa-f]{2}([:-]))(?:[0-9A-Fa-f]{2}\1){4}[0-9A-Fa-f]{2}(?![\w:-])")
_IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?!\d|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.<])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?:%\w+)?(?![\w:]|\.\w)")
_VERSION_BEFORE = re.compile(r"(?i)(?:\bv|version\W{0,3}|[=~!<>]=\s*['\"]?)$")
_VERSION_AFTER = re.compile(r"(?i)^(?:[+]|\.?(?:post|dev|rc|a|b)\d|-(?:cp|py)\d|\.(?:whl|tar|zip|so|run))")


def redact(text: str, *, user: str, host: str, home: str, extra: Iterable[str] = (), secrets: Iterable[str] = ()) -> str:
    """`text` without colours, control characters, user and host names, addresses, home paths, tokens and e-mail addresses.

    `extra` are folders (the repository, work folders) that become `<work>`; `secrets` are values that go wherever they stand (see
    `secret_values`). 127.0.0.1, 0.0.0.0, ::1 and public sites such as github.com stay.
    """
    folders = sorted({e.rstrip("/") for e in extra} - {""}, key=lambda e: (-len(e), e))
    secrets = tuple(secrets)
    text = plain(text)
    for _ in range(_MOST_PASSES):  # hiding one thing may uncover the next
        before = text
        text = hide_secrets(hide_values(text, secrets))
        for folder in folders:
            text = _hide_folder(text, folder, "<work>")
        text = _hide_folder(text, home.rstrip("/"), "~")
        for name, mask in ((host, "<host>"), (host.partition(".")[0], "<host>"), (user, "<user>")):
            text = _hide_name(text, name, mask)
        text = hide_hosts(hide_accounts(text))
        text = _IPV6.sub(_hide_ipv6, _IPV4.sub(_hide_ipv4, _MAC.sub("<mac>", text)))
        if text == before:
            break
    return text


def plain(text: str) -> str:
    """`text` without ANSI colours and control characters; a carriage return ends a line, as progress bars mean it."""
    text = re.sub(r"\r\n?", "\n", ANSI.sub("", text))
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs"))


def redacted(evidence: Evidence, clean: Callable[[str], str]) -> Evidence:
    """`evidence` with `clean` applied to every text and key, save the words of the harness that key or decide it.

    The stack of undeclared versions is named after them, so it is named anew where they had to be cleaned.
    """
    cleaned = {f.name: _clean(getattr(evidence, f.name), clean, f.name) for f in fields(evidence) if f.name not in _KEYED}
    if cleaned["versions"] != evidence.versions and evidence.stack.startswith("undeclared-"):
        cleaned["stack"] = stack_name(cleaned["versions"], {})
    return replace(evidence, **cleaned)


def clean_value(value: T, clean: Callable[[str], str]) -> T:
    """`clean` applied to every text and key within `value`; what follows a secret's name (`--hub_token X`, {"HF_TOKEN": X}) becomes
    `<token>`."""
    return _clean(value, clean)  # type: ignore[no-any-return]


def escape_markdown(text: str) -> str:
    """`text` on one line, as literal text of a markdown table cell: no markup, link, HTML or column break can come of it."""
    text = " ".join(EMAIL.sub("<email>", plain(text)).split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*\[\]|~$])", r"\\\1", text)
    text = re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", text)  # torch_npu is no emphasis
    text = re.sub(r"(?i):(?=//)|(?<=\bwww)\.", lambda m: f"\\{m[0]}", text)
    return re.sub(r"^([-+=#]|\d+(?=[.)](?:\s|$)))", lambda m: f"{m[0]}\\" if m[0][0].isdigit() else f"\\{m[0]}", text)


def fenced(text: str, language: str = "") -> str:
    """`text` as a fenced code block that nothing in it can close."""
    text = plain(text).rstrip()
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _hide_folder(text: str, folder: str, mask: str) -> str:
    return re.sub(rf"(?<![\w.~-]){re.escape(folder)}(?![\w.-]*[\w-])", mask, text) if folder else text


def _hide_name(text: str, name: str, mask: str) -> str:
    if len(name) < 2:
        return text
    word = re.escape(name)
    if name.lower() in ORDINARY:
        pattern = rf"(?<![\w<.-]){word}(?=@)|(?<=@){word}(?![\w>-])"
    else:
        pattern = rf"(?<![A-Za-z0-9<]){word}(?![A-Za-z0-9>])"
    return re.sub(pattern, mask, text, flags=re.IGNORECASE)


def _hide_ipv4(match: re.Match[str]) -> str:
    parts = [int(part) for part in match[0].split(".")]
    before, after = match.string[max(0, match.start() - 24) : match.start()], match.string[match.end() :][:8]
    looks_like_version = parts[0] < 10 and parts[3] == 0
    if any(part > 255 for part in parts) or match[0] in ("127.0.0.1", "0.0.0.0") or looks_like_version:
        return match[0]
    private = ipaddress.IPv4Address(".".join(map(str, parts))).is_private
    named = _VERSION_BEFORE.search(before) or _VERSION_AFTER.search(after)
    return match[0] if named and not private else "<ip>"


def _hide_ipv6(match: re.Match[str]) -> str:
    groups = [group for group in match[0].partition("%")[0].split(":") if group]
    if match[0] in ("::", "::1") or (len(groups) < 5 and not any(len(group) >= 3 for group in groups)):
        return match[0]
    try:
        ipaddress.IPv6Address(match[0])
    except ValueError:
        return match[0]
    return "<ip>"


def _clean(value: Any, clean: Callable[[str], str], place: str = "", name: str = "") -> Any:
    """`place`: the path of `value` in the evidence, list members as `*`; `name`: the key or flag that it goes by."""
    if isinstance(value, str):
        return value if type(value) is not str or place in _OWN_WORDS else _clean_text(value, clean, place, name)
    if is_dataclass(value) and not isinstance(value, type):
        inner = {f.name: _clean(getattr(value, f.name), clean, f"{place}.{f.name}", f.name) for f in fields(value)}
        return replace(value, **inner)
    if isinstance(value, Mapping):
        return _clean_mapping(value, clean, place)
    if isinstance(value, list | tuple):
        flags = [name, *(item.lstrip("-") if isinstance(item, str) and item.startswith("--") else name for item in value[:-1])]
        return type(value)(_clean(item, clean, f"{place}.*", flag) for item, flag in zip(value, flags, strict=False))
    return value


def _clean_text(value: str, clean: Callable[[str], str], place: str, name: str) -> str:
    if value and is_secret_name(name):
        return "<token>"
    if _DIGEST_KEY.search(name) and _DIGEST.fullmatch(value):
        return value
    if ".versions." in f".{place}" and (number := _NUMBER_OF_VERSION.match(value)):
        rest = value[number.end() :]  # four numbers of a version look like an address
        return number[0] + (clean(rest) if rest else "")
    return clean(value)


def _clean_mapping(value: Mapping[Any, Any], clean: Callable[[str], str], place: str) -> dict[Any, Any]:
    result: dict[Any, Any] = {}
    for key, inner in value.items():
        known = clean(key) if type(key) is str else key
        while known in result:  # two keys that look alike once they are clean
            known = f"{known}+"
        result[known] = _clean(inner, clean, f"{place}.{key}", str(key))
    return result
