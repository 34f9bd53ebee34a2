"""Plugin and build configuration, and a builder whose engine is the network itself, evaluated with torch.

The library ignores a plugin option that it does not know; here it is an error.
"""

from __future__ import annotations

import copy
import json
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from tests.doubles.tensorrt.model_api.graph import Network, net_guard
from tests.doubles.tensorrt.model_api.modeling import fuse_gate_mlp

VERSION = "1.2.1"
PLAN = b"evaluated with torch"


class KVCacheType(Enum):
    CONTINUOUS = 0
    PAGED = 1
    DISABLED = 2


@dataclass
class PluginConfig:
    """What of the library's options matters here, with its defaults."""

    dtype: str = "float16"
    gpt_attention_plugin: str | None = "auto"
    gemm_plugin: str | None = None
    context_fmha: bool = True
    paged_kv_cache: bool | None = None
    remove_input_padding: bool = True
    tokens_per_block: int = 32
    use_paged_context_fmha: bool = True
    use_fp8_context_fmha: bool = True
    use_fused_mlp: bool = True
    multiple_profiles: bool = False


@dataclass
class BuildConfig:
    max_input_len: int = 1024
    max_seq_len: int | None = None
    opt_batch_size: int = 8
    max_batch_size: int = 2048
    max_beam_width: int = 1
    max_num_tokens: int = 8192
    opt_num_tokens: int | None = None
    kv_cache_type: KVCacheType | None = None
    gather_context_logits: int = False
    strongly_typed: bool = True
    profiling_verbosity: str = "layer_names_only"
    input_timing_cache: str | None = None
    output_timing_cache: str = "model.cache"
    plugin_config: PluginConfig = field(default_factory=PluginConfig)


class Engine:
    """A network and its configuration. `save` writes the library's files; the plan is a placeholder."""

    def __init__(self, network: Network, config: dict[str, Any]) -> None:
        self.network, self.config = network, config

    def save(self, engine_dir: str) -> None:
        directory = Path(engine_dir)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.json").write_text(json.dumps(self.config, indent=4))
        (directory / "rank0.engine").write_bytes(PLAN)


def build(model: Any, build_config: BuildConfig) -> Engine:
    """As the library: configuration is settled, the model is changed and described once."""
    build_config = copy.deepcopy(build_config)
    plugins = build_config.plugin_config
    plugins.dtype = model.config.dtype
    if plugins.gpt_attention_plugin == "auto":
        plugins.gpt_attention_plugin = plugins.dtype
    if build_config.kv_cache_type is None:
        is_paged = plugins.paged_kv_cache is not False
        build_config.kv_cache_type = KVCacheType.PAGED if is_paged else KVCacheType.CONTINUOUS
    assert plugins.paged_kv_cache in (None, build_config.kv_cache_type == KVCacheType.PAGED)
    plugins.paged_kv_cache = build_config.kv_cache_type == KVCacheType.PAGED
    if model.config.quantization.quant_algo != "FP8":
        plugins.use_fp8_context_fmha = False
    if plugins.use_fused_mlp:
        fuse_gate_mlp(model)
    network = Network(plugins)
    with net_guard(network):
        inputs = model.prepare_inputs(
            max_batch_size=build_config.max_batch_size,
            max_input_len=build_config.max_input_len,
            max_seq_len=build_config.max_seq_len,
            use_cache=build_config.kv_cache_type != KVCacheType.DISABLED,
            max_beam_width=build_config.max_beam_width,
            max_num_tokens=build_config.max_num_tokens,
            opt_num_tokens=build_config.opt_num_tokens,
        )
        model(**inputs)
    Path(build_config.output_timing_cache).write_bytes(b"timings")
    described = asdict(build_config) | {"kv_cache_type": "PAGED" if plugins.paged_kv_cache else "CONTINUOUS"}
    return Engine(
        network,
        {"version": VERSION, "pretrained_config": model.config.to_dict(), "build_config": described},
    )
