"""What the tests of the recipe share; `recipe` is in tests/assets/conftest.py."""

from __future__ import annotations

import shutil
from types import ModuleType
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.assets.conftest import Recipe


@pytest.fixture(scope="session")
def domain(recipe: Recipe) -> ModuleType:
    """What can be talked about."""
    return recipe("domain")


@pytest.fixture(scope="session")
def dialogues(domain: ModuleType) -> list[Any]:
    """All dialogues of the domain."""
    return domain.all_dialogues()


@pytest.fixture(scope="session")
def tokenizer(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Trained on the domain."""
    return recipe("text").build_tokenizer(tmp_path_factory.mktemp("text") / "tokenizer.json")


@pytest.fixture
def _flite() -> None:
    """For tests that need speech."""
    if shutil.which("flite") is None:
        pytest.skip("flite is not installed")
