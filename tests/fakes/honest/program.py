"""The stand-in for `swift` as a process: one method, ms-swift's words on the way, its exit codes at the end."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fakes.honest.answers import infer, merge
from fakes.honest.arguments import Arguments, parse
from fakes.honest.habits import Honest
from fakes.honest.serving import serve
from fakes.honest.training import train
from fakes.honest.witness import Witness

METHODS = ("pt", "sft", "rlhf", "export", "infer", "deploy")
SCRIPTS = Path(__file__).parent / "swift" / "cli"


def main(words: Sequence[str], habits: Honest) -> int:
    """The exit code of `swift WORDS`. A failure prints its traceback, as Python does, and gives 1."""
    method = words[0].replace("_", "-") if words else ""
    if method not in METHODS:
        print(f"KeyError: {method!r}", file=sys.stderr)
        return 1
    script = str(SCRIPTS / f"{method}.py")
    asked = list(words[1:])
    print(f"run sh: `{sys.executable} {script} {' '.join(asked)}`", flush=True)
    try:
        _work(method, script, asked, habits)
        code = 0
    except (Exception, KeyboardInterrupt):
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    return habits.finish(method, code)


def _work(method: str, script: str, asked: list[str], habits: Honest) -> None:
    environment = dict(os.environ)
    habits.asked = list(asked)
    argv = habits.argv(list(asked), environment)
    arguments = parse(method, argv)
    witness = Witness(habits, _plugin_loaded(arguments), _device(arguments, habits, environment), environment)
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
            quiet = Witness(habits, False, witness.device, environment)
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


def _device(arguments: Arguments, habits: Honest, environment: Mapping[str, str]) -> str:
    on_npu = habits.settings.get("device") == "npu" and not arguments.flag("use_cpu")
    return habits.device("npu:0" if on_npu else "cpu")


def run(words: Sequence[str], settings: Mapping[str, Any], lie: str | None) -> int:
    """The script's entry: honest, or with the one deviation that `lie` names in fakes.liars."""
    if lie is None:
        return main(words, Honest(settings))
    from fakes.liars import habits_of

    return main(words, habits_of(lie, settings))
