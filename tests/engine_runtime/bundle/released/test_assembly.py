from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.released.assembly import assemble, token_ids
from engine_runtime.bundle.released.layout import find_released, locate
from engine_runtime.engine import Engine
from engine_runtime.errors import BundleError, FetchError
from engine_runtime.types import Modality, ReplyAudio, ReplyDone
from engine_runtime.work import run_alone


@pytest.fixture
def released(released_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(released_folder, tmp_path / "released"))


def _assemble(released: Path, to: Path) -> Bundle:
    return assemble(find_released(*locate(released)), to)


def test_a_tokenizer_may_have_a_name_that_is_not_utf_8(released: Path) -> None:
    (file,) = released.rglob("tokenizer.json")
    moved = shutil.copytree(file.parent, released / os.fsdecode(b"b\xfcndel"), symlinks=True)
    assert token_ids(Path(moved) / file.name) == token_ids(file)


@pytest.mark.slow
def test_a_bundle_refers_to_the_checkpoints_and_talks(released: Path, tmp_path: Path) -> None:
    shares: list[float] = []
    bundle = assemble(find_released(*locate(released)), tmp_path / "bundle", progress=shares.append)
    assert shares[-1] == 1.0
    assert (tmp_path / "bundle" / "MOSS-Speech").is_symlink()
    assert Bundle.open(tmp_path / "bundle", verify="sha256").files == bundle.files
    loaded: list[float] = []
    engine = Engine.load(bundle, progress=loaded.append)
    assert loaded == sorted(loaded)
    assert loaded[-1] == 1.0
    turn = run_alone(engine.open_turn(engine.new_conversation(), turn_id=1))
    run_alone(turn.push(np.random.default_rng(0).normal(0, 0.1, engine.input_sample_rate).astype(np.float32)))
    params = replace(bundle.lm.sampling_speech, max_new=14)
    events = list(run_alone(turn.commit(Modality.SPEECH, params)))
    done = events[-1]
    assert isinstance(done, ReplyDone)
    assert done.audio_samples == len(done.codes) * bundle.samples_per_code > 0
    assert sum(event.pcm.size for event in events if isinstance(event, ReplyAudio)) == done.audio_samples


@pytest.mark.slow
def test_the_weights_are_those_of_the_checkpoint(released: Path, tmp_path: Path) -> None:
    engine = Engine.load(_assemble(released, tmp_path / "bundle"))
    flow = torch.load(released / "MOSS-Speech-Codec/flow/flow-chunk-5.pt", weights_only=True)
    encoder = safetensors.torch.load_file(released / "MOSS-Speech-Codec/model.safetensors")
    speech_tokenizer = engine.stages.speech_tokenizer.model
    assert torch.equal(speech_tokenizer.encoder.codebook.weight, encoder["encoder.codebook.weight"])
    assert engine.stages.token2mel.config.vocab_size == len(flow["input_embedding.weight"])


@pytest.mark.slow
def test_it_may_be_made_again_and_from_elsewhere(released: Path, tmp_path: Path) -> None:
    first = _assemble(released, tmp_path / "bundle")
    assert _assemble(released, tmp_path / "bundle").files == first.files
    moved = Path(shutil.move(released, tmp_path / "moved"))
    assert _assemble(moved, tmp_path / "bundle").files == first.files
    (tmp_path / "bundle" / "MOSS-Speech").unlink()
    (tmp_path / "bundle" / "MOSS-Speech").mkdir()
    with pytest.raises(FetchError, match="already exists"):
        _assemble(moved, tmp_path / "bundle")


@pytest.mark.slow
def test_folders_that_are_in_the_bundle_already_need_no_link(released: Path) -> None:
    bundle = _assemble(released, released)
    assert not (released / "MOSS-Speech").is_symlink()
    assert bundle.path == released


def test_a_truncated_shard_is_found_before_anything_is_written(released: Path, tmp_path: Path) -> None:
    shard = released / "MOSS-Speech" / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(BundleError, match=r"model-00002-of-00003\.safetensors is damaged"):
        _assemble(released, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_truncated_checkpoint_of_torch(released: Path, tmp_path: Path) -> None:
    file = released / "MOSS-Speech-Codec" / "flow" / "flow-chunk-5.pt"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(BundleError, match=r"flow-chunk-5\.pt cannot be read"):
        _assemble(released, tmp_path / "bundle")


@pytest.mark.slow
def test_tensors_that_do_not_fit_are_named_when_it_is_fetched(released: Path, tmp_path: Path) -> None:
    config = released / "MOSS-Speech" / "config.json"
    content = json.loads(config.read_text())
    config.write_text(json.dumps(content | {"num_hidden_layers": 4, "num_shared_layers": 3}))
    with pytest.raises(BundleError, match=r"missing: model\.shared_block\.layers\.2\."):
        _assemble(released, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_an_encoder_that_lacks_a_tensor(released: Path, tmp_path: Path) -> None:
    file = released / "MOSS-Speech-Codec" / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    del tensors["encoder.codebook.weight"]
    safetensors.torch.save_file(tensors, file)
    with pytest.raises(BundleError, match=r"missing: encoder\.codebook\.weight"):
        _assemble(released, tmp_path / "bundle")


@pytest.mark.slow
def test_a_folder_that_cannot_be_written(released: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FetchError, match=r"cannot be written to .*--to"):
        _assemble(released, tmp_path / "file" / "bundle")
