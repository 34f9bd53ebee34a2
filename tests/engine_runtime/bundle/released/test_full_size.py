from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch import nn

from engine_runtime.bundle.released.description import FLOW_PACKET_CODES
from engine_runtime.bundle.released.full_size import describe
from engine_runtime.bundle.weights import Uninitialized
from engine_runtime.errors import BundleError
from engine_runtime.lm.chat_template import TextTokenizer
from engine_runtime.models.flow import CausalFlow, FlowConfig
from engine_runtime.models.hift import HiFT, HiFTConfig
from engine_runtime.models.moss_lm import MossLM, MossLMConfig
from engine_runtime.models.whisper_vq import WhisperVQ, WhisperVQConfig
from engine_runtime.types import SamplingParams
from tests.engine_runtime.bundle.released.test_description import _full_size

GOLDEN = Path(__file__).resolve().parents[3] / "data" / "golden"


def _network(part: str) -> nn.Module:
    bundle = describe("moss-speech")
    with torch.device("meta"), Uninitialized():
        if part == "lm":
            return MossLM(MossLMConfig.from_dict(bundle.lm.config))
        if part == "encoder":
            return WhisperVQ(WhisperVQConfig.from_dict(bundle.speech_encoder.config))
        if part == "flow":
            return CausalFlow(FlowConfig.from_dict(bundle.flow.config))
        return HiFT(HiFTConfig.from_dict(bundle.vocoder.config))


@pytest.mark.slow
@pytest.mark.parametrize("part", ["lm", "encoder", "flow", "hift"])
def test_every_network_has_the_released_shape(part: str) -> None:
    inventory = json.loads((GOLDEN / f"inventory_{part}.json").read_text("utf-8"))
    wanted = inventory.get("tensors") or inventory["needed"]
    found = {name: list(tensor.shape) for name, tensor in _network(part).state_dict().items()}
    assert found == wanted


def test_the_small_tokenizer_has_the_words_of_the_chat_layout() -> None:
    bundle = describe("moss-speech")
    tokenizer = TextTokenizer(bundle.text_tokenizer, bundle.lm.special_ids, bundle.lm.config["text_vocab"])
    assert len(tokenizer.encode("assistant\n")) == 2
    assert len(tokenizer.encode(bundle.lm.prompt.system_speech)) < 20
    assert tokenizer.decode(tokenizer.encode("any word, é")) == "any word, é"
    assert tokenizer.decode([151000]) == ""


def test_a_name_that_is_not_described() -> None:
    with pytest.raises(BundleError, match="moss-speech"):
        describe("moss-speach")


def test_a_folder_needs_no_weights(random_bundle: Path, tmp_path: Path) -> None:
    for name in ("bundle.toml", "tokenizer.json"):
        (tmp_path / name).write_bytes((random_bundle / name).read_bytes())
    assert describe(tmp_path).name == "random"


def test_its_dimensions_are_those_that_a_fetched_model_would_have() -> None:
    bundle, fetched = describe("moss-speech"), _full_size()
    pad = {"modality_pad": bundle.lm.special_ids.modality_pad}
    assert bundle.lm.config == fetched["lm"]["config"] | pad
    assert asdict(bundle.lm.special_ids) == fetched["lm"]["special_ids"] | {"empty": None}
    assert bundle.lm.sampling_speech == SamplingParams(**fetched["lm"]["sampling"]["speech"])
    assert bundle.lm.sampling_text == SamplingParams(**fetched["lm"]["sampling"]["text"])
    assert bundle.speech_encoder.config == fetched["speech_encoder"]["config"]
    assert bundle.speech_encoder.normalization == fetched["speech_encoder"]["normalization"]
    assert fetched["flow"]["config"].items() <= bundle.flow.config.items()
    assert bundle.flow.steps == fetched["flow"]["steps"]
    assert list(bundle.flow.packets) == FLOW_PACKET_CODES
    wanted = HiFTConfig.from_dict(fetched["vocoder"]["config"])
    assert HiFTConfig.from_dict(bundle.vocoder.config) == wanted
