"""Shell text of documents, taken apart: words, variables, lines, and what a shell would read otherwise than it was meant."""

from __future__ import annotations

import shlex
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.docs_shell import Command, CommandKind, Script, numbered, read_shell


def read(text: str, first: int = 1) -> Script:
    return read_shell(numbered(text, first))


def words(text: str) -> list[list[str]]:
    script = read(text)
    assert script.faults == ()
    return [[word.text for word in command.words] for command in script.commands]


def only(text: str) -> Command:
    (command,) = read(text).commands
    return command


def test_a_continued_command_has_the_line_of_every_word() -> None:
    command = only(
        "# 显存需求: 28 GB\nASCEND_RT_VISIBLE_DEVICES=0 \\\nswift sft \\\n    --model Qwen/Qwen3-8B \\\n    --max_steps 3 # enough\n"
    )
    assert command.kind is CommandKind.SWIFT and (command.line, command.end_line) == (2, 5)
    assert [(word.text, word.line) for word in command.words] == [
        ("swift", 3), ("sft", 3), ("--model", 4), ("Qwen/Qwen3-8B", 4), ("--max_steps", 5), ("3", 5),
    ]  # fmt: skip
    ((name, value),) = command.environment
    assert (name, value.text, value.line) == ("ASCEND_RT_VISIBLE_DEVICES", "0", 2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("swift sft --dataset 'a b#500' \"c#1\" d#2 e\\ f", [["swift", "sft", "--dataset", "a b#500", "c#1", "d#2", "e f"]]),
        ("cd x && swift sft; swift infer | tee log &", [["cd", "x"], ["swift", "sft"], ["swift", "infer"], ["tee", "log"]]),
        ("swift deploy --port 8000 > log 2>&1 &\nswift eval", [["swift", "deploy", "--port", "8000"], ["swift", "eval"]]),
        ("A='{\"x\": 1}'\nswift sft --kwargs \"$A\"", [[], ["swift", "sft", "--kwargs", '{"x": 1}']]),
        ("X=\nswift sft $X --a \"$X\"", [[], ["swift", "sft", "--a", ""]]),
        ("ARGS='--a 1\n--b 2'\nswift sft $ARGS", [[], ["swift", "sft", "--a", "1", "--b", "2"]]),
        ("ARGS=(--a 1 # one\n  --b '2 3')\nARGS+=(--c)\nswift sft \"${ARGS[@]}\"",
         [[], [], ["swift", "sft", "--a", "1", "--b", "2 3", "--c"]]),
        ("swift sft --n ${N:-4}", [["swift", "sft", "--n", "4"]]),
        ("N=2\nM=${N}x\nswift sft --n $M", [[], [], ["swift", "sft", "--n", "2x"]]),
        ("cat > a.sh <<'EOF'\nswift sft --not 'run\nEOF\nswift infer", [["cat"], ["swift", "infer"]]),
        ("for n in 1 2; do\n  swift sft --n 1\ndone", [["swift", "sft", "--n", "1"]]),
        ("if [[ $A == 1 && $B < 2 ]]; then\nswift sft\nelse\nswift pt\nfi", 
         [["[[", "$A", "==", "1", "$B", "2", "]]"], ["swift", "sft"], ["swift", "pt"]]),
        ("case $1 in\n a|b) swift sft ;;\n *) swift pt ;;\nesac\nswift infer", [["swift", "sft"], ["swift", "pt"], ["swift", "infer"]]),
        ("run() {\n  swift sft\n}\nfunction go {\n  swift pt\n}\nrun", [["swift", "sft"], ["swift", "pt"], ["run"]]),
        ("nohup env -u X A=1 swift sft --a 1", [["swift", "sft", "--a", "1"]]),
        ("sudo -E -u me timeout -k 5 3600 swift sft", [["swift", "sft"]]),
        ("bash -c 'swift sft\nswift infer'", [["bash", "-c", "swift sft\nswift infer"], ["swift", "sft"], ["swift", "infer"]]),
        ("X=$(ls -dt $W/*/checkpoint-* | head -n 1)", [[], ["ls", "-dt", "$W/*/checkpoint-*"], ["head", "-n", "1"]]),
        ("(base) root@valle:~/src# npu-smi info\n+-----+\n| NPU don't |\n+=====+\nit's all\nroot@valle:~# ls",
         [["npu-smi", "info"], ["ls"]]),
        ("$ swift sft \\\n    --a 1\nlosses aren't words\n$ ls", [["swift", "sft", "--a", "1"], ["ls"]]),
        ("+----+\n| it's a table |\n+----+\nswift sft", [["swift", "sft"]]),
        ("swift infer --stream true\n<<< who're you?", [["swift", "infer", "--stream", "true"]]),
        ("swift sft --model <你的 模型> --x 1", [["swift", "sft", "--model", "<你的 模型>", "--x", "1"]]),
        ("export P=$P:<your_path>", [["export", "P=$P:<your_path>"]]),
        ('X="`f "$2"`"\nswift sft', [[], ["f", "$2"], ["swift", "sft"]]),
        ("cat <in >out", [["cat"]]),
        ("megatron sft --a 1\r\nls\r", [["megatron", "sft", "--a", "1"], ["ls"]]),
    ],
)  # fmt: skip
def test_what_a_shell_would_start_is_read(text: str, expected: list[list[str]]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("swift sft", CommandKind.SWIFT),
        ("/opt/bin/megatron sft", CommandKind.MEGATRON),
        ("accelerate launch --config_file x swift/cli/sft.py", CommandKind.ACCELERATE),
        ("accelerate config", CommandKind.OTHER),
        ("torchrun --nproc_per_node 2 swift/cli/sft.py", CommandKind.TORCHRUN),
        ("python3.11 -m swift.cli.sft", CommandKind.PYTHON),
        ("--lora_rank 8 \\\n--lora_alpha 32", CommandKind.FLAGS),
        ("swiftly sft", CommandKind.OTHER),
    ],
)
def test_a_command_is_known_by_its_program(text: str, kind: CommandKind) -> None:
    assert only(text).kind is kind


def test_an_omitted_rest_is_no_word_and_what_follows_it_belongs_to_the_command() -> None:
    command = only("megatron sft \\\n    --a 2 \\\n    ...\n    --b false \\\n    --c false")
    assert command.elided and [word.text for word in command.words] == ["megatron", "sft", "--a", "2", "--b", "false", "--c", "false"]
    assert [word.line for word in command.words[4:]] == [4, 4, 5, 5]
    assert read("swift sft ... --a 1\nswift sft \\\n  --a 1 \\\n  …").faults == ()


def test_unknown_variables_stay_as_written() -> None:
    command = only('swift sft --model $MODEL_ID --dataset "${D}#1" --n $((2 * 3)) --x $1 --y <n>')
    assert [word.text for word in command.words if not word.known] == ["$MODEL_ID", "${D}#1", "$((2 * 3))", "$1", "<n>"]


def test_a_variable_that_a_branch_may_assign_is_unknown_after_it() -> None:
    script = read("N=1\nif true; then\n  N=2\n  swift sft --n $N\nfi\nswift pt --n $N")
    sft, pt = (command for command in script.commands if command.kind is CommandKind.SWIFT)
    assert sft.words[-1].text == "2" and not pt.words[-1].known


def test_variables_of_a_block_serve_the_blocks_below_with_their_own_lines() -> None:
    above = read("ARGS='--a 1 \\\n'\nFLAGS=\"--x 1 \\\n--y 2\"", 10)
    (command,) = read_shell(numbered("swift sft $FLAGS", 20), above.variables).commands
    assert [(word.text, word.line) for word in command.words] == [
        ("swift", 20),
        ("sft", 20),
        ("--x", 12),
        ("1", 12),
        ("--y", 13),
        ("2", 13),
    ]


def test_what_a_script_inside_runs_is_told_apart() -> None:
    script = read("X=$(swift --version)\nswift sft")
    assert [(command.depth, command.line) for command in script.commands if command.words] == [(1, 1), (0, 2)]


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("swift sft \\\n  --a 1 \\ \n  --b 2", 2, "a blank follows the backslash"),
        ("swift sft \\\n  --a 1\n  --b 2", 2, "--b on line 3"),
        ("swift sft \\\n  --a 1 \\\n  # --b 2 \\\n  --c 2", 3, "this comment ends the command above"),
        ("swift sft \\\n  --a 1 \\\n\n  --c 2", 3, "this empty line ends the command above"),
        ("A=7\\ B=8\\ swift sft", 1, "a backslash before a blank"),
        ("ls\nswift sft --a 'b\n\nswift infer", 2, "the quote ' is opened here"),
        ('swift sft --a "b', 1, 'the quote " is opened here'),
        ("swift sft --a $(ls", 1, "$( is opened here"),
        ("swift sft --a ${X", 1, "${ is opened here"),
        ("cat > x <<EOF\nswift sft", 1, "no line below reads 'EOF'"),
    ],
)
def test_what_breaks_a_command_is_told_with_its_line(text: str, line: int, says: str) -> None:
    (fault,) = read(text).faults
    assert fault.line == line and says in fault.message


def test_flags_behind_a_broken_continuation_still_belong_to_the_command() -> None:
    for broken in ("--a 1 \\ \n", "--a 1\n", "--a 1 \\\n# no\n", "--a 1 \\\n\n"):
        command = only(f"swift sft {broken}--typo 2")
        assert [word.text for word in command.words] == ["swift", "sft", "--a", "1", "--typo", "2"]


def test_quotes_in_a_log_are_no_fault() -> None:
    assert read('lib/x/grad_scaler.py", line 260, in _unscale_grads_ raise ValueError("no.") ValueError: don').faults == ()


@given(st.lists(st.text(alphabet=st.characters(exclude_categories=("Cs",), exclude_characters="\r\0"), max_size=12), max_size=6))
def test_quoted_words_are_read_as_they_are(values: list[str]) -> None:
    (command,) = read("swift " + " ".join(f"'{value}'" if "'" not in value else shlex.quote(value) for value in values)).commands
    assert [word.text for word in command.words] == ["swift", *values]


FRAGMENTS = ["swift sft", " --a 1", " \\\n", "\\ \n", "\n", "'", '"', "`", "$(", ")", "(", "${X", "}", "$X", "X=$X$X", "X=(",
             "<<EOF", "EOF", "<path>",
             "...", "# c", "if ", "fi", "case x in", "esac", ";;", "for x in", "done", "{", "[[", "]]", "bash -c '",
             "&&", "|", ";", "> f", "$ ", "中", "\r", "\x0b"]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.text(max_size=80), st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join)), st.integers(1, 50))
@example("((", 1)
@example("X+=(", 1)
@example("\\", 3)
@example("X=\n$X", 1)
def test_any_text_gives_a_script_whose_lines_are_those_of_the_text(text: str, first: int) -> None:
    script = read(text, first)
    lines = range(first, first + text.count("\n") + 1)
    for command in script.commands:
        assert command.line in lines and command.line <= command.end_line
        assert command.words or command.environment
        assert all(word.line in lines for word in command.words)
    assert all(fault.line in lines and fault.message for fault in script.faults)


@pytest.mark.parametrize(
    "unit",
    ["swift sft --a 1 \\\n", "swift sft --a 1\n", "$(", "'\n", '"$(', "${", "`", "<<A\n", "X=$X$X\n", "X='--a 1'; $X\n",
     "((", "{ ", "\\ \n", "<", "$(a \"$(b)\")\n",
     "X+=(a)\n", "--a 1\n", "[[ ", "# c\n", "a\\\n", "case a in "],
)  # fmt: skip
def test_a_megabyte_of_anything_takes_linear_time(unit: str) -> None:
    def seconds(size: int) -> float:
        text = ("swift sft\n" + unit * (size // len(unit)))[:size]
        began = time.process_time()
        read(text)
        return time.process_time() - began

    # The best of three: what else the host does costs processor time too, and a quadratic reading would take 64 times as long.
    small, large = (min(seconds(size) for _ in range(3)) for size in (5_000, 40_000))
    assert large < 25 * max(small, 0.02)
