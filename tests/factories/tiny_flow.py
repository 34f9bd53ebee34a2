"""The stored tiny flow network, with its weights and the vectors of its cases."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

import torch
from safetensors.torch import load_file
from torch import Tensor

from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.models.flow import CausalFlow, FlowConfig
from engine_runtime.types import VoicePrompt

_GOLDEN = Path(__file__).parents[1] / "data" / "golden"
META = json.loads((_GOLDEN / "flow_tiny.json").read_text())


class FlowOptions(TypedDict, total=False):
    """Keyword arguments of a Token2Mel."""

    steps: int
    cfg_rate: float
    packet_codes: Sequence[int]
    prompt: VoicePrompt | None
    dtype: torch.dtype
    device: str
    static_bytes: int
    calls: GraphedCalls
    triton: bool
    streams: int


def flow_config() -> FlowConfig:
    """The dimensions of the stored network."""
    config = META["config"]
    encoder, estimator = config["encoder"], config["estimator"]
    return FlowConfig(
        vocab_size=config["vocab_size"],
        encoder_dim=encoder["output_size"],
        encoder_heads=encoder["attention_heads"],
        encoder_ffn=encoder["linear_units"],
        encoder_blocks=encoder["num_blocks"],
        encoder_up_blocks=encoder["up_blocks"],
        channels=estimator["channels"][0],
        n_blocks=estimator["n_blocks"],
        mid_blocks=estimator["num_mid_blocks"],
        heads=estimator["num_heads"],
        head_dim=estimator["attention_head_dim"],
    )


def make_flow(max_frames: int = 15000) -> tuple[CausalFlow, dict[str, Tensor]]:
    """The network with its stored weights, and the case tensors."""
    tensors = load_file(_GOLDEN / "flow_tiny.safetensors")
    cases = {key: value for key, value in tensors.items() if key.startswith(("in.", "mel.", "internal."))}
    flow = CausalFlow(replace(flow_config(), max_frames=max_frames))
    flow.load_state_dict({key: value for key, value in tensors.items() if key not in cases})
    return flow.eval(), cases
