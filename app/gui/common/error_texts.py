"""Problems in the language of the window.

Session and engine report problems as templates with values, for window, command line and log. What the
window can show is translated in assets/translations, in the context "Errors"; any other template is shown in
English.
"""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import QCoreApplication

from engine_runtime.errors import Problem

_CONTEXT = "Errors"


def in_words(problem: Problem) -> str:
    """What is wrong and what to do, in the language of the window."""
    return f"{cause_in_words(problem)} {remedy_in_words(problem)}".strip()


def cause_in_words(problem: Problem) -> str:
    """What is wrong."""
    return _in_language(problem.cause, problem.values)


def remedy_in_words(problem: Problem) -> str:
    """What to do, "" if there is no remedy."""
    return _in_language(problem.remedy, problem.values)


def _in_language(template: str, values: Mapping[str, object]) -> str:
    text = QCoreApplication.translate(_CONTEXT, template)
    shown = {name: in_words(value) if isinstance(value, Problem) else value for name, value in values.items()}
    return _with_quotation_marks(text).format_map(shown)


def _with_quotation_marks(template: str) -> str:
    """Commands in quotation marks instead of backticks."""
    parts = template.split("`")
    return "".join(part if index % 2 == 0 else f"“{part}”" for index, part in enumerate(parts))
