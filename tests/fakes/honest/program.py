"""The stand-in for `swift` as a process: one method, ms-swift's words on the way, its exit codes at the end."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fakes.honest.answers import infer, merge
from fakes.honest.arguments import Arguments, parse
from fakes.honest.habits import Honest
from fakes.honest.ranks import Ranks, spread, strategy_of
from fakes.honest.serving import serve
from fakes.honest.training import train
from fakes.honest.witness import Witness

METHODS = ("pt", "sft", "rlhf", "export", "infer", "deploy")
SCRIPTS = Path(__file__).parent / "swift" / "cli"


def main(words: Sequence[str], habits: Honest, ranks: Ranks | None = None, launched: bool = False) -> int:
    """The exit code of `swift WORDS`, of one rank. A failure prints its traceback, as Python does, and gives 1."""
    method = words[0].replace("_", "-") if words else ""
    if method not in METHODS:
        print(f"KeyError: {method!r}", file=sys.stderr)
        return 1
    script = str(SCRIPTS / f"{method}.py")
    asked = list(words[1:])
    print(f"run sh: `{sys.executable} {script} {' '.join(asked)}`", flush=True)
    try:
        _work(method, script, asked, habits, ranks or Ranks(), launched)
        code = 0
    except (Exception, KeyboardInterrupt):
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    return habits.finish(method, code)


def _work(method: str, script: str, asked: list[str], habits: Honest, ranks: Ranks, launched: bool) -> None:
    environment = dict(os.environ)
    habits.asked = list(asked)
    argv = habits.argv(list(asked), environment)
    arguments = parse(method, argv)
    ranks = replace(ranks, strategy=strategy_of(arguments.values, ranks.size, launched))
    device = _device(arguments, habits, ranks.rank)
    witness = Witness(habits, _plugin_loaded(arguments), device, ranks, environment)
    witness.start(script, argv, sys.executable)
    habits.begin(method)
    if method == "export":
        merge(arguments, habits)
    elif method == "infer":
        infer(arguments, habits, witness)
    elif method == "deploy":
        serve(arguments, habits, witness)
    else:
        if "npu_matrix_witness" not in arguments.words("callbacks"):
            # The trainer's events come from a callback; without it the plugin only notes that it was imported.
            quiet = replace(witness, loaded=False)
            train(arguments, habits, quiet)
        else:
            train(arguments, habits, witness)
    witness.end()


def _plugin_loaded(arguments: Arguments) -> bool:
    """Raises FileNotFoundError for a plugin that isn't there, as the import of it would."""
    plugins = arguments.words("external_plugins")
    for plugin in plugins:
        if not Path(plugin).exists():
            raise FileNotFoundError(f"external plugin {plugin} does not exist")
    return bool(plugins)


def _device(arguments: Arguments, habits: Honest, rank: int) -> str:
    on_npu = habits.settings.get("device") == "npu" and not arguments.flag("use_cpu")
    return habits.device(f"npu:{rank}" if on_npu else "cpu")


def run(words: Sequence[str], settings: Mapping[str, Any], lie: str | None) -> int:
    """The script's entry: honest, or with the one deviation that `lie` names in fakes.liars. As many ranks as NPROC_PER_NODE says."""
    return _ranks(words, settings, lie, int(os.environ.get("NPROC_PER_NODE", "1")))


def accelerate(words: Sequence[str], settings: Mapping[str, Any], lie: str | None) -> int:
    """`accelerate launch ... --num_processes N ... sft.py WORDS`: N ranks of FSDP1, which is what ms-swift's documents use it for."""
    script = next((at for at, word in enumerate(words) if word.endswith(".py") and words[at - 1] != "--config_file"), 0)
    if words[:1] != ["launch"] or not script or "--num_processes" not in words[:script]:
        print("usage: accelerate launch --num_processes N SCRIPT.py WORDS", file=sys.stderr)
        return 2
    size = int(words[words.index("--num_processes") + 1])
    return _ranks([Path(words[script]).stem, *words[script + 1 :]], settings, lie, size, launched=True)


def _ranks(words: Sequence[str], settings: Mapping[str, Any], lie: str | None, size: int, launched: bool = False) -> int:
    def work(rank: int = 0, meeting: str = "") -> int:
        habits = Honest(settings)
        if lie is not None:
            from fakes.liars import habits_of

            habits = habits_of(lie, settings)
        return main(words, habits, Ranks(rank, size, meeting=meeting), launched)

    # torchrun starts trainings only.
    trains = bool(words) and words[0] in ("pt", "sft", "rlhf")
    return spread(size, work) if size > 1 and trains else work()
