"""Validation and benchmark harness for ms-swift on Ascend NPUs: no mark without a run behind it."""

__version__ = "0.1.0"
