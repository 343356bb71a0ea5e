"""Runs inside the warm process and the runs forked from it: imports nothing of the harness but its own folder.

The process of __main__.py imports what a run of ms-swift would, then forks once a request (serving.py). A fork becomes the console script
that was found on PATH (becoming.py) and executes that very file; where the script would start another Python (`swift` starts
`python swift/cli/sft.py`, torchrun starts the ranks), that is a fork too (forking.py). So arguments, environment, exit codes, signals
and the tree of processes stay what ms-swift and torchrun make of them; only the imports are already done.
"""
