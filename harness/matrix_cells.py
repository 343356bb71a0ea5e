"""Blocks of products to cells, each with an id of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from harness.errors import MatrixError, did_you_mean
from harness.matrix_schema import BlockShape, MatrixShape, OptionsShape, Target
from harness.matrix_text import Source
from harness.model import Algorithm, Cell, Engine, Hardware, Model, Options, Recipe, Stage, Strategy
from harness.rules import applicable_stages

# In the order in which an id names them
_OPTION_WORDS: Mapping[str, str] = {
    "sequence_parallel_size": "sp",
    "context_parallel_size": "cp",
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "expert_parallel_size": "ep",
    "expert_tensor_parallel_size": "etp",
    "packing": "packing",
    "padding_free": "padding_free",
    "liger": "liger",
    "attn_impl": "",
    "lora_dropout": "dropout",
    "target_parameters": "params_",
    "adapters": "adapters",
    "npu_model_patch": "patch",
    "dtype": "",
    "use_mcore_gdn": "mcore_gdn",
    "fsdp_config": "",
    "tiny_experts": "experts_",
}
_DEFAULTS = Options()


def options_of(shape: OptionsShape) -> Options:
    values: dict[str, Any] = {name: getattr(shape, name) for name in shape.model_fields_set}
    if "target_parameters" in values:
        values["target_parameters"] = tuple(values["target_parameters"])
    return Options(**values)


def option_words(options: Options) -> str:
    """The options that differ from the defaults, as the tail of an id: `-sp2-packing`, or nothing."""
    words = []
    for name, word in _OPTION_WORDS.items():
        value = getattr(options, name)
        if value == getattr(_DEFAULTS, name):
            continue
        if isinstance(value, bool):
            words.append(word if value else f"no_{word}")
        elif isinstance(value, tuple):
            words.append(word + "+".join(part.rsplit(".", 1)[-1] for part in value))
        else:
            words.append(f"{word}{value:g}" if isinstance(value, float) else f"{word}{value}")
    return "".join("-" + re.sub(r"[^a-z0-9_.+]", "_", word.lower()) for word in words)


@dataclass(frozen=True)
class Declared:
    """What blocks may name."""

    models: Mapping[str, Model]
    recipes: Mapping[str, Recipe]
    defaults: Mapping[tuple[Algorithm, bool], str]  # (algorithm, multimodal) to the key of a recipe


def expand_cells(source: Source, shape: MatrixShape, declared: Declared) -> tuple[Cell, ...]:
    """Every block's product, in the order of the text.

    Raises:
        MatrixError: an undefined name, a product that repeats itself, a cell declared twice (both lines are named), devices that
            contradict a strategy, more than one node.
    """
    drafts: list[Cell] = []
    for name, block in shape.cells.items():
        _check_block(source, name, block, shape, declared)
        cells = list(_product(source, name, block, declared))
        _check_stages(source, name, block, cells)
        drafts.extend(cells)
    _refuse_twins(source, drafts)
    return _told_apart(source, drafts)


def _product(source: Source, name: str, block: BlockShape, declared: Declared) -> Iterator[Cell]:
    line = source.line(("cells", name))
    targets = tuple(Hardware(target) for target in block.hardware)
    option_sets = [(options, option_words(options)) for options in map(options_of, block.options)]
    axes = (block.algorithms, block.models, block.tuners, block.strategies, block.engines, option_sets)
    for algorithm, key, tuner, strategy, engine, (options, words) in product(*axes):
        model = declared.models[key]
        recipe = block.recipe or _default_recipe(source, name, algorithm, model, declared)
        tail = f"{tuner.value}-{strategy.value}{'' if engine is Engine.TRANSFORMERS else '-' + engine.value}{words}"
        yield Cell(
            id=f"{algorithm.value}-{key}-{tail}",
            model=model,
            algorithm=algorithm,
            tuner=tuner,
            strategy=strategy,
            engine=engine,
            options=options,
            targets=targets,
            tier=block.tier,
            recipe=declared.recipes[recipe],
            devices=1 if strategy is Strategy.SINGLE else block.devices,
            tiny_key=f"{algorithm.value}-{model.family}-{tail}{_tiny_ranks(strategy, block)}",
            block=name,
            line=line,
            stages=tuple(Stage(stage) for stage in block.stages) if block.stages else None,
        )


def _tiny_ranks(strategy: Strategy, block: BlockShape) -> str:
    """A tiny run has two ranks, or four where four devices or more are asked for: harness.commands_devices.tiny_devices."""
    return "-x4" if strategy is not Strategy.SINGLE and (block.devices or 0) >= 4 else ""


def _check_block(source: Source, name: str, block: BlockShape, shape: MatrixShape, declared: Declared) -> None:
    path = ("cells", name)
    if block.nodes != 1:
        what = f"block {name!r} asks for {block.nodes} nodes; more than one is not supported yet."
        raise source.refuse((*path, "nodes"), what, "Write 1.")
    for axis in ("models", "algorithms", "tuners", "strategies", "engines", "options", "hardware"):
        values = [options_of(v) if isinstance(v, OptionsShape) else v for v in getattr(block, axis)]
        for number, value in enumerate(values):
            if value in values[:number]:
                what = f"{axis} of block {name!r} lists the same thing twice{'' if axis == 'options' else f': {str(value)!r}'}."
                raise source.refuse((*path, axis, number), what, "Keep one of them.")
    named: tuple[tuple[str, Sequence[str], Mapping[str, object] | Mapping[Target, object]], ...] = (
        ("model", block.models, declared.models),
        ("hardware", block.hardware, shape.hardware),
    )
    for noun, names, known in named:
        section = "models" if noun == "model" else "hardware"
        for number, word in enumerate(names):
            if word not in known:
                what = f"{noun} {word!r} is not defined under {section}."
                raise source.refuse((*path, section, number), what, did_you_mean(word, known))
    if block.recipe is not None and block.recipe not in declared.recipes:
        what = f"recipe {block.recipe!r} is not defined under recipes."
        raise source.refuse((*path, "recipe"), what, did_you_mean(block.recipe, declared.recipes))
    if block.devices is not None:
        _check_devices(source, name, block, block.devices)


def _check_stages(source: Source, name: str, block: BlockShape, cells: Sequence[Cell]) -> None:
    """A stage that no cell of the block has would select nothing, and nobody would notice."""
    known = {stage.value for cell in cells for stage in applicable_stages(cell)}
    for number, stage in enumerate(block.stages or ()):
        if stage not in known:
            what = f"no cell of block {name!r} has a stage {stage!r}."
            raise source.refuse(("cells", name, "stages", number), what, did_you_mean(stage, sorted(known)))


def _check_devices(source: Source, name: str, block: BlockShape, devices: int) -> None:
    path = ("cells", name, "devices")
    if Strategy.SINGLE in block.strategies and devices != 1:
        what = f"strategy 'single' is one process on one NPU, but block {name!r} says devices: {devices}."
        raise source.refuse(path, what, "Use another strategy, or 1.")
    if devices == 1 and any(s not in (Strategy.SINGLE, Strategy.MEGATRON) for s in block.strategies):
        raise source.refuse(path, f"block {name!r} spreads work over ranks, but says devices: 1.", "Use strategy single.")


def _default_recipe(source: Source, name: str, algorithm: Algorithm, model: Model, declared: Declared) -> str:
    found = declared.defaults.get((algorithm, model.multimodal)) or declared.defaults.get((algorithm, False))
    if found is None:
        what = f"block {name!r} names no recipe, and none is the default for algorithm {algorithm.value!r}."
        raise source.refuse(("cells", name), what, f"Write `recipe:`, or add {algorithm.value} to a recipe's default_for.")
    return found


def _question(cell: Cell) -> tuple[object, ...]:
    return (cell.model.key, cell.algorithm, cell.tuner, cell.strategy, cell.engine, cell.options)


def _refuse_twins(source: Source, cells: list[Cell]) -> None:
    first: dict[tuple[object, ...], Cell] = {}
    for cell in cells:
        twin = first.setdefault((*_question(cell), cell.devices), cell)
        if twin is not cell:
            what = f"cell {cell.id} of block {cell.block!r} is already declared by block {twin.block!r} on line {twin.line}."
            raise MatrixError(f"{source.name}:{cell.line}", what, "Take it out of one of them.")


def _told_apart(source: Source, cells: list[Cell]) -> tuple[Cell, ...]:
    """Adds `-x{devices}` where cells differ in nothing else that an id names."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.id, []).append(cell)
    for cell_id, group in groups.items():
        other = next((c for c in group if _question(c) != _question(group[0])), None)
        if other is not None:
            what = f"cells of lines {group[0].line} and {other.line} would both be called {cell_id}."
            raise MatrixError(f"{source.name}:{other.line}", what, "Rename a model, or let the options differ in their last word.")
    apart = {cell_id for cell_id, group in groups.items() if len(group) > 1}
    return tuple(replace(c, id=f"{c.id}-x{c.devices}") if c.id in apart and c.devices is not None else c for c in cells)
