"""What the language model of a bundle predicts about a pause. For the measurements of the end of a turn."""

from __future__ import annotations

from pathlib import Path

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.engine import Engine
from engine_runtime.types import Modality, Pcm, TurnEndPrediction
from engine_runtime.work import run_alone


class LanguageModel:
    """The engine, asked as by a speculative reply: each turn is the first of a conversation."""

    def __init__(self, bundle: Path) -> None:
        self._engine = Engine.load(Bundle.open(bundle))
        self._turns = 0

    @property
    def predicts(self) -> bool:
        """Whether the bundle detects the end of turns."""
        return self._engine.bundle.lm.detects_turn_end

    def probability(self, turn: Pcm) -> float | None:
        """How likely the user has finished after this speech at the engine's rate, None if it cannot tell."""
        engine, self._turns = self._engine, self._turns + 1
        conversation = engine.new_conversation()
        question = run_alone(engine.open_turn(conversation, self._turns))
        run_alone(question.push(turn))
        event = next(run_alone(question.commit(Modality.SPEECH)))
        question.cancel()
        engine.end_conversation(conversation)
        return event.probability if isinstance(event, TurnEndPrediction) else None
