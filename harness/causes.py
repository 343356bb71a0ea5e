"""The closed table of what can be wrong with a run: cause id -> (blame, meaning). One id for each way to fail or to lie.

The first part is what a machine or a library says of itself in a log; the rest is what the proofs, the run and the server checks find.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from harness.errors import HarnessError, did_you_mean
from harness.model import Blame

_P, _E, _H = Blame.PRODUCT, Blame.ENVIRONMENT, Blame.HARNESS

_SAID_BY_LOGS: dict[str, tuple[Blame, str]] = {
    "none": (Blame.UNKNOWN, "healthy: nothing to blame (warnings such as a CPU fallback are no cause)"),
    "unknown": (Blame.UNKNOWN, "a failure whose cause the text does not carry"),
    "env.cann_not_sourced": (_E, "CANN libraries not found, set_env.sh not sourced"),
    "env.nnal_missing": (_E, "NNAL/ATB not installed or not sourced"),
    "env.nnal_abi": (_E, "NNAL built for another torch or CANN"),
    "env.abi_other": (_E, "undefined symbol or missing binding between packages"),
    "env.cann_pta_pair": (_E, "CANN, torch_npu and driver do not belong together"),
    "env.cann_pydeps": (_E, "CANN's own Python dependencies missing"),
    "env.kernels_missing": (_E, "operator kernel package missing or for another chip"),
    "env.torch_npu_missing": (_E, "torch_npu not installed or shadowed by a source tree"),
    "env.libgomp_tls": (_E, "static TLS block exhausted"),
    "env.wrong_wheel": (_E, "wheel built for another device type"),
    "env.cuda_pkg": (_E, "a CUDA-only package or path on an NPU host"),
    "env.megatron_path": (_E, "more than one megatron, or none, importable"),
    "env.pin_conflict": (_E, "package pins can't be met together"),
    "dev.smi_unavailable": (_E, "npu-smi or dcmi unusable"),
    "dev.permission": (_E, "no access to device files"),
    "dev.stale_process": (_E, "device still held by an earlier process"),
    "dev.visible_mapping": (_E, "visible-device ids wrong, unordered or dropped"),
    "dev.lost": (_E, "device or heartbeat lost, health alarm"),
    "mem.npu_oom": (_P, "device memory exhausted (environment if another process holds it)"),
    "mem.kv_cache": (_P, "no room for the KV cache"),
    "mem.host_oom": (_E, "host memory exhausted, killed"),
    "comm.port_in_use": (_E, "HCCL, master or service port taken"),
    "comm.link_down": (_E, "network link of a device down"),
    "comm.wrong_nic": (_E, "wrong network interface"),
    "comm.connect_timeout": (_E, "a rank did not connect; look for the one that died"),
    "comm.notify_timeout": (_P, "a collective timed out; look for the rank that did not take part"),
    "comm.weight_sync": (_P, "rollout weight synchronisation failed"),
    "op.dtype": (_P, "dtype not supported by an operator or chip"),
    "op.unsupported": (_P, "operator missing on the NPU"),
    "op.compile_triton": (_P, "Triton kernel failed to compile"),
    "op.tiling_or_compile": (_P, "operator tiling, setup or compilation failed"),
    "op.aicore": (_P, "AI core exception"),
    "op.aicpu": (_P, "AI CPU exception"),
    "args.unknown": (_P, "option unknown to, or renamed in, the installed ms-swift or Megatron"),
    "args.conflict": (_P, "options that exclude each other or lack a package"),
    "train.nan": (_P, "loss or gradient not finite"),
    "data.map_died": (_E, "preprocessing worker died"),
    "data.rejected": (_P, "data set missing, empty, or every row refused"),
    "ckpt.save": (_E, "checkpoint could not be written"),
    "harness.bug": (_H, "the harness itself failed"),
}

_FOUND_BY_RUNS: dict[str, tuple[Blame, str]] = {
    "ckpt.load": (_P, "a checkpoint that this very training saved can't be loaded again"),
    "comm.mismatch": (_P, "ranks called different collectives, or the same one with different sizes"),
    "run.exit_nonzero": (_P, "the process ended with an exit code other than 0 and said no known cause"),
    "run.signal": (_E, "the process was ended by a signal that we did not send"),
    "run.deadline_silent": (_P, "the deadline passed and the process had long stopped to write"),
    "run.deadline_chatty": (_P, "the deadline passed while the process kept writing without getting done"),
    "run.traceback_exit_0": (_P, "a traceback in the log, and exit code 0"),
    "run.orphan": (_P, "a child outlived the process that started it"),
    "run.not_started": (_E, "the program could not be started"),
    "serve.never_ready": (_P, "the server did not answer before the deadline"),
    "serve.port_taken": (_E, "the port was taken before the server started"),
    "serve.wrong_port": (_P, "the server listens on another port than asked"),
    "serve.error_body": (_P, "status 200 with an error in the body"),
    "serve.model_list": (_P, "/v1/models does not list the served model name"),
    "serve.no_usage": (_P, "a completion without its token usage"),
    "serve.stream_broken": (_P, "the streamed answer is cut, malformed or has no end"),
    "serve.accepts_bad_request": (_P, "a bad model name or body did not get a 4xx"),
    "serve.deaf_to_sigterm": (_P, "the server did not end on SIGTERM to its group"),
    "serve.died": (_P, "the server ended before it was asked to"),
    "serve.leftover": (_P, "a process, port or shared memory was left behind"),
    "serve.answer_differs": (_P, "the served answer is not the one that infer gave"),
}

_FOUND_BY_PROOFS: dict[str, tuple[Blame, str]] = {
    "proof.no_log": (_P, "exit code 0 and not one logged step"),
    "proof.steps_missing": (_P, "fewer steps logged than asked"),
    "proof.steps_extra": (_P, "a step logged that was not asked for, or another max_steps than asked"),
    "proof.rows_duplicated": (_P, "a step logged twice: a second run's rows, or made up"),
    "proof.rows_unordered": (_P, "steps logged out of order"),
    "proof.row_damaged": (_P, "a log row cut short or not readable"),
    "proof.constant_loss": (_P, "one and the same loss at every step: nothing is learned, or it is not the loss that is logged"),
    "proof.learning_rate_zero": (_P, "a learning rate of zero, or none, at every step"),
    "proof.log_differs": (_P, "the log's numbers are not those that the trainer was witnessed to log"),
    "proof.not_swift": (_E, "the program does not say that it is ms-swift: no version of it, of torch or transformers, or no place"),
    "proof.inputs_changed": (_E, "the base model or a data set is not what it was, or was written anew, while commands ran on it"),
    "proof.grad_zero": (_P, "a gradient norm of zero, or none where the trainer logs one"),
    "proof.weights_unchanged": (_P, "the trainable parameters have the same digest before and after training, or equal the untrained ones"),
    "proof.lora_b_zero": (_P, "every LoRA B is zero: the adapter does nothing"),
    "proof.adapter_rank": (_P, "an adapter of another rank, alpha or scaling than asked"),
    "proof.adapter_modules": (_P, "adapters on other modules than asked"),
    "proof.base_unreadable": (_E, "the base model's weights can't be read, so nothing can be held against them"),
    "proof.checkpoint_missing": (_P, "a checkpoint or one of its files is not there"),
    "proof.checkpoint_damaged": (_P, "a checkpoint file can't be read to its end or contradicts itself"),
    "proof.checkpoint_stale": (_P, "a checkpoint of another run, or other weights than those witnessed when it was saved"),
    "proof.witness_missing": (_H, "the process left no witness, or not the event that the proof needs"),
    "proof.witness_nonce": (_H, "a witness that carries another run's nonce"),
    "proof.witness_fault": (_H, "a witness file that is damaged, reports that it could not look, or tells what can't be"),
    "proof.argv": (_P, "the process that did the work had, or went by, other arguments than those asked for"),
    "proof.device": (_P, "the work was done on another device than asked"),
    "proof.strategy": (_P, "the model was wrapped, sharded or spread otherwise than asked"),
    "proof.options": (_P, "an option of the cell did not take effect, or one that was not asked for did"),
    "proof.ranks": (_P, "other processes, devices or groups than asked, or ranks that disagree about the weights"),
    "proof.engine": (_P, "another engine generated than asked"),
    "proof.optimizer": (_P, "optimizer state missing or empty"),
    "proof.nothing_ran": (_H, "no process ran"),
    "proof.nothing_compared": (_H, "a required comparison was never made"),
    "proof.unnamed": (_H, "a failed comparison without a cause"),
    "resume.ignored": (_P, "training began anew instead of at the checkpoint"),
    "resume.differs": (_P, "resumed training does not continue the straight run's numbers"),
    "resume.control_missing": (_H, "a negative control did not run, or was not witnessed as one"),
    "resume.control_passed": (_H, "a negative control passed: the check can't see a lost optimizer state"),
    "merge.not_merged": (_P, "the merged weights are the base model's"),
    "merge.wrong_values": (_P, "the merged weights are not W + scaling * B A"),
    "merge.tensors_missing": (_P, "the merged model lacks tensors, or has some that the base model lacks"),
    "merge.base_changed": (_P, "a tensor without LoRA differs from the base model's"),
    "merge.config_differs": (_P, "the merged model's config.json or tokenizer says something else than the base model's"),
    "merge.blind": (_H, "the adapter changes less than the dtype resolves: a wrong scale would pass"),
    "merge.logits_differ": (_P, "the merged model's logits are not the adapter's"),
    "merge.logits_equal_base": (_P, "the merged model's logits are the base model's"),
    "infer.no_answers": (_P, "no answers were written"),
    "infer.empty_answer": (_P, "an answer without text"),
    "infer.repeated_answer": (_P, "one answer for rows that were generated differently"),
    "infer.rows_missing": (_P, "fewer answers than rows"),
    "infer.rows_wrong": (_P, "answers to other rows than those asked, or in another order"),
    "infer.base_passed_off": (_P, "the trained model's answers are the base model's, or no adapter was active"),
    "infer.adapter_leaked": (_P, "an adapter was active where the plain or the merged model was asked for"),
    "infer.not_generated": (_P, "an answer that the process was not witnessed to generate"),
    "infer.stream_differs": (_P, "streamed or interactive answers differ from the plain ones"),
    "patch.not_live": (_P, "an NPU patch of ms-swift did not reach the class that it is meant for, or did so with the switch off"),
    "patch.not_called": (_P, "an operator that an NPU patch calls was never called, or was with the switch off"),
    "proof.golden_missing": (_H, "the golden run on a plain cpu failed, so there was nothing to compare with"),
    "golden.differs": (_P, "other numbers or answers than the same command gives on a plain cpu"),
    "parity.differs": (_P, "other numbers than one process gives for the same global batch"),
    "infer.merged_differs": (_P, "the merged model's answers differ from the adapter's"),
}

CAUSES: Mapping[str, tuple[Blame, str]] = MappingProxyType({**_SAID_BY_LOGS, **_FOUND_BY_RUNS, **_FOUND_BY_PROOFS})


def blame_of(cause: str) -> Blame:
    """Who is to blame for `cause`. Raises HarnessError for an id that the table does not hold."""
    if cause not in CAUSES:
        raise HarnessError("harness/causes.py", f"cause {cause!r} is unknown.", did_you_mean(cause, CAUSES))
    return CAUSES[cause][0]
