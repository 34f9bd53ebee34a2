"""Recipes are run by path, and their modules import each other by bare name; `recipe("domain")` does so."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

Recipe = Callable[[str], ModuleType]
"""Imports a module of a recipe."""

ASSETS = Path(__file__).resolve().parents[2] / "assets"
FOLDERS = (
    ASSETS / "bundles" / "mini" / "recipe",
    ASSETS / "bundles" / "nano" / "recipe",
    ASSETS / "training",
)


@pytest.fixture(scope="session")
def recipe() -> Iterator[Recipe]:
    """Importer of the recipes' modules; afterwards they are gone from the path and unloaded."""
    sys.path[:0] = map(str, FOLDERS)
    yield importlib.import_module
    for folder in FOLDERS:
        sys.path.remove(str(folder))
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").parent in FOLDERS:
            del sys.modules[name]
