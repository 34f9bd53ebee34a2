"""Causal flow of the codec: speech codes to mel. `CausalFlow` is the network, `FlowConfig` its dimensions."""

from engine_runtime.models.flow.config import FlowConfig
from engine_runtime.models.flow.flow import CausalFlow

__all__ = ["CausalFlow", "FlowConfig"]
