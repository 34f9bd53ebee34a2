from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from engine_runtime.bundle.released.layout import CODEC_FILES, find_released, locate
from engine_runtime.errors import FetchError


@pytest.fixture
def released(released_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(released_folder, tmp_path / "released"))


def _find(folder: Path) -> None:
    find_released(folder / "MOSS-Speech", folder / "MOSS-Speech-Codec")


def test_a_complete_checkpoint(released: Path) -> None:
    found = find_released(*locate(released))
    assert len(found.lm_weights) == 3
    assert len(found.files) == 2 + 3 + len(CODEC_FILES)
    assert all(file.is_file() for file in found.files)


def test_the_codec_is_found_in_the_folder_or_beside_it(released: Path) -> None:
    both = (released / "MOSS-Speech", released / "MOSS-Speech-Codec")
    assert locate(released) == both
    assert locate(both[0]) == both
    elsewhere = released.parent / "codec"
    shutil.move(both[1], elsewhere)
    assert locate(both[0], elsewhere) == (both[0], elsewhere)
    with pytest.raises(FetchError, match="--codec-from"):
        locate(both[0])
    with pytest.raises(FetchError, match="There is no folder"):
        locate(released / "nowhere")


def test_a_missing_shard_is_named(released: Path) -> None:
    (released / "MOSS-Speech" / "model-00002-of-00003.safetensors").unlink()
    (released / "MOSS-Speech" / "tokenizer.json").unlink()
    with pytest.raises(FetchError, match=r"tokenizer\.json, model-00002-of-00003\.\w+ of .* are missing"):
        _find(released)


def test_a_missing_index(released: Path) -> None:
    (released / "MOSS-Speech" / "model.safetensors.index.json").unlink()
    with pytest.raises(FetchError, match=r"not complete: model\.safetensors\.index\.json is missing"):
        _find(released)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": {"a": "../other.safetensors"}}'])
def test_an_index_that_is_none(released: Path, content: str) -> None:
    (released / "MOSS-Speech" / "model.safetensors.index.json").write_text(content)
    with pytest.raises(FetchError, match="Download it again"):
        _find(released)


def test_a_missing_file_of_the_codec(released: Path) -> None:
    (released / "MOSS-Speech-Codec" / "flow" / "campplus.onnx").unlink()
    with pytest.raises(FetchError, match=r"flow/campplus\.onnx of fnlp/MOSS-Speech-Codec is missing"):
        _find(released)


def test_a_folder_of_something_else(released: Path) -> None:
    with pytest.raises(FetchError, match=r"contains no config\.json"):
        find_released(released, released / "MOSS-Speech-Codec")
    config = released / "MOSS-Speech" / "config.json"
    config.write_text(json.dumps({"model_type": "qwen3"}))
    with pytest.raises(FetchError, match="type 'qwen3', not 'moss_speech'"):
        _find(released)
