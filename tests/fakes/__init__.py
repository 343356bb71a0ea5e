"""Programs that stand in for `swift`, `accelerate`, `megatron` and `npu-smi`: honest ones, liars, and a rehearsal's root."""
