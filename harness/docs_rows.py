"""What a row of a documented support table says, and which cells of matrix.yaml it means.

    table_form(columns) -> TableForm; read_rows(form, rows, matrix) -> a RowMeaning for each

Rules of reading, the same as those of matrix.yaml's claims: `deepspeed` is zero2 and zero3; `A/B` hardware, strategies and models are a
product; Megatron where the row says so; tuner LoRA unless a word says otherwise; options are ms-swift's defaults. Rows that name no model
(features, unsupported items, memory) are held against the documented rows of matrix.yaml, and mean the cells of their claims.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from harness.docs_rows_documented import documented_cells
from harness.docs_rows_words import (
    ALGORITHMS,
    ENGINES,
    TUNERS,
    bare,
    hardware_of,
    key,
    models_of,
    parts,
    perhaps,
    strategies_of,
    words_in,
)
from harness.docs_update_marks import without_marks
from harness.matrix_claims import row_text
from harness.model import Algorithm, Cell, Engine, Hardware, Matrix, Model, Options, Strategy, Tuner, Word

CellKey = tuple[str, Hardware]
Index = Mapping[tuple[str, Algorithm, Tuner, Strategy, Engine], tuple[Cell, ...]]


class TableKind(Word):
    """`combinations`: SFT and RL rows, told apart by their algorithm."""

    COMBINATIONS = "combinations"
    FEATURES = "features"
    UNSUPPORTED = "unsupported"
    MEMORY = "memory"
    PRODUCTS = "products"


@dataclass(frozen=True)
class TableForm:
    """`at`: the position of each column whose name is known, by what it holds."""

    kind: TableKind
    at: Mapping[str, int]

    def text(self, cells: Sequence[str], column: str) -> str:
        """What the row has in that column, without markup and marks; "" where it has none."""
        position = self.at.get(column)
        return without_marks(bare(cells[position])) if position is not None and position < len(cells) else ""


@dataclass(frozen=True)
class RowMeaning:
    """`cells`: what the row means, in the order of its words. `says`: its status, in the document's own words ("" where the table has no
    such column). `without_cell`: combinations that the row names and no cell asks. `problems`: words that can't be read, with what was
    perhaps meant. `names_model`: whether the row itself names the model (else a cell stands for it)."""

    cells: tuple[CellKey, ...]
    says: str = ""
    without_cell: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    names_model: bool = True


# The first that matches names the column.
_COLUMNS = (
    ("size", r"model size|模型(大小|规模)|参数量"),
    ("memory", r"((max(imum)?|peak) )?(memory|hbm)( usage)?|(最大|峰值)?显存(占用|占用量|需求)?"),
    ("npus", r"(number|count) of npus|npus?( count)?|npu ?数量?|卡数"),
    ("group", r"primary feature|feature group|一级特性"),
    ("feature", r"features?|(二级)?特性|功能"),
    ("algorithm", r"algorithms?|算法|训练(算法|方法|范式)"),
    ("model", r"models?( famil(y|ies)| names?| series)?|模型(名称|系列|家族)?"),
    ("engine", r"(rollout|inference)( engine| backend)?|engine|(rollout|推理) ?(引擎|后端)"),
    ("zero", r"deepspeed( type| stage)?|deepspeed ?类型"),
    ("strategy", r"(distributed |parallel )?strateg(y|ies)|(并行|分布式|训练)?策略"),
    ("hardware", r"hardware|硬件(平台|型号)?|devices?|设备|机型"),
    ("tuner", r"tuners?( type)?|tuning|微调方式"),
    ("product", r"products?|产品"),
    ("status", r"status|supported|support|state|进展|状态|是否(支持|验证)|支持(情况|状态)|验证(状态|情况)|verified|verification( status)?"),
    ("item", r"items?|项目?|条目|功能项"),
)
_KINDS = (
    (TableKind.MEMORY, {"size", "npus", "memory"}),
    (TableKind.COMBINATIONS, {"model", "strategy"}),
    (TableKind.FEATURES, {"feature", "status"}),
    (TableKind.PRODUCTS, {"product", "status"}),
    (TableKind.UNSUPPORTED, {"item"}),
)
_DEFAULTS = Options()


def table_form(columns: Sequence[str]) -> TableForm | None:
    """Which kind of support table has these column names (in any order, Chinese or English); None: none that is known."""
    at: dict[str, int] = {}
    for position, name in enumerate(columns):
        text = bare(name).casefold()
        known = next((column for column, pattern in _COLUMNS if re.fullmatch(pattern, text)), None)
        if known:
            at.setdefault(known, position)
    kind = next((kind for kind, wanted in _KINDS if wanted <= set(at)), None)
    return TableForm(kind, at) if kind else None


def read_rows(form: TableForm, rows: Sequence[Sequence[str]], matrix: Matrix, heading: str = "") -> tuple[RowMeaning, ...]:
    """What each row means. Leading cells that are empty, those of columns of no known meaning (such as numbers of rows) not counted, go on
    with those of the row above. `heading`, the title over the table, names the algorithm where the table has no such column."""
    names, index = model_names(matrix), index_of(matrix)
    above: tuple[str, ...] = ()
    found: list[RowMeaning] = []
    for cells in rows:
        above = _continued(form, above, cells)
        if form.kind is TableKind.COMBINATIONS:
            found.append(_combination(form, above, matrix, names, index, heading))
        else:
            keys, problems = documented_cells(str(form.kind), {name: form.text(above, name) for name in form.at}, matrix)
            found.append(RowMeaning(keys, form.text(above, "status"), problems=problems, names_model=False))
    return tuple(found)


def model_names(matrix: Matrix) -> dict[str, Model]:
    """Names by which documents call models, in lower case: the id, its last part, and the name of every documented row that a claim reads
    as one model (`InternVL3-8B` is its -hf form there)."""
    names: dict[str, Model] = {}
    for model in matrix.models.values():
        names[model.id.casefold()] = model
        names.setdefault(model.id.rpartition("/")[2].casefold(), model)
    for row in (row for rows in matrix.tables.values() for row in rows if "models" in row):
        text = row_text(row)
        cells = [matrix.cell(claim.cell) for claim in matrix.claims if claim.row == text and claim.cell]
        meant = {cell.model.key: cell.model for cell in cells if cell}
        if len(meant) == 1:
            names.setdefault(bare(str(row["models"])).casefold(), next(iter(meant.values())))
    return names


def index_of(matrix: Matrix) -> Index:
    """Cells of default options by what a row can name; those of one key differ in their number of NPUs only."""
    found: dict[tuple[str, Algorithm, Tuner, Strategy, Engine], tuple[Cell, ...]] = {}
    for cell in matrix.cells:
        if cell.options == _DEFAULTS:
            asked = (cell.model.key, cell.algorithm, cell.tuner, cell.strategy, cell.engine)
            found[asked] = (*found.get(asked, ()), cell)
    return found


def goes_on(form: TableForm, cells: Sequence[str]) -> bool:
    """Whether a row goes on with the one above it: the first of its cells that has a meaning is empty."""
    first = min(form.at.values(), default=0)
    return first < len(cells) and not cells[first].strip()


def _continued(form: TableForm, above: Sequence[str], cells: Sequence[str]) -> tuple[str, ...]:
    known = sorted(position for position in form.at.values() if position < len(cells))
    leading = next((position for position in known if cells[position].strip()), len(cells))
    if leading == len(cells):
        return tuple(cells)
    return tuple(above[at] if at < min(leading, len(above)) and not text.strip() else text for at, text in enumerate(cells))


def _combination(
    form: TableForm, cells: Sequence[str], matrix: Matrix, names: Mapping[str, Model], index: Index, heading: str
) -> RowMeaning:
    algorithms, tuners, problems = _algorithms(form, cells, heading)
    models, strange_models = models_of(form.text(cells, "model"), names)
    strategies, strange_strategies = strategies_of(form.text(cells, "strategy"))
    named = form.text(cells, "hardware")
    targets, strange_hardware = hardware_of(named, matrix.hardware)
    engines, strange_engines = _engines(form, cells)
    ids = [model.id.rpartition("/")[2] for model in names.values()]
    products = [str(facts.get("product", series)) for series, facts in matrix.hardware.items()]
    for noun, strange, known in (
        ("model", strange_models, ids),
        ("strategy", strange_strategies, (*Strategy, "deepspeed")),
        ("hardware", strange_hardware, products),
        ("engine", strange_engines, Engine),
    ):
        problems += [f"{noun} {word!r} is unknown. {perhaps(word, known)}" for word in strange]
    missing = (("algorithm", algorithms), ("model", models or strange_models), ("strategy", strategies or strange_strategies))
    problems += [f"the row names no {noun}." for noun, found in missing if not found]
    found: list[CellKey] = []
    without: list[str] = []
    for algorithm, model, tuner, strategy, either in product(algorithms, models, tuners, strategies, engines):
        answers = next((c for engine in either if (c := index.get((model.key, algorithm, tuner, strategy, engine)))), ())
        wanted = targets or (() if named else tuple(dict.fromkeys(target for cell in answers for target in cell.targets)))
        for target in wanted:
            keys = [(cell.id, target) for cell in answers if target in cell.targets]
            found += keys
            without += [] if keys else [f"{algorithm} {model.id.rpartition('/')[2]} {tuner} {strategy} {either[0]} {target}"]
        without += [] if wanted or named else [f"{algorithm} {model.id.rpartition('/')[2]} {tuner} {strategy} {either[0]}"]
    return RowMeaning(tuple(dict.fromkeys(found)), form.text(cells, "status"), tuple(without), tuple(problems))


def _algorithms(form: TableForm, cells: Sequence[str], heading: str) -> tuple[tuple[Algorithm, ...], tuple[Tuner, ...], list[str]]:
    """The algorithm's cell may name the tuner too (`SFT (LoRA)`)."""
    own = "algorithm" in form.at
    words = words_in(form.text(cells, "algorithm") if own else bare(heading))
    found = tuple(dict.fromkeys(ALGORITHMS[key(word)] for word in words if key(word) in ALGORITHMS))
    tuned = [word for word in (*words, *words_in(form.text(cells, "tuner"))) if key(word) in TUNERS]
    strange = [word for word in words if own and key(word) not in {*ALGORITHMS, *TUNERS}]
    strange += [word for word in words_in(form.text(cells, "tuner")) if key(word) not in TUNERS]
    tuners = tuple(dict.fromkeys(TUNERS[key(word)] for word in tuned)) or (Tuner.LORA,)
    return found, tuners, [f"algorithm {word!r} is unknown. {perhaps(word, (*Algorithm, *Tuner))}" for word in strange]


def _engines(form: TableForm, cells: Sequence[str]) -> tuple[tuple[tuple[Engine, ...], ...], tuple[str, ...]]:
    """Of each engine that the row names, those that answer for it; of a table without such a column, the first that a cell has."""
    if "engine" not in form.at:
        return ((Engine.TRANSFORMERS, Engine.VLLM),), ()
    words = parts(form.text(cells, "engine")) or ("",)
    return tuple((ENGINES[key(word)],) for word in words if key(word) in ENGINES), tuple(word for word in words if key(word) not in ENGINES)
