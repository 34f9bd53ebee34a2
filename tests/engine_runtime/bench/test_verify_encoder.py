"""Streamed codes of the stored speech encoder, with what may be quiet before the speech."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile

from engine_runtime.bench.verdict import VerifyError
from engine_runtime.bench.verify_encoder import LeadIn, all_lead_ins, measure_codes, verify_encoder
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.codec.loading import load_speech_encoder
from engine_runtime.codec.speech_tokenizer.speech_tokenizer import SpeechTokenizer
from engine_runtime.options import EngineOptions
from engine_runtime.types import Pcm
from tests.factories.golden_encoder import make_golden_bundle, write_recordings

RATE = 16000
LEAD_INS = all_lead_ins(0.32, 0.16)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> SpeechTokenizer:
    folder = make_golden_bundle(tmp_path_factory.mktemp("golden") / "bundle")
    return load_speech_encoder(Bundle.open(folder), EngineOptions())


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pcm]:
    folder = write_recordings(tmp_path_factory.mktemp("golden") / "wavs")
    files = sorted(folder.iterdir())
    assert len(files) == 12
    return {file.name: soundfile.read(file, dtype="float32")[0] for file in files[3:5]}


@pytest.mark.slow
def test_a_bare_maximum_does_not_agree_and_a_stream_does(
    tokenizer: SpeechTokenizer, recordings: dict[str, Pcm]
) -> None:
    section = measure_codes(tokenizer, recordings, LEAD_INS)
    assert set().union(*section.rows) == set(section.columns)
    rows = {(row["before the speech"], row["level_db"]): row for row in section.rows}
    assert len(rows) == 2 * len(LEAD_INS)
    assert float(rows["zeros", 0.0]["bare"] or 0) < 0.65
    assert float(rows["zeros", -20.0]["prior"] or 1) < 0.8
    for row in section.rows:
        assert float(row["streamed"] or 0) >= 0.95
        assert float(row["next turn"] or 0) >= 0.95
        assert float(row["revisions"] or 0) >= 1


@pytest.mark.slow
def test_a_verdict_hints_at_exact_encoding(
    tokenizer: SpeechTokenizer, recordings: dict[str, Pcm], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verify_encoder(tokenizer, recordings, LEAD_INS[1:2]).is_aligned
    monkeypatch.setattr(
        "engine_runtime.codec.speech_tokenizer.features.MOST_DRIFT", 100.0
    )  # nothing is revised
    verdict = verify_encoder(tokenizer, recordings, LEAD_INS[1:2])
    assert not verdict.is_aligned
    assert "--exact-encoding" in verdict.notes[0]
    assert {row["threshold"] for row in verdict.section("any").rows} == {">= 0.95"}
    assert verify_encoder(tokenizer, recordings, LEAD_INS[1:2], exact=True).is_aligned


def test_without_recordings_there_is_nothing_to_compare(tokenizer: SpeechTokenizer) -> None:
    with pytest.raises(VerifyError, match="--wavs"):
        verify_encoder(tokenizer, {}, LEAD_INS)


def test_lead_ins_around_the_speech() -> None:
    speech, generator = np.full(1600, 0.5, np.float32), np.random.default_rng(0)
    around = {lead_in.name: lead_in.around(speech, RATE, generator) for lead_in in LEAD_INS}
    assert np.array_equal(around["none"], speech)
    assert not around["zeros"][:6400].any()
    assert set(np.unique(around["dither"][:6400] * 32768)) == {-1.0, 0.0, 1.0}
    assert around["room"][:6400].std() == pytest.approx(1e-3, rel=0.1)
    assert around["turn"].size == 5120 + 1600 + 2560
    assert LeadIn("any", 0.0).around(speech, RATE, generator).dtype == np.float32
