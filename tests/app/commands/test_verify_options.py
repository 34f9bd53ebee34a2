from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from app.commands.shared_options import add_verify_options, prompts_of, reference_options
from engine_runtime.bench.reference import ReferenceOptions
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.card import ModelCard


def _parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_verify_options(parser)
    return parser.parse_args(words)


def test_the_reference_is_plain_and_in_float32_unless_told_otherwise() -> None:
    assert reference_options(_parse()) == ReferenceOptions("plain", "float32", None)
    words = ("--reference", "transformers", "--reference-dtype", "bfloat16", "--reference-device", "cpu")
    assert reference_options(_parse(*words)) == ReferenceOptions("transformers", "bfloat16", "cpu")


def test_what_is_asked(random_bundle: Path, tmp_path: Path) -> None:
    bundle = Bundle.open(random_bundle)
    card = ModelCard(examples=("What can you do?",))
    assert prompts_of(replace(bundle, card=card)).typed == ["What can you do?"]
    prompts = prompts_of(bundle)
    assert prompts.typed[:2] == ["Hello there.", "Who are you?"]
    assert "你是谁？" in prompts.typed, "its languages are not known"
    english = replace(bundle, card=ModelCard(languages=("en",)))
    assert prompts_of(english).typed == prompts.typed[:4]
    assert len(prompts.spoken) == 11
    texts = tmp_path / "texts.txt"
    texts.write_text("one\n\n two \n", encoding="utf-8")
    assert prompts_of(bundle, texts=texts).typed == ["one", "two"]


def test_an_unknown_reference_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parse("--reference", "other")
    assert "plain" in capsys.readouterr().err
