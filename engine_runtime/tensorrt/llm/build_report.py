"""Report of an engine build, as text and as one JSON document.

In: the engine's folder and what was measured. Out: lines, or plain values. Any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine_runtime.tensorrt.engine import EngineTensor
from engine_runtime.tensorrt.llm.engine_directory import EngineDirectory


@dataclass(frozen=True, slots=True)
class BuildReport:
    """One build.

    Attributes:
        tensors: inputs and outputs as the library described them; -1 is a size that varies.
        load_seconds: time to read the checkpoint; `engine` holds the build time.
        gpu: name of the GPU it was built on, None where torch sees none.
        changed: sizes that differ from the requested ones.
    """

    engine: EngineDirectory
    tensors: tuple[EngineTensor, ...]
    load_seconds: float
    weights_bytes: int
    gpu: str | None
    changed: tuple[str, ...] = ()

    @property
    def plan_bytes(self) -> int:
        """Size of the engine."""
        return self.engine.plan.stat().st_size

    @property
    def cache_bytes(self) -> int:
        """Keys and values of the longest sequence."""
        return self.engine.max_seq_len * self.engine.model.kv_row_bytes

    def document(self) -> dict[str, Any]:
        """The report as plain values."""
        engine = self.engine
        return {
            "engine": str(engine.path),
            "library_version": engine.library_version,
            "gpu": self.gpu,
            "bundle": engine.bundle_name,
            "lm_fingerprint": engine.lm_fingerprint,
            "contract": engine.contract,
            "precision": engine.precision,
            "load_s": round(self.load_seconds, 1),
            "build_s": engine.build_seconds,
            "weights_bytes": self.weights_bytes,
            "plan_bytes": self.plan_bytes,
            "cache_bytes": self.cache_bytes,
            "max_seq_len": engine.max_seq_len,
            "max_num_tokens": engine.max_num_tokens,
            "max_batch_size": engine.max_batch_size,
            "tokens_per_block": engine.tokens_per_block,
            "changed": list(self.changed),
            "tensors": [
                {
                    "name": tensor.name,
                    "mode": "input" if tensor.is_input else "output",
                    "dtype": str(tensor.dtype).removeprefix("torch."),
                    "shape": list(tensor.shape),
                }
                for tensor in self.tensors
            ],
        }

    def lines(self) -> list[str]:
        """The same as text."""
        engine = self.engine
        inputs = sum(tensor.is_input for tensor in self.tensors)
        gpu, bundle = (
            self.gpu or "an unknown GPU",
            engine.bundle_name or "a checkpoint without a bundle's name",
        )
        cache = f"{self.cache_bytes / 1e9:.2f} GB of keys and values in blocks of {engine.tokens_per_block}"
        lines = [
            f"{engine.path}",
            f"  built       with TensorRT-LLM {engine.library_version} on {gpu}, of {bundle}",
            f"  time        {self.load_seconds:.1f} s to load, {engine.build_seconds:.1f} s to build",
            f"  size        {self.plan_bytes / 1e9:.2f} GB, of {self.weights_bytes / 1e9:.2f} GB of weights",
            f"  precision   {engine.precision}",
            f"  limits      {engine.max_seq_len} rows in all ({cache}), {engine.max_num_tokens} a call",
            f"  batch       {self._batch()}",
            *(f"  changed     {change}" for change in self.changed),
            f"  tensors     {inputs} inputs, {len(self.tensors) - inputs} outputs",
        ]
        for tensor in self.tensors:
            mode, dtype = "in " if tensor.is_input else "out", str(tensor.dtype).removeprefix("torch.")
            lines.append(f"    {mode} {tensor.name:<32} {dtype:<8} {list(tensor.shape)}")
        return lines

    def _batch(self) -> str:
        sequences = self.engine.max_batch_size
        if sequences == 1:
            return "one sequence a call; for several, build with --max-batch-size"
        return f"{sequences} sequences a call, {sequences * self.cache_bytes / 1e9:.2f} GB at full length"
