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

from harness.model import Evidence

T = TypeVar("T")

# Accounts that identify nobody, and words that commands and logs are made of: as user or host names they are hidden only in paths
# and prompts.
ORDINARY = frozenset(
    {"root", "user", "admin", "runner", "ubuntu", "debian", "centos", "openeuler", "nobody", "home", "work", "test", "ci", "build"}
    | {"docker", "localhost", "swift", "npu", "cpu", "ascend", "torch", "train", "model", "models", "python", "host", "server", "linux"}
    | {"megatron", "deepspeed", "vllm", "qwen", "a2", "a3", "a5", "sim", "token", "ip", "mac", "email"}
)
# Fields that name things of the harness: hiding a word there would break the key, the verdict or the command.
_IDENTIFIERS = frozenset(
    {"cause", "nonce", "event", "name", "step", "program", "flag", "started_at", "ended_by", "trainable_digest", "source", "sha256"}
)

ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]{0,300}(?:\x07|\x1b\\)|[@-Z\\^_])|\x9b[0-?]*[ -/]*[@-~]")
EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}(?![\w-])")
_MAC = re.compile(r"(?<![\w:.-])(?:[0-9A-Fa-f]{2}([:-]))(?:[0-9A-Fa-f]{2}\1){4}[0-9A-Fa-f]{2}(?![\w:-])")
_IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?!\d|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.<])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?:%\w+)?(?![\w:]|\.\w)")
_VERSION_BEFORE = re.compile(r"(?i)(?:\bv|version\W{0,3}|[=~!<>]=\s*['\"]?)$")
_VERSION_AFTER = re.compile(r"(?i)^(?:[+]|\.?(?:post|dev|rc|a|b)\d|-(?:cp|py)\d|\.(?:whl|tar|zip|so|run))")

_SECRET = (
    r"(?:password|passwd|secret(?:[_-]?(?:key|access[_-]?key))?|api[_-]?key|access[_-]?key(?:[_-]?id)?"
    r"|(?:hub|auth|access|api|hf|ms|sdk|bearer|refresh)[_-]?token)"
)
_SECRET_NAME = re.compile(rf"(?i:(?:^|[_-]){_SECRET}$)|(?:^|_)(?:TOKEN|SECRET|PASSWORD|CREDENTIALS?)$")
_SECRETS = (
    re.compile(
        r"(?<![\w-])(?:hf_[A-Za-z0-9]{8,}|ms-[0-9a-fA-F]{6,}(?:-[0-9a-fA-F]+)*|sk-(?=[\w-]*\d)[\w-]{12,}|(?:AKIA|ASIA)[0-9A-Z]{12,}"
        r"|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{12,}|xox[abprs]-[\w-]{8,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
    ),
    re.compile(r"(?i)(?<=\bbearer )[\w.~+/=-]{6,}|(?<=authorization: basic )[\w+/=-]+"),
    re.compile(r"(?<=://)[^\s/@<>:]*:[^\s/@<>]+(?=@)"),
)
_VALUE = r"(?P<value>[^\s\"',;}\])<>][^\s\"',;}\])]*)"
_ASSIGNED = re.compile(
    rf"(?P<name>(?i:(?<!\w)(?:\w*[_-])?{_SECRET})|(?<!\w)[A-Z0-9_]*_(?:TOKEN|SECRET|PASSWORD|CREDENTIALS?))"
    rf"(?P<between>[\"']?\s*[=:]\s*[\"']?){_VALUE}"
)
_FLAGGED = re.compile(rf"(?P<name>(?i:(?<![\w-])--(?:[\w-]*[_-])?{_SECRET}))(?P<between>[\"']?,?[ ]+[\"']?)(?!-){_VALUE}")
_HOMES = re.compile(r"(?<![\w~.>])(?:/home/|/Users/)[^/\s:'\"<>,;)\]|]+|(?<![\w~./>-])/root(?![\w.-])")


def redact(text: str, *, user: str, host: str, home: str, extra: Iterable[str] = ()) -> str:
    """`text` without colours, control characters, user and host names, addresses, home paths, tokens and e-mail addresses.

    `extra` are folders (the repository, work folders) that become `<work>`. 127.0.0.1, 0.0.0.0 and ::1 stay.
    """
    folders = sorted({e.rstrip("/") for e in extra} - {""}, key=lambda e: (-len(e), e))
    before, text = None, plain(text)
    while text != before:  # hiding one thing may uncover the next; every pass hides more, so this ends
        before = text
        text = _hide_secrets(text)
        for folder in folders:
            text = _hide_folder(text, folder, "<work>")
        text = EMAIL.sub("<email>", _HOMES.sub("~", _hide_folder(text, home.rstrip("/"), "~")))
        text = _IPV6.sub(_hide_ipv6, _IPV4.sub(_hide_ipv4, _MAC.sub("<mac>", text)))
        for name, mask in ((host, "<host>"), (host.partition(".")[0], "<host>"), (user, "<user>")):
            text = _hide_name(text, name, mask)
    return text


def plain(text: str) -> str:
    """`text` without ANSI colours and control characters; a carriage return ends a line, as progress bars mean it."""
    text = re.sub(r"\r\n?", "\n", ANSI.sub("", text))
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs"))


def redacted(evidence: Evidence, clean: Callable[[str], str]) -> Evidence:
    """`evidence` with `clean` applied to all that was written by processes or names places. What keys and decides it is left as it is."""
    free = ("facts", "steps", "runs", "witnesses", "metrics", "outcome", "comparisons", "machine", "ruling", "verdict")
    return replace(evidence, **{name: clean_value(getattr(evidence, name), clean) for name in free})


def clean_value(value: T, clean: Callable[[str], str]) -> T:
    """`clean` applied to every text within `value`; what follows a secret's name (`--hub_token X`, {"HF_TOKEN": X}) becomes `<token>`."""
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


def _hide_secrets(text: str) -> str:
    for pattern in _SECRETS:
        text = pattern.sub("<token>", text)
    for pattern in (_ASSIGNED, _FLAGGED):
        text = pattern.sub(lambda m: f"{m['name']}{m['between']}<token>", text)
    return text


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


def _clean(value: Any, clean: Callable[[str], str], name: str = "") -> Any:
    if isinstance(value, str):
        if type(value) is not str or name in _IDENTIFIERS:
            return value  # a member of a closed set, or a name of the harness
        return "<token>" if value and _SECRET_NAME.search(name) else clean(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _clean(getattr(value, f.name), clean, f.name) for f in fields(value)})
    if isinstance(value, Mapping):
        return {key: _clean(inner, clean, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        flags = ["", *(item.lstrip("-") if isinstance(item, str) and item.startswith("--") else "" for item in value[:-1])]
        return type(value)(_clean(item, clean, flag) for item, flag in zip(value, flags, strict=False))
    return value
