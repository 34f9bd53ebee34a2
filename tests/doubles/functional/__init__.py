"""A stand-in for the part of TensorRT-LLM's Python Model API that the engine's model is written against.

TensorRT-LLM has no wheel for every machine and needs a GPU, so that tests cannot run what a model class
describes. This package takes the same calls, by the signatures that releases 1.1 and 1.2 document, refuses
what they do not name, and evaluates the described network with torch. It is no emulation of kernels: it
proves wiring, names, layouts and numbers to float32, not the library itself.
"""

from __future__ import annotations

from typing import Any

from engine_runtime.executors.trtllm.library import Library
from tests.doubles.functional import attention, builder, graph, layers, modeling, module


def make_library(**replaced: Any) -> Library:
    """The stand-in as trtllm/model.py takes it; names may be replaced, to show what a mistake would do."""
    names: dict[str, Any] = {
        "version": builder.VERSION,
        "AttentionMaskType": graph.AttentionMaskType,
        "LayerNormType": graph.LayerNormType,
        "PositionEmbeddingType": graph.PositionEmbeddingType,
        "gather_last_token_logits": graph.gather_last_token_logits,
        "default_net": graph.default_net,
        "Module": module.Module,
        "ModuleList": module.ModuleList,
        "Attention": attention.Attention,
        "ColumnLinear": layers.ColumnLinear,
        "Embedding": layers.Embedding,
        "GatedMLP": layers.GatedMLP,
        "RmsNorm": layers.RmsNorm,
        "PretrainedConfig": modeling.PretrainedConfig,
        "PretrainedModel": modeling.PretrainedModel,
        "MODEL_MAP": modeling.MODEL_MAP,
        "BuildConfig": builder.BuildConfig,
        "KVCacheType": builder.KVCacheType,
        "PluginConfig": builder.PluginConfig,
        "build": builder.build,
    }
    return Library(**(names | replaced))
