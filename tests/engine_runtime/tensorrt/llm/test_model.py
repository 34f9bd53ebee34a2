"""The model class of an engine, on a double of the library's API.

See tests/doubles/tensorrt/model_api. Weights go through the converter, the resulting network runs under the
paged runtime: chunked prefill and single steps yield the stored logits. Deliberate mistakes verify that the
tests detect them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_runtime.errors import EngineError
from engine_runtime.lm.block_manager import Sequence
from engine_runtime.lm.paged_lm import PagedLM, StepRequest
from engine_runtime.tensorrt.checkpoint.format import (
    Algorithm,
    CheckpointConfig,
    Quantization,
    expected_tensors,
    read_config,
)
from engine_runtime.tensorrt.llm.build import BuildOptions, plan_build
from engine_runtime.tensorrt.llm.engine_directory import EngineDirectory
from engine_runtime.tensorrt.llm.model import define_model
from tests.doubles.tensorrt.model_api import attention, layers, make_library
from tests.doubles.tensorrt.model_api.graph import DTYPES
from tests.factories.engine_lm import make_described_paged, make_network_paged
from tests.factories.tiny_checkpoint import convert_tiny, round_to_fp8
from tests.factories.tiny_lm import LOGIT_TOLERANCE, as_ids, load_tiny

OPTIONS = BuildOptions(max_seq_len=1024, max_num_tokens=512, tokens_per_block=16)
NOISE = LOGIT_TOLERANCE / 5  # what float32 may differ by; mistakes of an epsilon are not far above it


def farthest(paged: PagedLM, case: str, prefills: list[int], decode: int) -> float:
    """Largest difference from the stored logits: prefills of these sizes, then `decode` single steps."""
    model, cases = load_tiny()
    ids, sequence, distances = as_ids(cases[f"{case}.rows"], model), Sequence(), list[float]()
    for rows in [*prefills, *[1] * decode]:
        new = ids[sequence.num_tokens : sequence.num_tokens + rows]
        is_step = len(distances) >= len(prefills)
        logits = paged.decode(sequence, new[0]) if is_step else paged.prefill(sequence, new)
        for got, stored in ((logits.text_logits, "text_logits"), (logits.audio_logits, "audio_logits")):
            assert got is not None
            wanted = cases[f"{case}.{stored}"][sequence.num_tokens - 1]
            distances.append(float((got - wanted).abs().max()))
        distances[-2:] = [max(distances[-2:])]
    return max(distances)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "prefills", "decode"), [("a", [37], 59), ("a", [17, 1, 30, 48], 0)])
def test_prefill_in_chunks_and_single_steps_yield_the_stored_logits(
    tiny_checkpoint: Path, tmp_path: Path, case: str, prefills: list[int], decode: int
) -> None:
    paged = make_described_paged(tiny_checkpoint, tmp_path / "engine", OPTIONS)
    assert farthest(paged, case, prefills, decode) < NOISE


@pytest.mark.slow
def test_a_long_conversation_yields_the_stored_logits(tiny_checkpoint: Path, tmp_path: Path) -> None:
    paged = make_described_paged(tiny_checkpoint, tmp_path / "engine", OPTIONS)
    assert farthest(paged, "c", [256, 384], 60) < NOISE


@pytest.mark.slow
def test_steps_of_several_sequences_yield_the_stored_logits(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Five sequences of one conversation at different rows: prefills of one beside decode steps of others."""
    paged = make_described_paged(tiny_checkpoint, tmp_path / "engine", replace(OPTIONS, max_batch_size=5))
    model, cases = load_tiny()
    ids, sequences = as_ids(cases["a.rows"], model), [Sequence() for _ in range(5)]
    for index, sequence in enumerate(sequences[1:], start=1):
        paged.prefill(sequence, ids[: 15 * index])
    for new in ([1, 1, 12, 1, 1], [9, 1, 1, 1, 16], [1, 1, 1, 1, 1]):
        requests = [
            StepRequest(one, ids[one.num_tokens : one.num_tokens + count], is_prefill=count > 1)
            for one, count in zip(sequences, new, strict=True)
        ]
        for sequence, logits in zip(sequences, paged.step(requests), strict=True):
            for got, stored in ((logits.text_logits, "text_logits"), (logits.audio_logits, "audio_logits")):
                assert got is not None
                assert float((got - cases[f"a.{stored}"][sequence.num_tokens - 1]).abs().max()) < NOISE


def test_without_paged_context_fmha_a_prefill_does_not_see_the_conversation(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Why the builder's option is one that an engine is refused without; the first prefill is right."""
    library, plan = make_library(), plan_build(tiny_checkpoint, OPTIONS)
    plugins = library.PluginConfig(**plan.plugins | {"use_paged_context_fmha": False})
    model = define_model(library).from_checkpoint(str(tiny_checkpoint))
    settings = plan.settings | {"plugin_config": plugins, "output_timing_cache": str(tmp_path / "timings")}
    engine = library.build(model, library.BuildConfig(**settings))
    paged = make_network_paged(engine.network, plan, tmp_path)
    assert farthest(paged, "a", [77], 19) < NOISE
    assert farthest(paged, "a", [37, 40], 0) > 1


class DefaultEps(attention.Attention):
    """The norms of queries and keys as they are where no epsilon is passed on."""

    def __init__(self, **names: Any) -> None:
        super().__init__(**names | {"eps": 1e-5})


class SameNumbersInBothTails(attention.Attention):
    """The audio tail counts from where the text tail does."""

    def __init__(self, **names: Any) -> None:
        index = names["local_layer_idx"]
        super().__init__(**names | {"local_layer_idx": index - 2 if index >= 5 else index})


class DefaultRope(attention.Attention):
    """The layer lacks the RoPE base, which generation uses."""

    def __init__(self, **names: Any) -> None:
        super().__init__(**names | {"rotary_embedding_base": 10000.0})


class DefaultRopeTable(attention.Attention):
    """The RoPE table, which prefill uses, lacks the base."""

    @staticmethod
    def create_attention_const_params(model_cls: Any, config: Any) -> None:
        rotary_base, config.rotary_base = config.rotary_base, 10000.0
        attention.Attention.create_attention_const_params(model_cls, config)
        config.rotary_base = rotary_base


class LayerNormEps(layers.RmsNorm):
    """The norms of the layers with the library's default for a configuration without one."""

    def __init__(self, normalized_shape: int, eps: float, dtype: str) -> None:
        super().__init__(normalized_shape, eps=1e-5, dtype=dtype)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mistake",
    [
        {"Attention": DefaultEps},
        {"Attention": SameNumbersInBothTails},
        {"Attention": DefaultRope},
        {"Attention": DefaultRopeTable},
        {"RmsNorm": LayerNormEps},
    ],
    ids=lambda mistake: next(iter(mistake.values())).__name__,
)
def test_mistakes_do_not_pass(tiny_checkpoint: Path, tmp_path: Path, mistake: dict[str, Any]) -> None:
    paged = make_described_paged(tiny_checkpoint, tmp_path / "engine", OPTIONS, **mistake)
    assert farthest(paged, "a", [37, 40], 19) > 4 * NOISE


def test_weights_that_the_network_has_no_place_for_do_not_pass(tiny_checkpoint: Path, tmp_path: Path) -> None:
    class WithoutNorms(attention.Attention):
        def __init__(self, **names: Any) -> None:
            super().__init__(**names | {"qk_layernorm": False})

    with pytest.raises(EngineError, match="q_layernorm"):
        make_described_paged(tiny_checkpoint, tmp_path / "engine", OPTIONS, Attention=WithoutNorms)


def test_layers_are_numbered_through_both_tails(tiny_checkpoint: Path) -> None:
    model = define_model(make_library()).from_checkpoint(str(tiny_checkpoint))
    found = {
        name: layer.attention.local_layer_idx
        for name, layer, _ in model.named_modules_with_parent()
        if hasattr(layer, "attention")
    }
    stacks = ("shared_layers.{}", 3), ("text_layers.{}", 2), ("audio_layers.{}", 2)
    names = [path.format(index) for path, count in stacks for index in range(count)]
    assert found == {name: index for index, name in enumerate(names)}


def full_size(algorithm: Algorithm | None) -> CheckpointConfig:
    """The released model's."""
    sizes = (4096, 12288, 32, 8, 128, 32, 4, 4, 151680, 16512, 40960)
    return CheckpointConfig("bfloat16", *sizes, 1e6, 1e-6, Quantization(algorithm))


@pytest.mark.parametrize("algorithm", [None, "FP8", "W8A16", "W4A16_AWQ"])
def test_parameters_at_full_size_are_those_of_the_checkpoint(algorithm: Algorithm | None) -> None:
    config = full_size(algorithm)
    model_class = define_model(make_library())
    model = model_class(model_class.config_class(**config.to_dict()))
    expected = expected_tensors(config)
    parameters = {
        name: (parameter.shape, DTYPES[parameter.dtype])
        for name, parameter in model.named_parameters()
        if not parameter.is_buffer
    }
    assert parameters == {name: tuple(spec) for name, spec in expected.items()}
    assert len(parameters) == {None: 365, "W8A16": 365}.get(algorithm, 365 + 32 * 5 * 2)
    assert model.config.implicit == [], "keys that the library would take over with a warning only"


@pytest.mark.parametrize("algorithm", [None, "FP8"])
def test_the_network_at_full_size(algorithm: Algorithm | None, tmp_path: Path) -> None:
    """Built on weights without values; nothing is computed."""
    library, config = make_library(), full_size(algorithm)
    model_class = define_model(library)
    with torch.device("meta"):
        model = model_class(model_class.config_class(**config.to_dict()))
        for _, parameter in model.named_parameters():
            if not parameter.is_buffer:
                parameter.value = torch.empty(parameter.shape, dtype=DTYPES[parameter.dtype])
    plugins = library.PluginConfig(dtype="bfloat16", use_fp8_context_fmha=False)
    timings = str(tmp_path / "timings")
    settings = library.BuildConfig(max_seq_len=8192, plugin_config=plugins, output_timing_cache=timings)
    engine = library.build(model, settings)
    steps = [node.compute for node in engine.network.nodes]
    attentions = [step.layer for step in steps if isinstance(step, attention.PagedAttention)]
    assert [layer.local_layer_idx for layer in attentions] == list(range(40))
    assert {(layer.heads, layer.kv_heads, layer.head_size) for layer in attentions} == {(32, 8, 128)}
    shapes = {tensor.name: tensor.shape for tensor in model.network_tensors}
    assert len(shapes) == 17 + 2
    assert shapes["host_max_attention_window_sizes"] == (40,)
    assert (shapes["logits"], shapes["audio_logits"]) == ((-1, 151680), (-1, 16512))


@pytest.fixture(scope="module")
def quantized_checkpoint(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    return round_to_fp8(tiny_checkpoint, tmp_path_factory.mktemp("quantized"))


def test_only_what_the_plan_says_is_quantized(quantized_checkpoint: Path) -> None:
    model = define_model(make_library()).from_checkpoint(str(quantized_checkpoint))
    formats = {
        name: isinstance(module, layers.FP8Linear)
        for name, module, _ in model.named_modules_with_parent()
        if isinstance(module, layers.Linear)
    }
    assert len(formats) == 7 * 5 + 2
    assert formats == {name: name.startswith("shared_layers.") for name in formats}


@pytest.mark.slow
def test_in_bfloat16(tmp_path: Path) -> None:
    paged = make_described_paged(convert_tiny(tmp_path, "bfloat16"), tmp_path / "engine", OPTIONS)
    model, cases = load_tiny()
    logits = paged.prefill(Sequence(), as_ids(cases["a.rows"], model))
    assert logits.text_logits is not None
    assert float((logits.text_logits - cases["a.text_logits"][-1]).abs().mean()) < 0.1


@pytest.mark.slow
def test_the_configuration_survives_the_engine(tiny_checkpoint: Path, tmp_path: Path) -> None:
    make_described_paged(tiny_checkpoint, tmp_path / "engine", OPTIONS)
    assert EngineDirectory.open(tmp_path / "engine").model == read_config(tiny_checkpoint)
    stored = json.loads((tmp_path / "engine" / "config.json").read_text())["pretrained_config"]
    model_class = define_model(make_library())
    again = model_class.config_class(**stored)
    assert (again.rotary_base, again.num_audio_layers, again.qk_layernorm) == (1e6, 2, True)


def test_the_stand_in_takes_no_name_that_the_library_lacks(tiny_checkpoint: Path) -> None:
    library = make_library()
    with pytest.raises(TypeError, match="size"):
        library.RmsNorm(size=64, dtype="float32")
    with pytest.raises(TypeError, match="layer_idx"):
        library.Attention(layer_idx=0, hidden_size=64, num_attention_heads=4)
    with pytest.raises(TypeError, match="use_paged_fmha"):
        library.PluginConfig(use_paged_fmha=True)
    model = define_model(library).from_checkpoint(str(tiny_checkpoint))
    with pytest.raises(TypeError, match="prompt_tasks"):
        model(prompt_tasks=None)
