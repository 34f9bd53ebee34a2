"""The audio formats of the wire."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from app.audio.wire_format import FORMATS, PCM16, PCMA, PCMU, AudioFormat, pcm_at

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import audioop


def test_pcm16_keeps_every_sample_and_clips() -> None:
    data = np.array([0, 1, -1, 32_767, -32_768], "<i2").tobytes()
    assert PCM16.encode(PCM16.decode(data)) == data
    assert np.frombuffer(PCM16.encode(np.array([2.0, -2.0], np.float32)), "<i2").tolist() == [32_767, -32_768]


@pytest.mark.parametrize(
    ("known", "decode", "encode"),
    [(PCMU, audioop.ulaw2lin, audioop.lin2ulaw), (PCMA, audioop.alaw2lin, audioop.lin2alaw)],
)
def test_telephone_formats_are_those_of_the_library(known: AudioFormat, decode, encode) -> None:  # type: ignore[no-untyped-def]
    codes = bytes(range(256))
    expected = np.frombuffer(decode(codes, 2), np.int16)
    assert np.array_equal(known.decode(codes) * 32_768, expected)
    samples = np.arange(-32_768, 32_768)
    ours = known.decode(known.encode((samples / 32_768).astype(np.float32))) * 32_768
    theirs = np.frombuffer(decode(encode(samples.astype(np.int16).tobytes(), 2), 2), np.int16)
    assert (np.abs(ours - samples) <= np.abs(theirs - samples)).all(), "never farther from the sample"


def test_names_and_documents() -> None:
    assert sorted(FORMATS) == ["audio/pcm", "audio/pcma", "audio/pcmu"]
    assert PCM16.document() == {"type": "audio/pcm", "rate": 24_000}
    assert PCMA.document() == {"type": "audio/pcma"}
    assert pcm_at(16_000).document() == {"type": "audio/pcm", "rate": 16_000}
