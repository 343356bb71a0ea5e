"""The pytest door is harness/pytest_plugin.py, an entry point of this distribution: see pyproject.toml."""
