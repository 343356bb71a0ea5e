"""The words of support tables: what a cell says without its markup, and what its words name."""

from __future__ import annotations

import difflib
import html
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.errors import did_you_mean
from harness.model import Algorithm, Engine, Hardware, Model, Strategy, Tuner

# Keys are as `key` gives them: lower case, without blanks, dashes and underscores.
ALGORITHMS: Mapping[str, Algorithm] = {
    **{algorithm.value.replace("_", ""): algorithm for algorithm in Algorithm},
    "cpt": Algorithm.PT,
    "pretrain": Algorithm.PT,
    "pretraining": Algorithm.PT,
    "预训练": Algorithm.PT,
    "微调": Algorithm.SFT,
    "指令微调": Algorithm.SFT,
    "监督微调": Algorithm.SFT,
    "rewardmodel": Algorithm.RM,
    "奖励模型": Algorithm.RM,
    "sequenceclassification": Algorithm.SEQ_CLS,
    "序列分类": Algorithm.SEQ_CLS,
}
TUNERS: Mapping[str, Tuner] = {
    **{tuner.value: tuner for tuner in Tuner},
    "全参数": Tuner.FULL,
    "全参": Tuner.FULL,
    "fullparameter": Tuner.FULL,
    "fullparameters": Tuner.FULL,
}
STRATEGIES: Mapping[str, tuple[Strategy, ...]] = {
    **{strategy.value: (strategy,) for strategy in Strategy},
    **dict.fromkeys(("deepspeed", "zero", "deepspeedzero"), (Strategy.ZERO2, Strategy.ZERO3)),
    **dict.fromkeys(("deepspeedzero2", "zerostage2"), (Strategy.ZERO2,)),
    **dict.fromkeys(("deepspeedzero3", "zerostage3"), (Strategy.ZERO3,)),
    "fsdp": (Strategy.FSDP1,),
    **dict.fromkeys(
        ("megatronswift", "megatronlm", "megatroncore", "mindspeed", "mindspeed(megatron)", "megatron(mindspeed)"), (Strategy.MEGATRON,)
    ),
    **dict.fromkeys(("单卡", "singlenpu", "singlecard", "singledevice", "singleprocess"), (Strategy.SINGLE,)),
}
ENGINES: Mapping[str, Engine] = {
    **{engine.value: engine for engine in Engine},
    **dict.fromkeys(("vllmascend",), Engine.VLLM),
    **dict.fromkeys(("", "n/a", "none", "无", "pt", "pytorch", "hf"), Engine.TRANSFORMERS),
}
_BETWEEN = re.compile(r"\s*(?:[/、,，+;；&]|<br\s*/?>|\b(?:and|or)\b|和|及|或)\s*", re.IGNORECASE)
_STEMS = (("zero", ("2", "3")), ("fsdp", ("1", "2")))


def bare(text: str) -> str:
    """A markdown cell as its readers see it: no emphasis, code marks, links, tags or entities; full-width letters as plain ones."""
    text = re.sub(r"!?\[([^\[\]]*)\]\([^()\s]*(?:\([^()\s]*\)[^()\s]*)*\)", r"\1", text)
    text = re.sub(r"<br\s*/?>", " / ", text, flags=re.IGNORECASE)
    text = html.unescape(re.sub(r"</?[A-Za-z][^<>]*>", "", text))
    text = re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", re.sub(r"(?<!\\)(?:\*+|`+|~~)", "", text))
    text = re.sub(r"(?<!\w)_+(?=\S)|(?<=\S)_+(?!\w)", "", text)
    return " ".join(unicodedata.normalize("NFKC", text).split())


def key(text: str) -> str:
    """By what words are compared: `ZeRO-2`, `zero2` and `ZERO_2` are one."""
    return re.sub(r"[\s_\-‐-―]+", "", bare(text)).casefold()


def perhaps(word: str, known: Iterable[str]) -> str:
    """What was perhaps meant by an unknown word, compared as `key` does, and what is known."""
    names = {key(str(name)): str(name) for name in known}
    close = difflib.get_close_matches(key(word), names, n=1, cutoff=0.5)
    return did_you_mean(names[close[0]] if close else word, names.values())


def parts(text: str) -> tuple[str, ...]:
    """What a bare cell lists: `A/B`, `A, B`, `A 和 B`; brackets hold together."""
    depth, start, found = 0, 0, []
    for match in re.finditer(r"[(（]|[)）]|" + _BETWEEN.pattern, text, re.IGNORECASE):
        if match[0] in "(（":
            depth += 1
        elif match[0] in ")）":
            depth = max(0, depth - 1)
        elif depth == 0 and match[0]:
            found.append(text[start : match.start()])
            start = match.end()
    found.append(text[start:])
    return tuple(part.strip() for part in found if part.strip())


def words_in(text: str) -> tuple[str, ...]:
    """The words of a bare cell that may name several things at once, as `GRPO (LoRA)` does."""
    return tuple(word for word in re.split(r"[\s()（）\[\]]+|" + _BETWEEN.pattern, text, flags=re.IGNORECASE) if word)


def strategies_of(text: str) -> tuple[tuple[Strategy, ...], tuple[str, ...]]:
    """The strategies that a bare cell lists, in its order, and the words that are none. `FSDP1/2` and `ZeRO-2/3` name two."""
    found: list[Strategy] = []
    unknown: list[str] = []
    stem = ""
    for part in parts(text):
        word = key(part)
        word = stem + word if word in ("1", "2", "3") and stem else word
        stem = next((name for name, digits in _STEMS if name in word and word[-1:] in digits), "")
        meant = STRATEGIES.get(word)
        if meant is None:
            unknown.append(part)
        found += meant or ()
    return tuple(dict.fromkeys(found)), tuple(unknown)


def hardware_of(text: str, hardware: Mapping[Hardware, Mapping[str, Any]]) -> tuple[tuple[Hardware, ...], tuple[str, ...]]:
    """The hardware that a bare cell lists, in its order, and the words that are none."""
    found: list[Hardware] = []
    unknown: list[str] = []
    for part in parts(text):
        meant = _hardware(part, hardware)
        if meant is None:
            unknown.append(part)
        else:
            found.append(meant)
    return tuple(dict.fromkeys(found)), tuple(unknown)


def _hardware(part: str, hardware: Mapping[Hardware, Mapping[str, Any]]) -> Hardware | None:
    """By its series (A2, A3, A5), else by the product, the chip or the device's name, of which the longest counts."""
    text = part.casefold()
    for series in hardware:
        if re.search(rf"(?<![a-z0-9]){series.value}(?![0-9])", text):
            return series
    tight, best, meant = text.replace(" ", ""), 0, None
    for series, facts in hardware.items():
        names = (facts.get("product", ""), *facts.get("chips", ()), *facts.get("device_names", ()))
        longest = max((len(form) for name in names for form in _forms(str(name)) if form in tight), default=0)
        if longest > best:
            best, meant = longest, series
    return meant


def _forms(name: str) -> tuple[str, ...]:
    whole = name.casefold().replace(" ", "").replace("*", "")
    short = whole.removeprefix("ascend")
    return tuple(form for form in (whole, short) if len(form) >= 3 and form != "910")


def models_of(text: str, names: Mapping[str, Model]) -> tuple[tuple[Model, ...], tuple[str, ...]]:
    """The models that a bare cell lists by id or name, in its order, and the words that are none. `names` has names in lower case."""
    whole = names.get(text.casefold())
    if whole is not None:
        return (whole,), ()
    found: list[Model] = []
    unknown: list[str] = []
    pieces: Sequence[str] = parts(text)
    at = 0
    while at < len(pieces):
        pair = "/".join(pieces[at : at + 2]).casefold()  # an id has a slash of its own
        span = 2 if pair in names and at + 1 < len(pieces) else 1
        meant = names.get(pair if span == 2 else pieces[at].casefold())
        if meant is None:
            unknown.append(pieces[at])
        else:
            found.append(meant)
        at += span
    return tuple({model.key: model for model in found}.values()), tuple(unknown)
