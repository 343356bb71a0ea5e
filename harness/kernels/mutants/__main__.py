"""python -m harness.kernels.mutants [--list] [--only WORD] [--sample N] [--seed S] [--jobs N] [--json FILE]: does kernel parity have teeth?

Faults are planted one at a time in a copy in memory of ms-swift's NPU patches and fla's kernels; the installed files stay as they are.
Exit codes: 0 at least 95 % of the mutants that are not equivalent were caught, 1 fewer were, 2 wrong usage, 5 this host can't.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from harness.errors import HarnessError
from harness.kernels import catalogue, interpreter
from harness.kernels.mutants.hunting import Fate, Outcome, all_mutants, hunt, sample, survey
from harness.kernels.mutants.planting import Mutant
from harness.kernels.mutants.reach import questions

LEAST_RATE = 0.95
# As many as take some twenty minutes on two cores.
DEFAULT_SAMPLE = 260


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        return _run(args)
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness.kernels.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="name the mutants and run none")
    parser.add_argument("--only", default="", metavar="WORD", help="those whose name holds WORD")
    parser.add_argument("--sample", type=int, default=DEFAULT_SAMPLE, metavar="N", help=f"so many, 0: all ({DEFAULT_SAMPLE})")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="which ones (0)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="children at a time (2)")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write all that was found")
    return parser


def _run(args: argparse.Namespace) -> int:
    if args.jobs < 1 or args.sample < 0:
        raise HarnessError("--jobs, --sample", "are a number from 1 and one from 0.", "See --help.")
    began = time.monotonic()
    interpreter.prepare()
    torch.set_num_threads(1)
    asked = questions(catalogue.all_kernels(), catalogue.all_checks())
    _say(f"{len(asked)} questions without any fault")
    ground = survey(asked, args.jobs)
    mutants = [mutant for mutant in all_mutants(ground) if args.only in mutant.name]
    if not mutants:
        raise HarnessError(f"--only {args.only}", "is in no mutant's name.", "See --list.")
    chosen = sample(mutants, args.sample or len(mutants), args.seed)
    if args.list:
        print("\n".join(f"{mutant.name}  {mutant.file}:{mutant.line}  {mutant.kind}: {_change(mutant)}" for mutant in chosen))
        print(f"{len(chosen)} of {len(mutants)} mutants, {len({mutant.kind for mutant in chosen})} kinds")
        return 0
    _say(f"{len(chosen)} of {len(mutants)} mutants, after {time.monotonic() - began:.0f} s")
    done = iter(range(1, len(chosen) + 1))
    fates = hunt(chosen, ground, args.jobs, lambda fate: _say(f"{next(done)}/{len(chosen)} {_line(fate)}"))
    for line in told(fates):
        print(line)
    if args.json is not None:
        args.json.write_text(json.dumps([_plain(fate) for fate in fates], indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{time.monotonic() - began:.0f} s")
    return 0 if rate(fates) >= LEAST_RATE else 1


def rate(fates: Sequence[Fate]) -> float:
    """The share of the mutants that are not equivalent which were caught; 0 where there is none."""
    real = [fate for fate in fates if fate.outcome is not Outcome.EQUIVALENT]
    return sum(fate.outcome is Outcome.KILLED for fate in real) / len(real) if real else 0.0


def told(fates: Sequence[Fate]) -> list[str]:
    """Every mutant, the totals by kind, and what is left over."""
    lines = [_line(fate) for fate in fates]
    kinds = Counter(fate.mutant.kind for fate in fates)
    caught = Counter(fate.mutant.kind for fate in fates if fate.outcome is Outcome.KILLED)
    equal = Counter(fate.mutant.kind for fate in fates if fate.outcome is Outcome.EQUIVALENT)
    lines += [f"{kind}: {caught[kind]} of {count - equal[kind]} caught, {equal[kind]} equivalent" for kind, count in sorted(kinds.items())]
    total, same = len(fates), sum(equal.values())
    lines.append(
        f"{total} mutants of {len(kinds)} kinds: {sum(caught.values())} of {total - same} caught ({rate(fates):.1%}), {same} equivalent"
    )
    return lines


def _line(fate: Fate) -> str:
    end = f"by {fate.by}, case {fate.cases}: {fate.said}" if fate.outcome is Outcome.KILLED else fate.said
    where = f"{fate.mutant.file}:{fate.mutant.line}"
    return f"{fate.outcome}: {fate.mutant.name}  {where}  {_change(fate.mutant)}  {end} ({fate.seconds:.0f} s)"


def _change(mutant: Mutant) -> str:
    return f"{mutant.before[:80]} -> {mutant.after[:80]}"


def _plain(fate: Fate) -> dict[str, Any]:
    of = {name: getattr(fate.mutant, name) for name in ("name", "module", "file", "line", "function", "kind", "before", "after")}
    return {**of, "outcome": str(fate.outcome), "by": fate.by, "cases": fate.cases, "said": fate.said, "seconds": round(fate.seconds, 1)}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
