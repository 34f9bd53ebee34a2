"""[card] of a manifest: what the model can do, in words for the people who talk to it.

In: the table. Out: a `ModelCard`; empty for a bundle without one. No torch. Any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine_runtime.bundle.manifest import Table

_LONGEST = 500
"""Characters of a text: it is shown on the first screen."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What a model can do."""

    languages: tuple[str, ...] = ()
    """Codes of the languages that it understands and speaks (en, zh); empty if that is not known."""
    examples: tuple[str, ...] = ()
    """Questions that it can answer, in its own languages."""
    summary: Mapping[str, str] = field(default_factory=dict)
    """What it can do in a sentence or two, by the language of the text."""

    def summary_for(self, language: str) -> str:
        """The summary for a reader of `language` (zh_CN, en, ...), else in English; empty without one."""
        return self.summary.get(language.partition("_")[0]) or self.summary.get("en", "")

    def speaks(self, language: str) -> bool:
        """Whether it speaks `language`, or may: where its languages are not known."""
        return not self.languages or language.partition("_")[0] in self.languages


def parse_card(table: Table) -> ModelCard:
    """[card] with `languages`, `examples` and the table `summary`. Raises BundleError."""
    table.allow({"languages", "examples", "summary"})
    summary = table.table("summary")
    texts = {language: summary.string(language) for language in summary.content}
    card = ModelCard(tuple(table.strings("languages")), tuple(table.strings("examples")), texts)
    for text in (*card.languages, *card.examples, *texts.values()):
        if not 0 < len(text) <= _LONGEST:
            raise table.error(f"has a text of {len(text)} characters; it must have 1 to {_LONGEST}")
    return card
