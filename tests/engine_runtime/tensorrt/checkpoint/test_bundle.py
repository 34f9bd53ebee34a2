"""The program runs from a converted checkpoint: the same logits and the same reply, on both executors."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.released.assembly import assemble
from engine_runtime.bundle.released.layout import find_released
from engine_runtime.engine import Engine
from engine_runtime.errors import BundleError, ExportError, FetchError
from engine_runtime.executors.cuda.loading import load_lm
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.lm.sequence import Sequence
from engine_runtime.loading import lm_source
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.options import EngineOptions
from engine_runtime.tensorrt.checkpoint.convert import (
    Conversion,
    find_language_model,
    make_bundle,
    require_bundle,
)
from engine_runtime.tensorrt.checkpoint.format import lm_fingerprint


def _made(source: Path, folder: Path) -> Bundle:
    conversion = Conversion.start(find_language_model(source), folder / "checkpoint")
    conversion.write()
    conversion.finish()
    return make_bundle(source, folder / "checkpoint", folder / "bundle")


def _logits(lm: PagedLM, ids: list[int]) -> list[Tensor]:
    """Of a prefill on an empty cache, one on top of it, and single steps."""
    sequence, found = Sequence(), list[Tensor]()
    for part in (ids[:20], ids[20:33], *([merged] for merged in ids[33:])):
        logits = lm.prefill(sequence, part)
        assert logits.text_logits is not None
        assert logits.audio_logits is not None
        found += [logits.text_logits.clone(), logits.audio_logits.clone()]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["random_bundle", "nano_bundle"])
def test_the_same_logits_from_the_converted_bundle(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source: Path = request.getfixturevalue(name)
    converted = _made(source, tmp_path)
    vocab = converted.lm.config["text_vocab"] + converted.lm.config["audio_vocab"]
    ids = torch.randint(vocab, (48,), generator=torch.Generator().manual_seed(3)).tolist()
    mine, other = (_logits(Engine.load(b).stages.lm, ids) for b in (converted, Bundle.open(source)))
    assert len(mine) == 2 * (2 + 15)
    for a, b in zip(mine, other, strict=True):
        assert torch.equal(a, b)


def test_the_executor_for_gpus_takes_the_same_weights(random_bundle: Path, tmp_path: Path) -> None:
    """Its loading, here on the CPU."""
    options, cpu, ids = EngineOptions(kernels="torch"), torch.device("cpu"), list(range(40))
    found = []
    for bundle in (_made(random_bundle, tmp_path), Bundle.open(random_bundle)):
        config, shares = MossLMConfig.from_dict(bundle.lm.config), list[float]()
        source = lm_source(bundle, config, cpu, options, shares.append)
        found.append(_logits(load_lm(bundle.lm, config, cpu, options, source), ids))
        assert shares[-1] == pytest.approx(1.0)
    for mine, other in zip(*found, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.cuda
def test_the_same_logits_on_a_gpu(nano_bundle: Path, tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    options, ids = EngineOptions(device="cuda"), list(range(40))
    bundles = (_made(nano_bundle, tmp_path), Bundle.open(nano_bundle))
    mine, other = (_logits(Engine.load(bundle, options).stages.lm, ids) for bundle in bundles)
    for a, b in zip(mine, other, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def test_it_says_what_it_is_and_of_which_weights(random_bundle: Path, tmp_path: Path) -> None:
    converted = _made(random_bundle, tmp_path)
    assert converted.lm.layout == "tensorrt-llm"
    assert converted.description.endswith("language model from a TensorRT-LLM checkpoint")
    assert lm_fingerprint(converted) == lm_fingerprint(Bundle.open(random_bundle))
    assert Bundle.open(converted.path, verify="sha256") == converted
    assert "lm.safetensors" not in converted.files
    with pytest.raises(BundleError, match="converted already"):
        find_language_model(converted.path)


@pytest.mark.slow
def test_a_bundle_of_a_fetched_model(released_folder: Path, tmp_path: Path) -> None:
    found = find_released(released_folder / "MOSS-Speech", released_folder / "MOSS-Speech-Codec")
    fetched = assemble(found, tmp_path / "fetched")
    converted = _made(fetched.path, tmp_path)
    assert converted.voice == fetched.voice or converted.voice is not None
    ids = list(range(40))
    mine, other = (_logits(Engine.load(b).stages.lm, ids) for b in (converted, fetched))
    assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True))


def test_making_it_again_changes_nothing_and_no_one_is_overwritten(
    random_bundle: Path, tmp_path: Path
) -> None:
    _made(random_bundle, tmp_path)
    before = (tmp_path / "bundle" / "bundle.toml").read_bytes()
    _made(random_bundle, tmp_path)
    assert (tmp_path / "bundle" / "bundle.toml").read_bytes() == before
    shutil.copytree(random_bundle, tmp_path / "mine")
    with pytest.raises(ExportError, match="holds another bundle"):
        make_bundle(random_bundle, tmp_path / "checkpoint", tmp_path / "mine")
    (tmp_path / "mine" / "bundle.toml").unlink()
    with pytest.raises(FetchError, match="already exists"):
        make_bundle(random_bundle, tmp_path / "checkpoint", tmp_path / "mine")


def test_a_checkpoint_of_another_model_is_refused(random_bundle: Path, tmp_path: Path) -> None:
    bundle = _made(random_bundle, tmp_path).path
    config = (tmp_path / "checkpoint" / "config.json").read_text()
    assert '"rotary_base": 1000000.0' in config
    (tmp_path / "checkpoint" / "config.json").write_text(config.replace("1000000.0", "1000001.0"))
    with pytest.raises(BundleError, match="rope_theta"):
        Engine.load(Bundle.open(bundle, verify="size"))


def test_a_bundle_whose_checkpoint_is_gone_is_made_again(random_bundle: Path, tmp_path: Path) -> None:
    made = _made(random_bundle, tmp_path)
    shutil.rmtree(tmp_path / "checkpoint")
    assert _made(random_bundle, tmp_path) == made


def test_a_folder_that_is_no_bundle(released_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="moss-voice fetch moss-speech --from DIR"):
        require_bundle(released_folder / "MOSS-Speech", tmp_path / "checkpoint", tmp_path / "bundle")
