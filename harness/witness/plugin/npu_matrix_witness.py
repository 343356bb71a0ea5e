"""The file for `--external_plugins`: loads the witness by path, under a name of its own.

ms-swift puts this file's folder first on sys.path, so nothing else lives here that could shadow a module.
"""

import importlib.util
import sys
from pathlib import Path

PACKAGE = "_npu_matrix_witness"

# A checkpoint's args.json makes ms-swift import the plugin again, from wherever it lay at training time: the first one stays.
if PACKAGE not in sys.modules:
    folder = Path(__file__).resolve().parent.parent
    spec = importlib.util.spec_from_file_location(PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)])
    if spec is None or spec.loader is None:
        raise ImportError(f"the witness beside {__file__} can't be loaded: {folder}/__init__.py is missing")
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)
    importlib.import_module(f"{PACKAGE}.hooks").install()
