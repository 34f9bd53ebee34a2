"""The persistent backend on a real GPU, against the torch backend: same logits, same keys and values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.executors.cuda.decode_backend import DecodeBackend, DecodeOutputs, StepShape, bucket_of
from engine_runtime.executors.cuda.inputs import StepInputs
from engine_runtime.executors.cuda.persistent_backend import PersistentBackend, unsupported_reason
from engine_runtime.executors.cuda.torch_backend import TorchBackend
from engine_runtime.executors.cuda.weights import build_network
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.models.moss_lm import MossLM, MossLMConfig
from engine_runtime.options import BlockFormats, WeightFormat
from engine_runtime.quantization import FP8

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
CONFIG = MossLMConfig(
    hidden_size=2048,
    intermediate_size=6144,
    num_attention_heads=16,
    num_key_value_heads=4,
    head_dim=128,
    shared_layers=3,
    text_layers=1,
    audio_layers=2,
    text_vocab=4000,
    audio_vocab=2064,
    modality_pad=3999,
)
FORMATS: list[WeightFormat] = ["native", "fp8", "int8", "int4"]
NUM_BLOCKS, TOKENS, ROW = 160, 32, 7


class Bench:
    """Both backends over a pool full of random numbers, in blocks that lie in no order."""

    def __init__(self, weight_format: WeightFormat, kv_dtype: torch.dtype | None = None) -> None:
        device = torch.device("cuda")
        torch.manual_seed(0)
        with device:
            model = MossLM(CONFIG)
            model.reset_parameters()
        self.cache = KVCache(
            CONFIG, NUM_BLOCKS, TOKENS, dtype=torch.bfloat16, kv_dtype=kv_dtype, device=device
        )
        network = build_network(
            CONFIG,
            model.state_dict().__getitem__,
            formats=BlockFormats(weight_format),
            dtype=torch.bfloat16,
            device=device,
            max_seq_len=NUM_BLOCKS * TOKENS,
        )
        self.cache.pool.copy_(torch.randn(self.cache.pool.shape, device=device))
        self.inputs = StepInputs(NUM_BLOCKS, device)
        order = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(1))
        self.inputs.set_table(order.tolist(), self.cache.block_stride)
        room = network.largest_dense(multiplies_fp8=False)
        scratch = torch.empty(room, dtype=torch.bfloat16, device=device)
        reason = unsupported_reason(network, self.cache)
        if reason is not None and "9.0" in reason:
            pytest.skip(reason)
        assert reason is None
        self.step_outputs = DecodeOutputs.of(CONFIG, self.cache)
        self.reference = TorchBackend(network, self.cache, self.inputs, self.step_outputs, scratch)
        self.persistent = PersistentBackend(
            network, self.cache, self.inputs, self.step_outputs, self.reference.sampler
        )

    def at(self, position: int) -> None:
        """Stand at a position."""
        self.inputs.wait()
        self.inputs.set_row(77, position, ROW)
        self.inputs.send(with_table=True)

    def outputs(self) -> list[Tensor]:
        """Logits and the kept output of the trunk."""
        return [self.step_outputs.text_logits, self.step_outputs.audio_logits, self.step_outputs.trunk[ROW]]

    def spoil(self) -> None:
        """Make sure that everything is written."""
        for output in self.outputs():
            output.fill_(float("nan"))

    def run(self, backend: DecodeBackend, position: int, shape: StepShape) -> tuple[list[Tensor], Tensor]:
        """Outputs and the pool after a step; the pool is put back."""
        before = self.cache.pool.clone()
        self.at(position)
        self.spoil()
        backend.run(shape)
        torch.cuda.synchronize()
        found = [output.clone() for output in self.outputs()], self.cache.pool.clone()
        self.cache.pool.copy_(before)
        return found


@pytest.mark.parametrize("kv_dtype", [None, FP8])
@pytest.mark.parametrize("weight_format", FORMATS)
@torch.inference_mode()
def test_both_backends_yield_the_same(weight_format: WeightFormat, kv_dtype: torch.dtype | None) -> None:
    bench = Bench(weight_format, kv_dtype)
    for position in (0, 1, 15, 16, 17, 100, 2047, 2048, 5000):
        for text, audio in ((True, False), (False, True), (True, True)):
            bucket = bucket_of(position + 1, NUM_BLOCKS * TOKENS)
            expected, pool = bench.run(bench.reference, position, StepShape(bucket, text, audio))
            found, pool_found = bench.run(bench.persistent, position, StepShape(0, text, audio))
            wanted = (text, audio, not (text and audio))
            for one, other, is_wanted in zip(found, expected, wanted, strict=True):
                assert bool(one.isnan().all()) != is_wanted
                if is_wanted:
                    likeness = torch.cosine_similarity(one.flatten().float(), other.flatten().float(), dim=0)
                    # A K or V that is rounded to fp8 may fall on the other side of a border.
                    least = 0.9995 if kv_dtype is None else 0.999
                    assert likeness > least, (position, text, audio, likeness)
            # K and V of one row changed in every layer that ran, and nothing else.
            changed = (pool_found.float() != bench.cache.pool.float()).sum()
            layers = CONFIG.shared_layers + text * CONFIG.text_layers + audio * CONFIG.audio_layers
            most = layers * 2 * CONFIG.num_key_value_heads * CONFIG.head_dim
            assert 0.9 * most < changed <= most
            assert (
                torch.cosine_similarity(pool_found.float().flatten(), pool.float().flatten(), dim=0) > 0.9999
            )


@torch.inference_mode()
def test_it_yields_the_same_every_time_also_captured() -> None:
    bench = Bench("fp8")
    shape = StepShape(0, text=True, audio=True)
    calls = GraphedCalls("cuda")
    expected, _ = bench.run(bench.persistent, 300, shape)
    for _ in range(20):
        bench.at(300)
        bench.spoil()
        calls.run(shape, lambda: bench.persistent.run(shape))
        for one, other in zip(bench.outputs()[:2], expected[:2], strict=True):
            assert torch.equal(one, other)
    assert calls.num_captured == 1


@torch.inference_mode()
def test_work_on_another_stream_does_not_hold_it_up_for_good() -> None:
    bench = Bench("native")
    shape = StepShape(0, text=False, audio=True)
    expected, _ = bench.run(bench.persistent, 300, shape)
    other, large = torch.cuda.Stream(priority=-1), torch.randn(2048, 2048, device="cuda")
    for _ in range(20):
        with torch.cuda.stream(other):
            for _ in range(10):
                torch.mm(large, large)
        found, _ = bench.run(bench.persistent, 300, shape)
        assert torch.equal(found[1], expected[1])
