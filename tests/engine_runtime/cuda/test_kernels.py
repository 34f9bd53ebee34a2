"""The Triton kernels, run by Triton's interpreter, against the plain operations on the same buffers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine_runtime.executors.cuda import executor as cuda_executor
from engine_runtime.executors.cuda.batch_inputs import FLOATS, INTEGERS, PLACE_FIELDS
from engine_runtime.executors.cuda.decode_backend import DecodeOutputs
from engine_runtime.executors.cuda.inputs import StepInputs
from engine_runtime.executors.cuda.prefill import TorchRowOperations
from engine_runtime.executors.cuda.sampler import AUDIO, AUDIO_MAGNITUDE, DeviceSampler
from engine_runtime.executors.cuda.torch_backend import TorchBackend
from engine_runtime.executors.cuda.weights import LayerWeights, Network, build_network
from engine_runtime.lm.block_manager import Sequence
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.step import ReplySampling, SamplingMetadata, Tails
from engine_runtime.models.moss_lm import MossLM
from engine_runtime.options import BlockFormats, WeightFormat
from engine_runtime.quantization import FP8, Matrix, quantize
from engine_runtime.types import SamplingParams
from tests.doubles.interpreted_triton import HAS_TRITON, needs_triton, patch_interpreter
from tests.factories.tiny_lm import (
    LOGIT_TOLERANCE,
    as_ids,
    load_tiny,
    make_cuda_paged,
    make_llama,
    make_paged,
    make_thin,
)

pytestmark = needs_triton
patch_interpreter()
if HAS_TRITON:
    from engine_runtime.executors.cuda import triton_backend, triton_linear, triton_prefill
    from engine_runtime.executors.cuda.batch_sampler import make_result, take
    from engine_runtime.executors.cuda.triton_backend import TritonBackend
    from engine_runtime.executors.cuda.triton_linear import ConfigKey, KernelConfig, default_config
    from engine_runtime.executors.cuda.triton_prefill import TritonRowOperations
    from engine_runtime.executors.cuda.triton_sampler import TritonSampler

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FORMATS: tuple[WeightFormat, ...] = ("native", "fp8", "int8", "int4")
IS_INTERPRETED = DEVICE.type == "cpu"
needs_gpu = pytest.mark.skipif(IS_INTERPRETED, reason="the interpreter multiplies bfloat16 as integers")


def assert_stored(got: Tensor, wanted: Tensor) -> None:
    """Equal as fp8 numbers are: to the neighbour, where a value lies in the middle of two.

    The interpreter halves a number that is rounded up to the next power of two; a GPU does not.
    """
    near = (got - wanted).abs() <= 0.13 * wanted.abs() + 2**-9  # one step of e4m3
    halved = torch.isclose(2 * got, wanted) if IS_INTERPRETED else torch.zeros_like(near)
    assert (near | halved).all()
    assert near.float().mean() > 0.9


class Bench:
    """Both sides over one tiny network and one pool whose blocks are scattered."""

    def __init__(
        self,
        dtype: torch.dtype = torch.float32,
        kv_dtype: torch.dtype | None = None,
        model: MossLM | None = None,
    ) -> None:
        torch.manual_seed(0)
        self.model: MossLM = model or load_tiny()[0]
        self.network: Network = build_network(
            self.model.config,
            self.model.state_dict().__getitem__,
            formats=BlockFormats(),
            dtype=dtype,
            device=DEVICE,
            max_seq_len=256,
        )
        self.cache = KVCache(self.model.config, 16, 16, dtype=dtype, kv_dtype=kv_dtype, device=DEVICE)
        noise = torch.randn(self.cache.pool.shape)
        self.cache.pool.copy_(noise.to(self.cache.pool.dtype))
        self.inputs = StepInputs(16, DEVICE)
        scratch = torch.empty(1 << 16, dtype=dtype, device=DEVICE)
        outputs = DecodeOutputs.of(self.model.config, self.cache)
        self.plain = TorchBackend(self.network, self.cache, self.inputs, outputs, scratch)
        self.plain_rows = TorchRowOperations(self.network, self.cache, self.inputs)
        self.triton = TritonBackend(self.network, self.cache, self.inputs, outputs)
        self.triton_rows = TritonRowOperations(self.network, self.cache, self.inputs)

    def place(self, position: int) -> None:
        """The row to run is row `position` of a sequence on scattered blocks."""
        self.inputs.wait()
        self.inputs.set_table(torch.randperm(16).tolist(), self.cache.block_stride)
        self.inputs.set_row(0, position, 0)
        self.inputs.send(with_table=True)

    @property
    def layer(self) -> LayerWeights:
        layer = self.network.audio.layers[-1]
        if layer.q_norm is None or layer.k_norm is None:
            return layer
        return replace(layer, q_norm=layer.q_norm + 0.3, k_norm=layer.k_norm - 0.2)


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench()


def config_for(matrix: Matrix, rows: int, *, is_gated: bool = False) -> dict[ConfigKey, KernelConfig]:
    return {ConfigKey(matrix.format, matrix.shape, is_gated): KernelConfig(rows, 4, 3, 2)}


def close(got: Tensor, wanted: Tensor, weight_format: WeightFormat) -> None:
    """With integer weights the row is rounded to 16 bits relative to its maximum."""
    tolerance = 3e-3 if weight_format in ("int8", "int4") else 1e-4
    torch.testing.assert_close(got, wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize(("shape", "rows"), [((40, 64), 8), ((33, 160), 16), ((20, 300), 4), ((9, 130), 2)])
def test_a_row_times_a_matrix(
    bench: Bench, weight_format: WeightFormat, shape: tuple[int, int], rows: int
) -> None:
    matrix = quantize(torch.randn(shape).to(DEVICE), weight_format)
    bench.triton.linear.kernel_configs.update(config_for(matrix, rows))
    x, norm = torch.randn(1, shape[1]).to(DEVICE), torch.rand(shape[1]).to(DEVICE)
    residual = torch.randn(1, shape[0]).to(DEVICE)
    out, wanted = torch.zeros(2, 1, shape[0]).to(DEVICE)
    bench.triton.norm_linear(x, norm, matrix, out)
    bench.plain.norm_linear(x, norm, matrix, wanted)
    close(out, wanted, weight_format)
    bench.plain.linear_add(x, matrix, residual, wanted)
    bench.triton.linear_add(x, matrix, residual, residual)
    close(residual, wanted, weight_format)


@pytest.mark.slow
@pytest.mark.parametrize("weight_format", FORMATS)
def test_gate_and_up_in_one(bench: Bench, weight_format: WeightFormat) -> None:
    matrix = quantize(torch.randn(2 * 37, 192).to(DEVICE), weight_format)
    bench.triton.linear.kernel_configs.update(config_for(matrix, 8, is_gated=True))
    x, norm = torch.randn(1, 192).to(DEVICE), torch.rand(192).to(DEVICE)
    out, wanted = torch.zeros(2, 1, 37).to(DEVICE)
    bench.triton.norm_gate_up(x, norm, matrix, out)
    bench.plain.norm_gate_up(x, norm, matrix, wanted)
    close(out, wanted, weight_format)


def test_fp8_taken_apart_by_its_bits_is_the_same(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    every_number = torch.arange(256, dtype=torch.uint8)
    every_number[[0x7F, 0xFF]] = 0  # the two that are no number
    matrix = Matrix(
        "fp8", (16, 256), every_number.repeat(16, 1).view(FP8).to(DEVICE), torch.ones(16).to(DEVICE)
    )
    x, out = torch.randn(1, 256).to(DEVICE), torch.zeros(2, 1, 16).to(DEVICE)
    bench.triton.linear.kernel_configs.update(config_for(matrix, 16))
    bench.triton.norm_linear(x, torch.ones(256).to(DEVICE), matrix, out[0])
    monkeypatch.setattr(bench.triton.linear, "_fp8_as_bits", True)
    bench.triton.norm_linear(x, torch.ones(256).to(DEVICE), matrix, out[1])
    torch.testing.assert_close(out[0], out[1], atol=1e-5, rtol=1e-5)
    assert out[0].abs().min() > 0


@pytest.mark.slow
@pytest.mark.parametrize("position", [0, 1, 15, 16, 63, 64, 130, 255])
@pytest.mark.parametrize("bucket", [64, 256])
def test_attention_of_one_row(bench: Bench, position: int, bucket: int) -> None:
    if position >= bucket:
        pytest.skip("the row is not in this bucket")
    check_attention(bench, position, bucket, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("position", [1, 64, 128, 129, 200, 255])
def test_attention_with_splits_longer_than_a_tile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    monkeypatch.setattr(triton_backend, "_MAX_SPLITS", 2)
    check_attention(bench, position, 256, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "tolerance"),
    [
        (torch.float16, None, 0.01),
        (torch.float32, FP8, 0.01),
        (torch.float16, FP8, 0.02),
        pytest.param(torch.bfloat16, None, 0.02, marks=needs_gpu),
        pytest.param(torch.bfloat16, FP8, 0.02, marks=needs_gpu),
    ],
)
def test_attention_in_smaller_numbers(
    dtype: torch.dtype, kv_dtype: torch.dtype | None, tolerance: float
) -> None:
    check_attention(Bench(dtype, kv_dtype), 100, 256, tolerance)


@pytest.mark.slow
def test_attention_without_norms_of_queries_and_keys() -> None:
    check_attention(Bench(model=make_llama()), 130, 256, 1e-5)


def check_attention(bench: Bench, position: int, bucket: int, tolerance: float) -> None:
    bench.place(position)
    config, before = bench.model.config, bench.cache.pool.clone()
    width = (config.num_attention_heads + 2 * config.num_key_value_heads) * config.head_dim
    qkv = torch.randn(1, width).to(DEVICE, bench.cache.trunk.dtype)
    out, wanted = torch.zeros(2, 1, config.num_attention_heads * config.head_dim).to(qkv)
    bench.plain.attend(qkv, bench.layer, bucket, wanted)
    wanted_pool = bench.cache.pool.float()
    bench.cache.pool.copy_(before)
    for _ in range(2):  # the second time finds the counters as the first one left them
        bench.triton.attend(qkv, bench.layer, bucket, out)
        torch.testing.assert_close(out.float(), wanted.float(), atol=tolerance, rtol=tolerance)
    assert_pool(bench, wanted_pool, tolerance)
    assert (bench.cache.pool.float() != before.float()).any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kv_dtype", "model"), [(None, None), (FP8, None), (None, make_llama())], ids=["qwen3", "fp8", "llama"]
)
def test_rows_are_normed_turned_and_written(kv_dtype: torch.dtype | None, model: MossLM | None) -> None:
    bench = Bench(kv_dtype=kv_dtype, model=model)
    bench.place(0)
    config, before = bench.model.config, bench.cache.pool.clone()
    width = (config.num_attention_heads + 2 * config.num_key_value_heads) * config.head_dim
    qkv = torch.randn(21, width).to(DEVICE)
    positions = torch.arange(11, 11 + 21, device=DEVICE)
    wanted = bench.plain_rows.apply_rope_and_write_kv(qkv[:18], bench.layer, positions[:18])
    wanted_pool = bench.cache.pool.float()
    bench.cache.pool.copy_(before)
    positions[18:] = -1  # rows that are not there
    got = bench.triton_rows.apply_rope_and_write_kv(qkv, bench.layer, positions)
    torch.testing.assert_close(got[:18], wanted, atol=1e-5, rtol=1e-5)
    assert_pool(bench, wanted_pool, 1e-5)


def assert_pool(bench: Bench, wanted: Tensor, tolerance: float) -> None:
    if bench.cache.pool.dtype == FP8:
        assert_stored(bench.cache.pool.float(), wanted)
    else:
        torch.testing.assert_close(bench.cache.pool.float(), wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("kv_dtype", [None, FP8])
@pytest.mark.parametrize(
    ("first", "there", "count", "bucket"),
    [(0, 1, 1, 64), (0, 5, 8, 64), (13, 8, 8, 256), (60, 7, 16, 128), (200, 20, 21, 256), (251, 5, 40, 256)],
)
def test_attention_of_a_few_rows(
    first: int, there: int, count: int, bucket: int, kv_dtype: torch.dtype | None
) -> None:
    bench = Bench(kv_dtype=kv_dtype)
    bench.place(0)
    config = bench.model.config
    q = torch.randn(count, config.num_attention_heads, config.head_dim).to(DEVICE)
    positions = torch.full((count,), -1, device=DEVICE)
    positions[:there] = torch.arange(first, first + there)
    wanted = bench.plain_rows.attend(q, bench.layer, positions, bucket)
    got = bench.triton_rows.attend(q, bench.layer, positions, bucket)
    assert got.shape == (count, config.num_attention_heads * config.head_dim)
    torch.testing.assert_close(got[:there], wanted[:there], atol=1e-5, rtol=1e-5)
    assert torch.isfinite(got).all()  # else a product of the next layer would not be


def test_rows_between_products(bench: Bench) -> None:
    x, norm = torch.randn(5, 160).to(DEVICE), torch.rand(160).to(DEVICE)
    both: list[tuple[Tensor, Tensor]] = [
        (bench.triton_rows.norm(x, norm), bench.plain_rows.norm(x, norm)),
        (bench.triton_rows.gate(x), bench.plain_rows.gate(x)),
    ]
    for got, wanted in both:
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
    (rows, scale), (wanted_rows, wanted_scale) = bench.triton_rows.to_fp8(x), bench.plain_rows.to_fp8(x)
    torch.testing.assert_close(scale, wanted_scale)
    assert_stored(rows.float() * scale, wanted_rows.float() * wanted_scale)


@pytest.mark.slow
@pytest.mark.parametrize("weight_format", FORMATS[1:])
@pytest.mark.parametrize(("count", "shape"), [(1, (40, 64)), (7, (33, 300)), (16, (64, 128)), (50, (9, 130))])
def test_few_rows_times_a_rounded_matrix(
    bench: Bench,
    weight_format: WeightFormat,
    count: int,
    shape: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triton_prefill, "_WIDE", 40)
    matrix = quantize(torch.randn(shape).to(DEVICE), weight_format)
    x, residual = torch.randn(count, shape[1]).to(DEVICE), torch.randn(count, shape[0]).to(DEVICE)
    wanted = x @ matrix.dense(torch.float32).t()
    monkeypatch.setattr(triton_prefill, "lacks_fp8", lambda device: True)
    as_bits = TritonRowOperations(bench.network, bench.cache, bench.inputs)
    for rows in (bench.triton_rows, as_bits):
        for before in (None, residual):
            got = rows.small_batch_linear(x, matrix, before)
            assert got is not None
            total = wanted if before is None else wanted + before
            torch.testing.assert_close(got, total, atol=1e-4, rtol=1e-4)
    many = x.expand(count, -1).repeat(65, 1)
    assert rows.small_batch_linear(many, matrix, None) is None  # made dense, for so many
    assert rows.small_batch_linear(x, quantize(torch.randn(shape).to(DEVICE), "native"), None) is None


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("width", [64, 300])
def test_weights_made_dense(
    bench: Bench, weight_format: WeightFormat, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = quantize(torch.randn(9, width).to(DEVICE), weight_format)
    scratch = torch.zeros(4000).to(DEVICE)
    wanted = matrix.dense(torch.float32)
    got = bench.triton_rows.dense(matrix, torch.float32, scratch)
    torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-5)
    if weight_format == "fp8":
        scratch.zero_()
        monkeypatch.setattr(triton_prefill, "lacks_fp8", lambda device: True)
        rows = TritonRowOperations(bench.network, bench.cache, bench.inputs)
        torch.testing.assert_close(rows.dense(matrix, torch.float32, scratch), wanted, atol=1e-6, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("vocabs", [(300, 160), (5000, 2100), (40, 30)])
def test_picks_are_those_of_plain_torch(vocabs: tuple[int, int], do_sample: bool) -> None:
    torch.manual_seed(5)
    inputs = StepInputs(4, DEVICE)
    samplers = [kind(*vocabs, inputs, DEVICE) for kind in (DeviceSampler, TritonSampler)]
    seen = [torch.rand(vocab) < 0.3 for vocab in vocabs]
    for step in range(12 if IS_INTERPRETED else 200):
        if step % 3 == 0:  # a new reply
            change = step // 3 % 7
            params = SamplingParams(
                do_sample, 0.4 + 0.1 * change, 1 + 9 * change, 0.5 + 0.08 * change, 1.2, 9
            )
            of_reply = ReplySampling(params, vocabs[1] - 5, vocabs[1] - 7, *seen)
        draw_text, draw_audio = torch.rand(2, dtype=torch.float64).tolist()
        sampling = SamplingMetadata(
            of_reply,
            draw_text,
            draw_audio,
            last_text=step % vocabs[0],
            last_audio=step % vocabs[1],
            bans_eosp=step % 2 == 0,
            wants_subtitle=True,
        )
        logits = [torch.randn(1, vocab).mul(4).round_(decimals=step % 3).to(DEVICE) for vocab in vocabs]
        logits[1][0, vocabs[1] - 7] += 6 * (step % 2)  # the end of speech, likely, and held back or not
        inputs.wait()
        for sampler in samplers:
            sampler.set(sampling)
        inputs.send(with_table=False)
        found = []
        for sampler in samplers:
            sampler.result.fill_(-1)
            sampler.run(*logits, do_sample=do_sample, subtitle=step % 2 == 0)
            found.append(sampler.read())
        assert found[1][:3] == found[0][:3], (step, found)
        assert found[1][3:] == pytest.approx(found[0][3:], rel=1e-5)
    plain, kernels = samplers
    assert torch.equal(plain._seen_text, kernels._seen_text)
    assert torch.equal(plain._seen_audio, kernels._seen_audio)


def test_fields_are_taken_with_the_ids_of_the_step_before() -> None:
    """Rows that go on, that have ended and whose logits were not finite; others stay as they are."""
    torch.manual_seed(3)
    rows, text_vocab, eosp = 16, 300, 41
    host = torch.randint(0, 1000, (32, rows))
    fields = {name: host[index] for index, name in enumerate(INTEGERS)}
    fields["eosp"].fill_(eosp)
    fields["follows"].copy_(torch.randperm(2 * rows)[:rows])
    fields["follows"][2:5] = fields["text_position"][7:] = -1
    result = make_result(rows, DEVICE)
    result.copy_(torch.randint(0, 160, result.shape))
    result[..., AUDIO][result[..., AUDIO] == eosp] = 0
    of_row = result.view(2 * rows, -1)
    ended, spoiled, infinite = fields["follows"][[0, 5, 6]].tolist()
    of_row[ended, AUDIO] = eosp
    of_row[spoiled, AUDIO], of_row[spoiled, AUDIO_MAGNITUDE] = -1, torch.nan
    of_row[infinite, AUDIO_MAGNITUDE] = torch.inf
    wanted = host.clone()
    named = {name: wanted[index] for index, name in enumerate(INTEGERS)}
    for row, follows in enumerate(fields["follows"].tolist()):
        if follows < 0:
            continue
        code, magnitude = of_row[follows, [AUDIO, AUDIO_MAGNITUDE]].tolist()
        goes_on = code != eosp and math.isfinite(magnitude)
        named["token"][row] = text_vocab + code if goes_on else 0
        named["seen_audio"][row] = code if goes_on else -1
        for name in () if goes_on else PLACE_FIELDS:
            named[name][row] = -1
    device = torch.full_like(host, -7, device=DEVICE)
    take(host if IS_INTERPRETED else host.pin_memory(), device, result, text_vocab)
    used = len(INTEGERS) + len(FLOATS)
    assert torch.equal(device[:used].cpu(), wanted[:used])
    assert (wanted != host).any(dim=1).sum() == 2 + len(PLACE_FIELDS)


@pytest.mark.slow
@pytest.mark.parametrize("model", [load_tiny()[0], make_llama()], ids=["qwen3", "llama"])
def test_a_complete_step_through_the_executor(model: MossLM, monkeypatch: pytest.MonkeyPatch) -> None:
    few_programs = KernelConfig(32, 4, 1, 2)
    monkeypatch.setattr(triton_linear, "default_config", lambda key: few_programs)
    ids = as_ids(load_tiny()[1]["a.rows"], model)
    device = str(DEVICE)
    paged, plain = make_cuda_paged(model, uses_triton=True, device=device), make_paged(model)
    mine, other = Sequence(), Sequence()
    paged.prefill(mine, ids[:20])
    plain.prefill(other, ids[:20])
    for token, tails in ((ids[20], Tails(text=False)), (ids[21], Tails())):
        got, wanted = paged.decode(mine, token, tails), plain.decode(other, token, tails)
        assert got.audio_logits is not None
        assert wanted.audio_logits is not None
        torch.testing.assert_close(got.audio_logits, wanted.audio_logits, atol=LOGIT_TOLERANCE, rtol=0)
    assert got.text_logits is not None
    assert wanted.text_logits is not None
    torch.testing.assert_close(got.text_logits, wanted.text_logits, atol=LOGIT_TOLERANCE, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("weight_format", FORMATS[1:])
def test_few_rows_through_the_executor(weight_format: WeightFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_thin()
    ids = as_ids(load_tiny()[1]["a.rows"], model)[:9]
    formats = BlockFormats(weight_format, weight_format)
    paged = make_cuda_paged(
        model, formats=formats, uses_triton=True, device=str(DEVICE), multiplies_fp8=False
    )
    plain = make_cuda_paged(model, formats=formats)
    # so that no rounded weight is made dense
    monkeypatch.setattr(TritonRowOperations, "dense", lambda rows, matrix, *given: matrix.weight)
    got, wanted = paged.prefill(Sequence(), ids), plain.prefill(Sequence(), ids)
    for one, other in ((got.text_logits, wanted.text_logits), (got.audio_logits, wanted.audio_logits)):
        torch.testing.assert_close(one, other, atol=LOGIT_TOLERANCE, rtol=0)


@pytest.mark.slow
def test_a_few_rows_filled_up_to_a_captured_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_executor, "GRAPHED_ROWS", (4, 8))
    model = make_thin()
    ids = as_ids(load_tiny()[1]["a.rows"], model)
    device = str(DEVICE)
    paged = make_cuda_paged(model, uses_triton=True, device=device, graphed_rows=True)
    plain, neighbour = make_paged(model), Sequence()
    paged.prefill(neighbour, ids[60:80])  # holds blocks that must stay as they are
    kept = paged.cache.pool[neighbour.block_table].clone()
    mine, other = Sequence(), Sequence()
    calls = (
        (3, Tails(text=False, audio=False)),
        (4, Tails(text=False)),
        (8, Tails()),
        (12, Tails()),
        (1, Tails()),
    )
    for count, tails in calls:
        start = mine.num_tokens
        got = paged.prefill(mine, ids[start : start + count], tails)
        wanted = plain.prefill(other, ids[start : start + count], tails)
        for one, two in ((got.text_logits, wanted.text_logits), (got.audio_logits, wanted.audio_logits)):
            assert (one is None) == (two is None)
            if one is not None and two is not None:
                torch.testing.assert_close(one, two, atol=LOGIT_TOLERANCE, rtol=0)
    assert torch.equal(paged.cache.pool[neighbour.block_table], kept)


@pytest.mark.parametrize("columns", [4096, 12288, 256, 704])
@pytest.mark.parametrize("weight_format", FORMATS)
def test_default_configs_are_sizes_that_triton_takes(columns: int, weight_format: WeightFormat) -> None:
    for is_gated in (False, True):
        config = default_config(ConfigKey(weight_format, (512, columns), is_gated))
        for size in (config.rows, config.warps):
            assert size & (size - 1) == 0
            assert size > 0
        assert config.warps <= 8
