"""[card] of a manifest: what the model can do, in words for the people who talk to it.

In: the table. Out: a `ModelCard`; empty for a bundle without one. No torch. Any thread.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby

from engine_runtime.bundle.manifest import Table
from engine_runtime.bundle.tools import Tool, ToolCallFormat, parse_tool_calls
from engine_runtime.errors import LanguageError, Problem

_LONGEST = 500
"""Characters of a text: it is shown on the first screen."""

_NAMES = {"en": Problem("English"), "zh": Problem("Chinese")}
_LANGUAGES_OF_SCRIPTS = {
    "CJK": {"zh", "ja", "ko"},
    "BOPOMOFO": {"zh"},
    "HIRAGANA": {"ja"},
    "KATAKANA": {"ja"},
    "HANGUL": {"ko"},
    "CYRILLIC": {"ru", "uk", "bg", "sr"},
    "GREEK": {"el"},
    "HEBREW": {"he"},
    "ARABIC": {"ar", "fa", "ur"},
    "DEVANAGARI": {"hi", "mr", "ne"},
    "THAI": {"th"},
}
"""Scripts by the first word of a letter's Unicode name. Latin and all other scripts are left to the model."""
_SYMBOL = ("GREEK", 1)
"""Script and length of symbols that are not words: pi, or the micro sign of a unit."""
_LANGUAGES_IN_LATIN = {
    "cs", "da", "de", "en", "es", "fi", "fr", "hu", "id",
    "it", "nl", "no", "pl", "pt", "ro", "sv", "tr", "vi",
}  # fmt: skip
_LANGUAGES = _LANGUAGES_IN_LATIN.union(*_LANGUAGES_OF_SCRIPTS.values())
"""Languages whose scripts are known here; any other may be written in any script."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What a model can do."""

    languages: tuple[str, ...] = ()
    """Codes of the languages that it understands and speaks (en, zh); empty if that is not known."""
    examples: tuple[str, ...] = ()
    """Questions that it can answer, in its own languages."""
    summary: Mapping[str, str] = field(default_factory=dict)
    """What it can do in a sentence or two, by the language of the text."""
    follows_instructions: bool = False
    """Whether it heeds instructions and other texts of the system beside those of its prompt."""
    tool_calls: ToolCallFormat | None = None
    """How it writes a call; None: it calls no tools."""
    tools: tuple[Tool, ...] = ()
    """Those of [[tools]]."""

    def summary_for(self, language: str) -> str:
        """The summary for a reader of `language` (zh_CN, en, ...), else in English; empty without one."""
        return self.summary.get(language.partition("_")[0]) or self.summary.get("en", "")

    def speaks(self, language: str) -> bool:
        """Whether it speaks `language`, or may: where its languages are not known."""
        return not self.languages or language.partition("_")[0] in self.languages

    def require_known_script(self, text: str) -> None:
        """Raise LanguageError if at least half of the words of a typed question are in scripts of languages
        that the model does not know. A foreign word that is asked about ("what does 你好 mean") passes, and
        so does a symbol ("5 µm")."""
        runs = [(script, sum(1 for _ in letters)) for script, letters in groupby(map(_script_of, text))]
        words = [script for script, length in runs if script and (script, length) != _SYMBOL]
        foreign = [script for script in words if not self._knows_script(script)]
        if foreign and 2 * len(foreign) >= len(words):
            names = _listed([_NAMES.get(language, language) for language in self.languages])
            raise LanguageError(
                "This model knows only {names}.", "Ask in {names}, or choose another model.", names=names
            )

    def _knows_script(self, script: str) -> bool:
        languages = _LANGUAGES_OF_SCRIPTS.get(script)
        if not self.languages or languages is None:
            return True
        return any(known in languages or known not in _LANGUAGES for known in self.languages)


def _listed(names: list[Problem | str]) -> Problem | str:
    listed, *others = names
    for name in others:
        listed = Problem("{listed} and {name}", listed=listed, name=name)
    return listed


def parse_card(table: Table) -> ModelCard:
    """[card] with `languages`, `examples`, `follows_instructions` and the tables `summary` and `tool_calls`.
    Raises BundleError."""
    table.allow({"languages", "examples", "follows_instructions", "summary", "tool_calls"})
    summary = table.table("summary")
    texts = {language: summary.string(language) for language in summary.content}
    card = ModelCard(
        tuple(table.strings("languages")),
        tuple(table.strings("examples")),
        texts,
        "follows_instructions" in table.content and table.value("follows_instructions", bool),
        parse_tool_calls(table.table("tool_calls")) if "tool_calls" in table.content else None,
    )
    for text in (*card.languages, *card.examples, *texts.values()):
        if not 0 < len(text) <= _LONGEST:
            raise table.error(f"has a text of {len(text)} characters; it must have 1 to {_LONGEST}")
    return card


def _script_of(character: str) -> str:
    """The script of a letter, as the first word of its Unicode name; "" for anything else."""
    plain = unicodedata.normalize("NFKC", character)[0]
    return unicodedata.name(plain, "").partition(" ")[0] if plain.isalpha() else ""
