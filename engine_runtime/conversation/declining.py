"""Declining: when a model that is not sure of its answer says that it does not know, and the rows of that.

In: the first rows of a reply, as many as the first packet of speech needs, before anything of them is given.
Out: whether to decline, and the rows of the reply that takes its place. Those rows are forced, not generated:
the model would go on from its own first word, and the sound is known. The next turn prefills them with the
rest of the history. Pure functions. Engine thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine_runtime.bundle.bundle import SpecialIds
from engine_runtime.bundle.sections import DecliningSection
from engine_runtime.lm.generation import GeneratedRow, Mode, Row
from engine_runtime.types import Modality, SamplingParams


def certainty_of(rows: Sequence[GeneratedRow]) -> float | None:
    """The least certainty of rows; None if it was not computed."""
    return min((row.certainty for row in rows if row.certainty is not None), default=None)


def is_declined(section: DecliningSection, rows: Sequence[GeneratedRow], params: SamplingParams) -> bool:
    """Whether a reply that begins with these rows is replaced. If they are all of it, they end with a row
    that is a stop.

    A caller who asks for an answer (`min_new` of 2 or more) gets no reply that is over as soon as it may be.
    """
    certainty = certainty_of(rows)
    if certainty is not None and certainty < section.least_probability:
        return True
    is_over = rows[-1].is_stop
    # Of a spoken reply the end of speech and the end of the turn are two rows.
    return is_over and params.min_new > 1 and len(rows) <= params.min_new + (rows[0].mode is Mode.AUDIO)


def correct_subtitles(section: DecliningSection, rows: Sequence[GeneratedRow]) -> None:
    """Give rows that sound like the beginning of the declining reply its subtitles.

    Both heads choose their first id from the same state, neither knows the choice of the other: where an
    answer and a refusal are about as likely, the text head may begin the one and the audio head the other.
    """
    if tuple(row.row.audio for row in rows) == section.codes[: len(rows)]:
        for row, subtitle in zip(rows, section.subtitles, strict=False):
            row.subtitle = subtitle


def declining_rows(section: DecliningSection, special: SpecialIds, modality: Modality) -> list[GeneratedRow]:
    """The declining reply, with the end of the turn."""
    if modality is Modality.SPEECH:
        said = [*zip(section.codes, section.subtitles, strict=True), (special.eosp, None)]
        rows = [
            GeneratedRow(row, Mode.AUDIO, index, row, subtitle)
            for index, (code, subtitle) in enumerate(said)
            for row in [Row(special.modality_pad, code)]
        ]
    else:
        written = [
            Row(text_id, special.audio_pad) for text_id in section.subtitles if text_id != special.empty
        ]
        rows = [GeneratedRow(row, Mode.TEXT, index, row) for index, row in enumerate(written)]
    end = Row(special.im_end, special.audio_pad)
    return [*rows, GeneratedRow(end, Mode.TEXT, len(rows), end, is_stop=True)]
