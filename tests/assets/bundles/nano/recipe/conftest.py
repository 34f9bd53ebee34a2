"""What the tests of the recipe share; `recipe` is in tests/assets/conftest.py."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from types import ModuleType

import pytest
from tokenizers import Tokenizer


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
