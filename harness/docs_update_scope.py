"""Which part of a row a mark speaks of, in as few words as tell it from the rest of the row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.docs_rows import CellKey, RowMeaning
from harness.docs_rows_words import bare, parts, strategies_of
from harness.docs_update_marks import Said, without_marks
from harness.model import Cell, Engine, Matrix, Strategy
from harness.rules import changed_options

_FORCED = ("model", "target", "strategy")


def said_of_row(meaning: RowMeaning, answers: Mapping[CellKey, Said], matrix: Matrix, strategy_cell: str) -> tuple[Said, ...]:
    """What is said of the row's cells, one a kind, date and detail, each with the part that it speaks of."""
    groups: dict[Said, list[CellKey]] = {}
    for key in meaning.cells:
        if key in answers:
            groups.setdefault(answers[key], []).append(key)
    return tuple(replace(said, of=scope_of(keys, meaning, matrix, strategy_cell)) for said, keys in groups.items())


def scope_of(keys: Sequence[CellKey], meaning: RowMeaning, matrix: Matrix, strategy_cell: str) -> str:
    """What tells `keys`, some of the row's cells, from the rest of the row, by the row's own words; "" where they are all of it."""
    cells = {cell.id: cell for cell in matrix.cells}
    if not meaning.names_model:
        return ", ".join(_whole(cells[cell], str(target)) for cell, target in keys)
    words = own_words(strategy_cell)
    facts = {key: _facts(cells[key[0]], str(key[1]), words) for key in meaning.cells}
    return _scope(keys, facts, not meaning.problems and not meaning.without_cell)


def own_words(strategy_cell: str) -> dict[Strategy, str]:
    """By which word a row calls each strategy that has a word of its own there."""
    named = {part: strategies_of(part) for part in parts(without_marks(bare(strategy_cell)))}
    return {meant[0]: part for part, (meant, _) in named.items() if len(meant) == 1}


def model_name(cell: Cell) -> str:
    return cell.model.id.rpartition("/")[2]


def _facts(cell: Cell, target: str, words: Mapping[Strategy, str]) -> dict[str, str]:
    """What may tell cells of a row apart, the strategy last."""
    return {
        "model": model_name(cell),
        "algorithm": str(cell.algorithm).upper(),
        "tuner": str(cell.tuner),
        "engine": str(cell.engine),
        "devices": f"{cell.devices} NPUs" if cell.devices else "",
        "target": target.upper(),
        "strategy": words.get(cell.strategy, str(cell.strategy)),
    }


def _scope(keys: Sequence[CellKey], facts: Mapping[CellKey, Mapping[str, str]], whole: bool) -> str:
    """ "" where the keys are the whole row. A row that could not be read whole always says what is meant."""
    if whole and len(keys) == len(facts):
        return ""
    names = list(next(iter(facts.values())))
    told = [n for n in names if len({fact[n] for fact in facts.values()}) > 1 or (not whole and n in _FORCED)]
    for name in tuple(told) if whole else ():
        if len(told) > 1 and _is_product(name, told, keys, facts):
            told.remove(name)
    lists: dict[tuple[str, ...], list[str]] = {}
    last = told[-1]
    for key in keys:
        lists.setdefault(tuple(facts[key][n] for n in told[:-1]), []).append(facts[key][last])
    return ", ".join(" ".join(filter(None, (*rest, "/".join(dict.fromkeys(values))))) for rest, values in lists.items())


def _is_product(name: str, told: Sequence[str], keys: Sequence[CellKey], facts: Mapping[CellKey, Mapping[str, str]]) -> bool:
    """Whether the keys hold every cell of the row that agrees with one of them in all but `name`."""
    rest = [n for n in told if n != name]
    mine = {tuple(facts[key][n] for n in rest) for key in keys}
    return all(key in keys for key, fact in facts.items() if tuple(fact[n] for n in rest) in mine)


def _whole(cell: Cell, target: str) -> str:
    engine = "" if cell.engine is Engine.TRANSFORMERS else str(cell.engine)
    words = (
        model_name(cell),
        str(cell.algorithm).upper(),
        cell.tuner,
        cell.strategy,
        engine,
        *changed_options(cell.options),
        target.upper(),
    )
    return " ".join(str(word) for word in words if word)
