"""Who did the work: proofs that every stage shares. A log and a file can be written by anything; a witness was there."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

from harness.compare import check
from harness.model import Comparison, Hardware, StepResult, Witness
from harness.proof_asked import other_words
from harness.proof_sanity import prove_sane, prove_swift
from harness.witness_log import faults, rank_zero, workers


def prove_process(stage: str, result: StepResult, needs: str) -> tuple[tuple[Comparison, ...], Witness | None]:
    """Whether this very run was witnessed, whole, with the arguments asked for, and up to an event named `needs`.

    Returns the comparisons, named `<stage>.<what>`, and the witness of the process that did the work: None if one of them failed,
    so that nothing is read out of a witness that can't be trusted.
    """
    made: list[Comparison] = []
    strangers = [w.nonce for w in result.witnesses if w.nonce != result.run.nonce]
    witness = rank_zero(result.witnesses)
    made.append(
        check(f"{stage}.witness", bool(result.witnesses), "proof.witness_missing", "a witness file", f"{len(result.witnesses)} files")
    )
    if witness is None:
        return tuple(made), None
    made.append(check(f"{stage}.nonce", not strangers, "proof.witness_nonce", f"nonce {result.run.nonce}", strangers or "the same"))
    damage = [fault for w in result.witnesses for fault in faults(w)]
    made.append(check(f"{stage}.witness_whole", not damage, "proof.witness_fault", "no faults", "; ".join(damage) or "none"))
    missing = [event for event in ("start", needs) if witness.last(event) is None]
    lacking = f"without {missing}" if missing else "both"
    made.append(check(f"{stage}.witnessed", not missing, "proof.witness_missing", f"events start and {needs}", lacking))
    starts = [start for w in (witness, *workers(result.witnesses)) if (start := w.last("start")) is not None]
    if starts:
        others = [other for start in starts if (other := other_words(result.step.command.args, start.get("argv")))]
        found = others[0] if others else "so"
        made.append(check(f"{stage}.argv", not others, "proof.argv", "the arguments asked for, and no others", found))
    if not missing:
        made.append(prove_swift(stage, witness))
        made.append(prove_sane(stage, witness, result.witnesses, result.run))
    return tuple(made), witness if all(c.ok for c in made) else None


def prove_device(
    stage: str, hardware: Hardware, witness: Witness, events: Sequence[Mapping[str, Any]], device_names: Sequence[str] = ()
) -> Comparison:
    """Each of `events` (train_begin, generate) on the hardware asked for. `device_names`: patterns such as Ascend910B*; none: not asked."""
    found = sorted({_where(event, witness, hardware, device_names) for event in events})
    good = bool(found) and all(ok for ok, _ in found)
    names = f" named {' or '.join(device_names)}" if device_names and hardware.is_npu else ""
    expected = {Hardware.CPU: "device cpu", Hardware.SIM: "a simulated npu"}.get(hardware, f"a real npu{names}")
    return check(f"{stage}.device", good, "proof.device", expected, ", ".join(text for _, text in found) or "no event")


def is_simulated(event: Mapping[str, Any], witness: Witness) -> bool:
    """Said by the event, or by the stand-in's version (+sim)."""
    return bool(event.get("simulated")) or "+sim" in witness.versions.get("torch_npu", "")


def _where(event: Mapping[str, Any], witness: Witness, hardware: Hardware, device_names: Sequence[str]) -> tuple[bool, str]:
    device, simulated = str(event.get("device")), is_simulated(event, witness)
    name = event.get("device_name")
    text = f"{device}{' simulated' if simulated else ''}{f' ({name})' if name else ''}"
    is_npu = device == "npu" or device.startswith("npu:")
    if hardware is Hardware.CPU:
        return device == "cpu", text
    if hardware is Hardware.SIM:
        return is_npu and simulated, text
    # `generate` does not tell the name; where an event has it, it must fit.
    told = "device_name" in event and bool(device_names)
    named = not told or any(fnmatch.fnmatchcase(str(name), pattern) for pattern in device_names)
    return is_npu and not simulated and named, text
