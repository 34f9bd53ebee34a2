"""Statistics of the logits of both heads at the first positions of a reply, and the ids sampled there.

For comparing two machines, formats or backends by eye: equal weights give nearly equal sums, means and
deviations. In: an engine and a question. Out: a table. Engine thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from engine_runtime.bench.measuring import BenchError
from engine_runtime.lm.block_manager import Sequence
from engine_runtime.lm.step import BOTH_TAILS, StepOutput
from engine_runtime.table import Cell, Section
from engine_runtime.types import Modality, Pcm, SamplingParams
from engine_runtime.work import run_alone

if TYPE_CHECKING:
    from engine_runtime.engine import Engine

COLUMNS = {
    "position": "row of the reply that the logits predict; the rows before it are those of the reply",
    "head": "text or audio",
    "sum": "of the logits",
    "mean": "of the logits",
    "std": "their standard deviation",
    "min": "smallest",
    "max": "largest",
    "top1": "id of the largest",
    "sampled": "id in the reply",
}


def measure_heads(engine: Engine, question: Pcm, params: SamplingParams | None, positions: int) -> Section:
    """Ask the question, then run the first `positions` rows of its reply again, one step at a time. The note
    has all ids of the reply. Raises BenchError without a reply, and if logits are not finite or all equal."""
    lm, stages = engine.stages.lm, engine.stages
    conversation = engine.new_conversation()
    try:
        turn = run_alone(engine.open_turn(conversation, 1, Modality.SPEECH))
        run_alone(turn.push(question))
        sampling = (engine.bundle.lm.sampling_speech if params is None else params).seeded()
        for _ in run_alone(turn.commit(Modality.SPEECH, sampling)):
            pass
        if not conversation.exchanges:
            raise BenchError("The engine returned no reply for the question; try another question.")
        exchange = conversation.exchanges[-1]
    finally:
        engine.end_conversation(conversation)
    opening = stages.prompt.open_reply(Modality.SPEECH)
    reply = exchange.reply[len(opening) :]
    prompt = [*stages.prompt.system(Modality.SPEECH), *exchange.user, *exchange.reply[: len(opening)]]
    section, sequence = Section("heads", COLUMNS), Sequence()
    try:
        output = lm.prefill(sequence, stages.sequences.merged_ids(prompt), BOTH_TAILS)
        for position, row in enumerate(reply[:positions]):
            if position:
                (token_id,) = stages.sequences.merged_ids([reply[position - 1]])
                output = lm.decode(sequence, token_id, BOTH_TAILS)
            section.rows += _rows(position, output, row.text, row.audio)
    finally:
        lm.blocks.release(sequence)
    ids = ", ".join(f"{row.text}/{row.audio}" for row in reply)
    section.note = f"ids of the reply, text/audio: {ids}"
    return section


def _rows(position: int, output: StepOutput, text: int, audio: int) -> Iterator[dict[str, Cell]]:
    for head, logits, sampled in (("text", output.text_logits, text), ("audio", output.audio_logits, audio)):
        row: dict[str, Cell] = {"position": position, "head": head}
        yield row | _statistics(logits, sampled)


def _statistics(logits: Tensor | None, sampled: int) -> dict[str, Cell]:
    if logits is None:
        raise BenchError("The language model did not return the logits of both heads.")
    wide = logits.double().cpu()
    mean, std = float(wide.mean()), float(wide.std())
    if not 0 < std < float("inf"):
        raise BenchError("The language model's logits are not finite or all equal.")
    return {
        "sum": float(wide.sum()),
        "mean": mean,
        "std": std,
        "min": float(wide.min()),
        "max": float(wide.max()),
        "top1": int(wide.argmax()),
        "sampled": sampled,
    }
