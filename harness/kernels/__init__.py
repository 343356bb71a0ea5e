"""Kernel parity: operators, patches and Triton kernels against plain torch in float64 on the CPU.

kernel.py is the vocabulary, criteria.py the limits and their sources, measure.py one trial, explore.py the search for a counterexample.
What is compared with what is declared in candidates_*.py. Imports nothing of the harness but this folder, harness.model, harness.errors
and the reference operators of harness/sim.
"""
