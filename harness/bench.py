"""One cell on the bench: its own folder, what it runs on, and every step that ran so far, each at most once."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from harness import artifacts, commands, inputs, model_folder, server
from harness.aftermath import after_the_end, free_port, shared_memory_of
from harness.causes import blame_of
from harness.commands_asked import asked_new_tokens, asked_port, asked_saves, asked_served_name
from harness.diagnose import diagnose
from harness.guardian import owned
from harness.host import Host
from harness.launch import Alive, Attendant
from harness.model import Cell, Hardware, Metrics, Outcome, Run, Stage, Step, StepResult, Weights
from harness.proof_deploy import ServerReport
from harness.sim.environment import sim_environment
from harness.swift_parsers import swift_interpreter
from harness.tiny import SQUARE_EXPERTS, make_datasets, make_tiny_model, model_files
from harness.tiny_data import dataset_files

HEALTHY = "none"
PLUGIN = Path(__file__).parent / "witness" / "plugin" / "npu_matrix_witness.py"
# A server is asked within this share of its step's deadline, so that "never ready" is told from a hang of our own client.
SERVER_SHARE = 0.8


class Launch(Protocol):
    """harness.launch.launch, or what a test puts in its place."""

    def __call__(
        self,
        step: Step,
        *,
        nonce: str,
        work: Path,
        search_path: str,
        base_env: Mapping[str, str],
        attend: Attendant | None = None,
        stop: threading.Event | None = None,
        witness_dir: Path | None = None,
        hardware: Hardware = Hardware.CPU,
    ) -> Run: ...


@dataclass(frozen=True)
class Served:
    """What a deploy step's client found, beside the run of the server itself."""

    result: StepResult
    report: ServerReport


class Bench:
    """Mutable on purpose: it remembers what ran. Everything it hands out is frozen."""

    def __init__(
        self, cell: Cell, weights: Weights, host: Host, launch: Launch, stop: threading.Event, golden_of: Bench | None = None
    ) -> None:
        self.cell, self.weights, self.host, self.stop = cell, weights, host, stop
        self._launch, self._golden_of = launch, golden_of
        self.nonce = uuid.uuid4().hex
        self.work = host.runs / f"{cell.id}-{self.nonce[:8]}"
        data = make_datasets(host.cache)
        self.datasets = {kind: str(path) for kind, path in data.items()}
        # Read once: what is asked of a model and what its answers are held against must not be a file that a command could write.
        self.inputs = artifacts.read_inputs(data["val"])
        family = SQUARE_EXPERTS if cell.options.tiny_experts == "square" else cell.model.family
        self.tiny = make_tiny_model(family, host.cache) if weights is Weights.TINY else None
        tiny_files = {self.tiny.path: model_files(family)} if self.tiny else {}
        self._pins = {data["val"].parent: inputs.pin({data["val"].parent: dataset_files(), **tiny_files})}
        self.ran: dict[str, StepResult] = {}
        self.served: Served | None = None
        self._owned = contextlib.ExitStack()

    @property
    def model(self) -> str:
        return str(self.tiny.path) if self.tiny else self.cell.model.id

    def base_folder(self) -> Path | None:
        """The untrained model's folder: the tiny one, or where ms-swift says that it found the real one (args.json of a checkpoint)."""
        if self.tiny:
            return self.tiny.path
        checkpoint = self.checkpoint()
        return model_folder.trained_from(checkpoint) if checkpoint else None

    def foreign_swift(self) -> str:
        """A note where PATH's `swift` is run by another interpreter than the harness's; "" where it is the same or can't be told.

        No fault: the harness needs no ms-swift of its own. But whoever reads versions and pins should know whose they are.
        """
        found = shutil.which("swift", path=self.host.search_path)
        named = swift_interpreter(found) if found else None
        interpreter = shutil.which(named, path=self.host.search_path) if named else None
        if interpreter is None or os.path.abspath(interpreter) == os.path.abspath(sys.executable):
            return ""
        return f"swift on PATH ({found}) is run by {interpreter}, the harness by {sys.executable}"

    def checkpoint(self) -> Path | None:
        """The newest of the training. A golden's inference answers from the checkpoint that it is the golden of: the same bytes in."""
        trained = self._golden_of or self
        return artifacts.newest_checkpoint(trained.work / "train")

    def plan(self, stage: Stage) -> tuple[Step, ...]:
        """The stage's steps. Raises NotBuilt where no command exists."""
        form = commands.Form.TINY if self.weights is Weights.TINY else commands.Form.NPU
        return commands.plan_stage(
            self.cell,
            stage,
            form=form,
            hardware=self.host.hardware,
            weights=self.weights,
            places=self._places(),
            deadline_scale=self.host.deadline_scale,
        )

    def _places(self) -> commands.Places:
        """Checkpoints that never came are named where they would lie: only a rehearsal gets that far."""
        first = asked_saves(self.weights)[0]
        trained = self.work / "train"
        ports = self.host.ports
        return commands.Places(
            work=str(self.work),
            model=self.model,
            datasets=self.datasets,
            queries=self.inputs,
            plugin=str(PLUGIN),
            visible_devices=self.host.devices_for(self.cell, self.weights),
            port=ports.serve if ports else free_port(),
            master_port=ports.master if ports else free_port(),
            hccl_port=ports.hccl if ports else 0,
            checkpoint=str(self.checkpoint() or trained / "checkpoint"),
            resume_from=str(artifacts.checkpoint_at(trained, first) or trained / f"checkpoint-{first}"),
            merged=str(self.work / "merged"),
            swift_cli_dir=self.host.swift_cli_dir,
        )

    def results(self, steps: tuple[Step, ...], *, stop_at_failure: bool) -> tuple[StepResult, ...]:
        """Run the steps in order. What follows a failed one would only fail after it, so it is left out."""
        done = []
        for step in steps:
            result = self._result(step)
            done.append(result)
            if (stop_at_failure and result.outcome.cause != HEALTHY) or result.run.ended_by == "interrupt":
                break
        return tuple(done)

    def _result(self, step: Step) -> StepResult:
        if step.name not in self.ran:
            result = self._serve(step) if step.serves else self._run(step)
            self.ran[step.name] = replace(result, outcome=self._as_put_there(result.outcome))
        return self.ran[step.name]

    def _as_put_there(self, outcome: Outcome) -> Outcome:
        """`outcome`, unless the base model or a data set changed: then nothing else that was found can be relied on."""
        real = None if self.tiny else self.base_folder()
        if real and real not in self._pins:
            # Known only since the training told where ms-swift found it.
            self._pins[real] = inputs.pin({real: None})
        changed = [text for pins in self._pins.values() for text in inputs.changes(pins)]
        if not changed:
            return outcome
        beside = "" if outcome.cause == HEALTHY else f"; the run itself ended with {outcome.cause}"
        told = "; ".join(changed[:4]) + beside
        remedy = "See what else writes there, and run the cell again: the harness makes its own files anew."
        return Outcome("proof.inputs_changed", blame_of("proof.inputs_changed"), told, remedy)

    def _run(self, step: Step, attend: Attendant | None = None) -> StepResult:
        if not self.ran:
            # Between two commands too: what a harness that died there leaves is as half-finished.
            self._owned.enter_context(owned(self.work, self.nonce))
        witness_dir = self.work / "witness" / step.name
        run = self._launch(
            step,
            nonce=uuid.uuid4().hex,
            work=self.work,
            search_path=self.host.search_path,
            base_env=self._environment(step),
            attend=attend,
            stop=self.stop,
            witness_dir=witness_dir,
            hardware=self.host.hardware,
        )
        trains = step.name == "train" or step.name.startswith("resume")
        metrics = artifacts.read_metrics(Path(step.output_dir)) if trains else Metrics((), {})
        return StepResult(step, run, artifacts.read_witnesses(witness_dir), metrics, diagnose(run.log_tail, run))

    def _environment(self, step: Step) -> Mapping[str, str]:
        """The harness's own environment and, for a simulated NPU, what puts one into the child process."""
        if self.host.hardware is not Hardware.SIM:
            return os.environ
        visible = tuple(int(i) for i in step.command.env["ASCEND_RT_VISIBLE_DEVICES"].split(","))
        return {**os.environ, **sim_environment(visible, self.host.cache)}

    def _serve(self, step: Step) -> StepResult:
        """Start the server, talk to it while it lives, end it, and look at what it left."""
        port = asked_port(step)
        used: set[str] = set()
        reports = [ServerReport(port=port, model_name=asked_served_name(step))]

        def attend(alive: Alive) -> None:
            reports.append(
                server.converse(
                    port=port,
                    model_name=asked_served_name(step),
                    messages=({"role": "user", "content": self.inputs[0]},),
                    max_tokens=asked_new_tokens(step),
                    deadline_s=step.deadline_s * SERVER_SHARE,
                    alive=alive.is_alive,
                    pids=alive.pids,
                )
            )
            used.update(shared_memory_of(alive.pids()))

        result = self._run(step, attend)
        report = after_the_end(reports[-1], frozenset(used))
        if not reports[1:] and result.run.ended_by in ("exit", "signal"):
            report = replace(report, died=True)
        self.served = Served(result, report)
        return result

    def attended(self, step: Step, attend: Attendant) -> StepResult:
        """Run a step that serves, with a client of the caller's in place of the proof's."""
        self.ran[step.name] = self._run(step, attend)
        return self.ran[step.name]

    def close(self, *, keep: bool) -> None:
        """Drop the weights that no later stage needs; logs and witnesses stay. `keep`: leave everything to look into a failure.

        Either way the folder is from now on a finished one.
        """
        self._owned.close()
        if keep:
            return
        for folder in (*self.work.glob("train"), *self.work.glob("resume*"), *self.work.glob("merged")):
            shutil.rmtree(folder, ignore_errors=True)
