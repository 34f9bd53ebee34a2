"""Checkpoints in the torch executor: products against arithmetic, the network against the plain one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.weights import find_tensors
from engine_runtime.engine import Engine
from engine_runtime.errors import BundleError
from engine_runtime.executors.torch.linear import DenseLinear
from engine_runtime.lm.block_manager import Sequence
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.models.moss_lm import MossLM, MossLMConfig
from engine_runtime.options import EngineOptions
from engine_runtime.tensorrt.checkpoint.calibrate import AnsweringModel, Calibration
from engine_runtime.tensorrt.checkpoint.convert import Conversion, LanguageModel, make_bundle
from engine_runtime.tensorrt.checkpoint.format import CheckpointConfig, Quantization, modules
from engine_runtime.tensorrt.checkpoint.quantize import Format
from engine_runtime.tensorrt.checkpoint.quantized_network import (
    Fp8Linear,
    SmoothedLinear,
    load_paged,
    read_linear,
    read_network,
)
from engine_runtime.tensorrt.checkpoint.reading import Checkpoint
from engine_runtime.tensorrt.checkpoint.scales import int8_rounded, pack_int4
from tests.factories.tiny_lm import GOLDEN, LOGIT_TOLERANCE, as_ids, load_tiny, make_paged
from tests.factories.trt_checkpoints import PROMPTS, quantize

FC, GATE = "shared_layers.0.mlp.fc", "shared_layers.0.mlp.gate"


GENERATOR = torch.Generator().manual_seed(0)


X = torch.randn(5, 128, generator=GENERATOR)


RESIDUAL = torch.randn(5, 24, generator=GENERATOR)


def _config(quantization: Quantization) -> CheckpointConfig:
    return replace(CheckpointConfig.of(load_tiny()[0].config, "float32", 1024), quantization=quantization)


def test_plain_products_are_joined() -> None:
    stored = {f"{FC}.weight": torch.randn(16, 128), f"{GATE}.weight": torch.randn(8, 128)}
    linear = read_linear(_config(Quantization()), stored.__getitem__, (FC, GATE), torch.float32)
    assert isinstance(linear, DenseLinear)
    wanted = torch.cat([X @ weight.t() for weight in stored.values()], dim=1)
    torch.testing.assert_close(linear(X), wanted)
    torch.testing.assert_close(linear.added_to(RESIDUAL, X), RESIDUAL + wanted)


def test_the_tails_of_a_mixed_checkpoint_stay_plain() -> None:
    stored = {"text_layers.0.mlp.proj.weight": torch.randn(24, 128)}
    linear = read_linear(
        _config(Quantization("FP8")), stored.__getitem__, ["text_layers.0.mlp.proj"], torch.float32
    )
    torch.testing.assert_close(linear(X), X @ stored["text_layers.0.mlp.proj.weight"].t())


def _fp8(scales: tuple[float, float]) -> dict[str, Tensor]:
    stored = {}
    for module, scale, outputs in ((FC, scales[0], 16), (GATE, scales[1], 8)):
        stored[f"{module}.weight"] = (torch.randn(outputs, 128, generator=GENERATOR) * 8).to(
            torch.float8_e4m3fn
        )
        stored[f"{module}.weights_scaling_factor"] = torch.tensor([scale])
        stored[f"{module}.activation_scaling_factor"] = torch.tensor([1 / 128])
    return stored


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_fp8_rounds_inputs_and_weights(dtype: torch.dtype) -> None:
    stored = _fp8((0.25, 0.25))
    linear = read_linear(_config(Quantization("FP8")), stored.__getitem__, (FC, GATE), dtype)
    assert isinstance(linear, Fp8Linear)
    x = X.to(dtype)
    # Written out: e4m3 has 4 significant bits down to 2^-6, and steps of 2^-9 below.
    levels = (x.double() * 128).clamp(-448, 448)
    steps = torch.exp2(levels.abs().log2().floor().clamp_min(-6) - 3)
    rounded = (levels / steps).round() * steps / 128
    weight = torch.cat([stored[f"{module}.weight"].double() * 0.25 for module in (FC, GATE)])
    got = linear(x)
    assert got.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(got.double(), rounded @ weight.t(), rtol=tolerance, atol=tolerance * 5)
    torch.testing.assert_close(linear.added_to(RESIDUAL.to(dtype), x), RESIDUAL.to(dtype) + got)


def test_inputs_beyond_the_calibrated_range_become_its_end() -> None:
    linear = Fp8Linear(torch.eye(2), torch.tensor([0.5]), torch.tensor([2.0]))
    assert linear(torch.tensor([[1e6, -1e6]])).tolist() == [[448.0, -448.0]]


def test_scales_that_differ_are_joined_by_the_larger_as_the_engine_does() -> None:
    stored = _fp8((0.25, 0.3))
    linear = read_linear(_config(Quantization("FP8")), stored.__getitem__, (FC, GATE), torch.float32)
    assert isinstance(linear, Fp8Linear)
    assert linear.weight_scale.item() == pytest.approx(0.3)
    anew = (stored[f"{FC}.weight"].float() * 0.25 / 0.3).to(torch.float8_e4m3fn).float()
    assert torch.equal(linear.levels[:, :16], anew.t())
    assert torch.equal(linear.levels[:, 16:], stored[f"{GATE}.weight"].float().t())


def test_int8_is_what_the_library_makes_of_plain_weights() -> None:
    stored = {f"{FC}.weight": torch.randn(16, 128, generator=GENERATOR)}
    linear = read_linear(_config(Quantization("W8A16")), stored.__getitem__, [FC], torch.float32)
    torch.testing.assert_close(linear(X), X @ int8_rounded(stored[f"{FC}.weight"]).t())
    assert not torch.equal(linear(X), X @ stored[f"{FC}.weight"].t())


def _int4() -> dict[str, Tensor]:
    stored = {}
    factor = torch.rand(128, generator=GENERATOR) + 0.5
    for module, outputs in ((FC, 16), (GATE, 8)):
        levels = torch.randint(-8, 8, (outputs, 128), generator=GENERATOR).to(torch.int8)
        stored[f"{module}.weight"] = pack_int4(levels)
        stored[f"{module}.weights_scaling_factor"] = torch.rand(outputs, 2, generator=GENERATOR)
        stored[f"{module}.prequant_scaling_factor"] = factor.clone()
        stored[f"{module}.levels"] = levels
    return stored


def test_int4_multiplies_smoothed_inputs() -> None:
    stored, config = _int4(), _config(Quantization("W4A16_AWQ", group_size=64))
    linear = read_linear(config, stored.__getitem__, (FC, GATE), torch.float32)
    assert isinstance(linear, SmoothedLinear)
    wanted = []
    for module in (FC, GATE):
        scale = stored[f"{module}.weights_scaling_factor"].repeat_interleave(64, dim=1)
        wanted.append(
            (X * stored[f"{FC}.prequant_scaling_factor"]) @ (stored[f"{module}.levels"] * scale).t()
        )
    torch.testing.assert_close(linear(X), torch.cat(wanted, dim=1))
    torch.testing.assert_close(linear.added_to(RESIDUAL, X), RESIDUAL + linear(X), rtol=1e-4, atol=1e-4)


def test_two_factors_for_one_input_are_refused() -> None:
    stored, config = _int4(), _config(Quantization("W4A16_AWQ", group_size=64))
    stored[f"{GATE}.prequant_scaling_factor"][0] += 1
    with pytest.raises(BundleError, match="different prequant_scaling_factors"):
        read_linear(config, stored.__getitem__, (FC, GATE), torch.float32)


IDS = [7, 300, 12, 390, 391, 44, 5, 5, 250, 400, 3, 17]


def _logits(lm: PagedLM, ids: list[int]) -> tuple[Tensor, Tensor]:
    """Of the last row: a prefill, then single steps."""
    sequence = Sequence()
    logits = lm.prefill(sequence, ids[:5])
    for merged in ids[5:]:
        logits = lm.decode(sequence, merged)
    assert logits.text_logits is not None
    assert logits.audio_logits is not None
    return logits.text_logits, logits.audio_logits


@pytest.mark.slow
def test_plain_it_yields_the_stored_logits(tmp_path: Path) -> None:
    model, cases = load_tiny()
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    weights = find_tensors(GOLDEN / "lm_tiny.safetensors", shapes, partial=True)
    conversion = Conversion.start(LanguageModel("tiny", model.config, 1024, weights, None), tmp_path)
    conversion.write()
    conversion.finish()
    network = read_network(Checkpoint.open(tmp_path), model.config)
    ids = as_ids(cases["a.rows"], model)
    text, audio = _logits(make_paged(network), ids)
    torch.testing.assert_close(text, cases["a.text_logits"][-1], atol=LOGIT_TOLERANCE, rtol=0)
    torch.testing.assert_close(audio, cases["a.audio_logits"][-1], atol=LOGIT_TOLERANCE, rtol=0)


def _nearest_e4m3(values: Tensor) -> Tensor:
    """Rounding to e4m3 written out: 4 significant bits down to 2^-6, steps of 2^-9 below, at most 448."""
    cut = values.double().clamp(-448, 448)
    steps = torch.exp2(cut.abs().log2().floor().clamp_min(-6) - 3)
    return ((cut / steps).round() * steps).float()


def _round_as_the_engine(model: MossLM, quantized: Checkpoint, plain: Checkpoint) -> None:
    """Give the plain network the weights of a quantized checkpoint, and its inputs their rounding."""
    read, original = quantized.reader(), plain.reader()

    def rounding(scale: Tensor) -> Callable[[nn.Module, tuple[Tensor]], Tensor]:
        return lambda _, inputs: _nearest_e4m3(inputs[0] / scale) * scale

    def smoothing(factor: Tensor) -> Callable[[nn.Module, tuple[Tensor]], Tensor]:
        return lambda _, inputs: inputs[0] * factor

    for module, parts in modules(plain.config).items():
        if not quantized.config.is_quantized(module):
            continue
        if quantized.config.quantization.algorithm == "FP8":
            scale = read(f"{module}.activation_scaling_factor")
            weight = read(f"{module}.weight").float() * read(f"{module}.weights_scaling_factor")
            hook = rounding(scale)
        elif quantized.config.quantization.algorithm == "W8A16":
            weight, hook = int8_rounded(original(f"{module}.weight")), smoothing(torch.ones(1))
        else:
            packed = read(f"{module}.weight")
            levels = torch.empty(2 * packed.shape[0], packed.shape[1])
            for row in range(2):
                half = (packed.int() >> (4 * row)) & 15
                levels[row::2] = torch.where(half > 7, half - 16, half).float()
            weight = levels * read(f"{module}.weights_scaling_factor").repeat_interleave(64, dim=1)
            hook = smoothing(read(f"{module}.prequant_scaling_factor"))
        linears = [model.get_submodule(part) for part in parts]
        sizes = [linear.get_parameter("weight").shape[0] for linear in linears]
        for linear, part in zip(linears, weight.split(sizes), strict=True):
            linear.weight = nn.Parameter(part.contiguous())
            linear.register_forward_pre_hook(hook)


@pytest.mark.slow
@pytest.mark.parametrize("tails", [False, True])
@pytest.mark.parametrize("number_format", ["fp8", "int8", "int4"])
def test_quantized_it_is_the_plain_network_with_the_engines_rounding(
    random_bundle: Path,
    plain: Checkpoint,
    calibration: Calibration,
    tmp_path: Path,
    number_format: Format,
    tails: bool,
) -> None:
    section = Bundle.open(random_bundle).lm
    config = MossLMConfig.from_dict(section.config)
    quantized = quantize(plain, tmp_path / "q", number_format, calibration, tails=tails)
    paged = load_paged(quantized, section, config, prefill_tokens=64)
    assert paged.executor.limits.max_num_tokens == 64
    got = _logits(paged, IDS)
    model = plain.language_model(config.modality_pad)
    pads = (config.modality_pad, section.special_ids.audio_pad)
    vocab = config.text_vocab
    rows = torch.tensor([[(i, pads[1]) if i < vocab else (pads[0], i - vocab) for i in IDS]])
    with torch.inference_mode():
        unrounded = model(rows)
    _round_as_the_engine(model, quantized, plain)
    with torch.inference_mode():
        wanted = model(rows)
    for mine, theirs, exact in zip(got, wanted, unrounded, strict=True):
        # A level on the edge may fall to either side, which moves a logit by far less than rounding did.
        moved = (theirs[0, -1] - exact[0, -1]).abs().max()
        assert moved > 1e-4
        assert (mine - theirs[0, -1]).abs().max() < 0.05 * moved


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("number_format", ["fp8", "int8", "int4"])
def test_a_gpu_computes_the_same(
    random_bundle: Path, plain: Checkpoint, calibration: Calibration, tmp_path: Path, number_format: Format
) -> None:
    section = Bundle.open(random_bundle).lm
    config = MossLMConfig.from_dict(section.config)
    on_cpu = quantize(plain, tmp_path / "cpu", number_format, calibration)
    on_gpu = quantize(plain, tmp_path / "gpu", number_format, calibration, device="cuda")
    wanted = _logits(load_paged(on_cpu, section, config), IDS)
    for checkpoint in (on_cpu, on_gpu):
        got = _logits(load_paged(checkpoint, section, config, device="cuda"), IDS)
        for mine, theirs in zip(got, wanted, strict=True):
            assert torch.cosine_similarity(mine.cpu(), theirs, dim=0) > 0.999


@pytest.mark.slow
def test_a_bundle_talks_with_a_quantized_checkpoint(
    random_bundle: Path, plain: Checkpoint, calibration: Calibration, tmp_path: Path
) -> None:
    quantized = quantize(plain, tmp_path / "q", "fp8", calibration)
    bundle = make_bundle(random_bundle, quantized.directory, tmp_path / "bundle")
    engine = Engine.load(bundle)
    other = Engine.load(Bundle.open(random_bundle))
    stages = engine.stages
    rows = AnsweringModel(bundle, stages.lm, stages.speech_tokenizer).rows(PROMPTS[1])
    ids = stages.sequences.merged_ids(rows)
    mine, theirs = _logits(stages.lm, ids), _logits(other.stages.lm, ids)
    assert 0.9 < torch.cosine_similarity(mine[1], theirs[1], dim=0) < 0.999999
    with pytest.raises(BundleError, match="--weights and --kv"):
        Engine.load(bundle, EngineOptions(weight_format="fp8"))


def test_another_model_is_refused(random_bundle: Path, plain: Checkpoint) -> None:
    section = Bundle.open(random_bundle).lm
    config = replace(MossLMConfig.from_dict(section.config), rms_norm_eps=1e-5)
    with pytest.raises(BundleError, match="rms_norm_eps"):
        load_paged(plain, section, config)
