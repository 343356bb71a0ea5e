"""What a warm process imports before the first fork, found by comparing sys.modules at the end of runs of every kind."""

# What a cold run imports too, so that the lines it prints belong into every run's log.
MODULES = (
    "swift.cli.main",
    "swift.pipelines:sft_main",
    "swift.pipelines:pretrain_main",
    "swift.pipelines:rlhf_main",
    "swift.pipelines:export_main",
    "swift.pipelines:infer_main",
    "swift.pipelines:deploy_main",
)
# What only some runs import.
EXTRAS = (
    "swift.trainers:TrainerFactory",
    "swift.trainers:Seq2SeqTrainer",
    "swift.rlhf_trainers",
    "trl",
    "peft",
    "torch.distributed.run",
    "deepspeed",
)
