"""matrix.yaml to a Matrix: what is declared, expanded, and checked against itself.

text -> matrix_text (plain values with lines) -> matrix_schema (types) -> matrix_cells, matrix_claims -> Matrix
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from harness.causes import CAUSES, blame_of
from harness.commands_tables import FAMILIES
from harness.errors import MatrixError, did_you_mean
from harness.matrix_benchmarks import read_benchmarks
from harness.matrix_cells import Declared, expand_cells
from harness.matrix_claims import check_document, expand_claims, read_tables
from harness.matrix_hardware import check_hardware
from harness.matrix_quarantine import read_quarantine
from harness.matrix_refusals import validated
from harness.matrix_schema import MatrixShape, RuleShape, json_schema
from harness.matrix_text import Source, read_yaml
from harness.matrix_when import nearest, read_when
from harness.model import Algorithm, Blame, Hardware, Matrix, Model, Recipe, Rule, RulingKind, Stack, Tier
from harness.rules import matches

__all__ = ["json_schema", "parse_matrix"]


def parse_matrix(text: str, source: str) -> Matrix:
    """The matrix that `text` declares; `source` is the name that errors and the Matrix carry.

    Raises:
        MatrixError: the first thing that has no meaning, as `source:line: what. next`.
    """
    read = read_yaml(text, source)
    shape = validated(read)
    models = _models(read, shape)
    check_hardware(read, shape)
    recipes = _recipes(read, shape)
    declared = Declared(models, recipes, _default_recipes(read, shape))
    cells = expand_cells(read, shape, declared)
    rules = _rules(read, shape, models)
    matrix = Matrix(
        source=source,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        models=models,
        hardware={Hardware(key): value.model_dump() for key, value in shape.hardware.items()},
        stacks=_stacks(read, shape),
        recipes=recipes,
        cells=cells,
        tables=read_tables(read, shape),
        claims=expand_claims(read, shape, cells),
        rules=rules,
        quarantine=read_quarantine(read, shape, models, cells),
        benchmarks=read_benchmarks(read, shape, models, cells),
        device_hours={Tier(tier): budget.device_hours for tier, budget in shape.tiers.items()},
    )
    _refuse_unused(read, matrix)
    return matrix


def _models(source: Source, shape: MatrixShape) -> dict[str, Model]:
    for key, model in shape.models.items():
        if model.family not in FAMILIES:
            what = f"family {model.family!r} is no model family of ms-swift that is known here."
            raise source.refuse(("models", key, "family"), what, did_you_mean(model.family, FAMILIES))
    return {
        key: Model(
            key=key,
            id=model.id,
            revision=model.revision,
            family=model.family,
            params_b=model.params_b,
            devices={Hardware(target): count for target, count in model.devices.items()},
            multimodal=model.multimodal,
            moe=model.moe,
        )
        for key, model in shape.models.items()
    }


def _recipes(source: Source, shape: MatrixShape) -> dict[str, Recipe]:
    result = {}
    for key, recipe in shape.recipes.items():
        check_document(source, shape, ("recipes", key, "document"), recipe.document)
        result[key] = Recipe(
            key=key,
            document=shape.documents[recipe.document].title,
            section=recipe.section,
            dataset=tuple(recipe.dataset),
            # as written, since a typed copy would turn the document's 1 into 1.0
            settings={name: value for name, value in source.data["recipes"][key]["settings"].items() if value is not None},
        )
    return result


def _default_recipes(source: Source, shape: MatrixShape) -> dict[tuple[Algorithm, bool], str]:
    result: dict[tuple[Algorithm, bool], str] = {}
    for key, recipe in shape.recipes.items():
        for number, algorithm in enumerate(recipe.default_for):
            other = result.setdefault((algorithm, recipe.multimodal), key)
            if other != key:
                what = f"recipe {other!r} is already the default for algorithm {algorithm.value!r}."
                raise source.refuse(("recipes", key, "default_for", number), what, "Take it out of one of them.")
    return result


def _stacks(source: Source, shape: MatrixShape) -> dict[str, Stack]:
    result = {}
    for key, stack in shape.stacks.items():
        check_document(source, shape, ("stacks", key, "document"), stack.document)
        for component, versions in stack.requires.items():
            try:
                asked = SpecifierSet(versions)
            except InvalidSpecifier:
                what = f"{versions!r} is no version specifier for {component}."
                raise source.refuse(("stacks", key, "requires", component), what, 'Write for example ">=2.7.1,<3".') from None
            if asked.contains("0", prereleases=True):
                what = f"{versions!r} lets every old {component} pass."
                raise source.refuse(("stacks", key, "requires", component), what, 'Write from which version on, for example ">=2.7.1".')
        document = f"{shape.documents[stack.document].title} · {stack.section}"
        result[key] = Stack(
            key=key,
            document=document,
            requires={str(name): versions for name, versions in stack.requires.items()},
            max_age_days=stack.max_age_days,
        )
    return result


def _rules(source: Source, shape: MatrixShape, models: Mapping[str, Model]) -> tuple[Rule, ...]:
    rules = []
    for number, rule in enumerate(shape.rules):
        path = ("rules", number)
        when = read_when(source, (*path, "when"), rule.when, models)
        if (rule.exclude is None) == (rule.expect is None):
            raise source.refuse(path, "a rule says either `exclude: true` or `expect: fail`.", "Keep one of them.")
        if rule.expect and not (rule.issue and rule.since and rule.recorded_on):
            raise source.refuse(path, "an expected failure needs issue, since and recorded_on.", "Say where it is recorded.")
        _check_causes(source, path, rule)
        rules.append(
            Rule(
                when=when,
                kind=RulingKind.EXPECT_FAIL if rule.expect else RulingKind.EXCLUDED,
                because=rule.because,
                issue=rule.issue or "",
                since=rule.since or "",
                recorded_on=Hardware(rule.recorded_on) if rule.recorded_on else None,
                line=source.line(path),
                causes=tuple(rule.causes),
            )
        )
    return tuple(rules)


def _check_causes(source: Source, path: tuple[str, int], rule: RuleShape) -> None:
    if rule.causes and not rule.expect:
        raise source.refuse((*path, "causes"), "only an expected failure has causes.", "Delete them, or write `expect: fail`.")
    for number, cause in enumerate(rule.causes):
        meant = [known for known in CAUSES if known == cause or (cause.endswith(".") and known.startswith(cause))]
        if not meant:
            groups = {known.partition(".")[0] + "." for known in CAUSES if "." in known}
            known = groups if cause.endswith(".") else CAUSES
            raise source.refuse((*path, "causes", number), f"cause {cause!r} is unknown.", did_you_mean(cause, known))
        if not any(blame_of(known) in (Blame.PRODUCT, Blame.UNKNOWN) and known != "none" for known in meant):
            what = f"cause {cause!r} is never the product's fault, so it can't be a limit of it."
            raise source.refuse((*path, "causes", number), what, "Name what the product does.")


def _refuse_unused(source: Source, matrix: Matrix) -> None:
    used_models = {cell.model.key for cell in matrix.cells}
    used_recipes = {cell.recipe.key for cell in matrix.cells}
    for key in matrix.models:
        if key not in used_models:
            raise source.refuse(("models", key), f"model {key!r} is in no cell.", "Add it to a block, or delete it.")
    for key in matrix.recipes:
        if key not in used_recipes:
            raise source.refuse(("recipes", key), f"recipe {key!r} is used by no cell.", "Name it in a block, or delete it.")
    for rule in matrix.rules:
        if not any(matches(rule, cell) for cell in matrix.cells):
            what = f"the rule matches no cell ({rule.because})"
            raise MatrixError(f"{source.name}:{rule.line}", f"{what}.", f"{nearest(rule, matrix.cells)}Declare a cell, or delete it.")
