"""Drill: programs that train by another strategy than asked, and faults of the ranks' averaging. None ends green, each names the strategy.

All runs are forked from two warm processes, one of the simulated NPU and one of the goldens. Kinds of faults that every strategy can have
are planted in each; STRATEGY_FAULTS=all plants the others in each too.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fakes.planted import installed
from fakes.strategies import Wrapper, install_wrapper

from harness.flow import run_cell
from harness.goldens import Goldens
from harness.host import Host
from harness.machine import SIMULATED_IDS, npu_traces
from harness.matrix import parse_matrix
from harness.model import Blame, Evidence, Hardware, Stage, VerdictKind
from harness.sim.build import build, cache_folder, can_build
from harness.warm import WarmLauncher

pytestmark = pytest.mark.swift

ROOT = Path(__file__).resolve().parents[1]
MATRIX = parse_matrix((ROOT / "matrix.yaml").read_text(encoding="utf-8"), "matrix.yaml")
STRATEGIES = ("ddp", "fsdp1", "fsdp2", "zero2", "zero3")
GREEN = (VerdictKind.PASSED, VerdictKind.FIXED, VerdictKind.KNOWN_FAILURE)
CONFIGS = ROOT / "harness" / "launch_configs"


@dataclass(frozen=True)
class Field:
    folder: Path
    swift: Path
    launcher: WarmLauncher
    goldens: Goldens

    def train(self, name: str, wrapper: Wrapper) -> Evidence:
        """The train stage of the strategy's cell on the simulated NPU, by the wrapper's programs."""
        cell = MATRIX.cell(f"sft-qwen2_5_0_5b_instruct-lora-{wrapper.strategy}")
        assert cell is not None
        host = Host(
            hardware=Hardware.SIM,
            weights="tiny",
            npu_ids=SIMULATED_IDS,
            root=ROOT,
            runs=self.folder / "runs" / name,
            cache=cache_folder(),
            # One folder for all, since another PATH would be another warm process.
            search_path=str(install_wrapper(self.folder / "programs", wrapper)),
            machine={},
            rehearsal=None,
            deadline_scale=1.0,
            launcher="warm",
            swift_cli_dir=str(self.swift / "cli"),
        )
        (evidence,) = run_cell(
            cell,
            (Stage.TRAIN,),
            matrix=MATRIX,
            host=host,
            launch=self.launcher,
            goldens=self.goldens,
            keep=lambda evidence: None,
            clean=lambda text: text,
            stop=threading.Event(),
        )
        return evidence


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    swift = installed()
    if swift is None or not Path(sys.executable).with_name("swift").exists():
        pytest.skip("ms-swift is not installed beside this interpreter; install the swift extra")
    if because := can_build() or ", ".join(npu_traces()):
        pytest.skip(f"no simulated NPU here: {because}")
    build()
    folder = tmp_path_factory.mktemp("strategies")
    launcher = WarmLauncher(folder / "warm")
    goldens = Goldens(launcher)
    yield Field(folder, swift, launcher, goldens)
    goldens.close()
    launcher.close()


def told(evidence: Evidence) -> str:
    """What a report says of it: the verdict, and every comparison that failed."""
    failed = [f"{c.name}: expected {c.expected}, found {c.found} [{c.cause}]" for c in evidence.comparisons if not c.ok]
    return "\n".join([f"{evidence.verdict.kind} {evidence.verdict.cause}: {evidence.verdict.because}", *failed])


def failed_as(evidence: Evidence, *causes: str) -> str:
    """What is told of a run that failed by one of `causes`, the product's fault."""
    verdict, text = evidence.verdict, told(evidence)
    assert verdict.kind is VerdictKind.FAILED and verdict.kind not in GREEN, text
    assert verdict.cause in causes and verdict.blame is Blame.PRODUCT, f"not {causes}\n{text}"
    return text


def changed_config(name: str, section: str, **changes: object) -> dict[str, object]:
    """A launch configuration of the harness with some settings of its `section` changed."""
    config: dict[str, object] = json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))
    inner = config[section]
    assert isinstance(inner, dict) and changes.keys() <= inner.keys(), f"{name}.json has no {set(changes) - inner.keys()}"
    return {**config, section: {**inner, **changes}}


def fsdp1_by(**changes: object) -> Wrapper:
    """`accelerate` reads another configuration than it was given; the trained process sees the words that were asked for."""
    config = changed_config("fsdp1", "fsdp_config", **changes)
    return Wrapper("fsdp1", open={"--config_file": "HERE/other.json"}, files={"other.json": config})


def zero_by(strategy: str, stage: int) -> Wrapper:
    config = {"zero_optimization": {"stage": stage}, "gradient_clipping": "auto", "train_micro_batch_size_per_gpu": "auto"}
    batch = {"train_batch_size": "auto", "gradient_accumulation_steps": "auto"}
    return Wrapper(strategy, hidden={"--deepspeed": "HERE/other.json"}, files={"other.json": {**config, **batch}})


def preset_fsdp2(**changes: object) -> dict[str, object]:
    """ms-swift's preset, with some of its settings changed."""
    return changed_config("fsdp2_full_state_dict", "fsdp_config", **{"state_dict_type": "SHARDED_STATE_DICT", **changes})


KEPT = preset_fsdp2(reshard_after_forward=False)
# accelerate can't checkpoint the activations of units that it does not know.
ONE_UNIT = preset_fsdp2(auto_wrap_policy="NO_WRAP", activation_checkpointing=False)
# Whose other words the trained process shows, and what of them must be told.
SHOWN = {
    "strips-fsdp": (Wrapper("fsdp2", open={"--fsdp": None}), "--fsdp fsdp2"),
    "strips-deepspeed": (Wrapper("zero3", open={"--deepspeed": None}), "--deepspeed zero3"),
    "zero3-for-zero2": (Wrapper("zero2", open={"--deepspeed": "zero3"}), "--deepspeed zero2"),
    "fsdp2-for-zero3": (Wrapper("zero3", open={"--deepspeed": None, "--fsdp": "fsdp2"}), "--deepspeed zero3"),
    "fsdp2-by-a-file": (Wrapper("fsdp2", open={"--fsdp": "HERE/other.json"}, files={"other.json": KEPT}), "--fsdp fsdp2"),
}
# The trained process shows the words that were asked for, or none of these words reach it.
HIDDEN = {
    "strips-fsdp": Wrapper("fsdp2", hidden={"--fsdp": None}),
    "strips-deepspeed": Wrapper("zero2", hidden={"--deepspeed": None}),
    "zero2-for-zero3": Wrapper("zero3", hidden={"--deepspeed": "zero2"}),
    "zero3-for-zero2": Wrapper("zero2", hidden={"--deepspeed": "zero3"}),
    "zero1-for-zero2": zero_by("zero2", 1),
    "fsdp2-for-zero3": Wrapper("zero3", hidden={"--deepspeed": None, "--fsdp": "fsdp2"}),
    "zero3-for-fsdp2": Wrapper("fsdp2", hidden={"--fsdp": None, "--deepspeed": "zero3"}),
    "fsdp2-for-ddp": Wrapper("ddp", hidden={"--fsdp": "fsdp2"}),
    "zero2-for-ddp": Wrapper("ddp", hidden={"--deepspeed": "zero2"}),
    "fsdp2-keeps-what-it-gathered": Wrapper("fsdp2", hidden={"--fsdp": "HERE/other.json"}, files={"other.json": KEPT}),
    "fsdp2-in-one-unit": Wrapper("fsdp2", hidden={"--fsdp": "HERE/other.json"}, files={"other.json": ONE_UNIT}),
    "fsdp1-shard-grad-op": fsdp1_by(fsdp_sharding_strategy="SHARD_GRAD_OP"),
    "fsdp2-for-fsdp1": fsdp1_by(fsdp_version=2),
    "ddp-for-fsdp1": Wrapper("fsdp1", instead="torchrun"),
}
NO_NPROC: dict[str, str | None] = {"NPROC_PER_NODE": None}
ONE_RANK = {
    "ddp-with-both-devices": Wrapper("ddp", environment=NO_NPROC),
    "ddp": Wrapper("ddp", "one-device", environment=NO_NPROC),
    **{f"{s}-by-torchrun": Wrapper(s, "one-device", environment={"NPROC_PER_NODE": "1"}) for s in ("ddp", "fsdp2", "zero2", "zero3")},
}
# What ms-swift, accelerate or DeepSpeed themselves refuse to do in one process.
REFUSED = {
    "fsdp2": Wrapper("fsdp2", "one-device", environment=NO_NPROC),
    "zero2-with-both-devices": Wrapper("zero2", environment=NO_NPROC),
    "zero3": Wrapper("zero3", "one-device", environment=NO_NPROC),
}


@pytest.mark.parametrize("name", SHOWN)
def test_another_strategy_that_the_process_shows_is_found_in_its_words(field: Field, name: str) -> None:
    wrapper, lost = SHOWN[name]
    assert f"lost: {lost}" in failed_as(field.train(f"shown-{name}", wrapper), "proof.argv")


@pytest.mark.parametrize("name", HIDDEN)
def test_another_strategy_behind_the_asked_words_is_found_in_the_objects(field: Field, name: str) -> None:
    wrapper = HIDDEN[name]
    assert f"{wrapper.strategy}: " in failed_as(field.train(f"hidden-{name}", wrapper), "proof.strategy")


@pytest.mark.parametrize("name", ONE_RANK)
def test_one_rank_instead_of_two_is_found(field: Field, name: str) -> None:
    wrapper = ONE_RANK[name]
    assert f"{wrapper.strategy}: " in failed_as(field.train(f"one-{name}", wrapper), "proof.ranks")


@pytest.mark.parametrize("name", REFUSED)
def test_a_strategy_that_one_process_refuses_is_no_pass(field: Field, name: str) -> None:
    failed_as(field.train(f"refused-{name}", REFUSED[name]), "run.exit_nonzero", "args.conflict")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_a_fault_the_same_wrapper_passes(field: Field, strategy: str) -> None:
    evidence = field.train(f"control-{strategy}", Wrapper(strategy))
    assert evidence.verdict.kind is VerdictKind.PASSED, told(evidence)


IN_EVERY_STRATEGY = ("summed", "shard-dropped")
# One strategy stands for all: what is broken is not a part of it.
ELSEWHERE = {"gradient-dropped": "zero2", "loss-doubled": "fsdp1", "same-rows": "fsdp2", "mean-of-means": "ddp", "not-reduced": "ddp"}
# Where ranks disagree, that is found before their numbers are compared.
DRIFTS = {("shard-dropped", "ddp"), ("not-reduced", "ddp")}


def planted() -> list[tuple[str, str]]:
    everywhere = (*IN_EVERY_STRATEGY, *ELSEWHERE) if os.environ.get("STRATEGY_FAULTS") == "all" else IN_EVERY_STRATEGY
    both = [(fault, strategy) for fault in everywhere for strategy in STRATEGIES if (fault, strategy) != ("not-reduced", "zero2")]
    return [*both, *(pair for pair in ELSEWHERE.items() if pair not in both)]


@pytest.mark.parametrize(("fault", "strategy"), planted())
def test_a_fault_of_the_averaging_breaks_the_parity_of_its_strategy(field: Field, fault: str, strategy: str) -> None:
    evidence = field.train(f"{fault}-{strategy}", Wrapper(strategy, fault))
    failed_as(evidence, "proof.ranks" if (fault, strategy) in DRIFTS else "parity.differs")
    differs = [c for c in evidence.comparisons if c.cause == "parity.differs"]
    assert differs and all(f"under {strategy} " in c.expected for c in differs), told(evidence)
