"""Mutated manifests: refused, or a bundle that says what the TOML says and whose engine answers."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.tools.fuzz_worker import Limits, Outcome
from tests.tools.fuzzing import fuzz, mutated_bytes, mutated_tree

pytestmark = pytest.mark.slow


class _Raw(str):
    """A value as written to the file."""


_VALUES = st.one_of(
    st.sampled_from((0, 1, -1, 2, 3, 7, 2**31, 2**63, 10**18, 10**400)),
    st.integers(-10, 2_000),
    st.sampled_from((0.0, -0.5, 1.5, 1e300, math.inf, -math.inf, math.nan)),
    st.booleans(),
    st.sampled_from(
        ("", ".", "..", "/", "../bundle.toml", "/etc/hostname", "lm.safetensors", "x" * 5_000, "a\0b")
    ),
    st.text(max_size=10),
    st.sampled_from(([], {}, [[]], [1, 2], [0], [10**18], ["lm.safetensors"] * 2, [[1, 3], "x"], {"a": {}})),
    st.sampled_from(
        (
            _Raw("1979-05-27"),
            _Raw("1979-99-99"),
            _Raw("0x" + "F" * 5_000),
            _Raw("9" * 5_000),
            _Raw("[" * 50_000),
            _Raw("{a=" * 50_000),
            _Raw('"""\n"""'),
            _Raw("1e400"),
        )
    ),
)


def _toml(tree: dict[str, Any], path: str = "") -> str:
    """The tables of a tree, including values that a table must not contain."""
    lines = [f"[{path}]"] if path else []
    lines += [f"{_key(key)} = {_value(value)}" for key, value in tree.items() if not isinstance(value, dict)]
    for key, value in tree.items():
        if isinstance(value, dict):
            lines.append(_toml(value, f"{path}.{_key(key)}" if path else _key(key)))
    return "\n".join(lines)


def _key(key: str) -> str:
    return json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, _Raw):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value)


@st.composite
def _manifests(draw: st.DrawFn, base: dict[str, Any]) -> tuple[bytes, bool]:
    """A manifest, and whether its engine is to be loaded: rarely, since that takes most of the time."""
    kind = draw(st.integers(0, 9))
    is_deep = draw(st.integers(0, 1 << 16)) % 9 == 5
    if kind == 0:
        return draw(mutated_bytes(_toml(base).encode(), most=2)), is_deep
    return _toml(draw(mutated_tree(base, _VALUES, most=2))).encode("utf-8", "surrogatepass"), is_deep


def _judge(case: tuple[bytes, bool], outcome: Outcome) -> None:
    if outcome.kind == "refused":
        return
    said = tomllib.loads(case[0].decode().replace("\r\n", "\n"))
    assert outcome.value == {
        "name": said["bundle"]["name"],
        "kv_blocks": said["lm"]["kv_blocks"],
        "shared_layers": said["lm"]["config"]["shared_layers"],
        "sample_rate": said["speech_encoder"]["sample_rate"],
        "steps": said["flow"]["steps"],
        "hop": said["vocoder"]["mel"]["hop"],
        "max_new": said["lm"]["sampling"]["text"].get("max_new", 512),
    }


def test_manifests_are_read_right_or_refused(random_bundle: Path) -> None:
    base = tomllib.loads((random_bundle / "bundle.toml").read_text("utf-8"))
    limits = Limits(cpu_s=8.0, clock_s=120.0, memory=1 << 30)
    fuzz("manifest", "tests.tools.fuzz_targets:open_bundle", _manifests(base), _judge, limits=limits)
