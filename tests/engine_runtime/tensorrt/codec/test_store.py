"""Cached engines: found again, never mixed up; errors of the cache are harmless."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import pytest

from engine_runtime.codec.graph import Axis, GraphTensor
from engine_runtime.tensorrt.codec.engines import EngineReport, EngineStore, engine_key
from tests.doubles.tensorrt.codec_engine import double_library
from tests.factories.graphs import scaled_sum

PLAN = b"a plan"
REPORT = EngineReport(
    "scaled_sum", "double", "8.9", 0.0, 1.0, 2.0, len(PLAN), hashlib.sha256(PLAN).hexdigest()
)


def test_an_engine_is_found_again(tmp_path: Path) -> None:
    store = EngineStore(tmp_path / "engines")
    assert store.load("key") is None
    store.save("key", PLAN, REPORT)
    assert EngineStore(tmp_path / "engines").load("key") == (PLAN, REPORT)
    assert store.load_compiled("key") is None
    store.save_compiled("key", b"kernels")
    assert store.load_compiled("key") == b"kernels"
    assert sorted(file.name for file in (tmp_path / "engines").iterdir()) == [
        "key.jit",
        "key.json",
        "key.plan",
    ]


@pytest.mark.parametrize(
    ("name", "content"), [("key.plan", b"a pla"), ("key.json", b"{"), ("key.json", b"{}")]
)
def test_a_damaged_engine_is_rebuilt(tmp_path: Path, name: str, content: bytes) -> None:
    store = EngineStore(tmp_path)
    store.save("key", PLAN, REPORT)
    (tmp_path / name).write_bytes(content)
    assert store.load("key") is None


@pytest.mark.parametrize("content", [b"", b"kernels", b"\0" * 40])
def test_damaged_kernels_are_compiled_again(tmp_path: Path, content: bytes) -> None:
    store = EngineStore(tmp_path / "engines")
    store.save_compiled("key", b"kernels")
    assert (tmp_path / "engines").stat().st_mode & 0o077 == 0
    (tmp_path / "engines" / "key.jit").write_bytes(content)
    assert store.load_compiled("key") is None


def test_a_folder_that_cannot_be_written_is_no_reason_to_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    store = EngineStore(tmp_path / "file")
    store.save("key", PLAN, REPORT)
    assert "cannot be cached" in caplog.text
    nothing = EngineStore(None)
    nothing.save("key", PLAN, REPORT)
    nothing.save_compiled("key", PLAN)
    assert (nothing.load("key"), nothing.load_compiled("key")) == (None, None)


def test_the_key_knows_all_that_matters() -> None:
    graph, library = scaled_sum(), double_library()
    key = engine_key(graph, "weights", library, "8.9")
    assert key.startswith("scaled_sum-")
    assert key == engine_key(scaled_sum(factor=3.0), "weights", library, "8.9")  # covered by the weights
    wider = dataclasses.replace(
        graph, inputs=(GraphTensor("x", (1, Axis("frames", 2, 4, 9), 4)), graph.inputs[1])
    )
    others = {
        engine_key(graph, "other", library, "8.9"),
        engine_key(graph, "weights", library, "12.0"),
        engine_key(graph, "weights", double_library(is_rtx=False), "8.9"),
        engine_key(wider, "weights", library, "8.9"),
    }
    assert len(others | {key}) == 5
