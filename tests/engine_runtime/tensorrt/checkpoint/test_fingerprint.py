from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.tensorrt.checkpoint.format import lm_fingerprint


def test_the_same_model_in_another_folder_is_the_same(random_bundle: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(random_bundle, tmp_path / "copy")
    assert lm_fingerprint(Bundle.open(copy)) == lm_fingerprint(Bundle.open(random_bundle))
    (copy / "lm.safetensors").unlink()
    assert lm_fingerprint(Bundle.open(copy, verify="none")) == lm_fingerprint(Bundle.open(random_bundle))


def test_other_weights_or_sizes_are_another_model(random_bundle: Path, nano_bundle: Path) -> None:
    bundle = Bundle.open(random_bundle)
    entry = replace(bundle.files["lm.safetensors"], sha256="0" * 64)
    retrained = replace(bundle, files=bundle.files | {"lm.safetensors": entry})
    wider = replace(bundle, lm=replace(bundle.lm, config=bundle.lm.config | {"hidden_size": 128}))
    elsewhere = replace(bundle, files=bundle.files | {"flow.safetensors": entry})
    assert lm_fingerprint(elsewhere) == lm_fingerprint(bundle)
    models = (bundle, retrained, wider, Bundle.open(nano_bundle))
    assert len({lm_fingerprint(model) for model in models}) == len(models)
