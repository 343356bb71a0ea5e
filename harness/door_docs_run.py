"""python -m harness docs run FILE --tiny [--section TITLE] [--only LINE] [--hardware cpu|sim] [--keep] [--timeout-s N] [--json].

A page's own blocks of shell are run in order by a real bash, in a folder of their own under .harness/, with tiny models and data in place
of the documented ones. Nothing is installed or downloaded. Exit codes: 0 all that could run passed, and something did; 1 something failed,
or nothing was run that proves anything; 2 wrong usage, or nothing was selected; 5 this host lacks what is needed; 130 interrupted.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import shutil
import sys
import threading
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from harness.artifacts import read_inputs
from harness.docs_check import page_of
from harness.docs_files import page_bytes
from harness.docs_run import BlockResult, Result, UnitResult, run_page, succeeded
from harness.docs_run_host import Scratch, page_host, search_path_of
from harness.docs_run_plan import Block, Fate, Kind, PagePlan, plan_page
from harness.docs_run_select import Selection
from harness.docs_run_shell import PageShell
from harness.errors import HarnessError, HostError
from harness.guardian import owned, sweep
from harness.interrupts import Interrupts
from harness.machine import Choice, choose_hardware
from harness.model import Hardware
from harness.processes import kill_until_gone, members
from harness.redact import clean_value
from harness.session import text_cleaner
from harness.sim.build import CACHE_VARIABLE, build
from harness.sim.environment import sim_environment
from harness.tiny import make_datasets

INTERRUPTED = 130
# A cold ms-swift on a busy host takes minutes to be imported; only what hangs takes longer than this.
TIMEOUT_S = 600.0


def add_run(subcommands: Any) -> argparse.ArgumentParser:
    """Adds `run` to the subcommands of `docs`; it needs no matrix.yaml. The caller adds --json and --root."""
    parser: argparse.ArgumentParser = subcommands.add_parser(
        "run",
        help="execute a page's own commands, in order, with tiny models and data",
        description="Runs a page's blocks of shell by bash, in a folder of their own, and shows each substitution before. Nothing is "
        "installed or downloaded. Exit codes: 0 all that could run passed, 1 something failed or nothing was run, 2 wrong usage, 5 this "
        "host, 130 interrupted.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a page of Markdown, or a shell script")
    parser.add_argument("--tiny", action="store_true", help="tiny random models, made-up rows, a few steps: the only form there is")
    parser.add_argument("--section", default=None, metavar="TITLE", help="only blocks under headings of this title, or matching this regex")
    parser.add_argument("--only", type=int, default=None, metavar="LINE", help="only the block at this line, and those that it needs")
    parser.add_argument("--hardware", choices=[str(Hardware.CPU), str(Hardware.SIM)], default=str(Hardware.CPU), help="(default: cpu)")
    parser.add_argument("--keep", action="store_true", help="keep the folder; it is kept after a failure anyway")
    parser.add_argument("--timeout-s", type=float, default=TIMEOUT_S, metavar="N", help="the longest that one command may take (600)")
    parser.set_defaults(apart=run_docs)
    return parser


def run_docs(args: argparse.Namespace) -> int:
    if not args.tiny:
        raise HarnessError("docs run", "the commands of a page are run with tiny models only.", "Add --tiny.")
    if not (math.isfinite(args.timeout_s) and args.timeout_s > 0):
        raise HarnessError(f"--timeout-s {args.timeout_s}", "a time is a finite number of seconds above 0.", "Give 600 or so.")
    page = page_of(page_bytes(args.file), args.file.name)
    choice = choose_hardware(args.hardware)
    own = args.root.absolute() / ".harness"
    sweep(own / "runs")
    scratch = Scratch(own / "runs" / f"docs-{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:6]}", own / "cache")
    search_path = search_path_of(sys.executable)
    host = page_host(choice.hardware, search_path)
    if not host.has_program("bash"):
        raise HostError("bash", "is not installed.", "Install it: pages are run by a real shell.")
    plan = plan_page(page, host, scratch.stand_ins(), Selection(args.section, args.only), args.file.name)
    clean = text_cleaner([str(scratch.page), str(scratch.root), str(args.root.absolute())])
    say = _silent if args.json else _say(clean)
    for line in plan_text(plan, args.file.name, choice):
        say(line)
    interrupts = Interrupts(lambda: threading.Thread(target=_kill_all, args=(scratch.root,), name="hurry", daemon=True).start())
    interrupts.install()
    kept: Path | None = scratch.root
    try:
        results = _run(plan, scratch, choice, search_path, args.timeout_s, say)
        code = _code(results)
        kept = scratch.root if args.keep or code == 1 else None
    except KeyboardInterrupt:
        kept = None
        raise HarnessError("docs run", "was interrupted before anything was run.") from None
    finally:
        if kept is None:
            shutil.rmtree(scratch.root, ignore_errors=True)
        interrupts.restore()
    if args.json:
        print(json.dumps(clean_value(as_json(args.file.name, choice, plan, results, code), clean), ensure_ascii=False, indent=1))
    else:
        for line in result_text(plan, results, args.file.name):
            say(line)
        if kept is not None:  # a place on this host, for the one who sits before it
            print(f"kept: {os.path.relpath(kept, Path.cwd())} (logs/line-N.log is what the command at line N printed)")
        print(choice.last_line)
    return code


def _run(
    plan: PagePlan, scratch: Scratch, choice: Choice, search_path: str, timeout_s: float, say: Callable[[str], None]
) -> tuple[BlockResult, ...]:
    """Lay out the folder and run the plan in it. Where nothing is to be run, nothing is laid out."""
    if all(block.fate is not Fate.RUN for block in plan.blocks):
        scratch.root.mkdir(parents=True)
        return tuple(BlockResult(block, _unrun(block), block.because) for block in plan.blocks)
    environment = dict(os.environ)
    if choice.hardware is Hardware.SIM:
        os.environ[CACHE_VARIABLE] = str(scratch.cache)
        build()
        environment |= sim_environment(choice.npu_ids, scratch.cache)
    with owned(scratch.root, uuid.uuid4().hex):
        scratch.lay_out(plan.models)
        shell = PageShell(scratch, choice.hardware, search_path, environment, timeout_s)
        shell.open()
        question = read_inputs(make_datasets(scratch.cache)["val"])[0]
        return run_page(
            plan, shell, question, lambda block, unit: say(unit_text(unit)) if unit.kind is not Kind.SET or not unit.judged.ok else None
        )


def _unrun(block: Block) -> Result:
    return Result.BLOCKED if block.fate is Fate.BLOCKED else Result.NOT_RUNNABLE


def _kill_all(folder: Path) -> None:
    nonces = [path.stem.removeprefix("owner-") for path in folder.rglob("owner-*.json")]
    kill_until_gone(lambda: members((), nonces))


def _code(results: tuple[BlockResult, ...]) -> int:
    if any(result.result is Result.INTERRUPTED for result in results):
        return INTERRUPTED
    return 0 if succeeded(results) else 1


def _say(clean: Callable[[str], str]) -> Callable[[str], None]:
    return lambda line: print(clean(line), flush=True)


def _silent(line: str) -> None:
    """For --json, where the document is all that is printed."""


def plan_text(plan: PagePlan, name: str, choice: Choice) -> list[str]:
    """What will be run, with every substitution, and what won't, with its because."""
    runs = [block for block in plan.blocks if block.fate is Fate.RUN]
    beside = f"; {plan.others} other blocks are no shell" if plan.others else ""
    lines = [f"{name}: {len(runs)} of {len(plan.blocks)} blocks of shell run here, on {choice.hardware} with tiny models{beside}"]
    for block in runs:
        lines.append(f"line {block.line}: {block.section}" + (" (another block needs it)" if block.pulled_in else ""))
        for edit in block.edits:
            lines.append(f"  {edit.line}: {edit}  ({edit.because})")
    for block in plan.blocks:
        if block.fate is not Fate.RUN:
            lines.append(f"line {block.line}: {block.fate}")
            lines += [f"  {because}" for because in ([block.because] if block.fate is Fate.BLOCKED else map(str, block.obstacles))]
    return lines


def unit_text(unit: UnitResult) -> str:
    mark = "ok" if unit.judged.ok else "FAILED"
    cause = f" [{unit.judged.cause}]" if unit.judged.cause else ""
    text = f"{mark} line {unit.line} {unit.kind} ({unit.duration_s:.1f} s): {unit.judged.said}{cause}"
    return text + "".join(f"\n  | {line}" for line in unit.excerpt.split("\n") if unit.excerpt)


def result_text(plan: PagePlan, results: tuple[BlockResult, ...], name: str) -> list[str]:
    lines = []
    for result in results:
        if result.result in (Result.FAILED, Result.INTERRUPTED) or (result.result is Result.BLOCKED and result.block.fate is Fate.RUN):
            lines.append(f"line {result.block.line}: {result.result}: {result.because}")
    counts = [f"{sum(r.result is kind for r in results)} {kind}" for kind in Result if any(r.result is kind for r in results)]
    lines.append(f"{name}: {', '.join(counts)}")
    if not succeeded(results) and all(r.result not in (Result.FAILED, Result.INTERRUPTED) for r in results):
        lines.append("Nothing was run that proves anything: that is a failure.")
    return lines


def as_json(name: str, choice: Choice, plan: PagePlan, results: tuple[BlockResult, ...], code: int) -> dict[str, Any]:
    return {
        "page": name,
        "hardware": str(choice.hardware),
        "note": choice.last_line,
        "exit_code": code,
        "blocks": [_block_json(result) for result in results],
        "other_fences": plan.others,
    }


def _block_json(result: BlockResult) -> Mapping[str, Any]:
    block = result.block
    return {
        "line": block.line,
        "section": block.section,
        "result": str(result.result),
        "because": result.because,
        "pulled_in": block.pulled_in,
        "obstacles": [{"line": o.line, "reason": o.reason.name.lower(), "said": o.said, "because": str(o.reason)} for o in block.obstacles],
        "substitutions": [{"line": edit.line, "before": edit.before, "after": edit.after, "because": edit.because} for edit in block.edits],
        "commands": [
            {"line": unit.line, "kind": str(unit.kind), "duration_s": round(unit.duration_s, 1), **dataclasses.asdict(unit.judged)}
            | ({"excerpt": unit.excerpt} if unit.excerpt else {})
            for unit in result.units
        ],
    }
