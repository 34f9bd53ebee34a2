"""Sound WAV files against a reference reader, mutated ones and FLAC files against nothing but the rules."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import strategies as st

from app.audio.wav import MAX_RATE_HZ, MIN_RATE_HZ
from tests.tools import reference_wav
from tests.tools.fuzz_worker import Outcome
from tests.tools.fuzzing import count, fuzz, mutated_bytes

_FORMATS = ((1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64))
_NAMES = (b"LIST", b"fact", b"data", b"fmt ", b"junk", b"\0\0\0\0")
_SIZES = (0, 1, 7, 0x7FFFFFFF, 0xFFFFFFFF)


def _chunk(name: bytes, content: bytes, size: int | None = None) -> bytes:
    stated = len(content) if size is None else size
    return name + struct.pack("<I", stated) + content + b"\0" * (len(content) % 2)


@st.composite
def _wav(draw: st.DrawFn, is_sound: bool) -> bytes:
    """Valid files, or such with wrong headers."""
    kind, bits = draw(st.sampled_from(_FORMATS))
    channels = draw(st.sampled_from((1, 1, 2, 3, 64)))
    rate = draw(st.sampled_from((8_000, 16_000, 44_100, 96_000)))
    size = None
    if not is_sound:
        kind = draw(st.sampled_from((kind, kind, 0xFFFE, 85, 0)))
        bits = draw(st.sampled_from((bits, bits, 12, 64, 0)))
        channels = draw(st.sampled_from((channels, channels, 0, 65, 65_535)))
        rate = draw(st.sampled_from((rate, rate, 0, 7_999, 96_001, 0xFFFFFFFF)))
        size = draw(st.sampled_from((None, *_SIZES)))
    width = max(channels * bits // 8, 1)
    layout = struct.pack("<HHIIHH", kind, channels, rate, rate * width % 2**32, width % 2**16, bits) + draw(
        st.sampled_from((b"", b"\0\0", bytes(24)))
    )
    pattern = draw(st.binary(min_size=1, max_size=64))
    frames = draw(st.integers(0 if not is_sound else 1, 40))
    audio = (pattern * (frames * width // len(pattern) + 1))[: frames * width]
    other: st.SearchStrategy[list[Any]] = st.lists(
        st.tuples(st.sampled_from((b"junk", b"own ")), st.binary(max_size=9)), max_size=2
    )
    if not is_sound:
        other = st.lists(
            st.tuples(st.sampled_from(_NAMES), st.binary(max_size=9), st.sampled_from((None, None, *_SIZES))),
            max_size=3,
        )
    before = b"".join(_chunk(*chunk) for chunk in draw(other))
    between = b"".join(_chunk(*chunk) for chunk in draw(other))
    after = b"".join(_chunk(*chunk) for chunk in draw(other))
    body = before + _chunk(b"fmt ", layout) + between + _chunk(b"data", audio, size) + after
    content = b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body
    return content if is_sound else draw(mutated_bytes(content))


@st.composite
def _flac(draw: st.DrawFn) -> bytes:
    file = io.BytesIO()
    sound = np.random.default_rng(draw(st.integers(0, 9))).uniform(-1, 1, (500, draw(st.integers(1, 3))))
    subtype = draw(st.sampled_from(("PCM_S8", "PCM_16", "PCM_24")))
    soundfile.write(file, sound, 16_000, subtype=subtype, format="FLAC")
    return draw(mutated_bytes(file.getvalue()))


def _judge_sound(content: bytes, outcome: Outcome) -> None:
    expected = reference_wav.read(content)
    assert expected is not None
    assert outcome.kind == "returned", outcome.detail
    rate, at_once, in_blocks = outcome.value
    assert rate == expected[0]
    assert at_once == in_blocks
    np.testing.assert_allclose(np.frombuffer(at_once, np.float32), expected[1], rtol=0, atol=2e-6)


def _judge_mutated(content: bytes, outcome: Outcome) -> None:
    if outcome.kind == "refused":
        assert "case.wav" in outcome.detail
        return
    rate, at_once, in_blocks = outcome.value
    assert MIN_RATE_HZ <= rate <= MAX_RATE_HZ
    assert at_once == in_blocks
    samples = np.frombuffer(at_once, np.float32)
    assert len(samples) > 0
    assert np.all(np.abs(samples) <= 1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "judge"),
    [(_wav(True), _judge_sound), (_wav(False), _judge_mutated), (_flac(), _judge_mutated)],
    ids=["sound", "mutated", "flac"],
)
def test_sound_files_are_read_right_or_refused(
    files: st.SearchStrategy[bytes], judge: Callable[[bytes, Outcome], None]
) -> None:
    fuzz("wav", "tests.tools.fuzz_targets:read_wav", files, judge, number=count("wav") // 3)


def test_the_reference_reads_what_libsndfile_reads() -> None:
    random = np.random.default_rng(0)
    for container in ("WAV", "WAVEX"):
        for subtype in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"):
            for channels in (1, 2, 5):
                file = io.BytesIO()
                sound = random.uniform(-1, 1, (50, channels))
                soundfile.write(file, sound, 22_050, subtype=subtype, format=container)
                file.seek(0)
                found = reference_wav.read(file.getvalue())
                assert found is not None
                assert found[0] == 22_050
                np.testing.assert_allclose(
                    found[1], soundfile.read(file)[0].reshape(50, -1).mean(1), atol=1e-9
                )
