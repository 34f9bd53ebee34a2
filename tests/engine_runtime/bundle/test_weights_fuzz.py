"""Mutated safetensors files: refused, or read as their header says."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from tests.tools.fuzz_worker import Outcome
from tests.tools.fuzzing import fuzz, mutated_bytes, mutated_tree

pytestmark = pytest.mark.slow


SHAPES = {"a.weight": (3, 4), "a.bias": (3,), "b": ()}
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "U8": "u1"}
_WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "U8": 1}
_VALUES = st.one_of(
    st.sampled_from((0, 1, -1, 3, 4, 12, 48, 2**31, 2**32, 2**63, 2**64, 10**400, 1.5, True, None)),
    st.sampled_from(([], [0], [3], [3, 4], [4, 3], [0, 48], [48, 0], [-3], [1e3], ["x"], [2**63, 2], [[3]])),
    st.sampled_from(("", "F32", "F64", "F16", "BF16", "F8_E4M3", "F4", "C64", "I32", "BOOL", "Z")),
    st.sampled_from(({}, {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}, {"format": "pt"})),
)


def _whole() -> tuple[dict[str, Any], bytes]:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    values = b""
    for number, (name, shape) in enumerate(SHAPES.items()):
        tensor = (np.arange(np.prod(shape, dtype=int), dtype="<f4") + number).reshape(shape)
        place = [len(values), len(values) + tensor.nbytes]
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": place}
        values += tensor.tobytes()
    return header, values


@st.composite
def _files(draw: st.DrawFn) -> bytes:
    header, values = _whole()
    if draw(st.integers(0, 2)):
        header = draw(mutated_tree(header, _VALUES, most=2, root=True))
    text = json.dumps(header).encode()
    if draw(st.integers(0, 30)) == 9:
        text = draw(st.sampled_from((b"[" * 100_000, b'{"a":' * 100_000, text[:-1] + b',"b":0}', b"")))
    length = draw(st.sampled_from((len(text),) * 8 + (0, 1, len(text) + 1, 2**31, 2**63, 2**64 - 1)))
    content = struct.pack("<Q", length) + text + values
    return content if draw(st.booleans()) else draw(mutated_bytes(content, most=2))


def _described(content: bytes) -> Mapping[str, Any]:
    length = int.from_bytes(content[:8], "little")
    header: dict[str, Any] = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    return header


def _judge(content: bytes, outcome: Outcome) -> None:
    if outcome.kind == "refused":
        assert (
            content
            != struct.pack("<Q", len(json.dumps(_whole()[0])))
            + json.dumps(_whole()[0]).encode()
            + _whole()[1]
        ), outcome.detail
        return
    header, values = _described(content), content[8 + int.from_bytes(content[:8], "little") :]
    found = outcome.value
    assert found["stored"] == {name: tuple(about["shape"]) for name, about in header.items()}
    assert found["stored"] == SHAPES
    assert found["parameters"] == 16
    for name, about in header.items():
        first, last = about["data_offsets"]
        if about["dtype"] in _TYPES:
            stored = np.frombuffer(values[first:last], _TYPES[about["dtype"]])
            assert np.isfinite(stored).all(), name
            with np.errstate(over="ignore", invalid="ignore"):
                expected = stored.astype("<f4")
            np.testing.assert_array_equal(np.frombuffer(found["loaded"][name], "<f4"), expected)


def test_safetensors_files_are_read_right_or_refused() -> None:
    cases = _files().map(lambda content: (content, SHAPES))
    fuzz(
        "safetensors",
        "tests.tools.fuzz_targets:load_weights",
        cases,
        lambda case, outcome: _judge(case[0], outcome),
    )
