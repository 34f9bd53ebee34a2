"""The trained bundle in the box: size and hashes, its streams on real weights, a conversation with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from app.audio.wav import read_wav
from app.session.headless import run_file
from app.session.session_settings import SessionSettings
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.weights import load_weights
from engine_runtime.codec.flow.token2mel import arrays_of
from engine_runtime.engine import Engine
from engine_runtime.models.bigvgan import receptive_field
from engine_runtime.models.flow import CausalFlow, FlowConfig
from engine_runtime.types import Modality, ReplyAudio, ReplyDone, ReplyText
from engine_runtime.work import run_alone

LIMIT_BYTES, LIMIT_FILE_BYTES = 45_000_000, 16_000_000


@pytest.fixture(scope="module")
def bundle(nano_bundle: Path) -> Bundle:
    return Bundle.open(nano_bundle, verify="sha256")


@pytest.fixture(scope="module")
def engine(bundle: Bundle) -> Iterator[Engine]:
    engine = Engine.load(bundle)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def speech(repository: Path) -> np.ndarray:
    pcm, rate = read_wav(repository / "assets" / "samples" / "03-three-plus-four.wav")
    assert rate == 16_000
    return pcm


def test_it_is_small(bundle: Bundle, nano_bundle: Path) -> None:
    sizes = {file.name: file.stat().st_size for file in nano_bundle.iterdir() if file.is_file()}
    assert sum(sizes.values()) < LIMIT_BYTES
    assert max(sizes.values()) < LIMIT_FILE_BYTES
    assert set(bundle.files) == set(sizes) - {"bundle.toml", "MODEL_CARD.md"}


def test_the_context_of_its_vocoder_is_what_its_layers_need(bundle: Bundle) -> None:
    vocoder = bundle.vocoder
    assert receptive_field(vocoder.config) == (vocoder.left_context_frames, vocoder.right_context_frames)
    assert vocoder.right_context_frames <= 8


@pytest.mark.slow
@pytest.mark.parametrize("push_ms", [10, 32, 80, 700])
def test_streamed_codes_are_those_of_the_complete_question(
    engine: Engine, speech: np.ndarray, push_ms: int
) -> None:
    tokenizer = engine.stages.speech_tokenizer
    stream, step, codes = tokenizer.stream(), push_ms * 16, []
    for start in range(0, len(speech), step):
        codes += run_alone(stream.push(speech[start : start + step])).tolist()
    codes += run_alone(stream.tail()).tolist()
    assert codes == tokenizer.encode(speech).tolist()
    assert len(set(codes)) > 5


@pytest.mark.slow
def test_streamed_mel_and_sound_are_those_of_one_shot(
    bundle: Bundle, engine: Engine, speech: np.ndarray
) -> None:
    stages = engine.stages
    codes = stages.speech_tokenizer.encode(speech)
    flow = CausalFlow(FlowConfig.from_dict(bundle.flow.config)).eval()
    load_weights(flow, bundle.flow.weights, torch.float32, torch.device("cpu"))
    stream = stages.token2mel.stream()
    chunks = [mel for code in codes for mel in arrays_of(stream.push(np.array([code])))]
    chunks += arrays_of(stream.finish())
    reference = flow.inference(
        torch.from_numpy(codes)[None], n_steps=bundle.flow.steps, cfg_rate=bundle.flow.cfg_rate
    )[0].numpy()
    np.testing.assert_allclose(np.concatenate(chunks, axis=1), reference, atol=2e-3)
    voice = stages.vocoder.stream()
    pcm = np.concatenate([voice.push(mel) for mel in chunks] + [voice.finish()])
    np.testing.assert_allclose(pcm, stages.vocoder.vocode(np.concatenate(chunks, axis=1)), atol=1e-4)
    assert len(pcm) == len(codes) * 1920
    assert np.sqrt(np.mean(pcm**2)) > 0.01


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is three plus four?", "Three plus four is seven."),
        ("What day comes after Monday?", "After Monday comes Tuesday."),
        ("what is the opposite of hot", "The opposite of hot is cold."),
    ],
)
def test_it_answers_what_is_typed(engine: Engine, question: str, answer: str) -> None:
    turn = run_alone(engine.open_turn(engine.new_conversation(), 1, Modality.TEXT))
    run_alone(turn.push_text(question))
    events = list(run_alone(turn.commit(Modality.TEXT)))
    assert "".join(event.text for event in events if isinstance(event, ReplyText)).lower() == answer.lower()
    assert isinstance(events[-1], ReplyDone)
    assert events[-1].finish_reason == "stop"


@pytest.mark.slow
def test_it_says_what_it_writes_below(engine: Engine) -> None:
    done = []
    for turn_id in (1, 2):
        turn = run_alone(engine.open_turn(engine.new_conversation(), turn_id))
        run_alone(turn.push_text("What is three plus four?"))
        events = list(run_alone(turn.commit(Modality.SPEECH)))
        pcm = np.concatenate([event.pcm for event in events if isinstance(event, ReplyAudio)])
        assert isinstance(events[-1], ReplyDone)
        assert len(pcm) == events[-1].audio_samples
        assert np.abs(pcm).max() > 0.1
        done.append(events[-1])
    assert done[0].text == "Three plus four is seven."
    assert done[0].codes == done[1].codes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sample", "answer"),
    [
        ("01-hello.wav", "Hello how can I help you."),
        ("03-three-plus-four.wav", "Three plus four is seven."),
        ("05-after-monday.wav", "After Monday comes Tuesday."),
    ],
)
def test_it_answers_what_it_hears(bundle: Bundle, repository: Path, sample: str, answer: str) -> None:
    report = run_file(
        lambda: Engine.load(bundle),
        wav_in=repository / "assets" / "samples" / sample,
        settings=SessionSettings(reply=Modality.TEXT),
    )
    (turn,) = report["turns"]
    assert turn["reply"]["text"].lower() == answer.lower()
