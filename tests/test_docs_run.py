"""`docs run` of the quick start, by a real bash and the honest stand-in for swift: it passes whole, and fails wherever it is broken."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.install import install, write_executable

from harness import docs_run_fence, docs_run_host, door_docs_run
from harness.__main__ import main

PAGE = Path(__file__).parent / "docs" / "quick_start.zh.md"
KNOWN = {"Qwen/Qwen3-0.6B": "qwen3", "Qwen/Qwen2-7B-Instruct": "qwen2", "Qwen/Qwen3.5-4B": "qwen3_5"}
Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a page's text: (exit code, the document that --json prints)."""
    install(tmp_path / "bin", as_stored=True)
    monkeypatch.setattr(door_docs_run, "search_path_of", lambda interpreter: f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(docs_run_host, "model_types", lambda: KNOWN)

    def go(text: str, *words: str, name: str = "page.md") -> tuple[int, dict[str, Any]]:
        (tmp_path / name).write_text(text, encoding="utf-8")
        capsys.readouterr()
        code = main(["--root", str(tmp_path), "docs", "run", str(tmp_path / name), "--tiny", "--json", "--timeout-s", "60", *words])
        out, err = capsys.readouterr()
        sys.stderr.write(err)  # for whoever asks next
        return code, json.loads(out) if out else {}

    return go


def shell(text: str) -> str:
    return f"# page\n```shell\n{text}\n```\n"


def failed(document: dict[str, Any]) -> list[tuple[int, str]]:
    return [(c["line"], c["said"]) for block in document["blocks"] for c in block["commands"] if not c["ok"]]


def quick_start(old: str = "", new: str = "") -> str:
    text = PAGE.read_text(encoding="utf-8")
    assert old in text
    return text.replace(old, new, 1) if old else text


def test_the_quick_start_passes_whole_and_leaves_nothing(run: Run, tmp_path: Path) -> None:
    code, document = run(quick_start())
    assert code == 0, failed(document)
    said = sorted((c["kind"], c["ok"]) for block in document["blocks"] for c in block["commands"] if c["kind"] != "set")
    # Of a server both its start and its end are judged.
    assert said == [(kind, True) for kind in ("ask", "deploy", "deploy", "infer", "infer", "merge", "train")]
    assert list((tmp_path / ".harness" / "runs").iterdir()) == []
    assert document["note"].startswith("NO NPU: ran on cpu")


@pytest.mark.parametrize(
    ("old", "new", "only", "line", "said"),
    [
        ("--lora_rank 8", "--lora_rnak 8", 10, 10, "lora_rnak"),
        ("--target_modules all-linear \\", "--target_modules all-linear", 10, 18, "--lora_rank: command not found"),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6", 10, 10, "Qwen3-0.6"),
        ("swift sft", "swfit sft", 10, 10, "swfit: command not found"),
        ("--adapters $CKPT_DIR \\\n--merge_lora", "--adapters $CKPT_DRI \\\n--merge_lora", 35, 35, "line 36: CKPT_DRI: unbound variable"),
        ("ls -dt $WORK_DIR/*/checkpoint-*", "ls -dt $WORK_DIR/*/chekpoint-*", 35, 34, "$CKPT_DIR is empty"),
        ("${CKPT_DIR}-merged", "${CKPT_DIR}-mergd", 51, 51, "exit code 1"),
        ("--model $MERGED_DIR \\\n--stream", "--model ${MERGED_DIR}-gone \\\n--stream", 51, 51, "exit code 1"),
        ("--stream true", "--straem true", 44, 44, "straem"),
        ("--host 0.0.0.0", "--hots 0.0.0.0", 60, 60, "ended before it answered"),
        ('"model": "npu-modelscope-qwen3-0_6b"', '"model": "npu-modelscope-qwen3"', 70, 70, "refused it"),
        ("localhost:8000", "localhost:8001", 70, 70, "exit code 7"),
        ("/v1/chat/completions", "/v1/chat/completion", 70, 70, "not found"),
        ('"max_tokens": 128,', '"max_tokens": 128', 70, 70, "refused it"),
    ],
)
def test_a_broken_command_fails_at_its_line(run: Run, old: str, new: str, only: int, line: int, said: str) -> None:
    code, document = run(quick_start(old, new), "--only", str(only))
    assert code == 1
    (first, *_) = failed(document)
    assert first[0] == line and said.lower() in first[1].lower(), first


def test_what_follows_a_failure_is_blocked_and_says_by_what(run: Run, tmp_path: Path) -> None:
    code, document = run(quick_start("--lora_rank 8", "--lora_rnak 8"))
    results = {block["line"]: (block["result"], block["because"]) for block in document["blocks"]}
    assert code == 1 and results[3][0] == "passed" and results[9][0] == "failed"
    assert results[33] == ("blocked", "takes output/npu-modelscope-qwen3-0_6b-lora from the block at line 9, which failed")
    assert [results[line][0] for line in (42, 59, 69)] == ["blocked"] * 3
    (kept,) = (tmp_path / ".harness" / "runs").iterdir()
    assert "lora_rnak" in (kept / "logs" / "line-10.log").read_text()


SILENT_SWIFT = "#!/bin/sh\nexit 0\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("swift sft --model Qwen/Qwen3-0.6B --dataset a/b --output_dir out", "no checkpoint-* with weights"),
        ("swift export --adapters $PWD/out --merge_lora true", "no folder with a whole model"),
        ("swift infer --model Qwen/Qwen3-0.6B", "no answer was printed"),
        ("swift deploy --model Qwen/Qwen3-0.6B", "ended before it answered"),
    ],
)
def test_a_command_that_exits_0_and_does_nothing_fails(run: Run, tmp_path: Path, command: str, said: str) -> None:
    write_executable(tmp_path / "bin" / "swift", SILENT_SWIFT)
    code, document = run(shell(command))
    assert code == 1 and said in failed(document)[0][1]


ABORTING = """#!/bin/sh
printf '<<< an answer\\n--------------------------------------------------\\n<<< '
echo 'terminate called without an active exception' >&2
exit 250
"""


def test_an_inference_that_answers_and_aborts_at_its_exit_is_the_product_s_failure_in_one_line(run: Run, tmp_path: Path) -> None:
    write_executable(tmp_path / "bin" / "swift", ABORTING)
    code, document = run(shell("swift infer --model Qwen/Qwen3-0.6B --stream true"))
    ((line, said),) = failed(document)
    assert code == 1 and line == 3 and "\n" not in said
    assert "aborted at its exit" in said and "defect of ms-swift" in said and "Not retried" in said


def test_a_server_that_leaves_a_process_behind_fails_its_block(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bin" / "swift").rename(tmp_path / "bin" / "honest")
    write_executable(tmp_path / "bin" / "swift", f'#!/bin/sh\nsetsid sleep 600 &\nexec {tmp_path}/bin/honest "$@"\n')
    code, document = run(shell("swift deploy --model Qwen/Qwen2-7B-Instruct"))
    assert code == 1 and "left running: sleep" in failed(document)[0][1]


def test_a_server_that_the_page_puts_into_the_background_serves_the_rest_of_its_block(run: Run) -> None:
    ask = "curl -s http://127.0.0.1:8000/v1/models"
    code, document = run(shell(f"swift deploy --model Qwen/Qwen2-7B-Instruct > server.log 2>&1 &\n{ask}"))
    said = [(c["line"], c["said"]) for c in document["blocks"][0]["commands"]]
    assert code == 0 and said[1] == (4, "serves Qwen2-7B-Instruct"), said


def test_variables_functions_arrays_and_the_folder_go_from_block_to_block(run: Run) -> None:
    blocks = [
        "A='one two'; export B=$'three\\nfour'; C=(five 'six seven'); f() { echo \"f $1\"; }; mkdir -p deep; cd deep; unset HOME",
        'for c in "${C[@]}"; do\n  f "$c"\ndone > said.txt\ncat > more.txt <<EOF\n$A/$B\nEOF',
        "[[ $(cat said.txt more.txt) == $'f five\\nf six seven\\none two/three\\nfour' ]]\n[[ $PWD == */deep && -z ${HOME-} ]]\n"
        "[[ $(bash -c 'echo ${A-} $B') == \"$(echo three; echo four)\" ]] || [[ $(bash -c 'echo ${A-}$B') == three*four ]]\nfalse || true",
    ]
    code, document = run("".join(f"```bash\n{block}\n```\n" for block in blocks))
    assert code == 0, failed(document)


def test_an_error_of_bash_names_the_line_of_the_page(run: Run) -> None:
    code, document = run("# a\n\ntext\n" + shell("echo fine\n\necho $NOWHERE_SET"))
    assert code == 1 and "line 8: NOWHERE_SET: unbound variable" in failed(document)[0][1]


def test_the_reader_s_shell_is_not_stricter_where_the_page_is_right(run: Run) -> None:
    code, document = run(shell("export PYTHONPATH=$PYTHONPATH:/nowhere\n[ -f nowhere ] && echo there\necho done \\"))
    assert code == 0, failed(document)


def test_a_command_that_hangs_is_ended_at_its_time(run: Run) -> None:
    code, document = run(shell("sleep 300"), "--timeout-s", "1")
    assert code == 1 and "ended by deadline" in failed(document)[0][1]


def test_nothing_of_a_page_reaches_a_network(run: Run) -> None:
    fetch = "python -c \"import urllib.request as u; u.urlopen('http://example.com', timeout=20)\""
    code, document = run(shell(fetch))
    assert code == 1 and "refused" in failed(document)[0][1].lower()


@pytest.mark.parametrize(
    "harm",
    [
        "ls -d {0}/* | xargs rm -f",
        "cd {0} || true\nrm -f precious",
        "cat > x.sh <<'END'\nrm -rf {0}\nEND\nbash x.sh",
        "cat > x.py <<'END'\nimport shutil\nshutil.rmtree('{0}')\nEND\npython x.py",
        "eval 'mv {0}/precious .'",
        "trap 'rm -rf {0}' EXIT",
        "setsid sh -c 'sleep 0.2; : > {0}/precious' &\nsleep 1",
    ],
)
@pytest.mark.skipif(not docs_run_fence.fence_version(), reason="this kernel has no Landlock")
def test_nothing_outside_of_the_scratch_folder_is_changed_whatever_a_page_does(run: Run, tmp_path: Path, harm: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("kept")
    run(shell(harm.format(tmp_path / "outside")))
    assert (tmp_path / "outside" / "precious").read_text() == "kept"


def test_a_page_s_home_is_its_own_and_what_was_refused_is_said(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "precious").write_text("kept")
    monkeypatch.setenv("HOME", str(home))
    code, document = run(
        shell(f"cd ~ && rm -f precious\neval 'rm ~/../../../../home/precious; ls {tmp_path} | xargs -I% rm -r {tmp_path}/home'")
    )
    assert (home / "precious").read_text() == "kept" and code == 1
    assert not docs_run_fence.fence_version() or "only files of the scratch folder" in failed(document)[0][1]


def test_where_nothing_can_run_that_is_a_failure(run: Run) -> None:
    code, document = run(shell("export A=1") + shell("pip install torch"))
    assert code == 1 and [block["result"] for block in document["blocks"]] == ["passed", "not runnable here"]
    assert document["blocks"][1]["obstacles"][0]["reason"] == "installs"


def test_the_folder_is_kept_when_asked(run: Run, tmp_path: Path) -> None:
    code, _ = run(shell("echo hello > said.txt\nls said.txt"), "--keep")
    (kept,) = (tmp_path / ".harness" / "runs").iterdir()
    assert code == 0 and (kept / "page" / "said.txt").read_text() == "hello\n"


def test_a_script_is_one_block(run: Run) -> None:
    code, document = run("#!/bin/bash\nA=1\necho $A\n", name="train.sh")
    assert code == 0 and [c["line"] for c in document["blocks"][0]["commands"]] == [2, 3]


def test_what_is_printed_names_no_place_of_this_host(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(shell("ls"))
    assert main(["--root", str(tmp_path), "docs", "run", str(tmp_path / "page.md"), "--tiny"]) == 0
    printed = capsys.readouterr().out
    assert str(tmp_path) not in printed and printed.endswith("NO NPU: ran on cpu, proves nothing about NPU hardware\n")


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("# only prose\n", (), "no block of shell"),
        (shell("ls"), ("--section", "nowhere"), "no section's title matches"),
        (shell("ls"), ("--section", "("), "no regular expression"),
        (shell("ls") + "# empty\n", ("--section", "empty"), "no block of shell stands under"),
        (shell("ls"), ("--only", "99"), "no block of shell is there"),
        (shell("ls"), ("--timeout-s", "0"), "above 0"),
        (shell("ls"), ("--timeout-s", "nan"), "above 0"),
    ],
)
def test_an_empty_selection_is_an_error(run: Run, capsys: pytest.CaptureFixture[str], text: str, words: tuple[str, ...], said: str) -> None:
    code, document = run(text, *words)
    assert code == 2 and document == {}
    assert said in capsys.readouterr().err


DRIVER = """
import os, sys
from harness import docs_run_host, door_docs_run
from harness.__main__ import main
door_docs_run.search_path_of = lambda interpreter: sys.argv[1] + ":" + os.environ["PATH"]
docs_run_host.model_types = lambda: {"Qwen/Qwen2-7B-Instruct": "qwen2"}
sys.exit(main(sys.argv[2:]))
"""


def bearers(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_text())
            except OSError:
                continue
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_process_no_port_and_no_folder_half_done(run: Run, tmp_path: Path, number: signal.Signals) -> None:
    page = tmp_path / "page.md"
    page.write_text(shell("swift deploy --model Qwen/Qwen2-7B-Instruct --port 8000 &\ncurl localhost:8000/v1/models\nsleep 300"))
    mark = f"DOCS_RUN_TEST={os.getpid()}-{time.time_ns()}"
    environment = {**os.environ, **dict([mark.split("=")])}
    words = ["--root", str(tmp_path), "docs", "run", str(page), "--tiny"]
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "bin"), *words]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    printed = ""
    while "line 4 ask" not in printed:
        line = process.stdout.readline()
        assert line, process.communicate()
        printed += line
    process.send_signal(number)
    rest, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted" in rest and "Traceback" not in err
    deadline = time.monotonic() + 10
    while (left := bearers(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
