"""What a command is made of: where things lie, its flags, and the changes that turn a documented command into the one that runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import HarnessError
from harness.model import Cell, Command, Step, Substitution, Word

Flags = Mapping[str, tuple[str, ...]]
LAUNCH_CONFIGS = Path(__file__).parent / "launch_configs"
FSDP1_CONFIG = str(LAUNCH_CONFIGS / "fsdp1.json")


class Form(Word):
    """NPU: the documented command, for real weights on an NPU. TINY: the same command cut down for a tiny model, on any hardware."""

    NPU = "npu"
    TINY = "tiny"


class NotBuilt(HarnessError):
    """No command exists yet for what was asked. `because` is fit for an `untested` verdict."""

    def __init__(self, cell: Cell, because: str) -> None:
        self.because = because
        super().__init__(f"{cell.id}", f"no command is built: {because}.")


@dataclass(frozen=True)
class Places:
    """Where a command reads and writes. Strings, so that a shell variable can stand in for a path.

    `datasets`: kind (sft, pt, dpo, kto, grpo, embedding, seq_cls, reranker, val) to file. `queries`: the user turns of `val`, one line
    each, for the interactive form. `checkpoint`: what training left (an adapter, or full weights). `resume_from`: the earlier checkpoint
    that resume starts from. `visible_devices` is empty on a plain cpu. `hccl_port`: the first of the ports that HCCL takes on the host; 0
    leaves it HCCL's own. `plugin` empty: the command runs unwitnessed.
    """

    work: str
    model: str
    datasets: Mapping[str, str] = field(default_factory=dict)
    queries: tuple[str, ...] = ()
    plugin: str = ""
    reward_plugin: str = ""
    visible_devices: tuple[int, ...] = ()
    port: int = 8000
    master_port: int = 29500
    hccl_port: int = 0
    checkpoint: str = ""
    resume_from: str = ""
    merged: str = ""
    swift_cli_dir: str = ""
    reward_model: str = ""
    teacher_model: str = ""
    fsdp_config: str = FSDP1_CONFIG

    def need(self, name: str, what_for: str) -> str:
        """The place called `name`. Raises HarnessError when it isn't known: a command with an empty path would run and mislead."""
        value = str(getattr(self, name))
        if not value:
            raise HarnessError(f"Places.{name}", f"is empty, and {what_for} needs it.", "Run the stage that makes it first.")
        return value

    def dataset(self, kind: str) -> str:
        """The file of `kind`. Raises HarnessError when there is none."""
        if not self.datasets.get(kind):
            raise HarnessError(
                f"Places.datasets[{kind!r}]", "no such file is known.", f"Known: {', '.join(sorted(self.datasets)) or 'none'}"
            )
        return self.datasets[kind]


@dataclass(frozen=True)
class Change:
    """One difference from the documented command: `values` None takes the flag out. `because` reaches the reader of the report."""

    flag: str
    values: tuple[str, ...] | None
    because: str


def changed(documented: Flags, changes: Iterable[Change]) -> tuple[Flags, tuple[Substitution, ...]]:
    """The flags after `changes` (a later one wins), in documented order with new ones last, and every real difference."""
    flags = dict(documented)
    because: dict[str, str] = {}
    for change in changes:
        because[change.flag] = change.because
        if change.values is None:
            flags.pop(change.flag, None)
        else:
            flags[change.flag] = change.values
    return flags, substitutions(documented, flags, because)


def substitutions(documented: Flags, used: Flags, because: Mapping[str, str]) -> tuple[Substitution, ...]:
    """What differs, flag by flag; an absent flag shows as an empty string. Raises KeyError for a difference without a because."""
    names = [*documented, *(name for name in used if name not in documented)]
    return tuple(
        Substitution(name, _shown(documented, name), _shown(used, name), because[name])
        for name in names
        if documented.get(name) != used.get(name)
    )


def _shown(flags: Flags, name: str) -> str:
    """A flag that takes no value is "given" or not there."""
    return " ".join(flags[name]) or "given" if name in flags else ""


def written(flags: Flags) -> tuple[str, ...]:
    return tuple(word for flag, values in flags.items() for word in (flag, *values))


def scalar(value: str | int | float | bool) -> str:
    """A setting as a document writes it: true, 16, 0, 1e-4, bfloat16."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, float) and abs(value) < 1e-3:
        mantissa, exponent = f"{value:e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return str(value)


@dataclass(frozen=True)
class Draft:
    """A command in the making: the documented flags and environment beside the changes that were asked for."""

    name: str
    subcommand: str
    documented: Flags
    changes: tuple[Change, ...]
    output_dir: str
    deadline_s: float
    documented_env: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: str | None = None
    serves: bool = False


ENV_BECAUSE: Mapping[str, str] = {
    "ASCEND_RT_VISIBLE_DEVICES": "the devices lent to this run",
    "NPROC_PER_NODE": "one process for each device lent to this run",
    "MASTER_PORT": "a free port, so that runs side by side don't meet",
    "HCCL_IF_BASE_PORT": "a block of free ports, so that runs side by side don't meet",
    "NPU_MATRIX_CONTROL": "negative control: a correct resume check must fail on it",
    "OMP_NUM_THREADS": "one thread, so that sums are taken in the same order in every run",
    "USE_MCORE_GDN": "an option of this cell",
}
OFFLINE_BECAUSE = "a tiny run asks no hub for anything"


def finished(draft: Draft, launcher: tuple[Flags, tuple[Change, ...], str] | None = None) -> Step:
    """The step of a draft. `launcher`: flags, changes and script of `accelerate launch`, where that starts the subcommand."""
    flags, differences = changed(draft.documented, draft.changes)
    documented_env = {name: (value,) for name, value in draft.documented_env.items()}
    used_env = {name: (value,) for name, value in draft.env.items()}
    reasons = {name: ENV_BECAUSE.get(name, OFFLINE_BECAUSE) for name in (*documented_env, *used_env)}
    differences = (*substitutions(documented_env, used_env, reasons), *differences)
    program = "swift" if launcher is None else "accelerate"
    lead: tuple[str, ...] = (draft.subcommand,)
    if launcher is not None:
        launch_flags, launch_differences = changed(launcher[0], launcher[1])
        lead = ("launch", *written(launch_flags), launcher[2])
        differences = (*launch_differences, *differences)
    command = Command(program, (*lead, *written(flags)), dict(draft.env), draft.stdin)
    return Step(draft.name, command, draft.output_dir, draft.deadline_s, differences, draft.serves)
