"""Mutated tokenizer files: rejected, or a tokenizer that yields valid ids and text."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.tools.fuzz_worker import Limits, Outcome
from tests.tools.fuzzing import fuzz, mutated_bytes, mutated_tree

pytestmark = pytest.mark.slow


_VALUES = st.one_of(
    st.sampled_from((0, 1, -1, 5, 383, 384, 2**31, 2**32, 2**63, 1.5, True, False, None)),
    st.sampled_from(
        ("", "Ġ", "a", "BPE", "WordPiece", "Unigram", "ByteLevel", "(((a+)+)+)+$", "[", "x" * 5_000)
    ),
    st.sampled_from(([], [[]], {}, ["a b"], ["a"], [1], {"type": "ByteLevel"}, {"type": "Lowercase"})),
    st.sampled_from(
        (
            {
                "strategy": {"Fixed": 10**10},
                "direction": "Right",
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "p",
            },
            {"max_length": 1, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
            {"type": "Replace", "pattern": {"Regex": "(x+x+)+y"}, "content": "z"},
            {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False},
            {"type": "Prepend", "prepend": "x" * 100},
        )
    ),
)


@st.composite
def _files(draw: st.DrawFn, base: dict[str, Any]) -> bytes:
    if draw(st.integers(0, 4)) == 3:
        return draw(mutated_bytes(json.dumps(base, ensure_ascii=False).encode(), most=2))
    return json.dumps(draw(mutated_tree(base, _VALUES, most=2, root=True))).encode()


def test_tokenizer_files_are_used_right_or_refused(random_bundle: Path) -> None:
    base = json.loads((random_bundle / "tokenizer.json").read_text("utf-8"))
    lm = tomllib.loads((random_bundle / "bundle.toml").read_text("utf-8"))["lm"]
    vocab = lm["config"]["text_vocab"]

    def judge(case: object, outcome: Outcome) -> None:
        if outcome.kind == "returned":
            for ids, text in outcome.value:
                assert all(0 <= token_id < vocab for token_id in ids)
                assert isinstance(text, str)

    cases = _files(base).map(lambda content: (content, lm["special_ids"], vocab))
    fuzz("tokenizer", "tests.tools.fuzz_targets:use_tokenizer", cases, judge, limits=Limits(cpu_s=3.0))
