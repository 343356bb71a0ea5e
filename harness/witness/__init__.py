"""Runs inside the ms-swift process and imports nothing of the harness. README.md fixes the format of what it writes."""
