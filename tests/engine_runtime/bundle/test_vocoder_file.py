"""A vocoder in a file of its own: written, read back, spoken through, and refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.vocoder_file import VOCODER_KEY, read_vocoder, with_vocoder, write_bigvgan
from engine_runtime.bundle.weights import LoadProgress
from engine_runtime.codec.loading import chosen_codec, codec_bytes, load_vocoder
from engine_runtime.codec.runtime import CodecRuntime
from engine_runtime.engine import Engine
from engine_runtime.errors import BundleError, MelMismatchError
from engine_runtime.models.bigvgan import build_bigvgan, receptive_field
from engine_runtime.options import EngineOptions
from engine_runtime.types import MelSpec
from tests.engine_runtime.codec.vocoder.test_vocoder import CONFIG, lively, mel_of, run

SPEC = MelSpec(sample_rate=24000, n_mels=80, n_fft=1920, hop=480, win=1920, fmin=0.0, fmax=8000.0)


def network() -> torch.nn.Module:
    """A BigVGAN whose output is heard, always the same."""
    torch.manual_seed(1)
    return lively(build_bigvgan(CONFIG))


def write(file: Path, mel: MelSpec = SPEC) -> Path:
    write_bigvgan(file, network().state_dict(), CONFIG, mel)
    return file


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("vocoder") / "vocoder.safetensors")


def test_the_file_says_what_it_is(file: Path) -> None:
    section = read_vocoder(file)
    assert (section.kind, section.mel, section.weights) == ("bigvgan", SPEC, (file,))
    assert (section.left_context_frames, section.right_context_frames) == receptive_field(CONFIG)
    assert section.config.items() >= CONFIG.items()


@pytest.mark.parametrize("seed", [None, 0])
def test_streaming_through_it_equals_one_call(random_bundle: Path, file: Path, seed: int | None) -> None:
    """Its weights are used also where those of the bundle are random."""
    options = EngineOptions(vocoder=file, random_weights=seed)
    bundle = chosen_codec(Bundle.open(random_bundle), options)
    loading = LoadProgress([bundle.vocoder.weights], None)
    loaded = load_vocoder(bundle, torch.device("cpu"), options, CodecRuntime(), loading)
    mel = mel_of(50)
    with torch.no_grad():
        wanted = network()(torch.from_numpy(mel)[None])[0, 0].numpy()
    assert np.abs(wanted).max() > 0.01
    assert np.abs(loaded.vocode(mel) - wanted).max() <= 1e-5
    assert np.abs(np.concatenate(run(loaded.stream(), mel, [20])) - wanted).max() <= 1e-5


def test_its_size_counts_in_the_memory_plan(random_bundle: Path, file: Path) -> None:
    bundle, options = Bundle.open(random_bundle), EngineOptions()
    own = sum(tensor.nbytes for tensor in build_bigvgan(bundle.vocoder.config).state_dict().values())
    new = sum(tensor.nbytes for tensor in build_bigvgan(CONFIG).state_dict().values())
    bytes_of = [codec_bytes(bundle, each) for each in (options, replace(options, vocoder=file))]
    assert bytes_of[1] - bytes_of[0] == new - own != 0


@pytest.mark.slow
def test_an_engine_speaks_through_it(random_bundle: Path, file: Path) -> None:
    with Engine.load(Bundle.open(random_bundle), EngineOptions(vocoder=file)) as engine:
        assert engine.bundle.vocoder.weights == (file,)
        assert engine.stages.vocoder.right_context_frames == receptive_field(CONFIG)[1]


def test_another_mel_is_refused_and_both_are_shown(random_bundle: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "v.safetensors", replace(SPEC, n_fft=1024, fmax=12000.0))
    with pytest.raises(MelMismatchError) as caught:
        with_vocoder(Bundle.open(random_bundle), other)
    for words in (str(other), "differ in n_fft, fmax", "n_fft=1920", "n_fft=1024", "Use a vocoder made for"):
        assert words in str(caught.value)


def test_a_config_of_another_mel_is_refused(random_bundle: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "v.safetensors", replace(SPEC, n_mels=100))
    with pytest.raises(MelMismatchError, match=r"built for num_mels = 80, but .* says 100"):
        with_vocoder(Bundle.open(random_bundle), other)


def described(file: Path, text: str | None) -> Path:
    """A file with this description."""
    metadata = {} if text is None else {VOCODER_KEY: text}
    save_file({"weight": torch.zeros(1)}, file, metadata)
    return file


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, f"does not describe its vocoder: {VOCODER_KEY} is missing"),
        ("{", "is not a JSON object"),
        ("[" * 100_000, "is not a JSON object"),
        ("[1]", "is not a JSON object"),
        ("{}", r"\[vocoder\] lacks the key 'kind'"),
        ('{"kind": "griffin-lim"}', "vocoder.kind is 'griffin-lim'; it must be 'bigvgan' or 'hift'"),
        ('{"kind": "bigvgan", "config": {"num_mels": 0}}', "num_mels = 0, which must be"),
    ],
)
def test_a_file_with_a_wrong_description(tmp_path: Path, text: str | None, words: str) -> None:
    with pytest.raises(BundleError, match=words):
        read_vocoder(described(tmp_path / "v.safetensors", text))


def test_keys_of_a_newer_version_are_read_past(file: Path, tmp_path: Path, caplog: Any) -> None:
    with_key = {"kind": "bigvgan", "left_context_frames": 1, "right_context_frames": 1, "config": CONFIG}
    mel = {
        "sample_rate": 24000,
        "n_mels": 80,
        "n_fft": 1920,
        "hop": 480,
        "win": 1920,
        "fmin": 0,
        "fmax": 8000,
    }
    text = json.dumps(with_key | {"mel": mel, "phase": "minimum"})
    assert read_vocoder(described(tmp_path / "v.safetensors", text)).mel == SPEC
    assert "'phase'" in caplog.text


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="There is no vocoder file at"):
        read_vocoder(tmp_path / "none.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"RIFF")
    for name in ("broken.safetensors", "x" * 5_000):
        with pytest.raises(BundleError, match="is not a vocoder file, or damaged"):
            read_vocoder(tmp_path / name)
