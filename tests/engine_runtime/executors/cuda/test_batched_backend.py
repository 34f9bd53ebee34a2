"""Which kernels a step of several sequences launches, and in what format they store rows, without a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine_runtime.cuda.driver import LARGE_SHARED_MEMORY
from engine_runtime.cuda.tensor_map import TensorMap
from engine_runtime.executors.cuda import paged_attention, residual_norm, skinny_gemm
from engine_runtime.executors.cuda.batch_inputs import BatchInputs
from engine_runtime.executors.cuda.skinny_gemm import RowFormat
from engine_runtime.executors.cuda.weights import Network, build_network
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.models.moss_lm import MossLM, MossLMConfig
from engine_runtime.options import BlockFormats
from tests.doubles.compiled_kernel import Argument, RecordedKernel
from tests.doubles.interpreted_triton import HAS_TRITON, needs_triton

pytestmark = needs_triton
if HAS_TRITON:
    from engine_runtime.executors.cuda.batched_backend import BatchedBackend, BatchShape
    from engine_runtime.executors.cuda.batched_linear import BatchedLinear

CPU = torch.device("cpu")
CONFIG = MossLMConfig(
    hidden_size=1024,
    intermediate_size=128,
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=128,
    shared_layers=2,
    text_layers=1,
    audio_layers=1,
    text_vocab=48,
    audio_vocab=32,
    modality_pad=47,
)
"""Small, with the sizes that the kernels need."""
CAPACITY, LONGEST, TOKENS = 32, 512, 16
ROWS = 4
FP8_LAYERS, FP8_TRUNK = BlockFormats("fp8", "fp8"), BlockFormats("fp8")
Launch = tuple[str, dict[str, Argument]]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """What kernels in CUDA C++ are launched with, by their name, on a GPU that has all of them."""
    seen: list[Launch] = []

    class Kernel(RecordedKernel):
        def __init__(self, source: str, headers: Any, name: str, *args: Any, **choices: Any) -> None:
            super().__init__(source, headers, name, *args, **choices)
            self._name = name

        def launch(self, *args: Any, **choices: Any) -> None:
            super().launch(*args, **choices)
            seen.append((self._name, self.arguments))

    properties = SimpleNamespace(multi_processor_count=132, shared_memory_per_block_optin=LARGE_SHARED_MEMORY)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    for module in (paged_attention, residual_norm, skinny_gemm):
        monkeypatch.setattr(module, "CompiledKernel", Kernel)
        monkeypatch.setattr(module, "unsupported_reason", lambda *args, **choices: None)
    for module in (paged_attention, skinny_gemm):
        monkeypatch.setattr(module, "tensor_map", lambda *args, **choices: TensorMap())
    return seen


def make_network(formats: BlockFormats) -> Network:
    torch.manual_seed(0)
    model = MossLM(CONFIG)
    model.reset_parameters()
    return build_network(
        CONFIG,
        model.state_dict().__getitem__,
        formats=formats,
        dtype=torch.bfloat16,
        device=CPU,
        max_seq_len=LONGEST,
    )


def make_backend(formats: BlockFormats) -> BatchedBackend:
    cache = KVCache(CONFIG, 4, TOKENS, dtype=torch.bfloat16)
    return BatchedBackend(
        make_network(formats), cache, BatchInputs(CAPACITY, LONGEST // TOKENS, CPU), LONGEST
    )


def shape_of(*, text: bool = True, audio: bool = True) -> BatchShape:
    return BatchShape(ROWS, LONGEST, text, audio, samples=False)


def formats_of(launches: list[Launch], name: str) -> list[Argument]:
    """The formats of the rows that a kernel stores, in the order of its launches."""
    return [given["row_format"] for kernel, given in launches if kernel == name and given["out"] is not None]


LAYER = ["skinny_gemm", "attend_units", "skinny_gemm", "add_scaled", "skinny_gemm", "skinny_gemm"]
"""From normed rows to the product with `down`."""


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("audio", [False, True])
def test_a_step_is_planned_once_before_its_layers(text: bool, audio: bool, launches: list[Launch]) -> None:
    backend = make_backend(BlockFormats())
    backend.forward(shape_of(text=text, audio=audio))
    names = [name for name, _ in launches]
    tail = ["add_and_norm", *LAYER, "add_and_norm", "skinny_gemm"]
    trunk = ["add_and_norm", *LAYER, "add_scaled", *LAYER, "add_and_norm"]  # the last one only adds up
    # A product lies between the plans and what reads them early.
    assert names == ["plan_units", *trunk, *(text + audio) * tail]
    planned = launches[0][1]
    assert (planned["of_text"] is not None, planned["of_audio"] is not None) == (text, audio)
    assert backend.paged_attention is not None
    plans = [given["plans"] for name, given in launches if name == "attend_units"]
    places = [0, 0] + [1] * text + [2] * audio
    assert len(plans) == len(places)
    for given, place in zip(plans, places, strict=True):
        assert isinstance(given, torch.Tensor)
        assert given.data_ptr() == backend.paged_attention._plans[place].data_ptr()


def test_a_product_multiplies_by_what_the_norm_of_its_rows_lacks(launches: list[Launch]) -> None:
    backend = make_backend(BlockFormats())
    backend.forward(shape_of(text=False))
    assert backend._norms is not None
    first, second = (norms.applied.data_ptr() for norms in backend._norms)

    def address(value: Argument) -> int | None:
        return value.data_ptr() if isinstance(value, torch.Tensor) else None

    products = [given for name, given in launches if name == "skinny_gemm"]
    lacking = [i for i, given in enumerate(products) if given["squares"] is not None]
    # Gate and up of each layer, and q, k and v of the second one, of the trunk; gate and up of the tail.
    assert lacking == [2, 4, 6, 10]
    added = [given for name, given in launches if name == "add_scaled"]
    # Rows are multiplied by the factor of the norm before, which the product before has stored.
    assert [address(given["applied"]) for given in added] == [first, second, first, first]
    read = [(address(products[i]["applied"]), address(products[i]["whole"])) for i in lacking]
    assert read == [(first, second), (second, first), (first, second), (first, second)]
    whole = [given for name, given in launches if name == "add_and_norm" and given["norm"] is not None]
    assert [address(given["applied"]) for given in whole] == [first, first, first]


def test_norms_are_whole_if_products_run_in_triton(
    launches: list[Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skinny_gemm, "unsupported_reason", lambda *args, **choices: "a test")
    for name in ("run", "run_gated"):
        monkeypatch.setattr(BatchedLinear, name, lambda *args, **choices: None)
    backend = make_backend(BlockFormats())
    assert backend._norms is None
    backend.forward(shape_of())
    assert "add_scaled" not in {name for name, _ in launches}
    assert all(given["applied"] is None for name, given in launches if name == "add_and_norm")


BF16, F16, INTERLEAVED = RowFormat


@pytest.mark.parametrize(
    ("formats", "has_skinny", "of_trunk", "of_tails"),
    [
        (BlockFormats(), True, BF16, BF16),
        (BlockFormats(), False, BF16, BF16),
        (FP8_LAYERS, True, INTERLEAVED, INTERLEAVED),
        (FP8_LAYERS, False, F16, F16),
        (FP8_TRUNK, True, INTERLEAVED, BF16),
        (FP8_TRUNK, False, F16, BF16),
    ],
)
def test_rows_are_stored_as_the_next_product_reads_them(
    formats: BlockFormats,
    has_skinny: bool,
    of_trunk: RowFormat,
    of_tails: RowFormat,
    launches: list[Launch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not has_skinny:
        monkeypatch.setattr(skinny_gemm, "unsupported_reason", lambda *args, **choices: "a test")
        for name in ("run", "run_gated"):
            monkeypatch.setattr(BatchedLinear, name, lambda *args, **choices: None)
    make_backend(formats).forward(shape_of())
    # Before q, k and v, and gate and up, of both layers; then of each tail, and before its head.
    of_norms = [of_trunk] * 4, [of_tails, of_tails, BF16], [of_tails, of_tails, BF16]
    norms = [
        given["row_format"]
        for name, given in launches
        if name in ("add_and_norm", "add_scaled") and given["out"] is not None
    ]
    assert norms == [row_format for formats in of_norms for row_format in formats]
    assert formats_of(launches, "attend_units") == [of_trunk] * 2 + [of_tails] * 2
    dtypes = {BF16: torch.bfloat16, F16: torch.float16, INTERLEAVED: torch.float16}
    for name, given in launches:
        out = given.get("out")
        if name in ("add_and_norm", "add_scaled", "attend_units") and isinstance(out, torch.Tensor):
            row_format = given["row_format"]
            assert isinstance(row_format, int)
            assert out.dtype == dtypes[RowFormat(row_format)]


@pytest.mark.usefixtures("launches")
@pytest.mark.parametrize(
    ("formats", "missing", "reason"),
    [
        (BlockFormats(), None, None),
        (FP8_TRUNK, None, None),
        (BlockFormats(), paged_attention, "attention or norms run in Triton"),
        (BlockFormats(), residual_norm, "attention or norms run in Triton"),
        (BlockFormats("int8"), None, "it lacks the format or the sizes of a matrix"),
        (BlockFormats("native", "int4"), None, "it lacks the format or the sizes of a matrix"),
    ],
)
def test_products_run_in_cuda_if_all_kernels_of_a_layer_do(
    formats: BlockFormats,
    missing: Any,
    reason: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if missing is not None:
        monkeypatch.setattr(missing, "unsupported_reason", lambda *args, **choices: "a test")
    with caplog.at_level("INFO"):
        backend = make_backend(formats)
    assert (backend.linear._skinny is None) == (reason is not None)
    messages = [message for message in caplog.messages if message.startswith("Batched steps run products")]
    assert messages == ([] if reason is None else [f"Batched steps run products in Triton: {reason}"])


@pytest.mark.usefixtures("launches")
def test_heads_in_other_formats_do_not_matter() -> None:
    """Their products stand alone."""
    backend = make_backend(BlockFormats("fp8", "fp8", heads="int8"))
    assert backend.linear._skinny is not None
    assert backend.linear.row_format(backend._network.text.head, torch.bfloat16) == BF16
