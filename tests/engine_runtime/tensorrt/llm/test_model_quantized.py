"""The network of the model class for a quantized checkpoint, against the torch executor.

Both read what `moss-voice trt quantize` writes: the class with the layers of the library (of its double), the
torch executor with tensorrt/checkpoint/quantized_network.py. Both were written independently.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.lm.block_manager import Sequence
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.tensorrt.checkpoint.calibrate import Calibration
from engine_runtime.tensorrt.checkpoint.quantize import FORMATS, Format
from engine_runtime.tensorrt.checkpoint.quantized_network import load_paged
from engine_runtime.tensorrt.checkpoint.reading import Checkpoint
from engine_runtime.tensorrt.llm.build import BuildOptions
from tests.factories.engine_lm import make_described_paged
from tests.factories.trt_checkpoints import quantize

pytestmark = pytest.mark.slow


def logits_of(paged: PagedLM, ids: list[int]) -> torch.Tensor:
    """Logits of both heads after a prefill in two chunks and five steps."""
    sequence, found = Sequence(), []
    paged.prefill(sequence, ids[:20])
    paged.prefill(sequence, ids[20:-5])
    for token in ids[-5:]:
        logits = paged.decode(sequence, token)
        assert logits.text_logits is not None
        assert logits.audio_logits is not None
        found.append(torch.cat((logits.text_logits, logits.audio_logits)))
    return torch.stack(found)


@pytest.mark.parametrize("tails", [False, True])
@pytest.mark.parametrize("number_format", FORMATS)
def test_both_readings_of_a_quantized_checkpoint_agree(
    random_bundle: Path,
    plain: Checkpoint,
    calibration: Calibration,
    tmp_path: Path,
    number_format: Format,
    tails: bool,
) -> None:
    checkpoint = quantize(plain, tmp_path / "quantized", number_format, calibration, tails=tails)
    bundle = Bundle.open(random_bundle)
    config = MossLMConfig.from_dict(bundle.lm.config)
    ids = torch.randint(
        config.text_vocab + config.audio_vocab, (60,), generator=torch.Generator().manual_seed(0)
    )
    options = BuildOptions(tokens_per_block=16)
    engine = logits_of(make_described_paged(checkpoint.directory, tmp_path / "engine", options), ids.tolist())
    reference = logits_of(load_paged(checkpoint, bundle.lm, config), ids.tolist())
    unquantised = logits_of(load_paged(plain, bundle.lm, config), ids.tolist())
    by_rounding = float((reference - unquantised).abs().mean())
    assert by_rounding > 1e-4
    # In FP8 a number on the edge between two may be rounded to either side.
    assert float((engine - reference).abs().mean()) < by_rounding / (20 if number_format == "fp8" else 1000)
