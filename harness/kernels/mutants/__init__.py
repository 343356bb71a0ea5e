"""Teeth: faults planted in the code under test, one at a time, and whether kernel parity notices. `python -m harness.kernels.mutants`.

edits.py and statements.py make faults from a syntax tree, planting.py puts one under an import, reach.py finds which kernels run which
lines, hunting.py runs them in forked children, sameness.py tells an equivalent mutant from a survivor. No installed file is touched.
"""
