"""What the real torch_npu offers, as a file, and how the stand-in's surface is held against it. Nothing here needs an NPU."""
