"""Rows for verified cells that no row of a page speaks of, each in the table and the style that it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.docs_rows import CellKey, RowMeaning, TableForm, goes_on, model_names, read_rows
from harness.docs_rows_words import ENGINES, bare, hardware_of, key
from harness.docs_update_lines import Cells, new_row
from harness.docs_update_rows import Style
from harness.docs_update_scope import own_words
from harness.model import Algorithm, Cell, Engine, Hardware, Matrix, Model, Options, Strategy, Tuner

_RLHF = frozenset(set(Algorithm) - {Algorithm.PT, Algorithm.SFT, Algorithm.RM, Algorithm.EMBEDDING, Algorithm.SEQ_CLS, Algorithm.RERANKER})
_STRATEGIES: Mapping[Strategy, tuple[str, str]] = {
    Strategy.SINGLE: ("single NPU", "单卡"),
    Strategy.DDP: ("DDP", "DDP"),
    Strategy.FSDP1: ("FSDP1", "FSDP1"),
    Strategy.FSDP2: ("FSDP2", "FSDP2"),
    Strategy.ZERO2: ("zero2", "zero2"),
    Strategy.ZERO3: ("zero3", "zero3"),
    Strategy.MEGATRON: ("Megatron", "Megatron"),
}
_TUNERS = {Tuner.LORA: "LoRA", Tuner.FULL: "full", Tuner.QLORA: "QLoRA"}
_DEEPSPEED = (Strategy.ZERO2, Strategy.ZERO3)


@dataclass(frozen=True)
class TableRows:
    """A table of combinations: its rows as they stand, and what each means."""

    form: TableForm
    heading: str
    rows: tuple[Cells, ...]
    meanings: tuple[RowMeaning, ...]
    style: Style


@dataclass(frozen=True)
class Added:
    """A new row: behind which row (its number in the table), its line without an end, and what it means."""

    table: TableRows
    behind: int
    line: str
    meaning: RowMeaning


@dataclass(frozen=True)
class _Asked:
    """What one row can say: the strategies share everything else."""

    algorithm: Algorithm
    model: Model
    tuner: Tuner
    engine: Engine
    strategies: tuple[Strategy, ...]
    targets: tuple[Hardware, ...]
    keys: tuple[CellKey, ...]

    def __str__(self) -> str:
        engine = "" if self.engine is Engine.TRANSFORMERS else f" with {self.engine}"
        strategies, targets = "/".join(self.strategies), "/".join(self.targets)
        return f"{str(self.algorithm).upper()} {self.model.id} {self.tuner} {strategies}{engine} on {targets}"


def added_rows(tables: Sequence[TableRows], unsaid: Sequence[CellKey], matrix: Matrix) -> tuple[list[Added], list[str]]:
    """New rows for the verified cells that no row means (`unsaid`), and a sentence for each that no table can say.

    A row is added only if it reads back as the cells that it is for.
    """
    cells = {cell.id: cell for cell in matrix.cells}
    plain = [(cell, target) for cell, target in unsaid if cells[cell].options == Options()]
    special = [f"{cell} on {target}" for cell, target in unsaid if (cell, target) not in plain]
    notes = [f"{which} is verified, and no table has a column for its options: no row says so." for which in special]
    added: list[Added] = []
    for asked in _asked(plain, cells):
        row = next(filter(None, (_row(table, asked, matrix, cells) for table in _fitting(tables, asked, cells))), None)
        if row is None:
            notes.append(f"{asked} is verified, and no table of the page has the rows and columns to say so.")
        else:
            added.append(row)
    return added, notes


def _asked(keys: Sequence[CellKey], cells: Mapping[str, Cell]) -> Iterator[_Asked]:
    groups: dict[tuple[str, Algorithm, Tuner, Engine], dict[Strategy, list[CellKey]]] = {}
    for cell, target in keys:
        at = cells[cell]
        groups.setdefault((at.model.key, at.algorithm, at.tuner, at.engine), {}).setdefault(at.strategy, []).append((cell, target))
    for (_, algorithm, tuner, engine), by_strategy in groups.items():
        alike: dict[tuple[Hardware, ...], list[Strategy]] = {}
        for strategy in sorted(by_strategy, key=list(Strategy).index):
            alike.setdefault(tuple(h for h in Hardware if any(h is target for _, target in by_strategy[strategy])), []).append(strategy)
        for targets, strategies in alike.items():
            meant = tuple(key for strategy in strategies for key in by_strategy[strategy])
            yield _Asked(algorithm, cells[meant[0][0]].model, tuner, engine, tuple(strategies), targets, meant)


def _fitting(tables: Sequence[TableRows], asked: _Asked, cells: Mapping[str, Cell]) -> list[TableRows]:
    """Tables that have rows of the algorithm, those of the same hardware first; for RLHF also one that names rollout engines."""

    def algorithms(table: TableRows) -> set[Algorithm]:
        return {cells[cell].algorithm for meaning in table.meanings for cell, _ in meaning.cells}

    def targets(table: TableRows) -> set[Hardware]:
        return {target for meaning in table.meanings for _, target in meaning.cells}

    own = [t for t in tables if asked.algorithm in algorithms(t)]
    rlhf = [t for t in tables if t not in own and "engine" in t.form.at and asked.algorithm in _RLHF and algorithms(t) & _RLHF]
    return sorted(own, key=lambda t: not set(asked.targets) <= targets(t)) + rlhf


def _row(table: TableRows, asked: _Asked, matrix: Matrix, cells: Mapping[str, Cell]) -> Added | None:
    behind = _place(table, asked, cells)
    like = table.rows[behind]
    texts = [_text(table, column, like, asked, matrix) for column in _columns(table.form, len(like.spans))]
    line = new_row(like, texts, table.style.widths)
    values = tuple(text.replace("\\|", "|") for text in texts)
    (meaning,) = read_rows(table.form, [values], matrix, table.heading)
    strange = [cell for cell, target in meaning.cells if (cell, target) not in asked.keys]
    devices_apart = all(cells[cell].devices is not None and cells[cell].strategy in asked.strategies for cell in strange)
    said_all = set(asked.keys) <= set(meaning.cells) and not meaning.problems and not meaning.without_cell
    return Added(table, behind, line, meaning) if said_all and devices_apart else None


def _place(table: TableRows, asked: _Asked, cells: Mapping[str, Cell]) -> int:
    """Behind the last row of the model, else of the algorithm, else of the table; never between a row and those that go on with it."""
    last, best = len(table.rows) - 1, (0, len(table.rows) - 1)
    for number, meaning in enumerate(table.meanings):
        mine = [cells[cell] for cell, _ in meaning.cells if cells[cell].algorithm is asked.algorithm]
        best = max(best, (2 if any(cell.model.key == asked.model.key for cell in mine) else bool(mine), number if mine else best[1]))
    behind = best[1]
    while behind < last and goes_on(table.form, table.rows[behind + 1].values()):
        behind += 1
    return behind


def _columns(form: TableForm, count: int) -> list[str]:
    names = {position: column for column, position in form.at.items()}
    return [names.get(position, "") for position in range(count)]


def _text(table: TableRows, column: str, like: Cells, asked: _Asked, matrix: Matrix) -> str:
    """What the new row has in a column, in the words and the markup of the rows that are there."""
    match column:
        case "algorithm":
            return _dressed(table, column, like, _algorithm(table, asked))
        case "model":
            return _dressed(table, column, like, _documented_name(asked.model, matrix))
        case "strategy":
            return _strategies(table, asked.strategies)
        case "engine":
            return _same(table, column, lambda text: ENGINES.get(key(text)) is asked.engine) or _engine(asked.engine)
        case "hardware":
            known = _same(table, column, lambda text: set(hardware_of(text, matrix.hardware)[0]) == set(asked.targets))
            return known or "/".join(str(matrix.hardware[target].get("product", target)) for target in asked.targets)
        case "tuner":
            return _same(table, column, lambda text: key(text) == key(str(asked.tuner))) or {Tuner.LORA: "LoRA"}.get(
                asked.tuner, str(asked.tuner)
            )
        case "status":
            return table.style.supported
        case _:
            return ""


def _same(table: TableRows, column: str, means: Callable[[str], bool]) -> str:
    """How a row of the table writes it; "" where none does."""
    at = table.form.at[column]
    return next((raw for row in reversed(table.rows) if (raw := row.raw(at).strip()) and means(bare(raw))), "")


def _dressed(table: TableRows, column: str, like: Cells, text: str) -> str:
    """`text` with the emphasis that the row `like` gives to its own."""
    raw = like.raw(table.form.at[column]).strip()
    plain = bare(raw)
    return raw.replace(plain, text) if plain and raw.count(plain) == 1 and "](" not in raw else text


def _documented_name(model: Model, matrix: Matrix) -> str:
    """By which name documents call the model: that of a claimed row, else the last part of its id."""
    last = model.id.rpartition("/")[2]
    others = [str(row["models"]) for rows in matrix.tables.values() for row in rows if "models" in row]
    names = model_names(matrix)
    return next((name for name in others if (meant := names.get(name.casefold())) is not None and meant.key == model.key), last)


def _strategies(table: TableRows, strategies: Sequence[Strategy]) -> str:
    own: dict[Strategy, str] = {}
    for row in table.rows:
        own = {**own_words(row.raw(table.form.at["strategy"])), **own}
    language = 1 if table.style.language == "zh" else 0
    words: list[str] = []
    for strategy in strategies:
        if strategy in _DEEPSPEED and set(_DEEPSPEED) <= set(strategies):
            words.append("deepspeed")
        else:
            words.append(own.get(strategy, _STRATEGIES[strategy][language]))
    return "/".join(dict.fromkeys(words))


def _algorithm(table: TableRows, asked: _Asked) -> str:
    """The algorithm, and in brackets a tuner that is not LoRA where the table has no column for it."""
    name = str(asked.algorithm).upper()
    return name if asked.tuner is Tuner.LORA or "tuner" in table.form.at else f"{name} ({_TUNERS[asked.tuner]})"


def _engine(engine: Engine) -> str:
    """What generates while it trains; nothing does but an engine."""
    return {Engine.TRANSFORMERS: "-", Engine.VLLM: "vllm-ascend"}.get(engine, str(engine))
