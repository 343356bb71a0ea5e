"""The simulated NPU: a torch device "npu" in host memory, with a stand-in torch_npu and hccl over gloo (README.md tells what it proves).

Only `environment` and `build` are for the harness's own process, and neither imports torch. Everything else runs inside the processes of
sim runs, which get it by their PYTHONPATH. Nothing here imports anything of the harness but this folder.
"""
