"""A conversation as plain data, to be continued by another engine, also after the program was restarted.

In: the exchanges of a conversation as token ids, and where its random draws are. Out: the same as a document
for JSON, and back. The KV cache is not part of it: it is prefilled from the ids. Any thread.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.conversation.history import Exchange
from engine_runtime.errors import MossVoiceError
from engine_runtime.lm.generation import Token
from engine_runtime.types import Modality

FORMAT = 1


class HistoryError(MossVoiceError):
    """A conversation cannot be continued."""


@dataclass(frozen=True, slots=True)
class ConversationSnapshot:
    """Everything that the next reply depends on, apart from the bundle."""

    bundle: str
    """Name of the bundle that it was held with."""
    vocabulary: str
    """Hash of what gives the ids their meaning: tokenizer, language model, special ids, prompts."""
    seed: int
    num_commits: int
    num_forgotten: int
    modality: Modality
    exchanges: tuple[Exchange, ...]

    def document(self) -> dict[str, Any]:
        """Plain values; a token is [text id, audio id]."""
        exchanges = [
            {
                "turn_id": exchange.turn_id,
                "user": [list(token) for token in exchange.user],
                "reply": [list(token) for token in exchange.reply],
                "text": exchange.text,
                "speech_maximum": exchange.speech_maximum,
            }
            for exchange in self.exchanges
        ]
        known = {"format": FORMAT, "bundle": self.bundle, "vocabulary": self.vocabulary, "seed": self.seed}
        counts = {"num_commits": self.num_commits, "num_forgotten": self.num_forgotten}
        return known | counts | {"modality": self.modality.value, "exchanges": exchanges}

    @classmethod
    def of(cls, document: dict[str, Any]) -> ConversationSnapshot:
        """The snapshot of a document. HistoryError if it is damaged or of another format."""
        if document.get("format") != FORMAT:
            raise HistoryError(
                "The conversation has format {format!r}; this program reads {wanted_format}.",
                "Use a matching version of the program.",
                format=document.get("format"),
                wanted_format=FORMAT,
            )
        try:
            return cls(
                str(document["bundle"]),
                str(document["vocabulary"]),
                int(document["seed"]),
                int(document["num_commits"]),
                int(document["num_forgotten"]),
                Modality(document["modality"]),
                tuple(_exchange(entry) for entry in document["exchanges"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise HistoryError("The history of the conversation is damaged.", "Begin a new one.") from error

    def check(self, bundle: Bundle) -> None:
        """HistoryError if the ids mean nothing, or something else, to this bundle."""
        if self.exchanges and self.vocabulary != vocabulary_of(bundle):
            held_with = self.bundle if self.bundle != bundle.name else f"another version of {self.bundle}"
            raise HistoryError(
                "This conversation was held with the bundle {other}, and {bundle} is loaded.",
                "Start the program with that bundle, or begin a new conversation.",
                other=held_with,
                bundle=bundle.name,
            )
        sizes = int(bundle.lm.config["text_vocab"]), int(bundle.lm.config["audio_vocab"])
        tokens = (token for exchange in self.exchanges for token in (*exchange.user, *exchange.reply))
        is_known = all(0 <= token.text < sizes[0] and 0 <= token.audio < sizes[1] for token in tokens)
        if not is_known or not 0 <= self.num_forgotten <= len(self.exchanges):
            raise HistoryError("The history of the conversation is damaged.", "Begin a new one.")


def vocabulary_of(bundle: Bundle) -> str:
    """A hash of what gives token ids their meaning."""
    names = [file.relative_to(bundle.path).as_posix() for file in (bundle.text_tokenizer, *bundle.lm.weights)]
    lm = bundle.lm
    meaning = {
        "files": [asdict(bundle.files[name]) for name in names if name in bundle.files],
        "config": lm.config,
        "special_ids": asdict(lm.special_ids),
        "prompt": asdict(lm.prompt),
    }
    return hashlib.sha256(json.dumps(meaning, sort_keys=True, default=str).encode()).hexdigest()


def _exchange(entry: dict[str, Any]) -> Exchange:
    maximum = entry["speech_maximum"]
    return Exchange(
        _tokens(entry["user"]),
        _tokens(entry["reply"]),
        str(entry["text"]),
        None if maximum is None else float(maximum),
        int(entry["turn_id"]),
    )


def _tokens(pairs: list[list[int]]) -> tuple[Token, ...]:
    return tuple(Token(int(text), int(audio)) for text, audio in pairs)
