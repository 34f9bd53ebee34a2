"""Calibration records exactly the inputs of the linear layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.errors import ExportError
from engine_runtime.executors.torch.linear import DenseLinear
from engine_runtime.tensorrt.checkpoint.calibrate import KEPT_ROWS, Calibration, Calibrator
from engine_runtime.tensorrt.checkpoint.format import modules
from engine_runtime.tensorrt.checkpoint.quantize import identity
from engine_runtime.tensorrt.checkpoint.reading import Checkpoint
from engine_runtime.tensorrt.checkpoint.scales import QuantizeError
from engine_runtime.work import run_alone
from tests.factories.trt_checkpoints import PROMPTS, REPLY_ROWS, calibrate, watched_model


def _seen_by_the_plain_network(
    checkpoint: Checkpoint, modality_pad: int, grids: list[Tensor]
) -> dict[str, Tensor]:
    """Inputs [n, in] of every product, by its module in the checkpoint."""
    model = checkpoint.language_model(modality_pad)
    seen: dict[str, list[Tensor]] = {}
    for module, parts in modules(checkpoint.config).items():
        linear = model.get_submodule(parts[0])
        if isinstance(linear, nn.Linear):
            linear.register_forward_pre_hook(
                lambda _, inputs, module=module: seen.setdefault(module, []).append(inputs[0][0])
            )
    with torch.inference_mode():
        for grid in grids:
            model(grid[None])
    return {module: torch.cat(parts) for module, parts in seen.items()}


def test_it_sees_what_the_plain_network_sees(random_bundle: Path, plain: Checkpoint) -> None:
    calibrator = Calibrator()
    model = watched_model(random_bundle, plain, calibrator)
    calibration = calibrator.run(model, PROMPTS, model="m", reply_tokens=0, total=2)
    grids = [torch.tensor(model.rows(prompt)) for prompt in PROMPTS]
    seen = _seen_by_the_plain_network(plain, model.config.modality_pad, grids)
    assert calibration.rows == sum(map(len, grids))
    assert (calibration.prompts, calibration.model) == (2, "m")
    assert len(calibration.inputs) == 4 * 4
    for module, inputs in calibration.inputs.items():
        wanted = seen[module]
        torch.testing.assert_close(inputs.amax, wanted.abs().amax(dim=0), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(inputs.mean, wanted.abs().mean(dim=0), atol=1e-4, rtol=1e-4)
        assert len(inputs.rows) == min(len(wanted), KEPT_ROWS)
        distances = torch.cdist(inputs.rows, wanted, compute_mode="donot_use_mm_for_euclid_dist").amin(dim=1)
        assert distances.max() < 1e-3


def test_replies_are_seen_too(random_bundle: Path, plain: Checkpoint, calibration: Calibration) -> None:
    model = watched_model(random_bundle, plain, Calibrator())
    rows = sum(len(model.rows(prompt)) for prompt in PROMPTS)
    assert rows < calibration.rows <= rows + len(PROMPTS) * REPLY_ROWS
    assert model.lm.blocks.num_used == 0


@pytest.mark.slow
def test_prompts_are_laid_out_as_in_a_conversation(random_bundle: Path, plain: Checkpoint) -> None:
    from engine_runtime.engine import Engine
    from engine_runtime.types import Modality

    model = watched_model(random_bundle, plain, Calibrator())
    engine = Engine.load(Bundle.open(random_bundle))
    conversation = engine.new_conversation()
    turn = run_alone(engine.open_turn(conversation, 1))
    pcm = PROMPTS[0].question
    assert not isinstance(pcm, str)
    run_alone(turn.push(pcm))
    list(run_alone(turn.commit(Modality.SPEECH)))
    layout = engine.stages.prompt
    rows = layout.system(Modality.SPEECH) + list(conversation.exchanges[0].user)
    mine = model.rows(PROMPTS[0])
    assert mine == rows + layout.open_reply(Modality.SPEECH)
    assert Bundle.open(random_bundle).lm.special_ids.eosp in {row.audio for row in mine}


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_gpu_sees_the_same(random_bundle: Path, plain: Checkpoint) -> None:
    here = calibrate(random_bundle, plain, reply_tokens=0)
    there = calibrate(random_bundle, plain, "cuda", reply_tokens=0)
    assert there.rows == here.rows
    for module, inputs in here.inputs.items():
        found = there.inputs[module]
        assert found.amax.device.type == "cuda"
        torch.testing.assert_close(found.amax.cpu(), inputs.amax, atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(found.mean.cpu(), inputs.mean, atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(found.rows.cpu(), inputs.rows, atol=1e-2, rtol=1e-2)


def test_a_drawn_row_is_as_likely_as_any_other() -> None:
    calibrator = Calibrator()
    counts = torch.zeros(400)
    for draw in range(40):
        linear = calibrator.wrap(str(draw), DenseLinear(torch.eye(1)))
        for start in range(0, 400, 50):
            linear(torch.arange(start, start + 50.0)[:, None] + 1)
        rows = calibrator._watches[str(draw)].inputs().rows[:, 0].long() - 1
        assert len(set(rows.tolist())) == KEPT_ROWS
        counts[rows] += 1
    expected = 40 * KEPT_ROWS / 400
    assert abs(float(counts[:50].mean()) - expected) < 2
    assert abs(float(counts[-50:].mean()) - expected) < 2


def test_what_was_seen_is_kept_and_read_again(
    calibration: Calibration, plain: Checkpoint, tmp_path: Path
) -> None:
    file = tmp_path / "new" / "calibration.safetensors"
    calibration.save(file)
    again = Calibration.load(file, identity(plain))
    assert (again.prompts, again.rows, again.model) == (2, calibration.rows, calibration.model)
    assert again.inputs.keys() == calibration.inputs.keys()
    for module, inputs in calibration.inputs.items():
        for part in ("amax", "mean", "rows"):
            assert torch.equal(getattr(again.inputs[module], part), getattr(inputs, part))
    with pytest.raises(QuantizeError, match="another model"):
        Calibration.load(file, "other")


def test_a_file_that_is_none_is_refused(calibration: Calibration, tmp_path: Path) -> None:
    file = tmp_path / "calibration.safetensors"
    file.write_bytes(b"no tensors")
    with pytest.raises(QuantizeError, match="--statistics"):
        Calibration.load(file, "m")
    save_file({"a.amax": torch.zeros(1)}, file)
    with pytest.raises(QuantizeError, match="not a valid calibration file"):
        Calibration.load(file, "m")
    (tmp_path / "folder.part").mkdir()
    with pytest.raises(ExportError, match="--statistics"):
        calibration.save(tmp_path / "folder")


def test_nothing_to_see_is_said(random_bundle: Path, plain: Checkpoint) -> None:
    calibrator = Calibrator()
    model = watched_model(random_bundle, plain, calibrator)
    with pytest.raises(QuantizeError, match="--wavs"):
        calibrator.run(model, [], model="m", reply_tokens=1, total=0)
