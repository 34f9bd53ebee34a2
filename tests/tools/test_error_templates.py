"""Every error has the values of its texts, and every text that the window shows a translation."""

from __future__ import annotations

import ast
import re
import string

import pytest

from engine_runtime.errors import fields_of
from tests.tools import error_templates
from tests.tools.error_templates import (
    TRANSLATIONS,
    constructions,
    document,
    is_shown,
    templates,
    translations,
)


def test_every_error_has_the_values_of_its_texts() -> None:
    wrong = []
    for made in constructions():
        needed = {name for text in (*made.causes, *made.remedies) for name, _ in fields_of(text)}
        if made.causes and needed != made.values:
            wrong.append((made.place, needed ^ made.values))
    assert not wrong
    assert len(constructions()) > 500


def test_fields_are_names() -> None:
    for template, place in templates().items():
        for name, _ in fields_of(template):
            assert name.isidentifier(), place


def test_every_text_that_the_window_shows_is_translated() -> None:
    known = translations()
    missing = [text for text, place in templates().items() if is_shown(place) and text not in known]
    assert not missing
    for template, translation in known.items():
        assert re.search("[\u4e00-\u9fff]", translation), template


def test_translations_have_the_fields_of_their_texts() -> None:
    for template, translation in translations().items():
        fields, of_translation = (
            {str(part[1:]) for part in string.Formatter().parse(text) if part[1]}
            for text in (template, translation)
        )
        assert fields == of_translation, template
        assert translation.count("`") % 2 == 0, template


def test_the_translations_are_those_of_the_code() -> None:
    assert TRANSLATIONS.read_text("utf-8") == document()


def test_a_text_that_is_no_template_is_refused() -> None:
    code = 'def f(text):\n    raise MossVoiceError(f"It is {text}.")\n'
    module = ast.parse(code)
    kinds = frozenset({"MossVoiceError"})
    with pytest.raises(ValueError, match="is not a template"):
        list(error_templates._constructions_of("app/x.py", module, kinds, {}))
