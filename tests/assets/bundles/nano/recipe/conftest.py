"""The recipe is run by path, its modules import each other by bare name: `recipe("domain")` imports one."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from tokenizers import Tokenizer

FOLDER = Path(__file__).resolve().parents[5] / "assets" / "bundles" / "nano" / "recipe"


@pytest.fixture(scope="session")
def recipe() -> Iterator[Callable[[str], ModuleType]]:
    """Importer of the recipe's modules; afterwards they are gone from the path and unloaded."""
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module
    sys.path.remove(str(FOLDER))
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").parent == FOLDER:
            del sys.modules[name]


@pytest.fixture(scope="session")
def domain(recipe: Callable[[str], ModuleType]) -> ModuleType:
    """What can be talked about."""
    return recipe("domain")


@pytest.fixture(scope="session")
def dialogues(domain: ModuleType) -> list:
    """All dialogues of the domain."""
    return domain.all_dialogues()


@pytest.fixture(scope="session")
def tokenizer(recipe: Callable[[str], ModuleType], tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Trained on the domain."""
    return recipe("text").build_tokenizer(tmp_path_factory.mktemp("text") / "tokenizer.json")


@pytest.fixture
def _flite() -> None:
    """For tests that need speech."""
    if shutil.which("flite") is None:
        pytest.skip("flite is not installed")
