from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from engine_runtime.bundle.random_weights import fill_random, random_source, random_tensor
from engine_runtime.bundle.released.full_size import describe
from engine_runtime.bundle.weights import Uninitialized
from engine_runtime.engine import Engine
from engine_runtime.errors import BundleError
from engine_runtime.models.moss_lm import MossLM, MossLMConfig
from engine_runtime.options import EngineOptions
from engine_runtime.types import Modality, ReplyAudio, ReplyDone, SamplingParams
from engine_runtime.work import run_alone


def _deep() -> MossLMConfig:
    """As many layers as the released model, narrow."""
    return MossLMConfig(64, 192, 4, 2, 16, 32, 4, 4, 96, 80, modality_pad=4)


def _filled(seed: int, dtype: torch.dtype = torch.float32) -> MossLM:
    with torch.device("meta"), Uninitialized():
        model = MossLM(_deep())
    fill_random(model, seed, dtype)
    return model.eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_signals_stay_alive_through_forty_layers(dtype: torch.dtype) -> None:
    model = _filled(0, dtype)
    rows = torch.stack((torch.randint(5, 96, (1, 48)), torch.randint(0, 80, (1, 48))), dim=-1)
    rows[:, ::2, 0] = 4
    for logits in model(rows):
        assert logits.dtype == dtype
        assert torch.isfinite(logits).all()
        assert 0.3 < logits.float().std() < 3
        steps = logits.float()[0].argmax(-1)
        assert len(steps.unique()) > 10, "every row says the same"


def test_values_follow_the_seed_and_the_name() -> None:
    first, again, other = _filled(3), _filled(3), _filled(4)
    states = [model.state_dict() for model in (first, again, other)]
    for name, values in states[0].items():
        assert torch.equal(values, states[1][name])
        assert torch.equal(values, random_tensor(name, values.shape, 3, torch.float32, "cpu"))
        if values.ndim > 1:
            assert not torch.equal(values, states[2][name])
    layers = [states[0][f"model.shared_block.layers.{i}.mlp.up_proj.weight"] for i in (0, 1)]
    assert not torch.equal(*layers)


def test_a_source_yields_the_same_tensors_one_by_one() -> None:
    source = random_source(_deep(), 3, torch.float32, "cpu")
    for name, values in _filled(3).state_dict().items():
        assert torch.equal(source(name), values)


def test_tables_that_only_the_network_can_make_are_not_guessed() -> None:
    with torch.device("meta"):
        module = torch.nn.BatchNorm1d(4)
    with pytest.raises(BundleError, match="computed tables"):
        fill_random(module, 0)


def test_an_engine_without_a_single_file_speaks(random_bundle: Path, tmp_path: Path) -> None:
    for name in ("bundle.toml", "tokenizer.json"):
        (tmp_path / name).write_bytes((random_bundle / name).read_bytes())
    engine = Engine.load(describe(tmp_path), EngineOptions(random_weights=0))
    assert engine.stages.token2mel.prompt_codes == 50
    turn = run_alone(engine.open_turn(engine.new_conversation(), 1))
    run_alone(turn.push(np.random.default_rng(0).normal(0, 0.1, 16000).astype(np.float32)))
    params = SamplingParams(do_sample=True, min_new=20, max_new=20, seed=0)
    events = list(run_alone(turn.commit(Modality.SPEECH, params)))
    pcm = np.concatenate([event.pcm for event in events if isinstance(event, ReplyAudio)])
    done = events[-1]
    assert isinstance(done, ReplyDone)
    assert len(set(done.codes)) > 5
    assert len(pcm) == 20 * engine.bundle.samples_per_code
    assert np.isfinite(pcm).all()
    assert 1e-3 < float(np.sqrt(np.mean(pcm**2))) <= 1
