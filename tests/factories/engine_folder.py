"""Engine folders for the double of TensorRT, and a process that imports the double as TensorRT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.weights import load_weights
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.models.moss_lm import MossLM, MossLMConfig
from engine_runtime.tensorrt.checkpoint.format import CheckpointConfig, lm_fingerprint
from engine_runtime.tensorrt.llm import loading
from engine_runtime.tensorrt.llm.engine_directory import PLAN, Provenance
from tests.doubles.tensorrt.llm_engine import TensorRT
from tests.doubles.tensorrt.memory import KnownMemory
from tests.doubles.tensorrt.model_api import builder
from tests.factories.engine_plans import plan_of, plan_of_network


class EngineWorld:
    """TensorRT and the library's plugins are there, and the CPU passes for a GPU with enough memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.memory = KnownMemory()
        self.trt = TensorRT(self.memory)
        memory = self.memory

        class KnownCache(KVCache):
            def __init__(self, *words: Any, **named: Any) -> None:
                super().__init__(*words, **named)
                memory.know(self.pool, "device")

        monkeypatch.setattr(loading, "KVCache", KnownCache)
        monkeypatch.setattr(loading, "Memory", lambda device: memory)
        monkeypatch.setattr(loading, "load_plugins", lambda: None)
        monkeypatch.setattr(loading, "tensorrt", lambda: self.trt)
        monkeypatch.setattr(loading, "check_device", lambda device: None)
        monkeypatch.setattr(loading, "bound", lambda device, gigabytes: int((gigabytes or 24) * 1e9))

    def build_network(self, model: Any, config: builder.BuildConfig) -> builder.Engine:
        """The library's `build`. This double runs the engine that it saves."""
        engine = builder.build(model, config)
        save = engine.save

        def save_plan(folder: str) -> None:
            save(folder)
            checkpoint = CheckpointConfig.from_dict(engine.config["pretrained_config"], folder)
            self.trt.write(
                Path(folder, PLAN),
                plan_of_network(
                    engine.network,
                    checkpoint,
                    max_seq_len=config.max_seq_len,
                    max_num_tokens=config.max_num_tokens,
                    max_batch_size=config.max_batch_size,
                    tokens_per_block=config.plugin_config.tokens_per_block,
                ),
            )

        engine.save = save_plan  # type: ignore[method-assign, assignment]
        return engine

    def build(
        self,
        bundle_folder: Path,
        folder: Path,
        contract: str = "1.x",
        *,
        model: MossLM | None = None,
        with_provenance: bool = True,
        tokens_per_block: int = 32,
        max_seq_len: int = 1024,
        max_num_tokens: int = 128,
        max_batch_size: int = 1,
        **of_plan: Any,
    ) -> Path:
        """The engine of a bundle's language model, or of `model` passed off as that."""
        bundle = Bundle.open(bundle_folder, verify="none")
        config = MossLMConfig.from_dict(bundle.lm.config)
        if model is None:
            model = MossLM(config)
            load_weights(model, bundle.lm.weights)
        sizes: dict[str, Any] = {
            "max_seq_len": max_seq_len,
            "max_num_tokens": max_num_tokens,
            "max_batch_size": max_batch_size,
        }
        folder.mkdir(parents=True, exist_ok=True)
        plan = plan_of(model.eval(), contract, tokens_per_block=tokens_per_block, **sizes, **of_plan)
        self.trt.write(folder / PLAN, plan)
        checkpoint = CheckpointConfig.of(config, "float32", max_seq_len)
        written = {
            "version": "1.2.1" if contract == "1.x" else "0.13.0",
            "pretrained_config": checkpoint.to_dict(),
            "build_config": {
                "max_input_len": max_num_tokens,
                **sizes,
                "kv_cache_type": "PAGED",
                "plugin_config": {"tokens_per_block": tokens_per_block, "use_paged_context_fmha": True},
            },
        }
        (folder / "config.json").write_text(json.dumps(written))
        if with_provenance:
            Provenance(
                bundle=bundle.name,
                lm_fingerprint=lm_fingerprint(bundle),
                contract=contract,
                precision="float32",
                build_seconds=60.0,
                plan_bytes=(folder / PLAN).stat().st_size,
                tokens_per_block=tokens_per_block,
                **sizes,
            ).write(folder)
        return folder


def edit_config(folder: Path, table: str, **changes: Any) -> None:
    """Other values in a table of config.json."""
    file = folder / "config.json"
    values = json.loads(file.read_text())
    target = values
    for word in table.split("."):
        target = target[word]
    target.update(changes)
    file.write_text(json.dumps(values))
