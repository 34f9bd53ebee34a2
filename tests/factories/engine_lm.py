"""A language model as an engine under the paged runtime, on the double of TensorRT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine_runtime.lm.block_manager import BlockManager
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.models.moss_lm import MossLM
from engine_runtime.tensorrt.llm.build import BuildOptions, BuildPlan, build_engine, plan_build
from engine_runtime.tensorrt.llm.executor import TrtllmExecutor
from engine_runtime.tensorrt.llm.session import EngineSession
from tests.doubles.tensorrt.llm_engine import CapturedCalls, TensorRT
from tests.doubles.tensorrt.memory import KnownMemory
from tests.doubles.tensorrt.model_api import builder, make_library
from tests.doubles.tensorrt.model_api.graph import Network
from tests.factories.engine_plans import Plan, plan_of, plan_of_network


def make_engine_paged(
    model: MossLM,
    folder: Path,
    contract: str = "1.x",
    *,
    plan: Plan | None = None,
    num_blocks: int = 64,
    tokens_per_block: int = 16,
    max_seq_len: int = 1024,
    chunk: int = 512,
    max_batch_size: int = 1,
    captures: bool = False,
    device: str = "cpu",
    uses_graphs: bool = True,
    **of_plan: Any,
) -> tuple[PagedLM, TensorRT]:
    """An engine of the model on `device`, and a new KV pool.

    On a CPU `captures` says whether decode steps are captured as on a GPU.
    """
    trt = TensorRT(KnownMemory(device))
    of_plan.setdefault("max_seq_len", max_seq_len)
    of_plan.setdefault("max_batch_size", max_batch_size)
    plan = plan or plan_of(model, contract, tokens_per_block=tokens_per_block, **of_plan)
    session = EngineSession(trt.write(folder / "rank0.engine", plan), trt.library, trt.memory)
    cache = KVCache(
        model.config,
        num_blocks,
        tokens_per_block,
        dtype=plan.build.dtype,
        keep_trunk=False,
        is_block_major=True,
        device=device,
    )
    trt.memory.know(cache.pool, "device")
    executor = TrtllmExecutor(
        session,
        model.config,
        cache,
        trt.memory,
        max_seq_len=max_seq_len,
        max_num_tokens=chunk,
        max_batch_size=max_batch_size,
        uses_graphs=uses_graphs,
        calls=CapturedCalls(trt) if captures else None,
    )
    return PagedLM(executor, cache, BlockManager(num_blocks, tokens_per_block)), trt


def executor_of(paged: PagedLM) -> TrtllmExecutor:
    """The executor of `make_engine_paged`."""
    assert isinstance(paged.executor, TrtllmExecutor)
    return paged.executor


def make_described_paged(checkpoint: Path, folder: Path, options: BuildOptions, **replaced: Any) -> PagedLM:
    """The engine that the library (names replaced) builds from a checkpoint."""
    engines: list[builder.Engine] = []

    def keep(model: Any, config: Any) -> builder.Engine:
        engines.append(replaced.get("build", builder.build)(model, config))
        return engines[0]

    plan = plan_build(checkpoint, options)
    build_engine(plan, folder, options, make_library(**replaced | {"build": keep}))
    return make_network_paged(engines[0].network, plan, folder.parent)


def make_network_paged(network: Network, plan: BuildPlan, folder: Path) -> PagedLM:
    """An engine that evaluates a described network, with room for as many conversations as it was planned
    for."""
    sizes = {name: plan.settings[name] for name in ("max_seq_len", "max_batch_size")}
    block, rows = plan.plugins["tokens_per_block"], plan.settings["max_num_tokens"]
    of_network = plan_of_network(network, plan.config, tokens_per_block=block, max_num_tokens=rows, **sizes)
    paged, _ = make_engine_paged(
        of_network.build.model,
        folder,
        plan=of_network,
        num_blocks=sizes["max_batch_size"] * -(-sizes["max_seq_len"] // block),
        tokens_per_block=block,
        chunk=rows,
        **sizes,
    )
    return paged
