"""What the training stages share: their command line, their clock, weights on disk.

A stage is `python train_X.py WORK OUT --minutes N`: it reads the speech in WORK and what earlier stages left
in OUT, trains for a time, and writes `X.safetensors` (16 bit) and `X_log.json` to OUT.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


def parser(description: str | None, minutes: float) -> argparse.ArgumentParser:
    """The command line that all stages have; each adds its own options."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("work", type=Path, help="folder of the speech")
    made.add_argument("out", type=Path, help="folder of the trained weights")
    made.add_argument("--minutes", type=float, default=minutes, help="how long to train")
    made.add_argument("--device", default="cuda")
    return made


def prepare() -> None:
    """Seed torch, let matrices be multiplied as TF32, and say nothing of the older weight norm, which BigVGAN
    has."""
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.nn\.utils\.weight_norm")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True


SAVE_SECONDS = 90  # between two writings of a long stage's weights


def training_time(minutes: float, before: float = 0.0) -> Iterator[tuple[float, float]]:
    """For each step the seconds since the start and their share of the time in 0..1, until it is over.

    `before`: seconds of the time that earlier calls have used.
    """
    start, limit = time.time() - before, minutes * 60
    while (elapsed := time.time() - start) < limit:
        yield elapsed, elapsed / limit


class Every:
    """True once in each interval of seconds: when a long stage writes what it has, lest a cut lose it all."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.next = seconds, time.monotonic() + seconds

    def __bool__(self) -> bool:
        now = time.monotonic()
        if now < self.next:
            return False
        self.next = now + self.seconds
        return True


def count_parameters(module: nn.Module) -> int:
    """Numbers that are trained or stored."""
    return sum(parameter.numel() for parameter in module.parameters())


def save_weights(module: nn.Module, path: Path) -> None:
    """The state as 16-bit safetensors."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = module.state_dict().items()
    save_file({name: value.detach().half().cpu().contiguous() for name, value in state}, path)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The state in `path` as float32."""
    return {name: value.float() for name, value in load_file(path).items()}


def blend(module: nn.Module, start: Mapping[str, Tensor], share: float) -> None:
    """Interpolate the weights: this share of the module's, the rest of those that its training started from.

    As WiSE-FT does (Wortsman et al. 2022, "Robust fine-tuning of zero-shot models").
    """
    trained = module.state_dict()
    module.load_state_dict(
        {name: start[name].to(value).lerp(value, share) for name, value in trained.items()}
    )


def write_log(path: Path, **content: Any) -> None:
    """What a stage measured, as JSON."""
    path.write_text(json.dumps(content))
