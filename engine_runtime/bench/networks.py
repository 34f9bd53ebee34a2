"""Tables of what was loaded: each network with load time, tensors and size, and what the KV cache has left.

In: the stages of an engine. Out: sections (table.py). Sizes follow from the shapes of the networks and their
formats in this run. Engine thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path

import psutil
import torch
from torch import nn

from engine_runtime.bench.costs import LMCosts
from engine_runtime.bundle.weights import Uninitialized
from engine_runtime.codec.loading import codec_dtype, codec_networks
from engine_runtime.cuda.gpu_memory import memory_of
from engine_runtime.loading import Stages
from engine_runtime.models.moss_lm import MossLM
from engine_runtime.table import Cell, Section
from engine_runtime.tensorrt.llm.engine_directory import EngineDirectory
from engine_runtime.tensorrt.llm.executor import TrtllmExecutor

NETWORK_COLUMNS = {
    "network": "what was loaded",
    "load_s": "read, converted and copied to the device; without the warm-up, captured graphs included",
    "tensors": "weights by name, as in a checkpoint; of a TensorRT-LLM engine its inputs and outputs",
    "parameters": "numbers in these weights",
    "gbytes": "of the weights as they are stored in this run (10^9 bytes); of an engine its file",
    "file_gb": "of the weight files, if they are there",
}
BUDGET_COLUMNS = {
    "memory": "pool: blocks of the KV cache as loaded; left: what the device still has for more of them",
    "gbytes": "its size (10^9 bytes)",
    "positions": "positions of the language model that it holds; one is a speech code or a text id",
    "minutes": "of speech, if all positions are speech codes",
}
LM = "language model"


def networks_section(stages: Stages) -> Section:
    """Each network, then the codec's TensorRT engines if it runs on them."""
    section, bundle = Section("networks", NETWORK_COLUMNS), stages.bundle
    with torch.device("meta"), Uninitialized():
        networks: dict[str, nn.Module] = {LM: MossLM(stages.lm_config)}
    networks |= codec_networks(bundle)
    files = {
        LM: bundle.lm.weights,
        "speech encoder": bundle.speech_encoder.weights,
        "flow": bundle.flow.weights,
        "vocoder": bundle.vocoder.weights,
    }
    for name, network in networks.items():
        shapes = [tuple(tensor.shape) for tensor in network.state_dict().values()]
        numbers = sum(map(prod, shapes))
        row: dict[str, Cell] = {
            "network": name,
            "load_s": stages.load_s.get(name),
            "tensors": len(shapes),
            "parameters": numbers,
            "file_gb": _size_gb(files[name]),
        }
        if name == LM:
            row |= _language_model(stages)
        else:
            row["gbytes"] = numbers * codec_dtype(name, stages.options).itemsize / 1e9
        section.rows.append(row)
    for name in stages.load_s.keys() - networks.keys():
        section.rows.append({"network": name, "load_s": stages.load_s[name]})
    return section


def kv_budget_section(stages: Stages) -> Section:
    """The pool, and how far the memory that is left would reach; the note says it in words."""
    cache, section = stages.lm.cache, Section("KV budget", BUDGET_COLUMNS)
    pool = cache.num_blocks * cache.tokens_per_block
    per_position = cache.bytes / pool
    device = cache.pool.device
    left = memory_of(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    code_s = stages.samples_per_code / stages.vocoder.sample_rate
    for name, size in (("pool", cache.bytes), ("left", left)):
        positions = int(size / per_position)
        section.rows.append(
            {
                "memory": name,
                "gbytes": size / 1e9,
                "positions": positions,
                "minutes": positions * code_s / 60,
            }
        )
    section.note = budget_in_words(left, per_position, code_s)
    return section


def budget_in_words(left: float, bytes_per_position: float, code_s: float) -> str:
    """What `left` bytes are worth: positions of the language model, and minutes of speech. `code_s` is the
    audio of one position."""
    positions = max(int(left / bytes_per_position), 0)
    return (
        f"{left / 1e9:.1f} GB left = {positions:,} positions = {positions * code_s / 60:,.0f} min of speech"
    )


def _language_model(stages: Stages) -> dict[str, Cell]:
    executor, engine = stages.lm.executor, stages.options.engine
    if engine is None or not isinstance(executor, TrtllmExecutor):
        return {"gbytes": LMCosts.of(stages).stored_bytes / 1e9}
    plan_gb = _size_gb([EngineDirectory.open(engine).plan])
    return {"tensors": executor.num_tensors, "gbytes": plan_gb, "file_gb": plan_gb}


def _size_gb(files: Sequence[Path]) -> float | None:
    if not files or not all(file.is_file() for file in files):
        return None
    return sum(file.stat().st_size for file in files) / 1e9
