"""Mutated settings files: invalid values fall back to their default, and saving repairs the file."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import strategies as st

from app.gui.common.preferences import Preferences
from engine_runtime.setting import settings
from tests.tools.fuzz_worker import Outcome
from tests.tools.fuzzing import fuzz, mutated_bytes

pytestmark = pytest.mark.slow


_KEYS = [field.name for field in dataclasses.fields(Preferences)]
_VALUES = st.one_of(
    st.sampled_from(
        ("", "0", "-1", "40", "500", "9" * 5_000, "1e3", "nan", "٤٠", " 40 ", "40,80", '"', "\\", "\\x0")
    ),
    st.sampled_from(
        ("dark", "zh_CN", "text", "speech", "false", "uniform", "float16", "None", "~", "~nosuch/x", "/")
    ),
    st.sampled_from(
        (
            "@Invalid()",
            "@Variant(\\0\\0\\0\\x9\\x7f\\xff\\xff\\xff)",
            "@Variant(\\0\\0\\0\\x7f)",
            "@Variant(\\0\\0\\0\\n\\xff\\xff\\xff\\xfe)",
            "@Variant(\\0\\0\\x4\\0)",
            "@ByteArray(\\0\\x1)",
            "@Size(1 x)",
            "@Rect(1 2 3 99999999999)",
            "@DateTime(\\0\\0)",
            "@String(x)",
            "@@x",
        )
    ),
    st.text(max_size=12),
)


@st.composite
def _files(draw: st.DrawFn) -> bytes:
    names = draw(st.lists(st.sampled_from([*_KEYS, "%zz", "a\\b", ""]), max_size=5))
    lines = ["[preferences]", *(f"{name}={draw(_VALUES)}" for name in names), "[window]"]
    lines += [f"{name}={draw(_VALUES)}" for name in draw(st.lists(st.sampled_from(("geometry", "splitter"))))]
    content = "\n".join(lines).encode("utf-8", "surrogatepass")
    return draw(mutated_bytes(content, most=3)) if draw(st.booleans()) else content


def _judge(case: bytes, outcome: Outcome) -> None:
    assert outcome.kind == "returned", outcome.detail  # settings are no reason not to start
    loaded = outcome.value["loaded"]
    for name, known in settings(Preferences).items():
        assert loaded[name] == known.default or known.allows(loaded[name]), name
    assert outcome.value["is_saved"]
    assert outcome.value["again"] == loaded


def test_settings_are_used_as_far_as_they_can_be() -> None:
    fuzz("settings", "tests.tools.fuzz_targets:use_settings", _files(), _judge)
