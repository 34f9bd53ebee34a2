"""An engine in memory: its buffers, its tensor list, its rules, and every failing call of TensorRT."""

from __future__ import annotations

import gc
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from engine_runtime.errors import EngineError, ExecutorError
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.step import ExecutorLimits
from engine_runtime.models.moss_lm import MossLM
from engine_runtime.tensorrt.engine import Binding, ExecutionContext
from engine_runtime.tensorrt.llm.contract import CONTRACTS, Contract
from engine_runtime.tensorrt.llm.session import EngineInputs, EngineOutputs, EngineSession, Memory, bind
from engine_runtime.tensorrt.llm.step_tensors import block_offsets
from tests.doubles.tensorrt.llm_engine import TensorRT
from tests.doubles.tensorrt.memory import KnownMemory, look_at
from tests.factories.engine_plans import Plan, plan_of
from tests.factories.tiny_lm import load_tiny

LIMITS = ExecutorLimits(
    text_vocab=512,
    audio_vocab=160,
    num_layers=7,
    num_blocks=10,
    tokens_per_block=32,
    max_seq_len=200,
    max_num_tokens=64,
)


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)
def test_every_input_is_in_the_required_memory(contract: Contract) -> None:
    memory = KnownMemory()
    inputs = EngineInputs(contract, LIMITS, memory)
    bindings = {binding.name: binding for binding in inputs.bindings()}
    specs = {spec.name: spec for spec in contract.inputs(LIMITS)}
    assert bindings.keys() == specs.keys()
    for name, binding in bindings.items():
        size = torch.Size(binding.shape).numel() * specs[name].dtype.itemsize
        assert memory.fault(binding.address, size, specs[name].place) is None
        assert binding.address % 256 == 0
    for place in ("host", "device"):
        spans = sorted(
            (binding.address, torch.Size(binding.shape).numel() * specs[name].dtype.itemsize)
            for name, binding in bindings.items()
            if specs[name].place == place
        )
        for (start, size), (following, _) in pairwise(spans):
            assert start + size <= following


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)
def test_values_arrive_when_they_are_sent(contract: Contract) -> None:
    inputs = EngineInputs(contract, LIMITS, KnownMemory())
    offsets = torch.arange(14, dtype=torch.int32).view(1, 1, 2, 7)
    step = {
        "input_ids": torch.tensor([5, 6, 7], dtype=torch.int32),
        "kv_cache_block_offsets": offsets,
        "host_past_key_value_lengths": torch.tensor([9], dtype=torch.int32),
    }

    def seen(name: str) -> torch.Tensor:
        (binding,) = (binding for binding in inputs.bindings() if binding.name == name)
        return look_at(binding.address, binding.shape, torch.int32).clone()

    addresses = [binding.address for binding in inputs.bindings()]
    inputs.write(step)
    assert seen("host_past_key_value_lengths").tolist() == [9]
    assert seen("input_ids").tolist() == [0, 0, 0]
    inputs.send()
    assert seen("input_ids").tolist() == [5, 6, 7]
    wanted = offsets if contract.name == "1.x" else offsets[0]
    assert torch.equal(seen("kv_cache_block_offsets"), wanted)
    inputs.write(step | {"input_ids": torch.tensor([8], dtype=torch.int32)})
    inputs.set_past(256)
    inputs.send()
    assert seen("input_ids").tolist() == [8]
    assert seen("host_past_key_value_lengths").tolist() == [256]
    assert addresses == [binding.address for binding in inputs.bindings()]


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)
def test_a_step_of_fewer_sequences_lies_at_the_start_of_its_buffers(contract: Contract) -> None:
    inputs = EngineInputs(contract, replace(LIMITS, max_batch_size=4), KnownMemory())
    offsets = torch.arange(28, dtype=torch.int32).view(1, 2, 2, 7)
    step = {
        "input_ids": torch.tensor([5, 6, 7], dtype=torch.int32),
        "last_token_ids": torch.tensor([2, 3], dtype=torch.int32),
        "kv_cache_block_offsets": offsets,
        "cache_indirection": torch.ones((2, 1, 200), dtype=torch.int32),
    }
    inputs.write(step)
    inputs.send()
    bindings = {binding.name: binding for binding in inputs.bindings()}
    for name, value in step.items():
        wanted = value[0] if name in contract.without_pool_axis else value
        assert bindings[name].shape == wanted.shape
        if name == "cache_indirection":
            wanted = torch.zeros_like(wanted)  # only its shape is read
        assert torch.equal(look_at(bindings[name].address, bindings[name].shape, torch.int32), wanted)


def test_outputs_are_spoiled_fetched_and_kept() -> None:
    memory = KnownMemory()
    dtypes = {"logits": torch.float32, "audio_logits": torch.bfloat16}
    outputs = EngineOutputs({"logits": 5, "audio_logits": 3}, dtypes, memory, max_batch_size=3)
    text, audio = outputs.bindings(2)
    assert (text.shape, audio.shape) == ((2, 5), (2, 3))
    look_at(text.address, (2, 5), torch.float32).fill_(2.0)
    look_at(audio.address, (2, 3), torch.bfloat16).fill_(1.5)
    outputs.fetch(2)
    values = outputs.values(2)
    assert values["audio_logits"].dtype == torch.float32
    outputs.spoil(2)
    outputs.fetch(2)
    assert all(value.isnan().all() for value in outputs.values(2).values())
    assert values["logits"].tolist() == [[2.0] * 5] * 2
    assert values["audio_logits"].tolist() == [[1.5] * 3] * 2


def test_memory_goes_when_nobody_holds_it() -> None:
    memory = KnownMemory()
    inputs = EngineInputs(CONTRACTS[0], LIMITS, memory)
    (address,) = {b.address for b in inputs.bindings() if b.name == "input_ids"}
    assert memory.fault(address, 4, "device") is None
    del inputs
    gc.collect()
    assert memory.fault(address, 4, "device") == "points to nothing that lives"


def test_memory_is_zero() -> None:
    memory = Memory(torch.device("cpu"))
    for block in (memory.on_device(100), memory.on_host(100)):
        assert (block.dtype, block.shape) == (torch.uint8, (100,))
        assert not block.any()


@pytest.fixture(scope="module")
def model() -> MossLM:
    return load_tiny()[0]


class Bench:
    """One engine on the table, its first step written."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.trt = TensorRT(KnownMemory())
        self.session = EngineSession(
            self.trt.write(folder / "e.engine", plan), self.trt.library, self.trt.memory
        )
        config = plan.build.model.config
        self.cache = KVCache(config, 8, 16, keep_trunk=False, is_block_major=True)
        self.trt.memory.know(self.cache.pool, "device")
        limits = self.cache.limits(config, 128, 64)
        contract = CONTRACTS[0 if plan.build.has_pools else 1]
        self.inputs = EngineInputs(contract, limits, self.trt.memory)
        widths = {"logits": config.text_vocab, "audio_logits": config.audio_vocab}
        self.outputs = EngineOutputs(widths, dict.fromkeys(widths, torch.float32), self.trt.memory)
        pointers = torch.tensor([[self.cache.pool.data_ptr(), 0]])
        self.inputs.write(
            {
                "input_ids": torch.tensor([3, 4, 5], dtype=torch.int32),
                "position_ids": torch.arange(3, dtype=torch.int32),
                "last_token_ids": torch.tensor([3], dtype=torch.int32),
                "sequence_length": torch.tensor([3], dtype=torch.int32),
                "context_lengths": torch.tensor([3], dtype=torch.int32),
                "host_context_lengths": torch.tensor([3], dtype=torch.int32),
                "host_past_key_value_lengths": torch.tensor([3], dtype=torch.int32),
                "kv_cache_block_offsets": block_offsets([0], limits),
                "host_kv_cache_block_offsets": block_offsets([0], limits),
                "host_kv_cache_pool_pointers": pointers,
                "host_kv_cache_pool_mapping": torch.tensor(
                    [[0, layer] for layer in range(config.num_layers)]
                ),
                "host_max_attention_window_sizes": torch.full((config.num_layers,), 128),
            }
        )
        self.inputs.send()
        self.context = self.session.new_context(0, 7)

    def bind(self, **changes: Binding | None) -> None:
        """Bind everything, some of it otherwise; None leaves a tensor out."""
        inputs = {b.name: b for b in self.inputs.bindings()}
        outputs = {b.name: b for b in self.outputs.bindings(1)}
        for name, change in changes.items():
            group = outputs if name in outputs else inputs
            if change is None:
                group.pop(name, None)
            else:
                group[name] = change
        bind(self.context, inputs.values(), outputs.values())

    def binding(self, name: str) -> Binding:
        (found,) = (b for b in [*self.inputs.bindings(), *self.outputs.bindings(1)] if b.name == name)
        return found

    def run(self) -> dict[str, torch.Tensor]:
        self.outputs.spoil(1)
        self.context.enqueue(7)
        self.outputs.fetch(1)
        return self.outputs.values(1)


@pytest.fixture(params=["1.x", "0.13"])
def bench(model: MossLM, tmp_path: Path, request: pytest.FixtureRequest) -> Bench:
    return Bench(plan_of(model, request.param), tmp_path)


def test_a_step_that_is_bound_rightly(bench: Bench, model: MossLM) -> None:
    bench.bind()
    rows = torch.tensor([[[3, 0], [4, 0], [5, 0]]])
    with torch.inference_mode():
        text, audio = model(rows)
    outputs = bench.run()
    torch.testing.assert_close(outputs["logits"][0], text[0, -1], atol=3e-4, rtol=0)
    torch.testing.assert_close(outputs["audio_logits"][0], audio[0, -1], atol=3e-4, rtol=0)


def test_the_list_is_the_engine_s_own(bench: Bench) -> None:
    tensors = {tensor.name: tensor for tensor in bench.session.tensors}
    assert sum(tensor.is_input for tensor in tensors.values()) in (15, 17)
    assert bench.session.load_s > 0


INPUTS = [
    spec.name
    for spec in CONTRACTS[0].inputs(
        KVCache(load_tiny()[0].config, 8, 16).limits(load_tiny()[0].config, 128, 64)
    )
]


@pytest.mark.parametrize("name", [*INPUTS, "logits", "audio_logits"])
def test_a_tensor_that_is_never_set(model: MossLM, tmp_path: Path, name: str) -> None:
    bench = Bench(plan_of(model), tmp_path)

    def run() -> None:
        bench.bind(**{name: None})
        bench.context.enqueue(7)

    with pytest.raises(ExecutorError, match=name):
        run()


@pytest.mark.parametrize("name", [*INPUTS, "logits"])
def test_a_tensor_of_no_elements_has_no_address(model: MossLM, tmp_path: Path, name: str) -> None:
    bench = Bench(plan_of(model), tmp_path)
    empty = torch.empty(0, dtype=torch.int32)
    assert empty.data_ptr() == 0
    with pytest.raises(ExecutorError, match=f"^{name}: address is not set"):
        bench.bind(**{name: replace(bench.binding(name), address=empty.data_ptr())})


@pytest.mark.parametrize("name", ["host_context_progress", "host_kv_cache_pool_mapping"])
def test_a_name_of_another_version(model: MossLM, tmp_path: Path, name: str) -> None:
    new, old = Bench(plan_of(model), tmp_path), Bench(plan_of(model, "0.13"), tmp_path)
    with pytest.raises(ExecutorError, match=f"{name}: .*invalid tensor name"):
        old.bind(**{name: new.binding(name)})


def test_ids_with_a_batch_axis(bench: Bench) -> None:
    with pytest.raises(ExecutorError, match=r"input_ids: .* \[1, 3\] .*engineDims.nbDims == dims.nbDims"):
        bench.bind(input_ids=replace(bench.binding("input_ids"), shape=(1, 3)))


def test_a_size_out_of_the_profile(bench: Bench) -> None:
    with pytest.raises(ExecutorError, match="does not satisfy profile"):
        bench.bind(input_ids=replace(bench.binding("input_ids"), shape=(513,)))


def test_sizes_that_contradict_each_other(bench: Bench) -> None:
    with pytest.raises(ExecutorError, match="infer_shapes: num_tokens"):
        bench.bind(position_ids=replace(bench.binding("position_ids"), shape=(2,)))


def test_what_was_set_on_another_context_does_not_hold(bench: Bench) -> None:
    bench.bind()
    bench.context = bench.session.new_context(0, 7)
    with pytest.raises(ExecutorError, match="shapes are not set"):
        bench.context.enqueue(7)


@pytest.mark.slow
def test_memory_that_is_gone(bench: Bench) -> None:
    temporary = bench.trt.memory.on_device(64)
    dangling = replace(bench.binding("sequence_length"), address=temporary.data_ptr())
    bench.bind(sequence_length=dangling)
    bench.context.enqueue(7)
    del temporary
    gc.collect()
    with pytest.raises(ExecutorError, match="sequence_length: the address points to nothing that lives"):
        bench.context.enqueue(7)


@pytest.mark.parametrize(
    ("name", "kind", "fault"),
    [
        ("input_ids", "host", "is on the host, not on the device"),
        ("host_request_types", "device", "is on the device, not on the host"),
        ("cache_indirection", "device", "has 64 bytes where 512 are needed"),
        ("logits", "host", "is on the host, not on the device"),
    ],
)
def test_memory_of_the_wrong_kind_or_size(bench: Bench, name: str, kind: str, fault: str) -> None:
    memory = bench.trt.memory
    other = memory.on_host(64) if kind == "host" else memory.on_device(64)
    bench.bind(**{name: replace(bench.binding(name), address=other.data_ptr())})
    with pytest.raises(ExecutorError, match=f"{name}: the address {fault}"):
        bench.context.enqueue(7)


def test_an_address_between_the_multiples_of_256(bench: Bench) -> None:
    other = bench.trt.memory.on_device(512)
    bench.bind(last_token_ids=replace(bench.binding("last_token_ids"), address=other.data_ptr() + 4))
    with pytest.raises(ExecutorError, match="last_token_ids: the address is no multiple of 256"):
        bench.context.enqueue(7)


def test_a_context_needs_memory_for_activations(bench: Bench) -> None:
    bench.bind()
    bench.context._context.activations = (0, 0)
    with pytest.raises(ExecutorError, match="no device memory was set"):
        bench.context.enqueue(7)


def test_what_was_logged_belongs_to_the_call_that_failed(bench: Bench) -> None:
    with pytest.raises(ExecutorError, match="does not satisfy"):
        bench.bind(input_ids=replace(bench.binding("input_ids"), shape=(513,)))
    with pytest.raises(ExecutorError) as caught:
        bench.bind(input_ids=replace(bench.binding("input_ids"), address=0))
    assert str(caught.value) == "input_ids: address is not set"


def test_a_profile_or_a_context_that_is_not_to_be_had(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match="rejects profile 3"):
        bench.session.new_context(3, 7)
    monkeypatch.setattr("tests.doubles.tensorrt.llm_engine.Engine.create_execution_context", lambda *_: None)
    with pytest.raises(EngineError, match="smaller max_num_tokens"):
        bench.session.new_context(0, 7)


def test_activations_are_shared_by_all_contexts(bench: Bench) -> None:
    contexts = [bench.session.new_context(0, 7) for _ in range(3)]
    addresses = {context._context.activations for context in [bench.context, *contexts]}
    assert len(addresses) == 1
    assert bench.session.engine.activation_bytes == next(iter(addresses))[1] == 4096


@pytest.mark.parametrize(
    ("content", "said"), [(b"", "cannot be read"), (b"garbage", "magic tag does not match")]
)
def test_files_that_are_no_engine(tmp_path: Path, content: bytes, said: str) -> None:
    trt, file = TensorRT(KnownMemory()), tmp_path / "rank0.engine"
    file.write_bytes(content)
    with pytest.raises(EngineError, match=said):
        EngineSession(file, trt.library, trt.memory)
    with pytest.raises(EngineError, match="cannot be read"):
        EngineSession(tmp_path / "none.engine", trt.library, trt.memory)


def test_a_closed_session_leaves_no_context_behind(bench: Bench) -> None:
    assert isinstance(bench.context, ExecutionContext)
    bench.session.close()
    assert bench.trt.live_contexts == 1  # the one that this test still holds
