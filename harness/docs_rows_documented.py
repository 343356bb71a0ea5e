"""Rows that name no model (features, unsupported items, memory, products), held against the documented rows of matrix.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from harness.docs_rows_words import bare, perhaps
from harness.matrix_claims import row_text
from harness.model import Hardware, Matrix

Row = Mapping[str, Any]
# The column that tells the rows of a kind of table apart, by the kind's name.
_FIELD = {"features": "feature", "unsupported": "item", "products": "product"}
_TRANSLATED = (("训练", " training "), ("推理", " inference "))
# What one page calls Training and another 训练范式; a feature under another of these groups is another feature.
_GROUPS = (
    ("training", r"训练|train"),
    ("tuning", r"低参|peft|parameter-efficient|tuning|微调"),
    ("distributed", r"分布式|distributed|parallel"),
    ("rlhf", r"rlhf|强化|reinforcement"),
    ("performance", r"性能|performance|optimi[sz]ation"),
    ("deployment", r"部署|deploy|inference|推理"),
)


def documented_cells(kind: str, texts: Mapping[str, str], matrix: Matrix) -> tuple[tuple[tuple[str, Hardware], ...], tuple[str, ...]]:
    """The cells of the claims that matrix.yaml makes of the same row, and what can't be read. `texts`: the row's bare words by column."""
    row, problem = _memory_row(texts, matrix) if kind == "memory" else _named_row(_FIELD[kind], texts, matrix)
    if row is None:
        return (), (problem,) if problem else ()
    text = row_text(row)
    claimed = ((claim.cell, claim.target) for claim in matrix.claims if claim.row == text)
    return tuple(dict.fromkeys((cell, target) for cell, target in claimed if cell and target)), ()


def _named_row(field: str, texts: Mapping[str, str], matrix: Matrix) -> tuple[Row | None, str]:
    asked = texts.get(field, "")
    rows = [row for row in _rows_with(matrix, field) if _same_group(texts.get("group", ""), row)]
    exact = [row for row in rows if _plain(asked) in {_plain(name) for name in _names(row, field)}]
    if exact:
        return exact[0], ""
    vocabulary = frozenset[str]().union(*(_words(_names(row, field)[0]) for row in rows))
    # prose differs from page to page; a number that no row has makes it another thing
    told = {word for word in _words(asked) if word in vocabulary or re.search(r"\d", word)}
    found = [row for row in rows if told and _words(_names(row, field)[0]) == told]
    if len(found) == 1:
        return found[0], ""
    if not rows:
        return None, ""
    known = {name for row in rows for name in _names(row, field)}
    return None, f"{field} {asked!r} is no documented row of {matrix.source}. {perhaps(asked, known)}"


def _memory_row(texts: Mapping[str, str], matrix: Matrix) -> tuple[Row | None, str]:
    def asked(size: object, npus: object, zero: object) -> tuple[str, str, str]:
        count = re.search(r"\d+", str(npus))
        return (
            str(size).casefold().replace(" ", ""),
            count[0] if count else "",
            str(zero).casefold().replace("-", "").replace("zero ", "zero"),
        )

    wanted = asked(texts.get("size", ""), texts.get("npus", ""), texts.get("zero", "none") or "none")
    rows = list(_rows_with(matrix, "model_size"))
    found = [row for row in rows if asked(row["model_size"], row.get("npus"), row.get("deepspeed")) == wanted]
    if found or not rows:
        return (found[0] if found else None), ""
    return None, f"{wanted[0].upper()} on {wanted[1]} NPUs with deepspeed {wanted[2]} is no documented row of {matrix.source}."


def _rows_with(matrix: Matrix, field: str) -> Iterator[Row]:
    for rows in matrix.tables.values():
        if rows and any(name in rows[0] for name in (field, f"{field}_zh", f"{field}_en")):
            yield from rows


def _names(row: Row, field: str) -> tuple[str, ...]:
    """What the documents call it, the documents' own language first."""
    return tuple(str(row[name]) for name in (f"{field}_zh", field, f"{field}_en") if row.get(name) is not None)


def _plain(text: str) -> str:
    return re.sub(r"[\s\-_]+", "", bare(text)).casefold()


def _words(text: str) -> frozenset[str]:
    """The technical words of a name, which stay as they are in every language."""
    text = bare(text).casefold()
    for chinese, english in _TRANSLATED:
        text = text.replace(chinese, english)
    return frozenset(re.findall(r"[a-z0-9]+", text))


def _same_group(asked: str, row: Row) -> bool:
    """Whether a page's group can be the documented row's; one that says nothing known can be any."""
    here, there = _group(asked), _group(str(row.get("group_zh") or row.get("group_en") or ""))
    return not here or not there or here == there


def _group(text: str) -> str:
    return next((name for name, pattern in _GROUPS if re.search(pattern, text.casefold())), "")
