"""A row of a page, written anew as the marks of its cells say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.docs_rows import CellKey, RowMeaning, TableForm, TableKind
from harness.docs_rows_words import bare
from harness.docs_update_lines import Cells, cells_of, columns_of
from harness.docs_update_marks import LANGUAGES, Said, bracketed, items, without_marks
from harness.docs_update_scope import said_of_row
from harness.model import MarkKind, Matrix

_PASSED = frozenset({MarkKind.VERIFIED, MarkKind.STALE})
_FAILED = frozenset({MarkKind.FAILING, MarkKind.KNOWN_FAILURE})
_SUPPORTED, _PARTLY = ("Supported", "已支持"), ("Partly supported", "部分支持")
_OPPOSITES = {"✅": "❌", "✓": "✗", "✔": "✘"}
_YES, _NO = "√✓✔✅☑", "x×✗✘❌✖"
_NOT = re.compile(
    r"[x×✗✘❌✖]|not\b.*|no|un(supported|tested|verified).*|fail.*|暂不.*|不.*|未.*|否|无|planned|wip|todo|计划.*|开发中", re.IGNORECASE
)
_POSITIVE = re.compile(r"[√✓✔✅☑]|(fully )?supported|verified|tested|yes|ok|pass(ed)?|(已)?(支持|验证|适配|完成)|是|可用", re.IGNORECASE)


@dataclass(frozen=True)
class Style:
    """How a table writes. `widths`: of each column, in columns of a terminal (0: no row fills it up); `supported`: its word for what
    runs; `signs`: it says so by signs, of which `unsupported` is the one for what does not."""

    language: str
    widths: tuple[int, ...]
    supported: str
    unsupported: str
    signs: bool


def style_of(form: TableForm, delimiter: str, rows: Sequence[Cells], language: str) -> Style:
    """The style of a table by its delimiter line and its rows."""
    line = cells_of(delimiter)
    filled = {number for row in rows for number in range(len(row.spans)) if row.raw(number).endswith("  ")}
    widths = tuple(columns_of(line.raw(number)) if number in filled else 0 for number in range(len(line.spans)))
    status = form.at.get("status")
    written = [without_marks(row.raw(status)) for row in rows] if status is not None else []
    positive = Counter(word for word in written if _POSITIVE.fullmatch(bare(word)))
    supported = positive.most_common(1)[0][0] if positive else _word(_SUPPORTED, language)
    signs = any(bare(word) and (bare(word) in _YES or bare(word).casefold() in _NO) for word in written)
    negative = Counter(word for word in written if bare(word) and bare(word).casefold() in _NO)
    unsupported = negative.most_common(1)[0][0] if negative else _OPPOSITES.get(bare(supported), "x")
    return Style(language, widths, supported, unsupported, signs)


def rewritten(row: Cells, form: TableForm, meaning: RowMeaning, answers: Mapping[CellKey, Said], matrix: Matrix, style: Style) -> str:
    """The row's line as the answers about its cells say; the same line where there is no answer about any of them.

    A row that names the model says the mark of each of its combinations. A row that names none (a feature) is stood for by one model's
    cell, whose pass adds nothing to it: it changes only where its word is contradicted, and then names the cell.
    """
    if not any(key in answers for key in meaning.cells) or form.kind not in (
        TableKind.COMBINATIONS,
        TableKind.FEATURES,
        TableKind.UNSUPPORTED,
    ):
        return row.line
    at = next(form.at[column] for column in ("status", "strategy", "item") if column in form.at)
    strategy = row.raw(form.at["strategy"]) if "strategy" in form.at else ""
    raw = row.raw(at).strip()
    base = without_marks(raw)
    if not meaning.names_model:
        answers = {key: said for key, said in answers.items() if said.kind in _against(form, base)}
        said = said_of_row(meaning, answers, matrix, strategy)
        text = base + bracketed(said, style.language) if said else base
    else:
        said = said_of_row(meaning, answers, matrix, strategy)
        whole = all(key in answers for key in meaning.cells) and not meaning.problems and not meaning.without_cell
        word = _status(base, said, whole, style) if "status" in form.at else base
        text = word + bracketed(said, style.language) if word else items(said, style.language)
    return row.line if text == raw else row.exchanged(at, text, style.widths[at])


def _against(form: TableForm, base: str) -> frozenset[MarkKind]:
    """The marks that contradict what a row without a model says."""
    word = bare(base)
    if "status" not in form.at or _NOT.fullmatch(word):
        return _PASSED | {MarkKind.FIXED}
    return _FAILED


def _status(base: str, said: Sequence[Said], whole: bool, style: Style) -> str:
    """The word of a status; "" where the marks alone say it. `whole`: every cell of the row has an answer."""
    kinds = {one.kind for one in said}
    word = bare(base)
    partly = word in {*_PARTLY}
    if not kinds & (_PASSED | _FAILED):
        return base
    if not kinds & _FAILED:
        if word and not partly and not _NOT.fullmatch(word):
            return base
        return style.supported if (whole and kinds <= _PASSED) or style.signs else _word(_PARTLY, style.language)
    if not kinds & _PASSED and whole and kinds <= _FAILED:
        if style.signs:
            return base if _NOT.fullmatch(word) else style.unsupported
        return base if _NOT.fullmatch(word) and not partly else ""
    if not kinds & _PASSED and _NOT.fullmatch(word):
        return base
    return (base or style.supported) if style.signs else _word(_PARTLY, style.language)


def _word(words: tuple[str, str], language: str) -> str:
    return words[LANGUAGES.index(language)]
