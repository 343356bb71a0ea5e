"""Whatever matrix.yaml says wrongly is refused once, with its line, and with what to write instead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.errors import MatrixError
from harness.matrix import parse_matrix

SMALL = (Path(__file__).parent / "matrix_small.yaml").read_text(encoding="utf-8")

COMMIT = "c1899de289a04d12100db370d81485cdf75e47ca"
LIMIT = "    recorded_on: a2\n"


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


def refusal(text: str) -> str:
    with pytest.raises(MatrixError) as caught:
        parse_matrix(text, "matrix.yaml")
    assert re.match(r"matrix\.yaml:\d+$", caught.value.where)
    return str(caught.value)


def test_the_small_matrix_itself_is_sound() -> None:
    assert len(parse_matrix(SMALL, "matrix.yaml").cells) == 12


# (what is written, what is written instead, where the refusal points: a part of the changed text, and words that it says)
REFUSED = {
    "an unknown strategy": (
        "[zero2, zero3]\n    hardware",
        "[zero2, fsdp3]\n    hardware",
        "fsdp3",
        ["strategy 'fsdp3' is unknown. Perhaps 'fsdp2'? Known: ", "megatron"],
    ),
    "an unknown algorithm": ("algorithms: [sft, dpo]", "algorithms: [sft, dpoo]", "dpoo", ["algorithm 'dpoo' is unknown. Perhaps 'dpo'?"]),
    "an unknown tuner": (
        "tuners: [full]",
        "tuners: [fulll]",
        "fulll",
        ["tuner 'fulll' is unknown. Perhaps 'full'? Known: full, lora, qlora"],
    ),
    "an unknown engine": ("engines: [vllm]\n", "engines: [vlm]\n", "[vlm]", ["engine 'vlm' is unknown. Perhaps 'vllm'?"]),
    "an unknown tier": ("tier: weekly", "tier: monthly", "monthly", ["tier 'monthly' is unknown.", "Known: contract, nightly, pr, weekly"]),
    "hardware that is no target": (
        "hardware: [a2, a3]\n    tier",
        "hardware: [a2, cpu]\n    tier",
        "cpu",
        ["hardware 'cpu' is unknown.", "Known: a2, a3, a5"],
    ),
    "an unknown option": ("{packing: true}", "{pakcing: true}", "pakcing", ["key 'pakcing' is unknown. Perhaps 'packing'?", "liger"]),
    "an unknown setting": ("settings: {max_length", "settings: {max_len", "max_len:", ["key 'max_len' is unknown. Perhaps 'max_length'?"]),
    "an unknown key of a block, before the one that is missing": (
        "tier: weekly",
        "tyre: weekly",
        "tyre",
        ["key 'tyre' is unknown. Perhaps 'tier'?"],
    ),
    "a missing key": ("    tier: weekly\n", "", "limits:", ["key 'tier' is missing in 'limits'"]),
    "a branch for a revision": (COMMIT, "main", "revision: main", ["'main' pins nothing. Write a commit's 40 small hexadecimal digits"]),
    "a mistyped unknown": ("revision: unknown", "revision: unkown", "unkown", ["'unkown' pins nothing.", "or `unknown`"]),
    "an empty revision": (COMMIT, '""', 'revision: ""', ["'' pins nothing"]),
    "a short commit": (COMMIT, COMMIT[:8], f"revision: {COMMIT[:8]}", ["pins nothing"]),
    "a family that ms-swift lacks": (
        "family: qwen3,",
        "family: qwen33,",
        "qwen33",
        ["family 'qwen33' is no model family", "Perhaps 'qwen3'?"],
    ),
    "a model id that is a path": ("id: Qwen/Qwen3-8B", "id: ../../etc", "../../etc", ["id is '../../etc'; expected: match pattern"]),
    "a model id that is a flag": ("id: Qwen/Qwen3-8B", 'id: "--model"', "--model", ["id is '--model'"]),
    "a model id that is a command": ("id: Qwen/Qwen3-8B", 'id: "Qwen/Qwen3; rm -rf x"', "rm -rf", ["id is 'Qwen/Qwen3; rm -rf x'"]),
    "an empty version": ('">=2.7.1"', '""', 'requires: {torch: ""', ["'' lets every old torch pass"]),
    "a version without a floor": ('">=2.7.1"', '"!=2.7.0"', "!=2.7.0", ["lets every old torch pass"]),
    "evidence that never ages": ("max_age_days: 45", "max_age_days: 366", "max_age_days: 366", ["less than or equal to 365"]),
    "a device name that fits all": ('["Ascend910_93*"]', '["*"]', '["*"]', ["device_names is '*'"]),
    "a device name of two kinds of hardware": (
        '["Ascend910_93*"]',
        '["Ascend910*"]',
        '["Ascend910*"]',
        ["'Ascend910*' of a3 and 'Ascend910B*' of a2 fit the same device"],
    ),
    "a chip of two kinds of hardware": ("[Ascend910]", "[910B3]", "  a3:", ["'910B3' of a3 and '910B3' of a2 fit the same device"]),
    "an empty setting": ("learning_rate: 1e-4", "learning_rate: null", "learning_rate: null", ["learning_rate: nothing is written"]),
    "an unknown cause": (LIMIT, LIMIT + "    causes: [golden.difers]\n", "golden.difers", ["Perhaps 'golden.differs'?"]),
    "an unknown group of causes": (LIMIT, LIMIT + "    causes: [gold.]\n", "gold.]", ["cause 'gold.' is unknown", "Perhaps 'golden.'?"]),
    "a cause that is no limit of the product": (LIMIT, LIMIT + "    causes: [env.]\n", "env.]", ["never the product's fault"]),
    "health as a cause": (LIMIT, LIMIT + "    causes: [none]\n", "causes: [none]", ["never the product's fault"]),
    "causes of what is excluded": (
        "    exclude: true\n",
        "    exclude: true\n    causes: [golden.]\n",
        "causes: [golden.]",
        ["only an expected failure has causes"],
    ),
    "a day that is none": ("date: undated", "date: 2026-13-45", "2026-13-45", ["date: month must be in 1..12"]),
    "an unknown section": ("claims:\n", "claim:\n", "claim:\n", ["key 'claim' is unknown. Perhaps 'claims'?"]),
    "an unknown field of a rule": (
        "{engine: [vllm], tuner",
        "{motor: [vllm], tuner",
        "motor",
        ["key 'motor' is unknown.", "Known: ", "engine"],
    ),
    "an unknown component": ("{torch: ", "{torhc: ", "torhc", ["component 'torhc' is unknown. Perhaps 'torch'?"]),
    "a word for a number": (
        "max_length: 2048",
        "max_length: long",
        "max_length: long",
        ["max_length is 'long'; expected: a valid integer"],
    ),
    "a word for a flag": ("{packing: true}", "{packing: yes}", "packing: yes", ["packing is 'yes'; expected: a valid boolean"]),
    "a number for a flag": ("{packing: true}", "{packing: 1}", "packing: 1", ["packing is 1; expected: a valid boolean"]),
    "one word for a list": ("algorithms: [dpo]", "algorithms: dpo", "algorithms: dpo", ["algorithms is 'dpo'; expected: a valid list"]),
    "a number that is none": ("learning_rate: 1e-4", "learning_rate: .nan", ".nan", ["learning_rate is nan"]),
    "no devices": ("{a2: 4}", "{a2: 0}", "{a2: 0}", ["greater than or equal to 1"]),
    "a dropout of one": ("lora_dropout: 0.05", "lora_dropout: 1", "lora_dropout: 1", ["less than 1"]),
    "nothing where unknown is meant": (f"revision: {COMMIT}", "revision:", "revision:\n", ["Write `unknown` where it is not known"]),
    "a name with capitals": ("  flagship:", "  Flagship:", "Flagship", ["name 'Flagship' is not allowed. Use small letters"]),
    "an empty product": (
        "    engines: [vllm]\n",
        "    engines: []\n",
        "engines: []",
        ["engines is empty in 'parsed': that makes an empty product"],
    ),
    "an empty because": ("because: only an example", 'because: ""', 'because: ""', ["because is ''"]),
    "a duplicate key": ("    tier: weekly", "    tier: weekly\n    tier: pr", "    tier: pr", ["key 'tier' is already written on line"]),
    "an undefined model": (
        "models: [qwen3_8b, qwen2_7b]",
        "models: [qwen3_8b, qwen2_8b]",
        "qwen2_8b",
        ["model 'qwen2_8b' is not defined under models. Perhaps 'qwen"],
    ),
    "an undefined recipe": ("recipe: quick}", "recipe: quikc}", "quikc", ["recipe 'quikc' is not defined under recipes. Perhaps 'quick'?"]),
    "an undefined document": ("quick: {document: page", "quick: {document: pgae", "pgae", ["document 'pgae' is not defined"]),
    "undefined hardware": (
        "hardware: [a2, a3]\n    tier",
        "hardware: [a2, a5]\n    tier",
        "a5",
        ["hardware 'a5' is not defined under hardware"],
    ),
    "an undefined family": ("family: [qwen3]", "family: [qwen9]", "qwen9", ["family 'qwen9' is not defined under models. Perhaps 'qwen"]),
    "an undefined table": ("- table: rows", "- table: rowz", "rowz", ["table 'rowz' is not defined under tables. Perhaps 'rows'?"]),
    "a row that the table lacks": ("rows: [2]", "rows: [3]", "rows: [3]", ["table 'rows' has no row 3. It has 2."]),
    "a column that the table lacks": (
        "says_column: says_en",
        "says_column: says_fr",
        "says_fr",
        ["column 'says_fr' is unknown in table 'rows'"],
    ),
    "a row with other columns": (
        "strategy: deepspeed, says_zh: 已支持, says_en: supported}\ncells",
        "says_zh: 已支持, says_en: supported}\ncells",
        "14B",
        ["row 2 of table 'rows' differs from row 1 in column 'strategy'"],
    ),
    "a model in a list twice": (
        "models: [qwen3_8b, qwen2_7b]",
        "models: [qwen3_8b, qwen3_8b]",
        "[qwen3_8b, qwen3_8b]",
        ["models of block 'documented' lists the same thing twice: 'qwen3_8b'"],
    ),
    "an option set twice, once as the default": (
        "[{packing: true}, {lora",
        "[{packing: true}, {packing: true, liger: false}, {lora",
        "{packing: true, liger",
        ["options of block 'limits' lists the same thing twice"],
    ),
    "a cell declared twice": (
        "tuners: [full]\n    strategies: [ddp]\n    engines: [vllm]",
        "tuners: [lora]\n    strategies: [zero2]",
        "  parsed:",
        ["cell dpo-qwen3_8b-lora-zero2 of block 'parsed' is already declared by block 'documented' on line"],
    ),
    "a stage that none of its cells has": (
        "tuners: [full]\n    strategies: [ddp]\n    engines: [vllm]",
        "tuners: [full]\n    strategies: [ddp]\n    engines: [vllm]\n    stages: [train, merge]",
        "merge]",
        ["no cell of block 'parsed' has a stage 'merge'"],
    ),
    "more than one node": (
        "    tier: weekly",
        "    tier: weekly\n    nodes: 2",
        "nodes: 2",
        ["block 'limits' asks for 2 nodes; more than one is not supported"],
    ),
    "one process on four NPUs": (
        "recipe: quick}",
        "recipe: quick, devices: 4}",
        "devices: 4",
        ["strategy 'single' is one process on one NPU"],
    ),
    "ranks on one NPU": (
        "    tier: weekly",
        "    tier: weekly\n    devices: 1",
        "devices: 1",
        ["spreads work over ranks, but says devices: 1"],
    ),
    "a rule that matches no cell": (
        "tuner: [full]}",
        "tuner: [qlora]}",
        "- when: {engine",
        ["the rule matches no cell (only an example). Only its tuner keeps it"],
    ),
    "an expected failure that matches no cell": ("packing: [true]}", "liger: [true]}", "- when: {family", ["the rule matches no cell"]),
    "a rule that names no field": (
        "{engine: [vllm], tuner: [full]}",
        "{}",
        "- when: {}",
        ["a rule that names no field would match every cell"],
    ),
    "a rule that says nothing": ("    exclude: true\n", "", "- when: {engine", ["either `exclude: true` or `expect: fail`"]),
    "a limit without a record": (
        "    recorded_on: a2\n",
        "",
        "- when: {family",
        ["an expected failure needs issue, since and recorded_on"],
    ),
    "a model in no cell": ("models: [qwen3_8b, qwen2_7b]", "models: [qwen3_8b]", "  qwen2_7b:", ["model 'qwen2_7b' is in no cell"]),
    "a recipe of no cell": (", recipe: quick}", "}", "  quick:", ["recipe 'quick' is used by no cell"]),
    "an algorithm without a recipe": (
        "default_for: [sft, dpo]",
        "default_for: [sft]",
        "  documented:",
        ["none is the default for algorithm 'dpo'", "default_for"],
    ),
    "two defaults for one algorithm": (
        "num_train_epochs: 1}}",
        "num_train_epochs: 1}, default_for: [dpo]}",
        "[sft, dpo]\ntables",
        ["recipe 'quick' is already the default for algorithm 'dpo'"],
    ),
    "a claim about no cell": (
        "strategies: [zero2, zero3]}",
        "strategies: [zero2, fsdp1]}",
        "- table: rows\n",
        ["no cell is what the claim speaks of", "fsdp1"],
    ),
    "a claim about hardware that its cell leaves out": (
        "hardware: [a2, a3]\n    tier",
        "hardware: [a2]\n    tier",
        "hardware: [a2, a3]\n    says",
        ["speaks of sft-qwen3_8b-lora-zero2 on a3, which its block 'documented'"],
    ),
    "a claim without a cell or a because": (
        ", because_no_cell: names no model",
        "",
        "rows: [2]",
        ["a claim needs models, cells and hardware"],
    ),
    "a claim that says two things": (
        "    says_column: says_en",
        "    says_column: says_en\n    says: no",
        "- table: rows\n",
        ["either says or says_column"],
    ),
    "a row read twice": (
        "rules:\n",
        "  - {table: rows, rows: [2], because_no_cell: again, says: supported, reading: again}\nrules:\n",
        "because_no_cell: again",
        ["row 2 of table 'rows' is already read as no cell on line"],
    ),
    "a version that is none": ('">=2.7.1"', '"new enough"', "new enough", ["'new enough' is no version specifier for torch"]),
    "a date that is none": ("date: undated", "date: last June", "last June", ["date is 'last June'"]),
    "a tab": ("    tier: weekly", "\ttier: weekly", "\ttier", ["cannot start any token", "Indent with spaces"]),
    "an open bracket": ("tuners: [full]\n", "tuners: [full\n", "strategies: [ddp]\n    engines", [""]),
    "an unknown alias": ("tier: weekly", "tier: *weekly", "*weekly", ["undefined alias"]),
    "an alias to a list": (
        "    algorithms: [sft, dpo]\n    tuners: [lora]",
        "    algorithms: &a [sft, dpo]\n    tuners: *a",
        "&a [sft",
        ["an alias to a list or mapping is not allowed"],
    ),
    "a list inside itself": ("tuners: [full]", "tuners: &t [*t]", "&t [*t]", ["an alias to a list or mapping is not allowed"]),
    "a tag": ("tier: weekly", "tier: !!python/name:os.system weekly", "weekly", ["tag", "is not allowed"]),
    "a list as a key": ("    tier: weekly", "    ? [a]\n    : weekly", "? [a]", ["a key must be a word or a whole number"]),
    "a second document": ("rules:\n", "---\nrules:\n", "---", ["another document"]),
    "a character that is none": ("weekly", "week\x01ly", "week\x01ly", ["a character that YAML does not allow"]),
    "a number without end": ("max_length: 2048", "max_length: " + "9" * 5000, "max_length: 9", ["is not a int"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_refuses(name: str) -> None:
    old, new, points_at, words = REFUSED[name]
    assert old in SMALL
    text = SMALL.replace(old, new, 1)
    said = refusal(text)
    for word in words:
        assert word in said
    assert said.startswith(f"matrix.yaml:{line_of(text, points_at)}: "), said


def test_a_cell_declared_twice_names_both_lines() -> None:
    text = SMALL.replace("tuners: [full]\n    strategies: [ddp]\n    engines: [vllm]", "tuners: [lora]\n    strategies: [zero2]")
    assert f"on line {line_of(text, '  documented:')}" in refusal(text)


@pytest.mark.parametrize(
    "text", ["", "\n", "# only a comment\n", "- a\n- b\n", "text", "5", "null", "[" * 2000, "- " * 2000, "%YAML 9.9\n---\na: 1"]
)
def test_a_text_that_is_no_matrix_is_refused(text: str) -> None:
    refusal(text)


def test_a_byte_order_mark_is_not_an_error() -> None:
    assert parse_matrix("\ufeff" + SMALL, "matrix.yaml").cells


def test_two_cells_that_would_get_one_id_are_refused() -> None:
    options = "[{packing: true}, {target_parameters: [a.up]}, {target_parameters: [b.up]}, {lora"
    said = refusal(SMALL.replace("[{packing: true}, {lora", options, 1))
    assert "would both be called sft-qwen3_8b-lora-zero2-params_up" in said
