"""A checkpoint in the torch executor: unquantized it yields the stored logits; quantized it equals the plain
network with the rounding of the engine."""

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
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.lm.sequence import Sequence
from engine_runtime.models.moss_lm import MossLM, MossLMConfig
from engine_runtime.options import EngineOptions
from engine_runtime.tensorrt.checkpoint.calibrate import AnsweringModel, Calibration
from engine_runtime.tensorrt.checkpoint.convert import Conversion, LanguageModel, make_bundle
from engine_runtime.tensorrt.checkpoint.format import modules
from engine_runtime.tensorrt.checkpoint.quantize import Format
from engine_runtime.tensorrt.checkpoint.quantized_network import load_paged, read_network
from engine_runtime.tensorrt.checkpoint.reading import Checkpoint
from engine_runtime.tensorrt.checkpoint.scales import int8_rounded
from tests.factories.tiny_lm import GOLDEN, LOGIT_TOLERANCE, as_ids, load_tiny, make_paged
from tests.factories.trt_checkpoints import PROMPTS, quantize

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
        rows = [model.get_submodule(part) for part in parts]
        for linear, part in zip(rows, weight.split([row.weight.shape[0] for row in rows]), strict=True):
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
