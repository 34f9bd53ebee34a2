"""Templates of wordings, and what people say between the words."""

from __future__ import annotations

import random

import pytest

from tests.assets.conftest import Recipe


@pytest.mark.parametrize(
    ("template", "forms"),
    [
        ("tell me", ["tell me"]),
        ("(tell|give) me {c}", ["tell me {c}", "give me {c}"]),
        ("say [please] it", ["say it", "say please it"]),
        ("[a|b] c", ["c", "a c", "b c"]),
        ("(x [y]|) z", ["x z", "x y z", "z"]),
    ],
)
def test_a_template_has_all_its_forms(recipe: Recipe, template: str, forms: list[str]) -> None:
    assert recipe("grammar").expand(template) == forms


@pytest.mark.parametrize("template", ["(a|b", "a]", "[a"])
def test_brackets_must_be_balanced(recipe: Recipe, template: str) -> None:
    with pytest.raises(ValueError, match="bracket"):
        recipe("grammar").expand(template)


def test_hesitation_adds_words_and_keeps_the_order_of_the_others(recipe: Recipe) -> None:
    grammar, rng = recipe("grammar"), random.Random(0)
    form = "what is the capital of {c}"
    said = {grammar.hesitant(form, rng) for _ in range(300)}
    assert len(said) > 30
    assert {"what is um the capital of {c}", "what is what is the capital of {c}", f"well {form}"} <= said
    for hesitant in said:
        assert len(hesitant) > len(form)
        assert hesitant.count("{c}") == 1
        words = iter(hesitant.split())
        assert all(word in words for word in form.split())
