"""A double of the part of TensorRT-LLM's Python Model API that the model of the engine uses.

TensorRT-LLM is not available for every machine and needs a GPU, so tests cannot run the network of a model
class. This package accepts the same calls, with the signatures documented for releases 1.1 and 1.2, rejects
others, and evaluates the network with torch. It does not emulate kernels: it verifies wiring, names, layouts
and float32 values, not the library.
"""

from __future__ import annotations

from typing import Any

from engine_runtime.tensorrt.llm.library import Library
from tests.doubles.tensorrt.model_api import attention, builder, graph, layers, modeling, module


def make_library(**replaced: Any) -> Library:
    """The double as used by tensorrt/llm/model.py; names may be replaced, to show the effect of a mistake."""
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
