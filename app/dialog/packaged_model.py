"""Networks that come inside packages of PyPI: their files are read, the packages are never imported.

Importing them would need what they depend on (torch, web frameworks). In: names. Out: a path. Any thread.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path


def find_model(package: str, file: str) -> Path | None:
    """The `file` (a path relative to the folder of the package) of an installed top-level package, or
    None."""
    found = importlib.util.find_spec(package)
    for folder in (found.submodule_search_locations or []) if found else []:
        path = Path(folder) / file
        if path.is_file():
            return path
    return None
