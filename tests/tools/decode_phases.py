"""Where the time of a decode step goes, per operation. Run by hand on a GPU, not by pytest:

    python -m tests.tools.decode_phases [--rows N] [--sequences N ...] [--weights FORMAT ...]

The language model has the released sizes and random weights; the step is a row of speech after N rows. The
persistent kernel is timed on every prefix of its op list: the time of an operation is the difference of two
prefixes. Triton kernels are timed by torch's profiler. Medians over the layers in microseconds, beside the
time that reading the weights (for attention the keys and values) takes at the measured copy bandwidth.

With --sequences, batched steps of so many sequences instead, by kernel: since kernels start before the one
before has ended, the time of each counts from there on, so that the sum is the time of the step.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from app.cli import build_parser
from app.commands.shared_options import start_settings
from app.main import engine_factory
from engine_runtime.bench.batched_decode import Speaker, batch_bytes
from engine_runtime.bench.ceilings import Ceilings, measure_ceilings
from engine_runtime.bench.language_model import LMBench
from engine_runtime.bench.measuring import BenchError
from engine_runtime.cuda.graphs import padded_size
from engine_runtime.engine import Engine
from engine_runtime.executors.cuda.decode_backend import DecodeBackend, StepShape, bucket_of
from engine_runtime.executors.cuda.executor import CudaExecutor
from engine_runtime.executors.cuda.persistent_backend import PersistentBackend
from engine_runtime.executors.cuda.weights import Network
from engine_runtime.lm.step import Tails

OPERATIONS = ("qkv", "attention", "o", "gate_up", "down")
"""Of a layer, in order."""
_SPEECH = Tails(text=False, audio=True)
_REPEATS = 20
_SKIPPED_LAYERS = 2
"""At the beginning, where the launch itself still shows."""


def main() -> None:
    """Print a table per weight format."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--sequences", type=int, nargs="+", default=[])
    parser.add_argument("--weights", nargs="+", default=["native", "fp8"])
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("There is no CUDA device.")
    command = "bench --bundle moss-speech --random-weights 0 --device cuda"
    settings = start_settings(build_parser().parse_args(command.split()))
    ceilings = measure_ceilings(torch.device("cuda"))
    for weight_format in arguments.weights:
        options = replace(settings.engine, weight_format=weight_format)
        if arguments.sequences:
            most = max(arguments.sequences)
            options = replace(options, max_batch_size=most, kv_blocks=most * (arguments.rows // 16 + 2))
        engine = engine_factory(replace(settings, engine=options))()
        with torch.inference_mode():
            for count in arguments.sequences:
                _measure_common(engine, ceilings, arguments.rows, count, weight_format)
            if not arguments.sequences:
                _measure(engine, ceilings, arguments.rows, weight_format)
        engine.close()
        del engine
        torch.cuda.empty_cache()


def _measure(engine: Engine, ceilings: Ceilings, rows: int, weight_format: str) -> None:
    stages, executor = engine.stages, engine.stages.lm.executor
    assert isinstance(executor, CudaExecutor)
    bench = LMBench(stages, ceilings, repeats=1)
    with bench.sequence() as sequence:
        ids = stages.sequences.merged_ids(bench.tokens_of_speech(rows + 1))
        stages.lm.prefill(sequence, ids[:-1], _SPEECH)
        stages.lm.decode(sequence, ids[-1], _SPEECH)  # leaves its inputs in the buffers of the executor
        shape = StepShape(bucket_of(rows + 1, executor.limits.max_seq_len), text=False, audio=True)
        wanted = _logits(executor, executor._backends[-1], shape)
        floors = _floors(executor.network, stages.lm.cache.pool.element_size(), rows, ceilings)
        times: dict[str, dict[str, float]] = {"floor": floors}
        for backend in executor._backends:
            likeness = torch.cosine_similarity(_logits(executor, backend, shape), wanted, dim=-1)
            if float(likeness) < 0.999:
                raise BenchError(
                    "{backend} returns other logits.", "No times are shown.", backend=backend.name
                )
            if isinstance(backend, PersistentBackend):
                times[backend.name] = _prefix_times(backend, shape)
            else:
                times[backend.name] = _kernel_times(backend, shape)
    names = (*OPERATIONS, "head", "step")
    lines = [f"{weight_format}, {rows} rows, microseconds", " " * 12 + "".join(f"{n:>12}" for n in names)]
    for backend_name, row in times.items():
        lines.append(f"{backend_name:<12}" + "".join(f"{row[name]:>12.1f}" for name in names))
    sys.stdout.write("\n".join(lines) + "\n\n")
    sys.stdout.flush()


def _measure_common(engine: Engine, ceilings: Ceilings, rows: int, count: int, weight_format: str) -> None:
    """A captured batched step, replayed alone."""
    from engine_runtime.executors.cuda.batched_backend import BatchShape  # needs Triton

    stages, executor = engine.stages, engine.stages.lm.executor
    assert isinstance(executor, CudaExecutor)
    bench = LMBench(stages, ceilings, repeats=1)
    with ExitStack() as stack:
        speakers = [
            Speaker(replace(bench, seed=number), stack.enter_context(bench.sequence()), rows)
            for number in range(count)
        ]
        for _ in range(2):
            outputs = stages.lm.step([one.request(one.generation) for one in speakers])
            for one, output in zip(speakers, outputs, strict=True):
                one.rows.append(one.generation.sample(output).token)
        if len({code for one in speakers for code in one.codes}) < 2:
            raise BenchError("Every decode step returns the same code.", "No times are shown.")
        batched, tails = executor.batched, speakers[0].generation.tails
        assert batched is not None
        shape = [
            key
            for key in executor._graphs._graphs_by_key
            if isinstance(key, BatchShape) and key.rows == padded_size(count)
        ][-1]
        found, spans = [], []
        for _ in range(5):
            with profile(activities=[ProfilerActivity.CUDA]) as profiler:
                batched._run(shape)
                torch.cuda.synchronize()
            events = sorted(
                (event.time_range.start, event.time_range.end, event.name.split("(")[0])
                for event in profiler.events() or []
                if event.device_type.name == "CUDA"
            )
            until, times, launches = events[0][0], Counter[str](), Counter[str]()
            for _, end, name in events:
                times[name] += max(end - until, 0.0)
                launches[name] += 1
                until = max(until, end)
            found.append((times, launches))
            spans.append(until - events[0][0])
    floor = batch_bytes(bench.costs, count, rows, tails) / ceilings.copy_bytes_per_s * 1e6
    lines = [
        f"{weight_format}, {count} sequences, {rows} rows: {np.median(spans):.0f} us, floor {floor:.0f} us"
    ]
    for name, number in found[0][1].most_common():
        spent = np.median([times[name] for times, _ in found])
        lines.append(f"{name[:40]:<42}{number:>5} launches{spent:>10.1f} us")
    sys.stdout.write("\n".join(lines) + "\n\n")
    sys.stdout.flush()


def _logits(executor: CudaExecutor, backend: DecodeBackend, shape: StepShape) -> Tensor:
    executor._outputs.audio_logits.fill_(torch.nan)
    backend.forward(shape)
    return executor._outputs.audio_logits.clone()


def _floors(network: Network, kv_bytes: int, rows: int, ceilings: Ceilings) -> dict[str, float]:
    """Reading every byte once."""
    layer, config = network.trunk[1], network.config
    sizes = {
        "qkv": layer.qkv.bytes,
        "attention": 2 * rows * config.num_key_value_heads * config.head_dim * kv_bytes,
        "o": layer.o.bytes,
        "gate_up": layer.gate_up.bytes,
        "down": layer.down.bytes,
        "head": network.audio.head.bytes,
    }
    per_us = ceilings.copy_bytes_per_s / 1e6
    num_layers = len(network.trunk) + len(network.audio.layers)
    total = sum(sizes[name] for name in OPERATIONS) * num_layers + sizes["head"]
    return {name: size / per_us for name, size in sizes.items()} | {"step": total / per_us}


def _prefix_times(backend: PersistentBackend, shape: StepShape) -> dict[str, float]:
    """Differences between prefixes of the op list."""
    key = shape.text, shape.audio
    ops = backend._lists[key]
    num_ops = len(ops) - 1  # an empty one ends the list
    ends = []
    for count in range(num_ops + 1):
        backend._lists[key] = torch.cat((ops[:count], ops[-1:]))
        ends.append(_launch_us(backend, shape))
    backend._lists[key] = ops
    steps = np.diff(ends)
    layers = steps[:-1].reshape(-1, len(OPERATIONS))[_SKIPPED_LAYERS:]
    return dict(zip(OPERATIONS, np.median(layers, axis=0).tolist(), strict=True)) | {
        "head": float(steps[-1]),
        "step": ends[-1],
    }


def _launch_us(backend: DecodeBackend, shape: StepShape) -> float:
    """Median of single launches on the device's clock."""
    times = []
    for _ in range(_REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        backend.forward(shape)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000)
    return float(np.median(times))


def _kernel_times(backend: DecodeBackend, shape: StepShape) -> dict[str, float]:
    """Kernels of one step, in order, by torch's profiler; `step` includes the gaps between them."""
    backend.forward(shape)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        backend.forward(shape)
    found = []
    for _ in range(5):
        graph.replay()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            graph.replay()
            torch.cuda.synchronize()
        kernels = sorted(
            (event.time_range.start, event.time_range.end, event.name)
            for event in profiler.events() or []
            if "linear" in event.name or "attend" in event.name
        )
        found.append(kernels)
    lengths = np.median([[end - start for start, end, _ in kernels] for kernels in found], axis=0)
    layers = lengths[:-1].reshape(-1, len(OPERATIONS))[_SKIPPED_LAYERS:]
    spans = [kernels[-1][1] - kernels[0][0] for kernels in found]
    return dict(zip(OPERATIONS, np.median(layers, axis=0).tolist(), strict=True)) | {
        "head": float(lengths[-1]),
        "step": float(np.median(spans)),
    }


if __name__ == "__main__":
    main()
