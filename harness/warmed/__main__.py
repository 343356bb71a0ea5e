"""The warm process: `python harness/warmed SETTINGS`, SETTINGS being the JSON of serving.Settings."""

import importlib
import importlib.util
import json
import sys
from pathlib import Path

PACKAGE = "_npu_matrix_warmed"

if __name__ == "__main__":
    folder = Path(__file__).resolve().parent
    # Loaded under a name of its own and taken off the path: nothing that a run imports may come from here.
    sys.path.pop(0)
    spec = importlib.util.spec_from_file_location(PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)])
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder}/__init__.py is missing")
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)
    importlib.import_module(f"{PACKAGE}.serving").main(json.loads(sys.argv[1]))
